"""What clients of a cluster saw, and a checker that finds what no client may ever see.

A history is a list of operations, each with the time of its invocation, the time of its return
and its result. It knows nothing of brokers, so a test of real processes can feed one as well.
Operation a is *before* b if a returned before b was invoked; of other pairs nothing is assumed.

What `find_anomalies` looks for, per partition:

- lost: a record acknowledged with acks=all is not at its offset in a later read;
- divergent: two reads, or the replicas at rest, have different records at one offset;
- duplicated, reordered: an idempotent producer's records are in the log twice, or not in the order
  in which it sent them;
- skipped: a read has no record at an offset between two that it has, or did not begin where it was
  asked to, and retention does not explain it;
- out of range: a consumer is told that its position does not exist;
- falling watermark: the latest offset is below one that a client got before.

With unclean leader election records may be lost and offsets written again: only what a single
read shows is checked then. Times are seconds on one clock, and only compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Partition = tuple[str, int]

ACKS_ALL: Final = -1
ANOMALIES_MAX: Final = 5
"""Anomalies in one report: the first ones show the cause."""


@dataclass(slots=True, kw_only=True)
class Append:
    """A batch of one producer. Without a return its outcome is unknown."""

    client: int
    partition: Partition
    first_number: int  # records of a producer are numbered in the order in which it sends them
    values: Sequence[bytes]
    acks: int
    invoked_at_s: float
    returned_at_s: float | None = None
    base_offset: int | None = None
    is_idempotent: bool = True

    def __str__(self) -> str:
        span = f"{self.first_number}..{self.first_number + len(self.values) - 1}"
        if self.base_offset is None:
            result = "no acknowledgement"
        else:
            result = f"acknowledged at offset {self.base_offset} at {self.returned_at_s:.3f} s"
        return (
            f"producer {self.client} sent {span} with acks={self.acks} "
            f"at {self.invoked_at_s:.3f} s: {result}"
        )


@dataclass(slots=True, kw_only=True)
class Read:
    """A fetch that returned; `records` may be empty."""

    client: int
    partition: Partition
    offset: int
    records: Sequence[tuple[int, bytes]]
    log_start: int
    invoked_at_s: float
    returned_at_s: float
    is_out_of_range: bool = False

    def __str__(self) -> str:
        has = f"{self.records[0][0]}..{self.records[-1][0]}" if self.records else "nothing"
        return (
            f"consumer {self.client} read from {self.offset} at {self.invoked_at_s:.3f} s "
            f"and got {has} at {self.returned_at_s:.3f} s (log start {self.log_start})"
        )


@dataclass(slots=True, kw_only=True)
class Latest:
    """ListOffsets of the latest offset."""

    client: int
    partition: Partition
    offset: int
    invoked_at_s: float
    returned_at_s: float

    def __str__(self) -> str:
        return (
            f"client {self.client} asked for the latest offset at {self.invoked_at_s:.3f} s "
            f"and got {self.offset} at {self.returned_at_s:.3f} s"
        )


Operation = Append | Read | Latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    kind: str
    partition: Partition
    offset: int
    text: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        topic, number = self.partition
        head = f"{topic}-{number} offset {self.offset}: {self.kind}: {self.text}"
        return "\n  ".join((head, *map(str, self.operations)))


@dataclass
class History:
    operations: list[Operation] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def acknowledged(self) -> int:
        """Records that were acknowledged, with any acks."""
        appends = (each for each in self.operations if isinstance(each, Append))
        return sum(len(each.values) for each in appends if each.base_offset is not None)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic: another of its name has another history.

        Appends whose outcome is unknown stay. A Produce request names the topic, not its id (up to
        version 12), so one that the network delays may arrive at the next topic of that name.
        """
        self.operations = [
            each
            for each in self.operations
            if each.partition[0] != topic or (isinstance(each, Append) and each.base_offset is None)
        ]

    def find_anomalies(
        self, *, unclean: bool = False, producers_expired: bool = False
    ) -> list[Anomaly]:
        """Everything that no client may see, the first per kind and offset.

        With `producers_expired` a broker may have forgotten producers while they retried: records
        may then be there twice, or out of order, but never missing.
        """
        by_partition: dict[Partition, list[Operation]] = {}
        for operation in self.operations:
            by_partition.setdefault(operation.partition, []).append(operation)
        anomalies_by_key: dict[tuple[str, Partition, int], Anomaly] = {}
        for operations in by_partition.values():
            checker = _PartitionChecker(operations)
            anomalies = [*checker.check_each_read()]
            if not unclean:
                anomalies += checker.check_positions()
                anomalies += [*checker.check_offsets(), *checker.check_latest()]
                if not producers_expired:
                    anomalies += checker.check_producers()
            for each in anomalies:
                anomalies_by_key.setdefault((each.kind, each.partition, each.offset), each)
        return list(anomalies_by_key.values())


class _PartitionChecker:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self._partition = operations[0].partition
        self._appends = [each for each in operations if isinstance(each, Append)]
        self._reads = sorted(
            (each for each in operations if isinstance(each, Read)),
            key=lambda read: read.returned_at_s,
        )
        self._latest = [each for each in operations if isinstance(each, Latest)]
        self._origins = {
            value: (append, append.first_number + index)
            for append in self._appends
            for index, value in enumerate(append.values)
        }

    def _anomaly(self, kind: str, offset: int, text: str, *operations: Operation) -> Anomaly:
        return Anomaly(
            kind=kind, partition=self._partition, offset=offset, text=text, operations=operations
        )

    def check_each_read(self) -> Iterator[Anomaly]:
        for read in self._reads:
            due = read.offset
            for offset, value in read.records:
                if offset != due and not (due < offset == read.log_start):
                    text = f"{value!r} came where offset {due} was due"
                    yield self._anomaly("skipped", due, text, read)
                due = offset + 1
                if value not in self._origins:
                    text = f"{value!r} was never written"
                    yield self._anomaly("invented", offset, text, read)

    def check_positions(self) -> Iterator[Anomaly]:
        """A consumer's position exists, or retention has passed it."""
        for read in self._reads:
            if read.is_out_of_range and read.log_start <= read.offset:
                text = "the position of a consumer does not exist"
                yield self._anomaly("out of range", read.offset, text, read)

    def check_offsets(self) -> Iterator[Anomaly]:
        """Compare reads with one another, and with what was acknowledged before them."""
        acknowledged: dict[int, tuple[bytes, Append]] = {}
        for append in self._appends:
            if append.acks != ACKS_ALL or append.base_offset is None:
                continue
            for offset, value in enumerate(append.values, start=append.base_offset):
                before = acknowledged.setdefault(offset, (value, append))
                if before[0] != value:
                    text = f"{before[0]!r} and {value!r} were acknowledged at one offset"
                    yield self._anomaly("divergent", offset, text, before[1], append)
        first_reads: dict[int, tuple[bytes, Read]] = {}
        for read in self._reads:
            for offset, value in read.records:
                yield from self._check_value(offset, value, read, acknowledged, first_reads)

    def _check_value(
        self,
        offset: int,
        value: bytes,
        read: Read,
        acknowledged: Mapping[int, tuple[bytes, Append]],
        first_reads: dict[int, tuple[bytes, Read]],
    ) -> Iterator[Anomaly]:
        expected = acknowledged.get(offset)
        if expected is not None and expected[0] != value:
            # An acknowledgement that was under way is no excuse: the record is committed, or the
            # producer gets one that is wrong.
            text = f"{expected[0]!r} was acknowledged, and {value!r} was read"
            yield self._anomaly("lost", offset, text, expected[1], read)
        first = first_reads.setdefault(offset, (value, read))
        if first[0] != value:
            text = f"was read as {first[0]!r} and then as {value!r}"
            yield self._anomaly("divergent", offset, text, first[1], read)

    def check_producers(self) -> Iterator[Anomaly]:
        """The records of each producer are in the log once, and in the order it sent them."""
        values: dict[int, tuple[bytes, Operation]] = {}
        for append in self._appends:
            if append.base_offset is not None and append.acks == ACKS_ALL:
                for offset, value in enumerate(append.values, start=append.base_offset):
                    values[offset] = (value, append)
        for read in self._reads:
            values |= {offset: (value, read) for offset, value in read.records}
        last: dict[int, tuple[int, int, Operation]] = {}  # client: number, offset, seen by
        offsets: dict[bytes, tuple[int, Operation]] = {}
        for offset in sorted(values):
            value, seen_by = values[offset]
            if value not in self._origins:
                continue
            if value in offsets:
                text = f"{value!r} is at offset {offsets[value][0]} as well"
                yield self._anomaly("duplicated", offset, text, offsets[value][1], seen_by)
                continue
            offsets[value] = (offset, seen_by)
            append, number = self._origins[value]
            before = last.get(append.client)
            if before is not None and number < before[0] and append.is_idempotent:
                text = f"record {number} is after record {before[0]} of its producer"
                yield self._anomaly("reordered", offset, text, before[2], seen_by)
            last[append.client] = (number, offset, seen_by)

    def check_latest(self) -> Iterator[Anomaly]:
        known = sorted(self._known_ends(), key=lambda each: each[0])
        position = 0
        highest: tuple[float, int, Operation] | None = None
        for latest in sorted(self._latest, key=lambda each: each.invoked_at_s):
            while position < len(known) and known[position][0] < latest.invoked_at_s:
                if highest is None or known[position][1] > highest[1]:
                    highest = known[position]
                position += 1
            if highest is not None and latest.offset < highest[1]:
                text = f"the latest offset fell from {highest[1]}"
                yield self._anomaly("falling watermark", latest.offset, text, highest[2], latest)

    def _known_ends(self) -> Iterator[tuple[float, int, Operation]]:
        """When a client knew that the high watermark had reached an offset."""
        for append in self._appends:
            is_known = append.returned_at_s is not None and append.base_offset is not None
            if is_known and append.acks == ACKS_ALL:
                end = (append.base_offset or 0) + len(append.values)
                yield append.returned_at_s or 0.0, end, append
        for read in self._reads:
            if read.records:
                yield read.returned_at_s, read.records[-1][0] + 1, read
        for latest in self._latest:
            yield latest.returned_at_s, latest.offset, latest

    def acknowledged_between(self, start: int, end: int) -> Iterator[tuple[int, bytes, Append]]:
        for append in self._appends:
            if append.acks == ACKS_ALL and append.base_offset is not None:
                for offset, value in enumerate(append.values, start=append.base_offset):
                    if start <= offset < end:
                        yield offset, value, append


def find_missing(
    history: History, partition: Partition, *, start: int, present: Mapping[int, bytes]
) -> list[Anomaly]:
    """Acknowledged records from `start` on that a last read of the whole log does not have."""
    operations = [each for each in history.operations if each.partition == partition]
    if not operations:
        return []
    return [
        Anomaly(
            kind="lost",
            partition=partition,
            offset=offset,
            text=f"{value!r} was acknowledged and is not in the log, "
            f"which has {len(present)} records from {start} on",
            operations=(append,),
        )
        for offset, value, append in _PartitionChecker(operations).acknowledged_between(
            start, 1 << 63
        )
        if offset not in present
    ]


def find_divergence(partition: Partition, logs: Mapping[int, Mapping[int, bytes]]) -> list[Anomaly]:
    """Offsets at which replicas at rest differ; `logs` is by broker, then by offset."""
    start = max((min(log, default=0) for log in logs.values()), default=0)
    offsets = sorted({offset for log in logs.values() for offset in log if offset >= start})
    for offset in offsets:
        values = {broker: log.get(offset) for broker, log in sorted(logs.items())}
        if len(set(values.values())) > 1:
            text = ", ".join(f"broker {broker} has {value!r}" for broker, value in values.items())
            return [Anomaly(kind="divergent", partition=partition, offset=offset, text=text)]
    return []


def describe(anomalies: Iterable[Anomaly]) -> str:
    listed = list(anomalies)
    more = len(listed) - ANOMALIES_MAX
    lines = [str(each) for each in listed[:ANOMALIES_MAX]]
    return "\n".join([*lines, f"and {more} more"] if more > 0 else lines)
