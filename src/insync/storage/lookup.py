"""Finding records by time, over all segments of a log."""

from __future__ import annotations

from collections.abc import Sequence

from insync.storage.scan import Found, walk
from insync.storage.segment import Segment
from insync.storage.times import first_record_from, largest_time_from


def first_from(
    segments: Sequence[Segment], timestamp_ms: int, *, start: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after `start` that is new enough."""
    for segment in segments:
        if segment.size == 0 or segment.end <= start:
            continue
        segment.summarise()
        if segment.max_timestamp_ms >= timestamp_ms:
            found = _first_in(segment, timestamp_ms, start)
            if found is not None:
                return found
    return None


def largest(segments: Sequence[Segment], *, start: int) -> tuple[int, int] | None:
    """The largest timestamp and the offset of the first record at or after `start` that has it."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        if segment.size == 0 or segment.end <= start:
            continue
        segment.summarise()
        largest_ms = segment.max_timestamp_ms
        if segment.max_timestamp_offset < start:
            largest_ms = _largest_after(segment, start)
        if best is None or largest_ms > best[0]:
            best = largest_ms, segment
    if best is None:
        return None
    largest_ms, segment = best
    found = _first_in(segment, largest_ms, start)
    return (largest_ms, max(start, segment.base)) if found is None else (found[1], found[0])


def _first_in(segment: Segment, timestamp_ms: int, start: int) -> tuple[int, int] | None:
    before = segment.base + segment.index.before_time(timestamp_ms)
    position, _ = segment.locate_now(max(before, start))
    for found in walk(segment.file, position, segment.size):
        if found.header.max_timestamp_ms >= timestamp_ms:
            batch = segment.file.read(found.position, found.header.size)
            record = first_record_from(batch, found.header, timestamp_ms, start=start)
            if record is not None:
                return record
    return None


def _largest_after(segment: Segment, start: int) -> int:
    position, _ = segment.locate_now(start)
    batches = walk(segment.file, position, segment.size)
    return max(_largest_in(segment, found, start) for found in batches)


def _largest_in(segment: Segment, found: Found, start: int) -> int:
    if found.header.base_offset >= start:
        return found.header.max_timestamp_ms
    batch = segment.file.read(found.position, found.header.size)
    return largest_time_from(batch, found.header, start=start)
