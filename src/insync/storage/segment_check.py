"""Comparing the segments of a log with its inventory when it is opened.

The log ends before the first batch that is not what it should be. What lies behind is set aside. If
it may have been acknowledged, the log is damaged: everything in a segment that was complete, and
everything that the inventory noted as flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from insync.storage.errors import DiskError
from insync.storage.inventory import UNKNOWN, Damage, Inventory, InventoryFile, NotedSegment
from insync.storage.segment import DAMAGED, Segment
from insync.wire.batches import BatchHeader

logger = logging.getLogger(__name__)


class DamageNote:
    """Notes damage durably before anything is removed because of it.

    The start may not get to its end, and the next one would only find a shorter log.
    """

    def __init__(self, file: InventoryFile, empty: Inventory) -> None:
        self._file = file
        self._empty = empty  # if there is no inventory

    def write(self, reason: str, *, up_to: int) -> None:
        noted = self._file.noted or self._empty
        damage = Damage(reason=reason, up_to=max(up_to, noted.end)).joined_with(noted.damage)
        self._file.write_durably(replace(noted, damage=damage))


class SegmentCheck:
    """Compares segments with the inventory, and ends the log before the first that differs."""

    def __init__(
        self,
        segments: list[Segment],
        noted: Inventory | None,
        damage_note: DamageNote,
        *,
        clean: bool,
        recovery_point: int,
    ) -> None:
        self._segments = segments
        self._noted = noted
        self._damage_note = damage_note
        self._complete = {} if noted is None else {each.base: each for each in noted.segments[:-1]}
        self._clean = clean
        self._recovery_point = recovery_point
        self._problem: str | None = None
        self._end = segments[-1].base
        self.heads: dict[int, BatchHeader] = {}  # the first batch of each segment, by its base

    def check_complete_segments(self) -> None:
        """Check all segments but the last."""
        for number, (segment, following) in enumerate(pairwise(self._segments)):
            head = self._read_head(segment)
            if isinstance(head, str):
                self._problem = head
                self._end_before(number, following.base)
                return
            self.heads[segment.base] = head
            if not self._is_complete(segment, following.base):
                self._problem = _incomplete(segment, following.base)
                self._end_before(number + 1, following.base)
                return
            segment.unload()

    def check_last_head(self) -> bool:
        """Whether the last segment begins as it should; set it aside if it begins otherwise."""
        last = self._segments[-1]
        if last.size == 0:
            return True
        head = self._read_head(last)
        if isinstance(head, BatchHeader):
            self.heads[last.base] = head
            return True
        if not self._is_noted(last.base):
            return False
        self._problem = head
        self._end_before(len(self._segments) - 1, last.base)
        return True

    def _read_head(self, segment: Segment) -> BatchHeader | str:
        """The first batch, or why the segment is not the one that was noted."""
        head = segment.read_head()
        if head is None:
            return f"{_name(segment)} does not begin with a batch of its base offset"
        noted = self._find_noted(segment.base)
        is_known = noted is not None and noted.end > noted.base
        if noted is not None and is_known and noted.first_crc not in (UNKNOWN, head.crc):
            return f"{_name(segment)} begins with another batch than it did"
        return head

    def _is_complete(self, segment: Segment, next_base: int) -> bool:
        noted = self._complete.get(segment.base)
        is_as_noted = noted is not None and (noted.size, noted.end) == (segment.size, next_base)
        if is_as_noted or (noted is None and segment.read_seal() and segment.end == next_base):
            if self._clean or next_base <= self._recovery_point:
                return True
            check_from = self._recovery_point
        else:
            check_from = segment.base
        segment.recover(
            _accept_every,
            check_from=check_from,
            expected_end=next_base,
            before_cut=lambda: self._damage_note.write(
                _incomplete(segment, next_base), up_to=self._segments[-1].base
            ),
        )
        if segment.end != next_base:
            return False
        with suppress(DiskError):  # then the next start reads the segment again
            segment.seal(producers=UNKNOWN)
        return True

    def _end_before(self, number: int, end: int) -> None:
        """Set aside the segments from `number` on. An empty one takes the place of the first."""
        segments = self._segments
        self._end = max(end, segments[-1].base)
        assert self._problem is not None, "why segments are set aside"
        self._damage_note.write(self._problem, up_to=self._end)
        for later in reversed(segments[number:]):
            later.set_aside()
        if number == 0:
            segments[0].create_again()
            number = 1
        del segments[number:]

    def note_damage_of_last(self) -> None:
        """Before the end of the last segment is cut off: what was noted of it is damage if lost."""
        end = self._segments[-1].end
        if self._noted is not None and end < self._noted.end:
            self._damage_note.write(_shortened(end, self._noted), up_to=self._noted.end)

    def find_damage(self, path: str) -> Damage | None:
        """What is missing of all that was noted, and of what was set aside."""
        noted, first, end = self._noted, self._segments[0].base, self._segments[-1].end
        problem, up_to, keep_to = self._problem, self._end, None
        if noted is not None and end < noted.end:
            up_to = max(up_to, noted.end)
            problem = problem or _shortened(end, noted)
        if noted is not None and first > noted.start:
            up_to, keep_to = max(up_to, end), noted.start
            problem = problem or f"it begins at offset {first}; {noted.start} was noted"
        if problem is None:
            return None if noted is None else noted.damage
        logger.error(
            "%s: damaged: %s; kept offsets %d to %d. As a follower it fetches the rest from its "
            "leader; what was removed is kept as *%s* until the partition is deleted",
            path,
            problem,
            first,
            end,
            DAMAGED,
        )
        damage = Damage(reason=problem, up_to=up_to, keep_to=keep_to)
        return damage.joined_with(None if noted is None else noted.damage)

    def _is_noted(self, base: int) -> bool:
        noted = self._find_noted(base)
        return noted is not None and noted.end > base

    def _find_noted(self, base: int) -> NotedSegment | None:
        noted = self._complete.get(base)
        if noted is None and self._noted is not None and self._noted.segments:
            last = self._noted.segments[-1]
            noted = last if last.base == base else None
        return noted


def _name(segment: Segment) -> str:
    return f"segment {segment.base}"


def _incomplete(segment: Segment, next_base: int) -> str:
    return f"{_name(segment)} ends at offset {segment.end}, not {next_base}"


def _shortened(end: int, noted: Inventory) -> str:
    return f"it ends at offset {end}; {noted.end} was noted"


def _accept_every() -> Callable[[BatchHeader], bool]:
    return lambda _: True
