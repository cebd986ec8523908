"""What an idempotent producer wrote last, so that a repeated batch is known and a lost one missed.

Each producer numbers its records per partition. The next batch must continue the last, a newer
producer epoch begins again at 0, and one of the last five batches again is a repetition: clients
keep at most five in flight. A producer this log knows nothing of may begin anywhere, because what
it wrote may have been deleted long ago (Kafka since 2.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from insync.storage.errors import CorruptFile, OutOfOrderSequence, ProducerFenced
from insync.wire.batches import BatchHeader

BATCHES_KEPT: Final = 5  # clients refuse to have more in flight (max.in.flight.requests)
SEQUENCE_MAX: Final = 2**31 - 1

PRODUCERS_MAX: Final = 10_000
"""About 1 KB each: 10 MB for one partition. Beyond it the one silent for longest is forgotten,
as if it had expired; it then writes on like one that is new here."""

_FORMAT: Final = 1
_HEAD = Struct(">hI")
_ENTRY = Struct(">qhqB")
_BATCH = Struct(">iiqq")


class SequencedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


class Producer(NamedTuple):
    epoch: int
    batches: tuple[SequencedBatch, ...]  # oldest first, never empty
    seen_at_ms: int


class Fresh(NamedTuple):
    """A batch to append."""


class Duplicate(NamedTuple):
    """A batch this log has already, at `base_offset`."""

    base_offset: int
    timestamp_ms: int


FRESH: Final = Fresh()


class Producers:
    """All producers of one partition, the one silent for longest first."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def get(self, producer_id: int) -> Producer | None:
        return self._entries.get(producer_id)

    def values(self) -> Iterable[Producer]:
        return self._entries.values()

    def check(self, header: BatchHeader) -> Fresh | Duplicate:
        """Judge a batch from its producer, before it is appended."""
        if header.producer_id < 0:
            return FRESH
        known = self._entries.get(header.producer_id)
        if known is None:
            return FRESH
        if header.producer_epoch < known.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} has epoch {known.epoch} here, "
                f"its batch {header.producer_epoch}; start the producer again"
            )
        if header.producer_epoch == known.epoch:
            last_sequence = last_sequence_of(header)
            for batch in known.batches:
                if batch[:2] == (header.base_sequence, last_sequence):
                    return Duplicate(batch.base_offset, batch.timestamp_ms)
            expected = after(known.batches[-1].last_sequence, 1)
        else:
            expected = 0
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence} "
                f"where {expected} is next; batches before it were lost"
            )
        return FRESH

    def update(self, header: BatchHeader, *, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was appended."""
        self.apply(self.plan((header,), base_offset=base_offset, now_ms=now_ms))

    def plan(
        self, headers: Iterable[BatchHeader], *, base_offset: int, now_ms: int
    ) -> dict[int, Producer]:
        """The entries to `apply` once these batches, the first at `base_offset`, are written."""
        entries: dict[int, Producer] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id >= 0 and header.base_sequence >= 0:
                batch = SequencedBatch(
                    header.base_sequence,
                    last_sequence_of(header),
                    base_offset,
                    header.max_timestamp_ms,
                )
                # Removed and added again, so that the order is that of the last batch.
                known = entries.pop(producer_id, None) or self._entries.get(producer_id)
                batches: tuple[SequencedBatch, ...] = (batch,)
                if known is not None and known.epoch == header.producer_epoch:
                    batches = (*known.batches[1 - BATCHES_KEPT :], batch)
                entries[producer_id] = Producer(header.producer_epoch, batches, now_ms)
            base_offset += header.last_offset_delta + 1
        return entries

    def apply(self, planned: dict[int, Producer]) -> None:
        """Remember the batches of `plan`, which were appended."""
        for producer_id, entry in planned.items():
            self._entries.pop(producer_id, None)
            self._entries[producer_id] = entry
        while len(self._entries) > PRODUCERS_MAX:
            del self._entries[next(iter(self._entries))]

    def expire(self, *, now_ms: int, expiration_ms: int) -> None:
        """Forget producers silent for too long."""
        old = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.seen_at_ms >= expiration_ms
        ]
        for producer_id in old:
            del self._entries[producer_id]

    def to_bytes(self) -> bytes:
        parts = [_HEAD.pack(_FORMAT, len(self._entries))]
        for producer_id, entry in self._entries.items():
            parts.append(
                _ENTRY.pack(producer_id, entry.epoch, entry.seen_at_ms, len(entry.batches))
            )
            parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
        data = b"".join(parts)
        return data + crc32c(data).to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> Producers:
        """Read a snapshot, or raise `CorruptFile`."""
        body = memoryview(data)[:-4]
        if crc32c(body) != int.from_bytes(data[-4:], "big"):
            raise CorruptFile("a producer snapshot whose checksum does not match")
        producers = cls()
        try:
            version, count = _HEAD.unpack_from(body)
            if version != _FORMAT:
                raise CorruptFile(f"a producer snapshot of version {version}")
            position = _HEAD.size
            for _ in range(count):
                producer_id, epoch, seen_at_ms, kept = _ENTRY.unpack_from(body, position)
                position += _ENTRY.size
                stop = position + kept * _BATCH.size
                batches = map(SequencedBatch._make, _BATCH.iter_unpack(body[position:stop]))
                producers._entries[producer_id] = Producer(epoch, tuple(batches), seen_at_ms)
                position = stop
        except struct.error as error:
            raise CorruptFile("a producer snapshot that is incomplete") from error
        return producers


def last_sequence_of(header: BatchHeader) -> int:
    return after(header.base_sequence, header.last_offset_delta)


def after(sequence: int, count: int) -> int:
    """The sequence `count` further on; after the largest comes 0."""
    return (sequence + count) & SEQUENCE_MAX
