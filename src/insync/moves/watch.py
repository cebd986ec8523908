"""Polling moves until they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from insync.client import log_sizes
from insync.client.admin import Admin, Partition
from insync.client.log_sizes import LogSizes
from insync.moves import cluster as clusters
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.progress import Copy, CopySample, History, MoveProgress, Sample
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.throttled_replicas import FOLLOWER_RATE, LEADER_RATE
from insync.rules.values import BrokerId

POLL_EVERY_S = 1.0
LIMITS_EVERY_MS = 5_000
STUCK_AFTER_MS = 30_000
SETTLED_MS = 5_000

Show = Callable[[MoveProgress], None]
IsMoving = Callable[[Partition, BrokerId], bool]


class WaitsForBroker(Refusal):
    """The remaining moves wait for brokers that are down."""


def is_added(partition: Partition, broker: BrokerId) -> bool:
    """Whether a reassignment creates this replica."""
    return partition.move is not None and broker in partition.move.adding


def is_out_of_sync(partition: Partition, broker: BrokerId) -> bool:
    """Whether this replica is not in the ISR, for any reason."""
    return broker not in partition.isr


class Watch:
    """Measures the progress of the replicas that moves create."""

    def __init__(
        self,
        admin: Admin,
        moving: Mapping[TopicPartition, Move],
        *,
        clock_ms: Callable[[], int],
        stuck_after_ms: int = STUCK_AFTER_MS,
        is_moving: IsMoving = is_added,
    ) -> None:
        self._admin = admin
        self._is_moving = is_moving
        self._copies: list[Copy] = [
            (partition, broker)
            for partition in sorted(moving)
            for broker in sorted(moving[partition].destinations)
        ]
        self._clock_ms = clock_ms
        self._history = History(stuck_after_ms=stuck_after_ms)
        self._limits: dict[tuple[BrokerId, str], int] = {}
        self._limits_at_ms: int | None = None

    async def measure_progress(self, cluster: ClusterNow) -> MoveProgress:
        """One measurement; `cluster` was read just now."""
        sizes = await self._read_sizes(cluster)
        await self._read_limits(cluster)
        sample = Sample(
            at_ms=self._clock_ms(),
            copies={copy: self._copy_sample(copy, cluster, sizes) for copy in self._copies},
            limits_in=self._limit(FOLLOWER_RATE),
            limits_out=self._limit(LEADER_RATE),
            silent=sizes.problems,
        )
        return self._history.add(sample)

    def waits_only_for(self, cluster: ClusterNow) -> tuple[BrokerId, ...]:
        """Brokers that are down, if none of the remaining moves can proceed without them."""
        down: set[BrokerId] = set()
        for partition, broker in self._copies:
            now = cluster.partitions.get(partition)
            if now is None or not self._is_moving(now, broker) or broker in now.isr:
                continue
            needed = {broker} if now.leader is not None else {broker, *now.replicas}
            if not needed - cluster.alive:
                return ()
            down |= needed - cluster.alive
        return tuple(sorted(down))

    async def _read_sizes(self, cluster: ClusterNow) -> LogSizes:
        partitions_by_broker: dict[BrokerId, dict[TopicPartition, None]] = {}
        for partition, broker in self._copies:
            now = cluster.partitions.get(partition)
            if now is None:
                continue
            for each in {broker, now.leader} - {None}:
                assert each is not None, "removed above"
                partitions_by_broker.setdefault(each, {})[partition] = None
        hosted = {broker: list(partitions) for broker, partitions in partitions_by_broker.items()}
        return await log_sizes.read_sizes(self._admin.connections, hosted)

    async def _read_limits(self, cluster: ClusterNow) -> None:
        """Not every time: a broker reports all its settings or none."""
        now_ms = self._clock_ms()
        if self._limits_at_ms is not None and now_ms < self._limits_at_ms + LIMITS_EVERY_MS:
            return
        leaders = {
            cluster.partitions[partition].leader
            for partition, _ in self._copies
            if partition in cluster.partitions
        }
        brokers = {broker for _, broker in self._copies} | leaders
        alive = {each for each in brokers if each is not None and each in cluster.alive}
        self._limits = await throttles.limits_of(self._admin, alive)
        self._limits_at_ms = now_ms

    def _limit(self, key: str) -> dict[BrokerId, int]:
        return {broker: rate for (broker, name), rate in self._limits.items() if name == key}

    def _copy_sample(self, copy: Copy, cluster: ClusterNow, sizes: LogSizes) -> CopySample:
        partition, broker = copy
        now = cluster.partitions.get(partition)
        if now is None:  # its topic was deleted
            return CopySample(
                leader=None, leader_bytes=None, own_bytes=None, is_caught_up=False, is_moving=False
            )
        leader = now.leader
        ends = (
            None if leader is None else sizes.end_on(leader, partition),
            sizes.end_on(broker, partition),
        )
        return CopySample(
            leader=leader,
            leader_bytes=None if leader is None else sizes.bytes_on(leader, partition),
            own_bytes=sizes.bytes_on(broker, partition),
            is_caught_up=ends[0] is not None and ends[1] is not None and ends[1] >= ends[0],
            is_moving=self._is_moving(now, broker),
        )


class WaitLimit:
    """The time limit for something that is down and may return."""

    def __init__(self, limit_ms: int | None) -> None:
        self._limit_ms = limit_ms  # None: for ever
        self._since_ms: int | None = None

    def is_exceeded(self, *, is_away: bool, now_ms: int) -> bool:
        if not is_away:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        elif self._limit_ms is not None:
            return now_ms >= self._since_ms + self._limit_ms
        return False


async def watch_moves(
    admin: Admin,
    moving: Mapping[TopicPartition, Move],
    partitions: frozenset[TopicPartition],
    *,
    is_reached: Callable[[ClusterNow], bool],
    show: Show,
    warn: Callable[[str], None],
    clock_ms: Callable[[], int],
    stuck_after_ms: int = STUCK_AFTER_MS,
    gives_up_after_ms: int | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ClusterNow:
    """Poll until none of these partitions moves; returns the cluster as it is then.

    If the cluster does not respond, this tries again: the move continues without this tool. Brokers
    learn of a change one after the other, so a move that seems to have ended elsewhere is checked
    again for `SETTLED_MS`. A broker that is down may return, so this waits for it. With
    `gives_up_after_ms`, for runs that no operator watches, it raises after that time.
    """
    watch = Watch(admin, moving, clock_ms=clock_ms, stuck_after_ms=stuck_after_ms)
    settled_since_ms: int | None = None
    wait_limit = WaitLimit(gives_up_after_ms)
    while True:
        try:
            cluster = await clusters.read_cluster(admin)
            left = partitions & cluster.active.keys()
            if left:
                settled_since_ms = None
                show(await watch.measure_progress(cluster))
            else:
                settled_since_ms = clock_ms() if settled_since_ms is None else settled_since_ms
                if is_reached(cluster) or clock_ms() >= settled_since_ms + SETTLED_MS:
                    show(await watch.measure_progress(cluster))
                    return cluster
            down = watch.waits_only_for(cluster) if left else ()
            if wait_limit.is_exceeded(is_away=bool(down), now_ms=clock_ms()):
                raise WaitsForBroker(_waits_text(down, left))
        except WaitsForBroker:
            raise
        except Refusal as refusal:
            warn(str(refusal))
        await pause(POLL_EVERY_S)


def _waits_text(down: Sequence[BrokerId], partitions: AbstractSet[TopicPartition]) -> str:
    topic, number = min(partitions)
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    brokers = ", ".join(str(each) for each in down)
    return (
        f"broker {brokers} is down, and {topic}-{number}{more} cannot move without it; start it "
        "and follow the move with --watch, or cancel it with --cancel: either ends the throttle too"
    )
