"""What a truncation leaves of a log: computed by reading, which may block, before anything changes.

Preparing it may run in another thread than the loop's. Applying it reads nothing, and is refused
if the log is no longer what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from insync.storage.disk import Disk
from insync.storage.producer_snapshots import learn_producers, producers_at
from insync.storage.producers import Producers
from insync.storage.segment import Segment, SegmentTruncation


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTruncation:
    """From `offset` on everything goes: whole segments, and the end of the last one kept."""

    offset: int
    kept: Sequence[Segment]  # none: the log is emptied, and begins at `offset`
    last: SegmentTruncation | None = None  # None: the last one kept stays whole
    producers: Producers | None = None  # None: nothing of them goes
    of: tuple[int, int, int]  # changes before it, the start and the end: what the log was


def prepare(
    segments: Sequence[Segment], offset: int, *, start: int, of: tuple[int, int, int]
) -> tuple[PreparedTruncation, int]:
    """The truncation without its producers, and the end that it leaves."""
    if offset <= start:
        return PreparedTruncation(offset=offset, kept=(), of=of), offset
    kept = [segment for segment in segments if segment.base < offset]
    if kept[-1] is not segments[-1]:
        _ = kept[-1].index  # it is written to again, and must not be read for it then
        kept[-1].keep_loaded()
    if kept[-1].end <= offset:
        return PreparedTruncation(offset=offset, kept=kept, of=of), kept[-1].end
    last = kept[-1].prepare_truncation(offset)
    if last.end < start:  # the start lies inside the batch that has to go
        return PreparedTruncation(offset=start, kept=(), of=of), start
    return PreparedTruncation(offset=offset, kept=kept, last=last, of=of), last.end


def producers_after(
    disk: Disk, path: str, truncation: PreparedTruncation, *, seen_at_ms: int
) -> Producers:
    """Learned again from what is left: a batch that goes may have hidden older ones."""
    kept = list(truncation.kept)
    producers = producers_at(disk, path, kept, len(kept) - 1, now_ms=seen_at_ms)
    position = None if truncation.last is None else truncation.last.position
    learn_producers(producers, kept[-1], now_ms=seen_at_ms, until=position)
    return producers
