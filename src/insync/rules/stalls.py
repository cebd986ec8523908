"""The leader's own stalls: a stopped process, a long collection, a suspended machine.

While a leader does not run, its followers' fetches wait unread in its sockets, and on waking
every one of them looks stale. Apache Kafka evicts them all within milliseconds. Here the leader
notices its own stall:

- A gap between two ticks of its loop of at least max(100 ms, T/20) is a stall.
- A stall moves its followers' times forward by its length, at most T in total since that
  follower's last fetch (`Follower.on_leader_stall`).
- A follower that was in sync when the stall began is not evicted sooner than one fetch wait after
  the sockets were drained: time enough to fetch again. A follower that died meanwhile is in sync
  for at most 2 T after its last fetch, so no stall that begins later gives it this grace, and it
  leaves within 2 T + wait, stalls not counted.
- A leader that stalled for more than half of the last 2 T should not lead (`resignation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_MS_MIN = 100
"""Shorter gaps are ordinary scheduling."""

STALL_PARTS = 20
"""A stall below one part in this many of the lag limit cannot matter to it."""


def is_stall(gap_ms: int, *, lag_time_max_ms: int) -> bool:
    return gap_ms >= STALL_MS_MIN and gap_ms * STALL_PARTS >= lag_time_max_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    began_at_ms: int
    ended_at_ms: int

    @property
    def length_ms(self) -> int:
        return self.ended_at_ms - self.began_at_ms

    def overlap_ms(self, *, from_ms: int, to_ms: int) -> int:
        return max(0, min(self.ended_at_ms, to_ms) - max(self.began_at_ms, from_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRecord:
    """The stalls of the last 2 T, oldest first."""

    lag_time_max_ms: int
    stalls: tuple[Stall, ...] = ()

    def after(self, stall: Stall) -> StallRecord:
        horizon_ms = stall.ended_at_ms - 2 * self.lag_time_max_ms
        kept = tuple(earlier for earlier in self.stalls if earlier.ended_at_ms > horizon_ms)
        assert not kept or kept[-1].ended_at_ms <= stall.began_at_ms, "stalls do not overlap"
        return StallRecord(lag_time_max_ms=self.lag_time_max_ms, stalls=(*kept, stall))

    def exceeds_half(self, *, now_ms: int) -> bool:
        """More than half of the last 2 T, that is more than T, was spent not running."""
        from_ms = now_ms - 2 * self.lag_time_max_ms
        stalled_ms = sum(stall.overlap_ms(from_ms=from_ms, to_ms=now_ms) for stall in self.stalls)
        return stalled_ms > self.lag_time_max_ms
