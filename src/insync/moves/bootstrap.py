"""A broker that fills itself anew: KIP-73's second question.

Nothing is reassigned; the broker's own replicas catch up. The throttle is set for all of them and
for the leaders they fetch from, and goes when every one is in sync again, or when the tool ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from insync.client.admin import Admin
from insync.moves import cluster as clusters
from insync.moves import throttle as throttles
from insync.moves.cluster import ClusterNow
from insync.moves.journal import AnotherTool, JournalFile
from insync.moves.throttle import Ended, Throttle
from insync.moves.watch import LOOK_EVERY_S, Show, Watch, is_out_of_sync
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.refusals import BadPlan, Refusal
from insync.rules.throttled_replicas import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
    listing,
)
from insync.rules.values import BrokerId


def copies_of(cluster: ClusterNow, broker: BrokerId) -> dict[TopicPartition, Move]:
    """The broker's replicas as if each were a move to it from those that have the data."""
    found = {
        partition: Move(
            sources=frozenset(now.replicas) - {broker}, destinations=frozenset({broker})
        )
        for partition, now in sorted(cluster.partitions.items())
        if broker in now.replicas and now.leader != broker and len(now.replicas) > 1
    }
    if not found:
        known = ", ".join(str(each) for each in sorted(cluster.alive))
        raise BadPlan(
            f"broker {broker} follows no partition, so there is nothing to throttle; "
            f"alive are {known}"
        )
    return found


def throttle_of(
    cluster: ClusterNow, copies: Mapping[TopicPartition, Move], broker: BrokerId, bytes_per_s: int
) -> Throttle:
    """Its replicas in the follower lists, their leaders in the leader lists."""
    leaders = {partition: cluster.partitions[partition].leader for partition in copies}
    itself = broker if broker in cluster.alive else throttles.ALL_BROKERS
    rates = {(itself, FOLLOWER_RATE): bytes_per_s}
    for each in sorted({each for each in leaders.values() if each is not None}):
        rates[each, LEADER_RATE] = bytes_per_s
    topics = sorted({topic for topic, _ in copies})
    lists = {}
    for topic in topics:
        ours = [partition for partition in copies if partition[0] == topic]
        lists[topic, FOLLOWER_LIST] = listing((number, broker) for _, number in ours)
        lists[topic, LEADER_LIST] = listing(
            (partition[1], leader)
            for partition in ours
            if (leader := leaders[partition]) is not None
        )
    return Throttle(rates=rates, lists=lists)


async def bootstrap(
    admin: Admin,
    file: JournalFile,
    cluster: ClusterNow,
    broker: BrokerId,
    *,
    bytes_per_s: int,
    show: Show,
    complain: Callable[[str], None],
    clock_ms: Callable[[], int],
    patience_ms: int,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[bool, Ended]:
    """Whether it has caught up (else we were interrupted), and how the throttle ended."""
    copies = copies_of(cluster, broker)
    with file.locked():
        left = await throttles.end(admin, file, active=cluster.active)
        if left.kept_for:
            raise AnotherTool("moves are under way under a throttle; wait until they are done")
        throttle = throttle_of(cluster, copies, broker, bytes_per_s)
        await throttles.set_throttle(admin, file, throttle, partitions=copies, bootstrapping=broker)
        watch = Watch(
            admin, copies, clock_ms=clock_ms, patience_ms=patience_ms, is_moving=is_out_of_sync
        )
        has_caught_up = False
        try:
            while not has_caught_up:
                try:
                    cluster = await clusters.look(admin)
                    look = await watch.look(cluster)
                    show(look)
                    # A broker that has just died is in sync until that is noticed.
                    is_there = broker in cluster.alive and broker not in look.silent
                    has_caught_up = is_there and not _behind(cluster, copies, broker)
                except Refusal as refusal:
                    complain(str(refusal))
                if not has_caught_up:
                    await pause(LOOK_EVERY_S)
        except asyncio.CancelledError:
            pass  # asked to stop: the throttle must not outlive us
        return has_caught_up, await throttles.end(admin, file, active=())


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
