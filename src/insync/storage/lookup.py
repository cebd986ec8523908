"""Finding records by time, over all segments of a log."""

from __future__ import annotations

from collections.abc import Sequence

from insync.storage.scan import ScannedBatch, walk
from insync.storage.segment import Segment
from insync.storage.times import first_record_from, largest_time_from


def first_from(
    segments: Sequence[Segment], timestamp_ms: int, *, start: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after `start` that is new enough."""
    for segment in segments:
        if segment.size == 0 or segment.end <= start:
            continue
        if segment.summarise().max_timestamp_ms >= timestamp_ms:
            record = _first_in(segment, timestamp_ms, start)
            if record is not None:
                return record
    return None


def largest(segments: Sequence[Segment], *, start: int) -> tuple[int, int] | None:
    """The largest timestamp and the offset of the first record at or after `start` that has it."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        if segment.size == 0 or segment.end <= start:
            continue
        summary = segment.summarise()
        largest_ms = summary.max_timestamp_ms
        if summary.max_timestamp_offset < start:
            largest_ms = _largest_after(segment, start)
        if best is None or largest_ms > best[0]:
            best = largest_ms, segment
    if best is None:
        return None
    largest_ms, segment = best
    record = _first_in(segment, largest_ms, start)
    return (largest_ms, max(start, segment.base)) if record is None else (record[1], record[0])


def _first_in(segment: Segment, timestamp_ms: int, start: int) -> tuple[int, int] | None:
    before = segment.base + segment.index.before_time(timestamp_ms)
    position, _ = segment.locate_now(max(before, start))
    for batch in walk(segment.file, position, segment.size):
        if batch.header.max_timestamp_ms >= timestamp_ms:
            data = segment.file.read(batch.position, batch.header.size)
            record = first_record_from(data, batch.header, timestamp_ms, start=start)
            if record is not None:
                return record
    return None


def _largest_after(segment: Segment, start: int) -> int:
    position, _ = segment.locate_now(start)
    batches = walk(segment.file, position, segment.size)
    return max(_largest_in(segment, batch, start) for batch in batches)


def _largest_in(segment: Segment, batch: ScannedBatch, start: int) -> int:
    if batch.header.base_offset >= start:
        return batch.header.max_timestamp_ms
    data = segment.file.read(batch.position, batch.header.size)
    return largest_time_from(data, batch.header, start=start)
