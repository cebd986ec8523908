"""KIP-501, solution 2: a leader too slow to serve its followers hands over.

A leader resigns when serving one follower fetch takes longer than
`follower.fetch.process.time.max.ms`, noticed while the read is still running, or when it stalled
for most of the time (`stalls.py`). Leadership moves to an in-sync replica and the old leader goes
last in the ISR.

The document's own worry is thrashing when slowness wanders between brokers. Two limits:

- Who resigned is cooling for a while, per broker and partition: it is not asked again while
  anybody else can lead, and if it must lead it does not resign again meanwhile.
- A leader whose every in-sync companion is cooling, or who has none, stays. So one partition sees
  at most one resignation per replica and cool-down, whoever dies and returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from insync.rules.election import successor
from insync.rules.follower import Follower
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId

COOLDOWN_MS_DEFAULT = 60_000


def resigns_at_ms(followers: Iterable[Follower], *, process_time_max_ms: int) -> int | None:
    """The first millisecond at which a read has taken more than the time allowed."""
    began = [
        follower.reads.oldest_parsed_at_ms
        for follower in followers
        if follower.reads.oldest_parsed_at_ms is not None
    ]
    return min(began) + process_time_max_ms + 1 if began else None


@dataclass(frozen=True, slots=True)
class Cooling:
    """Brokers that resigned the leadership of one partition lately."""

    until_ms: Mapping[BrokerId, int] = field(default_factory=dict)

    def after(self, broker: BrokerId, *, now_ms: int, cooldown_ms: int) -> Cooling:
        still = {other: at_ms for other, at_ms in self.until_ms.items() if at_ms > now_ms}
        return Cooling({**still, broker: now_ms + cooldown_ms})

    def brokers(self, *, now_ms: int) -> frozenset[BrokerId]:
        return frozenset(broker for broker, at_ms in self.until_ms.items() if at_ms > now_ms)


def resign(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId],
) -> PartitionState | None:
    """The state after the leader handed over; None if there is nobody to hand over to."""
    leader = state.leader
    assert leader is not None, "only a leader resigns"
    tired = cooling | {leader}
    heir = successor(state, live=live, cooling=tired)
    if leader in cooling or heir is None or heir in tired:
        return None
    others = tuple(member for member in state.isr if member != leader)
    return state.led_by(heir, isr=(*others, leader))
