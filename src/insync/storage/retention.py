"""Which segments have to go, by age and by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from insync.storage.config import LogConfig
from insync.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    base: int
    end: int
    size_bytes: int


def expired(segments: Sequence[Segment], config: LogConfig, *, now_ms: int, up_to: int) -> int:
    """How many of the oldest segments to remove; all of them only if all are too old."""
    excess_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    for count, segment in enumerate(segments):
        if segment.end > up_to:
            return count
        excess_bytes -= segment.size
        is_last = segment is segments[-1]
        is_too_much = config.retention_bytes >= 0 and excess_bytes >= 0 and not is_last
        if not is_too_much and not _is_too_old(segment, config, now_ms):
            return count
    return len(segments)


def _is_too_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    if config.retention_ms < 0 or segment.size == 0:
        return False
    summary = segment.summarise()
    newest_ms = summary.max_timestamp_ms
    if newest_ms < 0:
        # Records without timestamps age from when they came. After a recovery that is not known.
        newest_ms = summary.created_ms
        if newest_ms < 0:
            segment.set_created(now_ms)
            newest_ms = now_ms
    return now_ms - newest_ms > config.retention_ms
