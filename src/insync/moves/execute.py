"""Starting a plan with its throttle, cancelling it, and reporting its status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from insync.client import reassignments
from insync.client.admin import Admin, Partition
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow, read_cluster
from insync.moves.journal import AnotherTool, Journal, JournalFile
from insync.moves.plan_file import Plan
from insync.moves.throttle import CannotThrottle, ThrottleRemoval
from insync.rules.move_plan import Move, TopicPartition, moves
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.values import BrokerId


class MovesUnderWay(Refusal):
    """Another reassignment is active, and this one is not additional."""


class MoveRefused(Refusal):
    """The cluster refused the plan, or a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan:
    """A plan that was checked against a snapshot of the cluster."""

    plan: Plan
    moving: Mapping[TopicPartition, Move]  # what copies data, running moves included
    before: Mapping[TopicPartition, tuple[BrokerId, ...]]  # to undo the plan


def prepare(cluster: ClusterNow, plan: Plan, *, is_additional: bool) -> PreparedPlan:
    """Refuse a plan that cannot be executed, before anything is changed."""
    moving = moves(cluster.assignments(), plan, known=cluster.known)
    _check_destinations(cluster, plan)
    active = cluster.active
    if active and not is_additional:
        examples = ", ".join(_name(partition) for partition in sorted(active)[:3])
        raise MovesUnderWay(
            f"a reassignment is running ({examples}{', ...' if len(active) > 3 else ''}); "  # noqa: PLR2004
            "wait for it, cancel it, or add to it with --additional"
        )
    return PreparedPlan(
        plan=plan,
        moving=moving,
        before={
            partition: _before_moves(cluster.partitions[partition]) for partition in sorted(plan)
        },
    )


def _before_moves(partition: Partition) -> tuple[BrokerId, ...]:
    """The assignment before the first move, for a rollback of all.

    During a move the replicas are its target, then what it removes. What it adds took the places
    of what it removes.
    """
    move = partition.move
    if move is None:
        return partition.replicas
    removed = iter(move.removing)
    target = [broker for broker in partition.replicas if broker not in move.removing]
    before = [next(removed, None) if broker in move.adding else broker for broker in target]
    return (*(broker for broker in before if broker is not None), *removed)


def _check_destinations(cluster: ClusterNow, plan: Plan) -> None:
    """A broker that keeps its replica may be down. A broker that gets one must be live."""
    for partition, target in sorted(plan.items()):
        current = cluster.partitions[partition].replicas
        down = [broker for broker in target if broker not in {*current, *cluster.alive}]
        if down:
            raise BadPlan(
                f"{_name(partition)}: broker {down[0]} is down and cannot get a replica; "
                "start it, or name another"
            )


def check_rates_can_be_set(cluster: ClusterNow, prepared: PreparedPlan) -> None:
    """Only the broker itself sets its rate; a request to a dead one times out (KAFKA-13392)."""
    involved = {b for move in prepared.moving.values() for b in move.sources | move.destinations}
    down = sorted(involved - cluster.alive)
    if down:
        raise CannotThrottle(
            f"broker {down[0]} is down, so its rate cannot be set; start it, leave out the "
            "throttle, or leave that broker unlimited with --force"
        )


async def start(
    admin: Admin,
    file: JournalFile,
    prepared: PreparedPlan,
    *,
    throttle_bytes_per_s: int | None,
    is_additional: bool,
    timeout_ms: int,
) -> None:
    """Start the whole plan with its throttle. If this raises, its throttle was removed again."""
    if throttle_bytes_per_s is not None and await reassignments.offers_leases(admin):
        _check(
            await reassignments.start_with_throttle(
                admin,
                prepared.plan,
                throttle_bytes_per_s=throttle_bytes_per_s,
                is_additional=is_additional,
                timeout_ms=timeout_ms,
            )
        )
        return
    with file.locked():
        # Measuring took some seconds: another tool may have started something meanwhile.
        cluster = await read_cluster(admin)
        prepared = prepare(cluster, prepared.plan, is_additional=is_additional)
        if file.read().bootstrapping is not None:
            raise AnotherTool(
                f"a tool that throttled broker {file.read().bootstrapping} died and left its "
                "throttle; remove it with --sweep"
            )
        # The values of a throttle that an earlier tool left are not values to restore.
        await throttles.end(admin, file, active=cluster.active)
        if throttle_bytes_per_s is not None and prepared.moving:
            throttle = throttles.of_moves(
                prepared.moving, bytes_per_s=throttle_bytes_per_s, alive=cluster.alive
            )
            await throttles.set_throttle(admin, file, throttle, partitions=prepared.moving)
        try:
            outcome = await reassignments.alter(admin, prepared.plan, timeout_ms=timeout_ms)
            await _cancel_started(admin, cluster, prepared.plan, outcome, timeout_ms=timeout_ms)
            _check(outcome)
        except (Refusal, asyncio.CancelledError):
            await throttles.end(admin, file, active=(await read_cluster(admin)).active)
            raise


async def _cancel_started(
    admin: Admin,
    cluster: ClusterNow,
    plan: Plan,
    outcome: reassignments.Outcome,
    *,
    timeout_ms: int,
) -> None:
    """Cancel the moves that started although another of the plan was refused: all or nothing."""
    if outcome.is_done:
        return
    started = plan.keys() - outcome.refused.keys() - cluster.active.keys()
    if started:
        await reassignments.alter(admin, dict.fromkeys(started), timeout_ms=timeout_ms)


def _check(outcome: reassignments.Outcome) -> None:
    for partition, refused in sorted(outcome.refused.items()):
        others = len(outcome.refused) - 1
        more = f" (and {others} more)" if others else ""
        raise MoveRefused(f"{_name(partition)} was refused: {refused}{more}")


async def cancel(
    admin: Admin, cluster: ClusterNow, plan: Plan, *, timeout_ms: int
) -> tuple[TopicPartition, ...]:
    """Cancel the running moves of the plan; returns which those were."""
    active = running_moves(cluster, plan)
    if active:
        targets = dict.fromkeys(active)
        _check(await reassignments.alter(admin, targets, timeout_ms=timeout_ms))
    return active


def running_moves(cluster: ClusterNow, plan: Plan) -> tuple[TopicPartition, ...]:
    return tuple(sorted(cluster.active.keys() & plan.keys()))


async def preserve_throttle(
    admin: Admin,
    file: JournalFile,
    cluster: ClusterNow,
    plan: Plan,
    *,
    cancels: bool,
    timeout_ms: int,
) -> bool:
    """Keep the plan's throttle set, and optionally cancel its moves. Returns whether it has one.

    Removes the lease or the journal that would end the throttle with the moves. Cancelling is part
    of the same step, because a lease ends with its last move.
    """
    active = running_moves(cluster, plan)
    lease = None
    if active and await reassignments.offers_leases(admin):
        outcome = await reassignments.preserve_throttle(
            admin, active if cancels else (), timeout_ms=timeout_ms
        )
        _check(outcome)
        lease = outcome.lease
    elif cancels:
        await cancel(admin, cluster, plan, timeout_ms=timeout_ms)
    async with file.locked_when_free():
        journal = file.read()
        is_of_plan = journal.bootstrapping is None and not journal.partitions.isdisjoint(plan)
        if is_of_plan:
            file.write(Journal())
    return is_of_plan or lease is not None


class MoveStatus(Enum):
    COMPLETED = "completed"
    IN_PROGRESS = "in progress"
    ELSEWHERE = "elsewhere"
    GONE = "gone"


def move_statuses(cluster: ClusterNow, plan: Plan) -> dict[TopicPartition, MoveStatus]:
    """The status of each partition of the plan."""
    statuses = {}
    for partition in sorted(plan):
        now = cluster.partitions.get(partition)
        if now is None:
            statuses[partition] = MoveStatus.GONE
        elif now.move is not None:
            statuses[partition] = MoveStatus.IN_PROGRESS
        elif tuple(now.replicas) == plan[partition]:
            statuses[partition] = MoveStatus.COMPLETED
        else:
            statuses[partition] = MoveStatus.ELSEWHERE
    return statuses


async def clear_throttle(
    admin: Admin, file: JournalFile, cluster: ClusterNow, plan: Plan, *, is_held: bool = False
) -> ThrottleRemoval:
    """After a verify or a cancel: remove what the journal names, or else what belongs to this plan.

    Without a journal (another tool started the move) this removes the plan's entries from the
    lists, and the rates if no list is left that they could limit. The rest is the operator's. The
    throttle of a broker that is rebuilding its replicas (`is_held`) looks the same, and ends by
    itself.
    """
    async with file.locked_when_free():
        if not file.read().is_empty:
            return await throttles.end(admin, file, active=cluster.active)
        if is_held:
            return ThrottleRemoval()
        return await throttles.clear_of_plan(admin, cluster.topics, cluster.alive, plan.keys())


def check_topics_exist(cluster: ClusterNow, topics: list[str]) -> None:
    for topic in topics:
        if topic not in cluster.topics:
            raise BadPlan(f"topic {topic!r} does not exist")


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
