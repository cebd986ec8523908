"""A broker that fills itself anew: KIP-73's second question.

Nothing is reassigned; the broker's own replicas catch up. The throttle is set for all of them and
for the leaders they fetch from, and goes when every one is in sync again, or when the tool ends.
Brokers that offer HoldThrottle see to that, also when the tool is killed; elsewhere the journal
names what is to be swept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from uuid import uuid4

from insync.client import throttle_holds
from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.journal import AnotherTool, JournalFile
from insync.moves.measure import Measured
from insync.moves.planning import Outlook, outlook
from insync.moves.throttle import Ended
from insync.moves.watch import LOOK_EVERY_S, Patience, Show, Watch, is_out_of_sync
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.throttle_settings import Throttle, is_filled_anew, of_bootstrap
from insync.rules.values import BrokerId

RENEWALS: Final = 3  # in the time that a throttle lasts: one or two may come late

Pause = Callable[[float], Awaitable[None]]
Complain = Callable[[str], None]


def copies_of(cluster: ClusterNow, broker: BrokerId) -> dict[TopicPartition, Move]:
    """The broker's replicas as if each were a move to it from those that have the data."""
    found = {
        partition: Move(
            sources=frozenset(now.replicas) - {broker}, destinations=frozenset({broker})
        )
        for partition, now in sorted(cluster.partitions.items())
        if is_filled_anew(broker, replicas=now.replicas, leader=now.leader)
    }
    if not found:
        known = ", ".join(str(each) for each in sorted(cluster.alive))
        raise BadPlan(
            f"broker {broker} follows no partition, so there is nothing to throttle; "
            f"alive are {known}"
        )
    return found


def outlook_of(
    cluster: ClusterNow,
    copies: Mapping[TopicPartition, Move],
    broker: BrokerId,
    measured: Measured,
) -> Outlook:
    """What a plan would mean that copies what the broker lacks: of one that is down, everything."""
    has = measured.held.get(broker, {})
    lacks = {
        partition: max(0, size - has.get(partition, 0))
        for partition, size in measured.sizes.items()
    }
    return outlook(cluster, copies, replace(measured, sizes=lacks), network_bytes_per_s=None)


def throttle_of(
    cluster: ClusterNow, copies: Mapping[TopicPartition, Move], broker: BrokerId, bytes_per_s: int
) -> Throttle:
    """Its replicas in the follower lists, their leaders in the leader lists."""
    return of_bootstrap(
        {partition: cluster.partitions[partition].leader for partition in copies},
        broker,
        bytes_per_s=bytes_per_s,
        set_on=broker if broker in cluster.alive else throttles.ALL_BROKERS,
    )


class Outcome(Enum):
    CAUGHT_UP = "all its replicas are in sync"
    STOPPED = "we were asked to stop"
    GIVEN_UP = "it was down for too long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """How, and how long."""

    show: Show
    complain: Complain
    clock_ms: Callable[[], int]
    patience_ms: int
    gives_up_after_ms: int | None = None  # when the broker is not there; None: it is waited for
    pause: Pause = asyncio.sleep


async def bootstrap(
    admin: Admin,
    file: JournalFile,
    cluster: ClusterNow,
    broker: BrokerId,
    *,
    bytes_per_s: int,
    watching: Watching,
) -> tuple[Outcome, Ended]:
    """Set the throttle, watch the broker, and take the throttle away, whatever came of it."""
    copies = copies_of(cluster, broker)
    if await throttle_holds.are_offered(admin):
        async with _held(admin, broker, bytes_per_s=bytes_per_s, watching=watching):
            outcome = await _watch(admin, copies, broker, watching)
        return outcome, Ended()
    with file.locked():
        left = await throttles.end(admin, file, active=cluster.active)
        if left.kept_for:
            raise AnotherTool("moves are under way under a throttle; wait until they are done")
        throttle = throttle_of(cluster, copies, broker, bytes_per_s)
        await throttles.set_throttle(admin, file, throttle, partitions=copies, bootstrapping=broker)
        outcome = await _watch(admin, copies, broker, watching)
        return outcome, await throttles.end(admin, file, active=())


@asynccontextmanager
async def _held(
    admin: Admin, broker: BrokerId, *, bytes_per_s: int, watching: Watching
) -> AsyncIterator[None]:
    """The cluster holds the throttle meanwhile, and some seconds longer if we are killed."""
    holder = uuid4().hex

    async def hold() -> int:
        return await throttle_holds.hold(admin, broker, holder=holder, bytes_per_s=bytes_per_s)

    async def renew(lasts_ms: int) -> None:
        """In a task of its own: a look at a cluster in trouble takes its time."""
        while True:
            await watching.pause(lasts_ms / 1_000 / RENEWALS)
            try:
                lasts_ms = await hold()
            except Refusal as refusal:
                watching.complain(f"the throttle was not renewed: {refusal}")

    renewing = asyncio.create_task(renew(await hold()))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        try:
            await throttle_holds.let_go(admin, broker, holder=holder)
        except Refusal as refusal:
            watching.complain(f"the throttle ends by itself in some seconds, not now: {refusal}")


async def _watch(
    admin: Admin, copies: Mapping[TopicPartition, Move], broker: BrokerId, watching: Watching
) -> Outcome:
    watch = Watch(
        admin,
        copies,
        clock_ms=watching.clock_ms,
        patience_ms=watching.patience_ms,
        is_moving=is_out_of_sync,
    )
    patience = Patience(watching.gives_up_after_ms)
    try:
        while True:
            try:
                cluster = await clusters.look(admin)
                look = await watch.look(cluster)
                watching.show(look)
                # A broker that has just died is in sync until that is noticed.
                is_there = broker in cluster.alive and broker not in look.silent
                if is_there and not _behind(cluster, copies, broker):
                    return Outcome.CAUGHT_UP
                if patience.is_lost(is_away=not is_there, now_ms=watching.clock_ms()):
                    return Outcome.GIVEN_UP
            except Refusal as refusal:
                watching.complain(str(refusal))
            await watching.pause(LOOK_EVERY_S)
    except asyncio.CancelledError:
        return Outcome.STOPPED  # the throttle must not outlive us


def _behind(
    cluster: ClusterNow, copies: Mapping[TopicPartition, Move], broker: BrokerId
) -> list[TopicPartition]:
    return [
        partition
        for partition in copies
        if (now := cluster.partitions.get(partition)) is not None
        and broker in now.replicas
        and broker not in now.isr
    ]
