"""Starting a plan with its throttle, cancelling it, and telling how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from insync.client import reassignments
from insync.client.admin import Admin
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow, look
from insync.moves.journal import AnotherTool, Journal, JournalFile
from insync.moves.plan_file import Plan
from insync.moves.throttle import CannotThrottle, Ended
from insync.rules.move_plan import Move, TopicPartition, moves
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.values import BrokerId


class MovesUnderWay(Refusal):
    """Another reassignment is active, and this one was not said to be additional."""


class MoveRefused(Refusal):
    """The cluster did not take the plan, or not all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan that fits the cluster as it was a moment ago."""

    plan: Plan
    moving: Mapping[TopicPartition, Move]  # what copies data, moves under way included
    before: Mapping[TopicPartition, tuple[BrokerId, ...]]  # for a way back


def prepare(cluster: ClusterNow, plan: Plan, *, is_additional: bool) -> Prepared:
    """Refuse what cannot be, before anything is changed."""
    moving = moves(cluster.assignments(), plan, known=cluster.known)
    _check_destinations(cluster, plan)
    active = cluster.active
    if active and not is_additional:
        some = ", ".join(_name(partition) for partition in sorted(active)[:3])
        raise MovesUnderWay(
            f"a reassignment is under way ({some}{', ...' if len(active) > 3 else ''}); "  # noqa: PLR2004
            "wait for it, cancel it, or add to it with --additional"
        )
    return Prepared(
        plan=plan,
        moving=moving,
        before={partition: cluster.partitions[partition].replicas for partition in sorted(plan)},
    )


def _check_destinations(cluster: ClusterNow, plan: Plan) -> None:
    """Who has a replica may be down: that holds nothing up. Who is to get one has to be there."""
    for partition, target in sorted(plan.items()):
        has_one = cluster.partitions[partition].replicas
        down = [broker for broker in target if broker not in {*has_one, *cluster.alive}]
        if down:
            raise BadPlan(
                f"{_name(partition)}: broker {down[0]} is down, and would not get its replica; "
                "start it, or name another"
            )


def check_rates_can_be_set(cluster: ClusterNow, prepared: Prepared) -> None:
    """A broker alone sets its own rate; waiting for a dead one only times out (KAFKA-13392)."""
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
    prepared: Prepared,
    *,
    throttle_bytes_per_s: int | None,
    is_additional: bool,
    timeout_ms: int,
) -> None:
    """All of the plan, with its throttle; when this refuses, no throttle of it is left."""
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
        # Measuring took its time: somebody may have begun something meanwhile.
        cluster = await look(admin)
        prepared = prepare(cluster, prepared.plan, is_additional=is_additional)
        if file.read().bootstrapping is not None:
            raise AnotherTool(
                f"a tool that bootstrapped broker {file.read().bootstrapping} died and left its "
                "throttle; end it with --sweep"
            )
        # What an earlier tool left behind is not a value to go back to.
        await throttles.end(admin, file, active=cluster.active)
        if throttle_bytes_per_s is not None and prepared.moving:
            throttle = throttles.of_moves(
                prepared.moving, bytes_per_s=throttle_bytes_per_s, alive=cluster.alive
            )
            await throttles.set_throttle(admin, file, throttle, partitions=prepared.moving)
        try:
            outcome = await reassignments.alter(admin, prepared.plan, timeout_ms=timeout_ms)
            await _undo_the_rest(admin, cluster, prepared.plan, outcome, timeout_ms=timeout_ms)
            _check(outcome)
        except (Refusal, asyncio.CancelledError):
            await throttles.end(admin, file, active=(await look(admin)).active)
            raise


async def _undo_the_rest(
    admin: Admin,
    cluster: ClusterNow,
    plan: Plan,
    outcome: reassignments.Outcome,
    *,
    timeout_ms: int,
) -> None:
    """A plan is taken whole or not at all: what began beside a refused partition is cancelled."""
    if outcome.is_done:
        return
    begun = plan.keys() - outcome.refused.keys() - cluster.active.keys()
    if begun:
        await reassignments.alter(admin, dict.fromkeys(begun), timeout_ms=timeout_ms)


def _check(outcome: reassignments.Outcome) -> None:
    for partition, refused in sorted(outcome.refused.items()):
        others = len(outcome.refused) - 1
        more = f" (and {others} more)" if others else ""
        raise MoveRefused(f"{_name(partition)} was refused: {refused}{more}")


async def cancel(
    admin: Admin, cluster: ClusterNow, plan: Plan, *, timeout_ms: int
) -> tuple[TopicPartition, ...]:
    """Cancel what of the plan is under way; which that was."""
    active = under_way(cluster, plan)
    if active:
        targets = dict.fromkeys(active)
        _check(await reassignments.alter(admin, targets, timeout_ms=timeout_ms))
    return active


def under_way(cluster: ClusterNow, plan: Plan) -> tuple[TopicPartition, ...]:
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
    """Make the plan's throttle the operator's, its moves cancelled or not; whether there is one.

    Who would take it away when the moves end, lease or journal, is told to forget it. Cancelling
    is part of that step: a lease ends with its last move, and would be quicker than a second one.
    """
    active = under_way(cluster, plan)
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
        is_plans = journal.bootstrapping is None and not journal.partitions.isdisjoint(plan)
        if is_plans:
            file.write(Journal())
    return is_plans or lease is not None


class Standing(Enum):
    COMPLETED = "completed"
    IN_PROGRESS = "in progress"
    ELSEWHERE = "elsewhere"
    GONE = "gone"


def standing(cluster: ClusterNow, plan: Plan) -> dict[TopicPartition, Standing]:
    """How each partition of the plan stands."""
    found = {}
    for partition in sorted(plan):
        now = cluster.partitions.get(partition)
        if now is None:
            found[partition] = Standing.GONE
        elif now.move is not None:
            found[partition] = Standing.IN_PROGRESS
        elif tuple(now.replicas) == plan[partition]:
            found[partition] = Standing.COMPLETED
        else:
            found[partition] = Standing.ELSEWHERE
    return found


async def clear_throttle(
    admin: Admin, file: JournalFile, cluster: ClusterNow, plan: Plan, *, is_held: bool = False
) -> Ended:
    """After a verify or a cancel: what the journal names, or else what belongs to this plan.

    Without a journal (the move was started elsewhere) the plan's own entries leave the lists, and
    the rates go when no list is left that they could limit. The rest is the operator's. What a
    tool holds for a broker that fills itself anew (`is_held`) looks the same, and ends by itself.
    """
    async with file.locked_when_free():
        if not file.read().is_empty:
            return await throttles.end(admin, file, active=cluster.active)
        if is_held:
            return Ended()
        return await throttles.clear_of_plan(admin, cluster.topics, cluster.alive, plan.keys())


def check_topics_exist(cluster: ClusterNow, topics: list[str]) -> None:
    for topic in topics:
        if topic not in cluster.topics:
            raise BadPlan(f"topic {topic!r} does not exist")


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
