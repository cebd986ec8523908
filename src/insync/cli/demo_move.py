"""The demo's fourth act: replicas move under a throttle (KIP-73) while a client writes.

It does what `insync reassign --execute --throttle --watch` does, with the same progress bar. The
cluster itself removes the throttle when the last replica has caught up.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.markup import escape

from insync.cli import move_view
from insync.client import reassignments
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.partition_client import PartitionClient
from insync.client.sockets import Sockets
from insync.moves import cluster as clusters
from insync.moves import execute as moves
from insync.moves.execute import MoveStatus
from insync.moves.progress import MoveProgress
from insync.moves.watch import watch_moves
from insync.rules.throttle_settings import LISTS, RATES
from insync.rules.values import BrokerId, PartitionId
from insync.testing.cluster import HOST, Cluster
from insync.wire.configs import ConfigSource, Resource

TOPIC: Final = "moving"
PARTITIONS: Final = 12
MB: Final = 1_000_000
QUOTA: Final = 4 * MB
VALUE: Final = bytes(10_000)
VALUES_PER_APPEND: Final = 20
APPENDS_PER_PARTITION: Final = 10
FROM: Final = tuple(map(BrokerId, (1, 2)))
TO: Final = tuple(map(BrokerId, (3, 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How much moved, how fast, and how many throttle settings are left."""

    bytes_moved: int
    quota_bytes_per_s: int
    took_s: float
    acknowledged_meanwhile: int
    throttles_left: int

    @property
    def of_quota(self) -> float:
        return self.bytes_moved / self.took_s / self.quota_bytes_per_s

    @property
    def is_well(self) -> bool:
        """A looser bound than the tests': the machine may run other programs too."""
        return self.throttles_left == 0 and self.of_quota <= 1.1 and self.acknowledged_meanwhile > 0  # noqa: PLR2004


def play(cluster: Cluster, console: Console, *, as_json: bool) -> Moved:
    return asyncio.run(_play(cluster, console, as_json=as_json))


async def _play(cluster: Cluster, console: Console, *, as_json: bool) -> Moved:
    addresses = [(HOST, broker.port) for broker in cluster.brokers.values()]
    async with Admin(Connections(Sockets(), addresses, client_id="insync-demo")) as admin:
        config = {"min.insync.replicas": "2"}
        topic = NewTopic(name=TOPIC, assignment=[FROM] * PARTITIONS, config=config)
        await admin.create_topic(topic)
        clients = [
            PartitionClient(Sockets(), addresses, TOPIC, number) for number in range(PARTITIONS)
        ]
        await asyncio.gather(*(_fill(client) for client in clients))
        writer = _Writer(clients[0])
        task = asyncio.create_task(writer.write())
        try:
            return await _move(admin, writer, console, as_json=as_json)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for client in clients:
                await client.close()


async def _fill(client: PartitionClient) -> None:
    for _ in range(APPENDS_PER_PARTITION):
        await client.append([VALUE] * VALUES_PER_APPEND)


class _Writer:
    """A client that continues to write while partitions move."""

    def __init__(self, client: PartitionClient) -> None:
        self._client = client
        self.acknowledged = 0

    async def write(self) -> None:
        while True:
            await self._client.append([b"more"])
            self.acknowledged += 1
            await asyncio.sleep(0.01)


async def _move(admin: Admin, writer: _Writer, console: Console, *, as_json: bool) -> Moved:
    plan = {(TOPIC, PartitionId(number)): TO for number in range(PARTITIONS)}
    cluster = await clusters.read_cluster(admin)
    prepared = moves.prepare(cluster, plan, is_additional=False)
    size = PARTITIONS * APPENDS_PER_PARTITION * VALUES_PER_APPEND * len(VALUE)
    console.print(
        escape(
            f"{PARTITIONS} partitions, {size / MB:.0f} MB, move from broker 1 to broker 3 at "
            f"{QUOTA / MB:.0f} MB/s; a client continues to write"
        ),
        highlight=False,
    )
    before, began_s = writer.acknowledged, time.monotonic()
    outcome = await reassignments.start_with_throttle(
        admin, plan, throttle_bytes_per_s=QUOTA, is_additional=False, timeout_ms=10_000
    )
    assert outcome.is_done, "a plan of our own"
    ended_s = began_s
    with move_view.progress_display(as_json=as_json) as display:

        def show(progress: MoveProgress) -> None:
            nonlocal ended_s
            ended_s = time.monotonic()
            display.show(progress)

        await watch_moves(
            admin,
            prepared.moving,
            frozenset(plan),
            is_reached=lambda now: (
                set(moves.move_statuses(now, plan).values()) == {MoveStatus.COMPLETED}
            ),
            show=show,
            warn=display.warn,
            clock_ms=lambda: time.monotonic_ns() // MB,
            pause=lambda _: asyncio.sleep(0.2),
        )
    moved = Moved(
        bytes_moved=size,
        quota_bytes_per_s=QUOTA,
        took_s=ended_s - began_s,
        acknowledged_meanwhile=writer.acknowledged - before,
        throttles_left=await _count_throttles(admin),
    )
    console.print(
        escape(
            f"done in {moved.took_s:.1f} s, {100 * moved.of_quota:.0f} % of the quota; "
            f"{moved.acknowledged_meanwhile} writes were acknowledged meanwhile; "
            f"throttles left behind: {moved.throttles_left}"
        ),
        highlight=False,
    )
    return moved


async def _count_throttles(admin: Admin) -> int:
    """Throttle settings that an operator would have to remove."""
    topics = await admin.topic_configs([TOPIC]) or {}
    configs = [config for values in topics.values() for config in values.values()]
    for broker in await admin.brokers():
        configs += await admin.configs(Resource.BROKER, str(broker.number))
    return sum(
        config.name in (*RATES, *LISTS) and config.source is not ConfigSource.DEFAULT
        for config in configs
    )
