"""A simulated cluster in trouble that records itself, and its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from insync.client.partition_client import PartitionClient
from insync.sim.clients import Admin, SimClient
from insync.sim.cluster import Cluster
from insync.sim.life import Life
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.telemetry.collection import Collection
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC

PARTITIONS = 2
RECORDED = {
    "telemetry.enable": "true",
    "telemetry.topic.partitions": str(PARTITIONS),
    "telemetry.publish.interval.ms": "300",
}
Tables = dict[str, list[dict[str, Any]]]
Trouble = Callable[[Cluster, Random], Awaitable[None]]


async def collect(cluster: Cluster, partitions: Iterable[int] = range(PARTITIONS)) -> Collection:
    collection = Collection()
    for number in partitions:
        client = PartitionClient(
            cluster.network.host(500), cluster.addresses, TELEMETRY_TOPIC, number
        )
        offset = 0
        while True:
            part = await client.read_batches(offset, from_start=True)
            offset = collection.take(part.records or b"", offset=offset)
            if offset >= part.high_watermark:
                break
        await client.close()
    return collection


def as_rows(collection: Collection) -> Tables:
    return {name: collection.joined(name).to_pylist() for name in TABLES}


def live(seed: int, trouble: Trouble, settings: dict[str, str] | None = None) -> Collection:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    random = Random(seed)  # noqa: S311 - chance, not secrecy
    cluster = Cluster(loop, random, settings=RECORDED | (settings or {}))

    async def write(client: SimClient) -> None:
        while True:
            await client.append_once([b"more"])
            await asyncio.sleep(random.choice((0.005, 0.02, 0.3)))

    async def scenario() -> Collection:
        for number in cluster.brokers:
            await cluster.start(number)
        client = SimClient(cluster, 100, ("t", 0), Random(seed))  # noqa: S311
        await Admin(cluster, client).create("t", 2, factor=3)
        writing = [loop.create_task(write(client))]
        second = SimClient(cluster, 101, ("t", 1), Random(seed + 1))  # noqa: S311
        writing.append(loop.create_task(write(second)))
        await asyncio.sleep(1.0)
        await trouble(cluster, random)
        await cluster.heal()
        await asyncio.sleep(4.0)
        for task in writing:
            task.cancel()
        await asyncio.sleep(2.0)
        assert not cluster.mishaps, cluster.mishaps
        return await collect(cluster)

    try:
        return loop.run_until_complete(scenario())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class RecordedLife(Life):
    """One of the lives that every check is made on, recorded besides."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.cluster._settings |= RECORDED
        self.tables: Tables = {}

    async def _inspect(self) -> None:
        await asyncio.sleep(2.0)
        self.tables = as_rows(await collect(self.cluster))
        assert not self.cluster.mishaps, self.cluster.mishaps
        await super()._inspect()


def live_a_recorded_life(seed: int, seconds: float) -> Tables:
    with virtual_time() as loop:
        life = RecordedLife(seed, loop)
        loop.run_until_complete(life.live(seconds))
        return life.tables
