"""Comparing the segments of a log with its inventory when it is opened.

The log ends before the first batch that is not what it should be. What lies behind is set aside. If
it may have been acknowledged, the log is damaged: everything in a segment that was complete, and
everything that the inventory lists as flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from insync.storage.damaged_files import DAMAGED
from insync.storage.errors import DiskError
from insync.storage.inventory import UNKNOWN, Damage, Inventory, ListedSegment
from insync.storage.inventory_file import InventoryFile
from insync.storage.segment import Segment
from insync.wire.batches import BatchHeader

logger = logging.getLogger(__name__)


class DamageWriter:
    """Writes damage durably before anything is removed because of it.

    The start may not get to its end, and the next one would only find a shorter log.
    """

    def __init__(self, file: InventoryFile, empty: Inventory) -> None:
        self._file = file
        self._empty = empty  # if there is no inventory

    def write(self, reason: str, *, up_to: int) -> None:
        inventory = self._file.written or self._empty
        damage = Damage(reason=reason, up_to=max(up_to, inventory.end))
        damage = damage.joined_with(inventory.damage)
        self._file.write_durably(replace(inventory, damage=damage))


class SegmentCheck:
    """Compares segments with the inventory, and ends the log before the first that differs."""

    def __init__(
        self,
        segments: list[Segment],
        inventory: Inventory | None,
        damage_writer: DamageWriter,
        *,
        clean: bool,
        recovery_point: int,
    ) -> None:
        self._segments = segments
        self._inventory = inventory
        self._damage_writer = damage_writer
        self._complete = _by_base(inventory)
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
        if not self._is_listed(last.base):
            return False
        self._problem = head
        self._end_before(len(self._segments) - 1, last.base)
        return True

    def _read_head(self, segment: Segment) -> BatchHeader | str:
        """The first batch, or why the segment is not the one that is listed."""
        head = segment.read_head()
        if head is None:
            return f"{_name(segment)} does not begin with a batch of its base offset"
        listed = self._find_listed(segment.base)
        is_known = listed is not None and listed.end > listed.base
        if listed is not None and is_known and listed.first_crc not in (UNKNOWN, head.crc):
            return f"{_name(segment)} begins with another batch than it did"
        return head

    def _is_complete(self, segment: Segment, next_base: int) -> bool:
        listed = self._complete.get(segment.base)
        is_as_listed = listed is not None and (listed.size, listed.end) == (segment.size, next_base)
        if is_as_listed or (listed is None and segment.read_seal() and segment.end == next_base):
            if self._clean or next_base <= self._recovery_point:
                return True
            check_from = self._recovery_point
        else:
            check_from = segment.base
        segment.recover(
            _accept_every,
            check_from=check_from,
            expected_end=next_base,
            before_truncation=lambda: self._damage_writer.write(
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
        self._damage_writer.write(self._problem, up_to=self._end)
        for later in reversed(segments[number:]):
            later.set_aside()
        if number == 0:
            segments[0].create_again()
            number = 1
        del segments[number:]

    def write_damage_of_last(self) -> None:
        """Before the end of the last segment is removed: what is listed of it is damage if lost."""
        end = self._segments[-1].end
        if self._inventory is not None and end < self._inventory.end:
            self._damage_writer.write(_shortened(end, self._inventory), up_to=self._inventory.end)

    def find_damage(self, path: str) -> Damage | None:
        """What is missing of all that is listed, and of what was set aside."""
        inventory, first, end = self._inventory, self._segments[0].base, self._segments[-1].end
        problem, up_to, keep_to = self._problem, self._end, None
        if inventory is not None and end < inventory.end:
            up_to = max(up_to, inventory.end)
            problem = problem or _shortened(end, inventory)
        if inventory is not None and first > inventory.start:
            up_to, keep_to = max(up_to, end), inventory.start
            problem = problem or f"it begins at offset {first}, its inventory at {inventory.start}"
        if problem is None:
            return None if inventory is None else inventory.damage
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
        return damage.joined_with(None if inventory is None else inventory.damage)

    def _is_listed(self, base: int) -> bool:
        listed = self._find_listed(base)
        return listed is not None and listed.end > base

    def _find_listed(self, base: int) -> ListedSegment | None:
        listed = self._complete.get(base)
        if listed is None and self._inventory is not None and self._inventory.segments:
            last = self._inventory.segments[-1]
            listed = last if last.base == base else None
        return listed


def _name(segment: Segment) -> str:
    return f"segment {segment.base}"


def _incomplete(segment: Segment, next_base: int) -> str:
    return f"{_name(segment)} ends at offset {segment.end}, not {next_base}"


def _shortened(end: int, inventory: Inventory) -> str:
    return f"it ends at offset {end}, its inventory at {inventory.end}"


def _by_base(inventory: Inventory | None) -> dict[int, ListedSegment]:
    """The segments that are listed as complete."""
    return {} if inventory is None else {each.base: each for each in inventory.segments[:-1]}


def _accept_every() -> Callable[[BatchHeader], bool]:
    return lambda _: True
