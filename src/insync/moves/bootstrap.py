"""Throttling a broker that is rebuilding its replicas: KIP-73's second question.

Nothing is reassigned; the broker's own replicas catch up. The tool sets the throttle for all of
them and for the leaders they fetch from, and removes it when all are in sync, or when it ends.
Brokers with HoldThrottle remove it also if the tool is killed; for other brokers the journal names
what `--sweep` has to remove.
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
from insync.moves.planning import PlanEstimate, estimate_plan
from insync.moves.throttle import ThrottleRemoval
from insync.moves.watch import POLL_EVERY_S, Show, WaitLimit, Watch, is_out_of_sync
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.throttle_settings import (
    Throttle,
    beyond,
    is_rebuilt_from_leader,
    of_bootstrap,
    union,
)
from insync.rules.throttled_replicas import LEADER_RATE
from insync.rules.values import BrokerId

RENEWALS: Final = 3  # within a throttle's duration: one or two may be late

Pause = Callable[[float], Awaitable[None]]
Warn = Callable[[str], None]


def copies_of(cluster: ClusterNow, broker: BrokerId) -> dict[TopicPartition, Move]:
    """The broker's follower replicas, each as a move to it from the other replicas."""
    copies = {
        partition: Move(
            sources=frozenset(now.replicas) - {broker}, destinations=frozenset({broker})
        )
        for partition, now in sorted(cluster.partitions.items())
        if is_rebuilt_from_leader(broker, replicas=now.replicas, leader=now.leader)
    }
    if not copies:
        alive = ", ".join(str(each) for each in sorted(cluster.alive))
        raise BadPlan(
            f"broker {broker} follows no partition, so there is nothing to throttle; "
            f"live brokers: {alive}"
        )
    return copies


def estimate_rebuild(
    cluster: ClusterNow,
    copies: Mapping[TopicPartition, Move],
    broker: BrokerId,
    measured: Measured,
) -> PlanEstimate:
    """The estimate for copying what the broker lacks; for a broker that is down, everything."""
    own_bytes = measured.held.get(broker, {})
    lacking_bytes = {
        partition: max(0, size - own_bytes.get(partition, 0))
        for partition, size in measured.sizes.items()
    }
    measured = replace(measured, sizes=lacking_bytes)
    return estimate_plan(cluster, copies, measured, network_bytes_per_s=None)


def throttle_of(
    cluster: ClusterNow, copies: Mapping[TopicPartition, Move], broker: BrokerId, bytes_per_s: int
) -> Throttle:
    """The broker's replicas in the follower lists, and their leaders in the leader lists."""
    return of_bootstrap(
        {partition: cluster.partitions[partition].leader for partition in copies},
        broker,
        bytes_per_s=bytes_per_s,
        set_on=broker if broker in cluster.alive else throttles.ALL_BROKERS,
    )


class Outcome(Enum):
    CAUGHT_UP = "all its replicas are in sync"
    STOPPED = "the tool was interrupted"
    GIVEN_UP = "it was down for too long"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How to report, and how long to watch."""

    show: Show
    warn: Warn
    clock_ms: Callable[[], int]
    stuck_after_ms: int
    gives_up_after_ms: int | None = None  # if the broker stays down; None: wait without a limit
    pause: Pause = asyncio.sleep


async def bootstrap(
    admin: Admin,
    file: JournalFile,
    cluster: ClusterNow,
    broker: BrokerId,
    *,
    bytes_per_s: int,
    watching: WatchOptions,
    check: Callable[[], Awaitable[None]],
) -> tuple[Outcome, ThrottleRemoval]:
    """Set the throttle, check it, watch the broker, and remove the throttle in any case.

    The broker may be copying already, so `check` may take its time only when the throttle is set.
    It raises if the throttle cannot work.
    """
    copies = copies_of(cluster, broker)
    if await throttle_holds.are_offered(admin):
        async with _held(admin, broker, bytes_per_s=bytes_per_s, watching=watching):
            outcome = await _watch(admin, copies, broker, watching, before=check)
        return outcome, ThrottleRemoval()
    with file.locked():
        earlier = await throttles.end(admin, file, active=cluster.active)
        if earlier.kept_for:
            raise AnotherTool("moves with a throttle are running; wait until they are done")
        throttle = throttle_of(cluster, copies, broker, bytes_per_s)
        await throttles.set_throttle(admin, file, throttle, partitions=copies, bootstrapping=broker)
        extension = _Extension(admin, file, broker, throttle, bytes_per_s=bytes_per_s)
        try:
            outcome = await _watch(
                admin, copies, broker, watching, before=check, on_cluster=extension.extend
            )
        except Refusal:
            await throttles.end(admin, file, active=())
            raise
        return outcome, await throttles.end(admin, file, active=())


class _Extension:
    """Adds to the throttle what the broker fetches from another leader since, on Apache Kafka."""

    def __init__(
        self,
        admin: Admin,
        file: JournalFile,
        broker: BrokerId,
        throttle: Throttle,
        *,
        bytes_per_s: int,
    ) -> None:
        self._admin = admin
        self._file = file
        self._broker = broker
        self._throttle = throttle
        self._bytes_per_s = bytes_per_s

    async def extend(self, cluster: ClusterNow) -> None:
        try:
            copies = copies_of(cluster, self._broker)
        except BadPlan:  # it leads all that it has
            return
        now = throttle_of(cluster, copies, self._broker, self._bytes_per_s)
        new = beyond(now, rates=self._throttle.rates, lists=self._throttle.lists)
        # The broker's own rate was the first to be set, maybe as the default of all brokers.
        leader_rates = {key: rate for key, rate in new.rates.items() if key[1] == LEADER_RATE}
        new = replace(new, rates=leader_rates)
        if not new.lists and not new.rates:
            return
        await throttles.set_throttle(
            self._admin, self._file, new, partitions=copies, bootstrapping=self._broker
        )
        self._throttle = union(self._throttle, new)


@asynccontextmanager
async def _held(
    admin: Admin, broker: BrokerId, *, bytes_per_s: int, watching: WatchOptions
) -> AsyncIterator[None]:
    """The cluster holds the throttle meanwhile, and some seconds longer if this tool is killed."""
    holder = uuid4().hex

    async def hold() -> int:
        return await throttle_holds.hold(admin, broker, holder=holder, bytes_per_s=bytes_per_s)

    async def renew(duration_ms: int) -> None:
        """In its own task: polling a cluster with faults may take long."""
        while True:
            await watching.pause(duration_ms / 1_000 / RENEWALS)
            try:
                duration_ms = await hold()
            except Refusal as refusal:
                watching.warn(f"the throttle was not renewed, trying again: {refusal}")

    renewing = asyncio.create_task(renew(await hold()))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        try:
            await throttle_holds.release(admin, broker, holder=holder)
        except Refusal as refusal:
            watching.warn(
                f"the throttle could not be ended now; it ends by itself in some seconds: {refusal}"
            )


async def _extend_nothing(_: ClusterNow) -> None:
    """Brokers with HoldThrottle add new leaders themselves."""


async def _watch(
    admin: Admin,
    copies: Mapping[TopicPartition, Move],
    broker: BrokerId,
    watching: WatchOptions,
    *,
    before: Callable[[], Awaitable[None]],
    on_cluster: Callable[[ClusterNow], Awaitable[None]] = _extend_nothing,
) -> Outcome:
    watch = Watch(
        admin,
        copies,
        clock_ms=watching.clock_ms,
        stuck_after_ms=watching.stuck_after_ms,
        is_moving=is_out_of_sync,
    )
    wait_limit = WaitLimit(watching.gives_up_after_ms)
    try:
        await before()
        while True:
            try:
                cluster = await clusters.read_cluster(admin)
                await on_cluster(cluster)
                progress = await watch.measure_progress(cluster)
                watching.show(progress)
                # A broker that has just died is in the ISR until the controller removes it.
                is_there = broker in cluster.alive and broker not in progress.silent
                if is_there and not _behind(cluster, copies, broker):
                    return Outcome.CAUGHT_UP
                if wait_limit.is_exceeded(is_away=not is_there, now_ms=watching.clock_ms()):
                    return Outcome.GIVEN_UP
            except Refusal as refusal:
                watching.warn(str(refusal))
            await watching.pause(POLL_EVERY_S)
    except asyncio.CancelledError:
        return Outcome.STOPPED  # the caller removes the throttle


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
