"""Elections of preferred leaders, when too many partitions of a broker are led by others.

A broker is the preferred leader of every partition whose first replica it is. After a restart it
leads none of them. So the controller checks periodically: if more than a percentage of a broker's
partitions is led by others, it elects the broker in all of them that allow it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from insync.rules.election import elect_preferred_leader
from insync.rules.partition_state import PartitionState
from insync.rules.values import NO_BROKERS, BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """How often to check, and how many of a broker's partitions, in percent, others may lead."""

    interval_s: int = 300
    percentage_max: int = 10


def preferred_elections(
    states: Mapping[str, PartitionState],
    *,
    live: AbstractSet[BrokerId],
    percentage_max: int,
    cooling: Mapping[str, AbstractSet[BrokerId]] | None = None,
    offline: Mapping[str, AbstractSet[BrokerId]] | None = None,
) -> dict[str, PartitionState]:
    """The states that change. `cooling` and `offline`: by partition, brokers that cannot lead."""
    preferred = Counter(state.replicas[0] for state in states.values())
    led_by_others = Counter(
        state.replicas[0] for state in states.values() if state.leader != state.replicas[0]
    )
    unbalanced = {
        broker
        for broker, count in led_by_others.items()
        if count * 100 > preferred[broker] * percentage_max
    }
    cooldowns, all_offline = cooling or {}, offline or {}
    elected = {
        key: elect_preferred_leader(
            state,
            live=live - all_offline.get(key, NO_BROKERS),
            cooling=cooldowns.get(key, NO_BROKERS),
        )
        for key, state in states.items()
        if state.replicas[0] in unbalanced
    }
    return {key: state for key, state in elected.items() if state != states[key]}
