"""Who leads: clean and unclean election, preferred leaders, and what a broker's end changes.

A clean election takes an in-sync replica, so nothing acknowledged is lost. Assignment order says
which. A broker that resigned lately (`resignation.py`) is *cooling* and is taken only if no other
in-sync replica lives.

A replica whose log failed or is damaged is *offline*: it does not lead, and leaves the ISR if
another member can lead. A damaged one has lost records for certain, so it also leaves if the others
are down. If all ISR members are damaged, an eligible replica (`eligible.py`) leads. If none is
left, the partition has no leader until an operator elects one of the damaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from insync.rules.eligible import eligible_after
from insync.rules.partition_state import PartitionState
from insync.rules.values import NO_BROKERS, BrokerId, LeaderEpoch


def successor(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
) -> BrokerId | None:
    """The first live ISR member in assignment order; those in a cool-down come last."""
    candidates = [broker for broker in state.replicas if broker in state.isr and broker in live]
    not_cooling = [broker for broker in candidates if broker not in cooling]
    return next(iter(not_cooling or candidates), None)


def elect(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
    unclean: bool = False,
    damaged: AbstractSet[BrokerId] = NO_BROKERS,
) -> PartitionState:
    """Give the partition a leader that lives, if its present one does not.

    `live` has no broker whose replica is offline. Unclean, when allowed and only when no in-sync
    replica can lead, makes the first live replica the whole ISR, eligible ones first: what it
    lacks is lost. Otherwise the partition waits, leaderless, for its ISR.
    """
    if state.leader is not None and state.leader in live:
        return state
    leader = successor(state, live=live, cooling=cooling)
    if leader is not None:
        return state.led_by(leader)
    if damaged >= set(state.isr):
        survivor = next((broker for broker in state.eligible if broker in live), None)
        if survivor is not None:
            others = tuple(broker for broker in state.eligible if broker != survivor)
            return state.led_by(survivor, isr=(survivor,), eligible=others)
    candidates = (*state.eligible, *state.replicas)
    survivor = next((broker for broker in candidates if broker in live), None)
    if unclean and survivor is not None:
        return state.led_by(survivor, isr=(survivor,), eligible=())
    return state if state.leader is None else state.led_by(None)


def elect_preferred_leader(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
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
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
    unclean: bool = False,
) -> PartitionState:
    """One incarnation of a broker ended; if it is back as another, it is in `live`."""
    return brokers_changed(state, ended=(broker,), live=live, cooling=cooling, unclean=unclean)


def brokers_changed(
    state: PartitionState,
    *,
    ended: Iterable[BrokerId],
    live: AbstractSet[BrokerId],
    failed: AbstractSet[BrokerId] = NO_BROKERS,
    damaged: AbstractSet[BrokerId] = NO_BROKERS,
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
    unclean: bool = False,
    min_isr: int = 1,
) -> PartitionState:
    """Incarnations of these brokers ended; the live ones of them are back as others.

    Each leaves the ISR if another member can lead; the last one never leaves. Where one led there
    is a new term, even if it is the only one left to lead: a new incarnation may lack the tail of
    its former log, and an epoch has one writer. For brokers that are not live, repeating this
    changes nothing, so every new controller may; a new incarnation is reported once. The same
    goes for live brokers whose replica failed or is damaged.
    """
    ended = tuple(ended)
    able = live - failed - damaged
    isr = state.isr
    for broker in (*ended, *sorted(failed)):
        others = tuple(member for member in isr if member != broker)
        if broker in isr and not able.isdisjoint(others):
            isr = others
    isr = tuple(member for member in isr if member not in damaged) or isr
    eligible = eligible_after(state, frozenset(isr), min_isr=min_isr, lost=failed | damaged)
    leader = state.leader if state.leader in isr else None
    changed = replace(state, isr=isr, leader=leader, eligible=eligible)
    if leader is not None and leader in ended and leader in able:
        return changed.led_by(leader)
    elected = elect(changed, live=able, cooling=cooling, unclean=unclean, damaged=damaged)
    if elected.leader is None and leader in live - failed and leader not in ended:
        return changed  # it found the damage while it led, and serves what it still has
    has_lost_leader = elected.leader is None and state.leader is not None
    if has_lost_leader and elected.leader_epoch == state.leader_epoch:
        return elected.led_by(None)  # a damaged leader left the ISR, and no member lives
    return elected


def raise_epoch(state: PartitionState, epoch: LeaderEpoch) -> PartitionState:
    """A log has records of this epoch: no later leader may write in it or in an earlier one.

    A state is behind a log only if the metadata store went back.
    """
    if epoch <= state.leader_epoch:
        return state
    return replace(state, leader=None, leader_epoch=epoch)
