"""What the storage tests share: small batches, and a plain model of a log."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from insync.rules.epochs import EpochHistory
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.disk import Disk
from insync.storage.log import AppendResult, Log, LogConfig, ReadResult
from insync.storage.producers import Producer, Producers
from insync.wire.batches import build, read_header, stamp, whole_batches

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)


def batch(
    count: int = 1,
    *,
    size: int = 20,
    timestamp_ms: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    producer_id, producer_epoch, base_sequence = producer
    return build(
        [(None, b"v" * size)] * count,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def claiming(
    count: int,
    *,
    size: int = 20,
    timestamp_ms: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A small batch whose header claims `count` records, under a valid CRC."""
    data = bytearray(batch(size=size, timestamp_ms=timestamp_ms, producer=producer))
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


def stamped(data: bytes, *, base: int, epoch: int) -> bytes:
    """Batches as a leader would have written them from `base` on."""
    copy = bytearray(data)
    for header in whole_batches(data):
        stamp(copy, header, base_offset=base, epoch=epoch)
        base += header.record_count
    return bytes(copy)


def append(log: Log, *batches: bytes, epoch: int = 0, now_ms: int = 0) -> AppendResult:
    data = bytearray(b"".join(batches))
    return log.append_leader(data, list(whole_batches(data)), epoch=epoch, now_ms=now_ms)


def open_log(
    disk: Disk, path: str = "/t-0", config: LogConfig = CONFIG, *, clean: bool = False
) -> Log:
    return Log.open(disk, path, config, now_ms=0, clean=clean)


def read(
    log: Log,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    up_to: int | None = None,
    min_one_batch: bool = True,
    nowait: bool = False,
) -> ReadResult:
    result = log.read(
        offset,
        max_bytes,
        up_to=log.end if up_to is None else up_to,
        min_one_batch=min_one_batch,
        nowait=nowait,
    )
    assert isinstance(result, ReadResult)
    return result


def read_all(log: Log) -> bytes:
    parts, offset = [], log.start
    while offset < log.end:
        result = read(log, offset)
        assert result.next_offset > offset
        parts.append(bytes(result.data))
        offset = result.next_offset
    return b"".join(parts)


@dataclass
class Written:
    base: int
    data: bytes
    epoch: int
    timestamp_ms: int

    @property
    def end(self) -> int:
        header = read_header(self.data)
        assert header is not None
        return header.next_offset


@dataclass
class PlainLog:
    """A list of batches. Deleted ones stay in the list below `start`: producers outlive them."""

    start: int = 0
    empty_end: int = 0
    batches: list[Written] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.empty_end

    def append(self, data: bytes, *, epoch: int) -> bytes:
        """Stamp and add; return the bytes a log must hold."""
        whole = stamped(data, base=self.end, epoch=epoch)
        self.take(whole)
        return whole

    def take(self, data: bytes) -> None:
        for header in whole_batches(data):
            written = Written(
                header.base_offset,
                data[header.position : header.end_position],
                header.leader_epoch,
                header.max_timestamp_ms,
            )
            self.batches.append(written)

    def truncate(self, offset: int) -> None:
        if offset >= self.end:
            return
        if offset <= self.start:
            self.restart(offset)
            return
        kept = [one for one in self.batches if one.end <= offset]
        if not kept or kept[-1].end < self.start:
            self.restart(self.start)
        else:
            self.batches = kept

    def restart(self, at: int) -> None:
        self.batches, self.start, self.empty_end = [], at, at

    def live(self) -> list[Written]:
        return [one for one in self.batches if one.end > self.start]

    def epochs(self) -> EpochHistory:
        history = EpochHistory()
        for one in self.batches:
            history = history.assign(LeaderEpoch(one.epoch), Offset(one.base))
        return history.truncate_start(Offset(self.start)).truncate_end(Offset(self.end))

    def producers(self) -> dict[int, Producer]:
        return producers_in(b"".join(one.data for one in self.batches))

    def first_from(self, timestamp_ms: int) -> tuple[int, int] | None:
        for one in self.live():
            if one.timestamp_ms >= timestamp_ms:
                return max(one.base, self.start), one.timestamp_ms
        return None

    def largest(self) -> tuple[int, int] | None:
        best = max((one.timestamp_ms for one in self.live()), default=None)
        if best is None:
            return None
        written = self.first_from(best)
        assert written is not None
        return written[1], written[0]


def producers_in(data: bytes) -> dict[int, Producer]:
    """The oracle: for each producer, its last batches of one epoch."""
    runs: dict[int, list[tuple[int, tuple[int, int, int, int]]]] = {}
    for header in whole_batches(data):
        if header.producer_id >= 0 and header.base_sequence >= 0:
            last = (header.base_sequence + header.record_count - 1) % 2**31
            written = (header.base_sequence, last, header.base_offset, header.max_timestamp_ms)
            runs.setdefault(header.producer_id, []).append((header.producer_epoch, written))
    producers = {}
    for producer_id, run in runs.items():
        epoch = run[-1][0]
        tail: list[tuple[int, int, int, int]] = []
        for batch_epoch, written in reversed(run):
            if batch_epoch != epoch or len(tail) == 5:
                break
            tail.insert(0, written)
        producers[producer_id] = Producer(epoch, tuple(tail), 0)  # type: ignore[arg-type]
    return producers


def known_producers(producers: Producers) -> dict[int, Producer]:
    return {key: entry._replace(seen_at_ms=0) for key in producers if (entry := producers.get(key))}
