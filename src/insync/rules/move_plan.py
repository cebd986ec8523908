"""What a reassignment plan touches: moves, throttle lists, brokers, MoveRatio.

KIP-73: a leader throttle on all existing replicas of the moving partitions, a follower throttle on
the replicas that are being created. Any existing replica may come to lead during the move, so all
of them are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from insync.rules.reassignment import check_target
from insync.rules.refusals import BadPlan
from insync.rules.throttled_replicas import SomeReplicas, listing
from insync.rules.values import BrokerId, PartitionId

TopicPartition = tuple[str, PartitionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A partition's replicas now; `adding` while a move is under way."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where one partition's data may come from, and where it must go."""

    sources: frozenset[BrokerId]
    destinations: frozenset[BrokerId]


def moves(
    current: Mapping[TopicPartition, Assignment],
    plan: Mapping[TopicPartition, tuple[BrokerId, ...]],
    *,
    known: frozenset[BrokerId],
) -> dict[TopicPartition, Move]:
    """Every partition with somewhere to go: by this plan, or by a move already under way.

    A partition the plan only reorders or shrinks copies nothing and is not throttled.
    """
    targets: dict[TopicPartition, tuple[BrokerId, ...]] = {
        partition: tuple(b for b in assignment.replicas if b not in assignment.removing)
        for partition, assignment in current.items()
        if assignment.adding or assignment.removing
    }
    for partition, target in plan.items():
        topic, number = partition
        if partition not in current:
            raise BadPlan(f"{topic}-{number} does not exist; take it out of the plan")
        try:
            check_target(target, known=known)
        except BadPlan as refusal:
            raise BadPlan(f"{topic}-{number}: {refusal}") from None
        targets[partition] = target
    moves: dict[TopicPartition, Move] = {}
    for partition in sorted(targets):
        assignment = current[partition]
        sources = frozenset(assignment.replicas).difference(assignment.adding)
        destinations = frozenset(targets[partition]) - sources
        if destinations:
            moves[partition] = Move(sources=sources, destinations=destinations)
    return moves


def leader_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, SomeReplicas]:
    return _by_topic({partition: move.sources for partition, move in moving.items()})


def follower_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, SomeReplicas]:
    return _by_topic({partition: move.destinations for partition, move in moving.items()})


def brokers_involved(moving: Mapping[TopicPartition, Move]) -> frozenset[BrokerId]:
    """Where the rate must be set: every source and every destination."""
    return frozenset(b for move in moving.values() for b in move.sources | move.destinations)


def move_ratio(*, partitions_to_move: int, partitions_total: int) -> Fraction:
    """KIP-73: MoveRatio = #partitions-to-be-moved / #total-partition-count."""
    if partitions_total < 1:
        raise BadPlan("this cluster has no partitions; there is nothing to move")
    assert 0 <= partitions_to_move <= partitions_total, "more partitions move than there are"
    return Fraction(partitions_to_move, partitions_total)


def _by_topic(brokers: Mapping[TopicPartition, frozenset[BrokerId]]) -> dict[str, SomeReplicas]:
    entries: dict[str, list[tuple[PartitionId, BrokerId]]] = {}
    for (topic, number), listed in sorted(brokers.items()):
        entries.setdefault(topic, []).extend((number, broker) for broker in listed)
    return {topic: listing(each) for topic, each in entries.items()}
