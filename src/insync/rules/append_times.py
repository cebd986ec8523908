"""When the leader's end passed each offset, in bounded memory: what `true-lag` asks.

KAFKA-4485 defines lag by where the leader's end *was*, and KIP-16 turned that definition down
because no such record existed. This is the record. It need not be exact to the millisecond and
need not reach back further than the lag limit:

- An append opens a new entry when at least `resolution_ms` passed since the last was opened,
  else it extends that entry; an offset's time is its entry's *last* append. Rounding is in the
  follower's favour and below the resolution.
- Entries older than the limit are dropped but for the newest of them: a follower behind any of
  those is out either way.

So there are never more than about a hundred entries, however fast the log grows.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

from insync.rules.values import Offset

RESOLUTION_PARTS = 100
"""The record tells times apart to one part in this many of the lag limit."""


def resolution_ms(lag_time_max_ms: int) -> int:
    return max(1, lag_time_max_ms // RESOLUTION_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Appends close together, taken as one."""

    end: Offset  # the leader's end after the last of them
    opened_at_ms: int
    last_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTimes:
    """The append history of one leader epoch; ends and times both grow along `entries`.

    Entries keep the times they were recorded at, and `shift_ms` is added on reading: a stall
    moves all of them at once, at no cost.
    """

    epoch_start: Offset
    epoch_started_at_ms: int
    entries: tuple[Entry, ...] = ()
    shift_ms: int = 0

    def append(self, *, end: Offset, at_ms: int, lag_time_max_ms: int) -> AppendTimes:
        entries = self.entries
        last = entries[-1] if entries else None
        at_ms -= self.shift_ms
        assert last is None or (end > last.end and at_ms >= last.last_at_ms), "appends go forward"
        if last is not None and at_ms - last.opened_at_ms < resolution_ms(lag_time_max_ms):
            return replace(self, entries=(*entries[:-1], replace(last, end=end, last_at_ms=at_ms)))
        first_kept = 0
        while (
            first_kept + 1 < len(entries)
            and at_ms - entries[first_kept + 1].last_at_ms > lag_time_max_ms
        ):
            first_kept += 1
        opened = Entry(end=end, opened_at_ms=at_ms, last_at_ms=at_ms)
        return replace(self, entries=(*entries[first_kept:], opened))

    def first_past_ms(self, offset: Offset) -> int | None:
        """When the leader's end first went past `offset`; None if it has not.

        What a follower lacks from before this epoch counts from the epoch's start: no older time
        is known to this leader.
        """
        if offset < self.epoch_start:
            return self.epoch_started_at_ms + self.shift_ms
        index = bisect_right(self.entries, offset, key=attrgetter("end"))
        return self.entries[index].last_at_ms + self.shift_ms if index < len(self.entries) else None

    def later_by(self, shift_ms: int, *, not_after_ms: int) -> AppendTimes:
        """The same history, had it happened later: a stall of the leader is no follower's lag."""
        newest_ms = self.entries[-1].last_at_ms if self.entries else self.epoch_started_at_ms
        most_ms = not_after_ms - (newest_ms + self.shift_ms)
        return replace(self, shift_ms=self.shift_ms + max(0, min(shift_ms, most_ms)))
