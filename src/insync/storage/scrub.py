"""Reading a log again, part by part, to find batches that the disk has changed since.

A check of a part blocks, so it runs in another thread. A log that was truncated
meanwhile, or a segment that is gone, has nothing to report: the next pass reads what is there then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from insync.rules.epochs import EpochHistory
from insync.rules.values import Offset
from insync.storage.scan import walk
from insync.storage.segment import Segment
from insync.wire.batches import MAGIC, CorruptBatch, check

PART_BYTES: Final = 1 << 20
"""Read at a time, and a whole batch if it is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPosition:
    """Where in a log the next part begins."""

    base: int  # of the segment
    position: int  # in its file
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBatch:
    base: int  # of the segment
    offset: int  # the first that cannot be read
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    read_bytes: int
    following: ScrubPosition | None  # None: the segment is checked
    bad: BadBatch | None = None


def check_part(
    segment: Segment,
    start: ScrubPosition,
    *,
    log_start: int,
    end: int,
    size: int | None,
    epochs: EpochHistory,
) -> Part:
    """Check the batches from `start` up to the offset `end`, and their epochs, which have no CRC.

    `size` is None for a segment that is appended to: its file may be longer than up to `end`.
    """
    position, offset = start.position, start.offset
    file = segment.open_apart()
    part_end = position + PART_BYTES
    for _, header, buffer in walk(
        file, position, file.size if size is None else size, whole_from=0
    ):
        if offset == end and size is None:
            break
        problem = None
        next_offset = offset + header.last_offset_delta + 1
        if header.base_offset != offset or header.magic != MAGIC or header.last_offset_delta < 0:
            problem = f"a batch of offset {header.base_offset} lies at offset {offset}"
        elif next_offset > log_start and epochs.epoch_at(Offset(max(offset, log_start))) not in (
            None,
            header.leader_epoch,
        ):
            problem = f"the batch at offset {offset} has leader epoch {header.leader_epoch}"
        else:
            try:
                check(buffer, header)
            except CorruptBatch as error:
                problem = str(error)
        if problem is not None:
            return _bad(segment, start, position, offset, problem)
        position, offset = position + header.size, next_offset
        if position >= part_end and offset < end:
            following = ScrubPosition(base=start.base, position=position, offset=offset)
            return Part(read_bytes=position - start.position, following=following)
    if offset != end or (size is not None and position != size):
        problem = f"no batch can be read at offset {offset}, of {end} in this segment"
        return _bad(segment, start, position, offset, problem)
    return Part(read_bytes=position - start.position, following=None)


def _bad(segment: Segment, start: ScrubPosition, position: int, offset: int, problem: str) -> Part:
    reason = f"segment {segment.base}: {problem}"
    bad = BadBatch(base=segment.base, offset=offset, reason=reason)
    return Part(read_bytes=position - start.position, following=None, bad=bad)
