"""Looking at moves again and again until they are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from insync.client import log_sizes
from insync.client.admin import Admin, Partition
from insync.client.log_sizes import Sizes
from insync.moves import cluster as clusters
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.progress import Copy, CopySeen, History, Look, Sample
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.throttled_replicas import FOLLOWER_RATE, LEADER_RATE
from insync.rules.values import BrokerId

LOOK_EVERY_S = 1.0
LIMITS_EVERY_MS = 5_000
PATIENCE_MS = 30_000
SETTLED_MS = 5_000

Show = Callable[[Look], None]
IsMoving = Callable[[Partition, BrokerId], bool]


class WaitsForBroker(Refusal):
    """What is left of the moves waits for brokers that are down."""


def is_added(partition: Partition, broker: BrokerId) -> bool:
    """A replica that a reassignment makes."""
    return partition.move is not None and broker in partition.move.adding


def is_out_of_sync(partition: Partition, broker: BrokerId) -> bool:
    """A replica that has yet to catch up, whatever for."""
    return broker not in partition.isr


class Watch:
    """Follows the replicas that moves make."""

    def __init__(
        self,
        admin: Admin,
        moving: Mapping[TopicPartition, Move],
        *,
        clock_ms: Callable[[], int],
        patience_ms: int = PATIENCE_MS,
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
        self._history = History(patience_ms=patience_ms)
        self._limits: dict[tuple[BrokerId, str], int] = {}
        self._limits_at_ms: int | None = None

    async def look(self, cluster: ClusterNow) -> Look:
        """One look; `cluster` is fresh."""
        sizes = await self._sizes(cluster)
        await self._read_limits(cluster)
        sample = Sample(
            at_ms=self._clock_ms(),
            copies={copy: self._seen(copy, cluster, sizes) for copy in self._copies},
            limits_in=self._limit(FOLLOWER_RATE),
            limits_out=self._limit(LEADER_RATE),
            silent=sizes.problems,
        )
        return self._history.add(sample)

    def waits_only_for(self, cluster: ClusterNow) -> tuple[BrokerId, ...]:
        """Brokers that are down and without which none of what is left gets on."""
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

    async def _sizes(self, cluster: ClusterNow) -> Sizes:
        wanted: dict[BrokerId, list[TopicPartition]] = {}
        for partition, broker in self._copies:
            now = cluster.partitions.get(partition)
            if now is None:
                continue
            for each in {broker, now.leader} - {None}:
                assert each is not None, "taken out"
                if partition not in wanted.setdefault(each, []):
                    wanted[each].append(partition)
        return await log_sizes.look(self._admin.connections, wanted)

    async def _read_limits(self, cluster: ClusterNow) -> None:
        """Not at every look: a broker tells all its settings or none."""
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

    def _seen(self, copy: Copy, cluster: ClusterNow, sizes: Sizes) -> CopySeen:
        partition, broker = copy
        now = cluster.partitions.get(partition)
        if now is None:  # its topic was deleted
            return CopySeen(
                leader=None, leader_bytes=None, own_bytes=None, is_level=False, is_moving=False
            )
        leader = now.leader
        ends = (
            None if leader is None else sizes.end_on(leader, partition),
            sizes.end_on(broker, partition),
        )
        return CopySeen(
            leader=leader,
            leader_bytes=None if leader is None else sizes.bytes_on(leader, partition),
            own_bytes=sizes.bytes_on(broker, partition),
            is_level=ends[0] is not None and ends[1] is not None and ends[1] >= ends[0],
            is_moving=self._is_moving(now, broker),
        )


class Patience:
    """With what is down and may return: lost once it was seen away for so long."""

    def __init__(self, lasts_ms: int | None) -> None:
        self._lasts_ms = lasts_ms  # None: for ever
        self._since_ms: int | None = None

    def is_lost(self, *, is_away: bool, now_ms: int) -> bool:
        if not is_away:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        elif self._lasts_ms is not None:
            return now_ms >= self._since_ms + self._lasts_ms
        return False


async def watch_moves(
    admin: Admin,
    moving: Mapping[TopicPartition, Move],
    partitions: frozenset[TopicPartition],
    *,
    is_reached: Callable[[ClusterNow], bool],
    show: Show,
    complain: Callable[[str], None],
    clock_ms: Callable[[], int],
    patience_ms: int = PATIENCE_MS,
    gives_up_after_ms: int | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ClusterNow:
    """Until none of these partitions moves any more; the cluster as it is then.

    A cluster that cannot be asked for a while is asked again: the move goes on without us. Brokers
    learn of a change one after the other, so an end that was not reached is looked at twice.
    A broker that is down may return, and is waited for; `gives_up_after_ms` is for those who cannot
    see that it does not, and refuses.
    """
    watch = Watch(admin, moving, clock_ms=clock_ms, patience_ms=patience_ms)
    at_rest_ms: int | None = None
    patience = Patience(gives_up_after_ms)
    while True:
        try:
            cluster = await clusters.look(admin)
            left = partitions & cluster.active.keys()
            if left:
                at_rest_ms = None
                show(await watch.look(cluster))
            else:
                at_rest_ms = clock_ms() if at_rest_ms is None else at_rest_ms
                if is_reached(cluster) or clock_ms() >= at_rest_ms + SETTLED_MS:
                    show(await watch.look(cluster))
                    return cluster
            down = watch.waits_only_for(cluster) if left else ()
            if patience.is_lost(is_away=bool(down), now_ms=clock_ms()):
                raise WaitsForBroker(_waits_text(down, left))
        except WaitsForBroker:
            raise
        except Refusal as refusal:
            complain(str(refusal))
        await pause(LOOK_EVERY_S)


def _waits_text(down: Sequence[BrokerId], partitions: AbstractSet[TopicPartition]) -> str:
    topic, number = min(partitions)
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    brokers = ", ".join(str(each) for each in down)
    return (
        f"broker {brokers} is down, and {topic}-{number}{more} cannot move without it; start it "
        "and follow the move with --watch, or cancel it with --cancel: either ends the throttle too"
    )
