"""Who leads: clean and unclean election, preferred leaders, and what a broker's end changes.

A clean election takes an in-sync replica, so nothing acknowledged is lost. Assignment order says
which. A broker that resigned lately (`resignation.py`) is *cooling* and is taken only if no other
in-sync replica lives.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId

NOBODY: frozenset[BrokerId] = frozenset()


def successor(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NOBODY,
) -> BrokerId | None:
    """The in-sync replica that should lead if somebody must: the first that is not cooling."""
    candidates = [broker for broker in state.replicas if broker in state.isr and broker in live]
    rested = [broker for broker in candidates if broker not in cooling]
    return next(iter(rested or candidates), None)


def elect(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NOBODY,
    unclean: bool = False,
) -> PartitionState:
    """Give the partition a leader that lives, if its present one does not.

    Unclean, when allowed and only when no in-sync replica lives, makes the first live replica the
    whole ISR: what it lacks is lost. Otherwise the partition waits, leaderless, for its ISR.
    """
    if state.leader is not None and state.leader in live:
        return state
    leader = successor(state, live=live, cooling=cooling)
    if leader is not None:
        return state.led_by(leader)
    survivor = next((broker for broker in state.replicas if broker in live), None)
    if unclean and survivor is not None:
        return state.led_by(survivor, isr=(survivor,))
    return state if state.leader is None else state.led_by(None)


def prefer(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NOBODY,
) -> PartitionState:
    """Give leadership back to the first replica, if it is in sync and nothing is unsettled.

    Moving partitions are left alone (KIP-73's fourth question), and so are cooling brokers, who
    would only resign again.
    """
    preferred = state.replicas[0]
    may_lead = preferred in state.isr and preferred in live and preferred not in cooling
    if not may_lead or preferred == state.leader or state.is_moving:
        return state
    return state.led_by(preferred)


def broker_gone(
    state: PartitionState,
    broker: BrokerId,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NOBODY,
    unclean: bool = False,
) -> PartitionState:
    """One incarnation of a broker ended; if it is back as another, it is in `live`.

    It leaves the ISR if another member lives; the last one never leaves. Where it led there is a
    new term, even if it is the only one left to lead: a new incarnation may lack the tail of its
    former log, and an epoch has one writer. For a broker that is not live, repeating this changes
    nothing, so every new controller may; a new incarnation is reported once.
    """
    others = tuple(member for member in state.isr if member != broker)
    another_lives = any(member in live for member in others)
    if broker in state.isr and another_lives:
        leader = None if state.leader == broker else state.leader
        state = replace(state, isr=others, leader=leader)
    elif state.leader == broker and broker in live:
        return state.led_by(broker)
    return elect(state, live=live, cooling=cooling, unclean=unclean)
