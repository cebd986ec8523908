"""Moving a partition's replicas: start, complete, cancel.

    replicas = target, then those being removed
    adding   = target - current          removing = current - target

"Current" are the replicas before any move that is still under way. If a second move replaces the
first, cancelling it restores the replicas before the first.

A move completes when every adding replica is in the ISR and the ISR holds at least the effective
min ISR of the target's members. A target replica that was there before and is dead does not hold
up the rest (KAFKA-19975).

Whenever a replica is removed, a new term begins, also when the leader stays (as in Kafka). The
removed replica deletes its log. If it is added again at once, a fetch that it sent before must not
count for its new, empty log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from insync.rules.acknowledgement import effective_min_isr
from insync.rules.election import successor
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadPlan, NothingToCancel, WouldLoseData
from insync.rules.values import NO_BROKERS, BrokerId


def check_target(target: Sequence[BrokerId], *, known: AbstractSet[BrokerId]) -> None:
    """Refuse a target no partition can have."""
    if not target:
        raise BadPlan("the replica list is empty; name at least one broker")
    twice = sorted(broker for broker, count in Counter(target).items() if count > 1)
    if twice:
        raise BadPlan(f"broker {twice[0]} is listed more than once; name each broker once")
    unknown = sorted(broker for broker in target if broker not in known)
    if unknown:
        brokers = ", ".join(str(broker) for broker in sorted(known))
        raise BadPlan(f"broker {unknown[0]} is not known; this cluster has {brokers}")


def replicas_before_move(state: PartitionState) -> tuple[BrokerId, ...]:
    """The replicas without those that a move is adding."""
    return tuple(broker for broker in state.replicas if broker not in state.adding)


def start(
    state: PartitionState,
    target: tuple[BrokerId, ...],
    *,
    known: AbstractSet[BrokerId],
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
) -> PartitionState:
    """Begin to move to `target`, instead of any other move; a reordering completes at once."""
    check_target(target, known=known)
    current = replicas_before_move(state)
    removing = tuple(broker for broker in current if broker not in target)
    replicas = (*target, *removing)
    isr = _in_sync_among(state, replicas)
    started = _assign_replicas(state, replicas, isr=isr, live=live, cooling=cooling)
    adding = tuple(broker for broker in target if broker not in current)
    return replace(started, adding=adding, removing=removing)


def complete(
    state: PartitionState,
    *,
    min_insync_replicas: int,
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
) -> PartitionState:
    """The state after the move if it can complete now, else the state unchanged.

    A leader that is being removed hands over to a live in-sync replica of the target; while there
    is none the move goes on.
    """
    if not state.is_moving:
        return state
    target = tuple(broker for broker in state.replicas if broker not in state.removing)
    isr = _in_sync_among(state, target)
    arrived = frozenset(isr)
    min_isr = effective_min_isr(
        min_insync_replicas=min_insync_replicas, replication_factor=len(target)
    )
    has_arrived = arrived.issuperset(state.adding) and len(arrived) >= max(1, min_isr)
    can_lead = state.leader in arrived or not arrived.isdisjoint(live)
    if not has_arrived or not can_lead:
        return state
    return _assign_replicas(state, target, isr=isr, live=live, cooling=cooling)


def cancel(
    state: PartitionState,
    *,
    live: AbstractSet[BrokerId],
    unclean: bool,
    cooling: AbstractSet[BrokerId] = NO_BROKERS,
) -> PartitionState:
    """Go back to the replicas from before the move.

    Refused when none of those is in sync, unless unclean election is allowed: then the first of
    them that lives, or failing that the first, starts over with what it has.
    """
    if not state.is_moving:
        raise NothingToCancel("no reassignment of this partition is under way")
    back = replicas_before_move(state)
    isr = _in_sync_among(state, back)
    if unclean and not isr:
        isr = (next((broker for broker in back if broker in live), back[0]),)
    return _assign_replicas(state, back, isr=isr, live=live, cooling=cooling)


def _in_sync_among(state: PartitionState, replicas: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in state.isr if broker in replicas)


def _assign_replicas(
    state: PartitionState,
    replicas: tuple[BrokerId, ...],
    *,
    isr: tuple[BrokerId, ...],
    live: AbstractSet[BrokerId],
    cooling: AbstractSet[BrokerId],
) -> PartitionState:
    """The partition on these replicas, no move under way.

    If the leader is not among the in-sync ones, another of them takes over.
    """
    if not isr:
        wanted = ", ".join(str(broker) for broker in replicas)
        raise WouldLoseData(
            f"none of the replicas {wanted} is in sync; wait until one of them has caught up "
            "(a cancellation may also allow unclean leader election)"
        )
    eligible = tuple(b for b in state.eligible if b in replicas and b not in isr)
    moved = replace(
        state,
        replicas=replicas,
        isr=isr,
        leader=None,
        adding=(),
        removing=(),
        eligible=eligible if set(isr) <= set(state.isr) else (),
    )
    leader = state.leader if state.leader in isr else successor(moved, live=live, cooling=cooling)
    all_stay = set(state.replicas) <= set(replicas)
    keeps_term = leader == state.leader and all_stay
    return replace(moved, leader=leader) if keeps_term else moved.led_by(leader)
