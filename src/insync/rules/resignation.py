"""KIP-501, solution 2: a leader too slow to serve its followers hands over.

A leader resigns when serving one follower fetch takes longer than
`follower.fetch.process.time.max.ms`, noticed while the read is still running, or when it stalled
for most of the time (`stalls.py`). A stall of the leader during a read is not the disk's slowness
and is left out, unless the rule includes stalls: KIP-501 names "intermittent CPU issues" beside
memory and disk. Then a fetch that was pending in a stall counts as slow even if its read was done
by the time the leader ran again. Leadership moves to an in-sync replica and the old leader goes
last in the ISR.

The document warns of thrashing when slowness moves from broker to broker. Two limits:

- A broker that resigned has a cool-down, per partition. Until it ends, the broker is elected only
  if no other in-sync replica is live, and if it has to lead it does not resign again.
- A leader stays if every other in-sync replica has a cool-down, or there is none. So one partition
  sees at most one resignation per replica and cool-down, whichever brokers die and return.

Several partitions whose reads are slow together have a slow disk in common. Then all partitions of
that disk are handed over, in one step and spread over the followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from insync.rules.follower import Follower
from insync.rules.partition_state import PartitionState
from insync.rules.values import NO_BROKERS, BrokerId

COOLDOWN_MS_DEFAULT = 60_000
NOTHING_TAKEN_OVER: Mapping[BrokerId, int] = {}


def resigns_at_ms(
    followers: Iterable[Follower], *, process_time_max_ms: int, includes_stalls: bool = False
) -> int | None:
    """The first millisecond at which a read has taken more than the time allowed."""
    oldest = [
        follower.reads.oldest_began_at_ms if includes_stalls else follower.reads.oldest_parsed_at_ms
        for follower in followers
    ]
    began = [at_ms for at_ms in oldest if at_ms is not None]
    return min(began) + process_time_max_ms + 1 if began else None


@dataclass(frozen=True, slots=True)
class Cooldowns:
    """Brokers that resigned the leadership of one partition lately."""

    until_ms: Mapping[BrokerId, int] = field(default_factory=dict)

    def after(self, broker: BrokerId, *, now_ms: int, cooldown_ms: int) -> Cooldowns:
        still = {other: at_ms for other, at_ms in self.until_ms.items() if at_ms > now_ms}
        return Cooldowns({**still, broker: now_ms + cooldown_ms})

    def brokers(self, *, now_ms: int) -> frozenset[BrokerId]:
        return frozenset(broker for broker, at_ms in self.until_ms.items() if at_ms > now_ms)


def resign(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId],
    silent: AbstractSet[BrokerId] = NO_BROKERS,
    taken_over: Mapping[BrokerId, int] = NOTHING_TAKEN_OVER,
) -> PartitionState | None:
    """The state after the leader handed over; None if no other replica can lead.

    Leadership goes to the in-sync replica that has `taken_over` the fewest partitions at this
    time, in assignment order where that is the same; to a `silent` one, whose session may be about
    to end, only if there is no other.
    """
    leader = state.leader
    assert leader is not None, "only a leader resigns"
    candidates = [
        broker
        for broker in state.replicas
        if broker in state.isr and broker in live and broker not in cooling and broker != leader
    ]
    candidates = [broker for broker in candidates if broker not in silent] or candidates
    if leader in cooling or not candidates:
        return None
    new_leader = min(candidates, key=lambda broker: taken_over.get(broker, 0))
    others = tuple(member for member in state.isr if member != leader)
    return state.led_by(new_leader, isr=(*others, leader))
