"""Leadership goes back to preferred replicas when too much of a broker's share is led by others.

A broker's share is every partition whose first replica it is. After it died and returned it leads
none of them, and the others do its work; so from time to time the controller looks, and where more
than a percentage of a share is led by others it gives back all of it that may go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from insync.rules.election import NOBODY, prefer
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """How often to look, and which part of a broker's share may be led by others."""

    interval_s: int = 300
    percentage_max: int = 10


def leaderships_to_return(
    states: Mapping[str, PartitionState],
    *,
    live: AbstractSet[BrokerId],
    percentage_max: int,
    cooling: Mapping[str, AbstractSet[BrokerId]] | None = None,
) -> dict[str, PartitionState]:
    """The states that change. `cooling` says who resigned lately, per partition, and waits."""
    share = Counter(state.replicas[0] for state in states.values())
    led_by_others = Counter(
        state.replicas[0] for state in states.values() if state.leader != state.replicas[0]
    )
    wronged = {
        broker
        for broker, count in led_by_others.items()
        if count * 100 > share[broker] * percentage_max
    }
    tired = cooling or {}
    preferred = {
        key: prefer(state, live=live, cooling=tired.get(key, NOBODY))
        for key, state in states.items()
        if state.replicas[0] in wronged
    }
    return {key: state for key, state in preferred.items() if state != states[key]}
