"""A simulated cluster with faults that records telemetry, and its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from insync.client.partition_client import PartitionClient
from insync.rules.stalls import Stall
from insync.sim.clients import Admin, SimClient
from insync.sim.cluster import Cluster
from insync.sim.run import SimulatedRun
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.telemetry.collection import Collection
from insync.telemetry.recorder import Recorder
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC

PARTITIONS = 2
NEVER_DRAINED_MS = 1 << 62
RECORDED = {
    "telemetry.enable": "true",
    "telemetry.topic.partitions": str(PARTITIONS),
    "telemetry.publish.interval.ms": "300",
}
Tables = dict[str, list[dict[str, Any]]]
Faults = Callable[[Cluster, Random], Awaitable[None]]


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


def record_faults(
    seed: int, inject_faults: Faults, settings: dict[str, str] | None = None
) -> Collection:
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
        await inject_faults(cluster, random)
        await cluster.heal()
        await asyncio.sleep(4.0)
        for task in writing:
            task.cancel()
        await asyncio.sleep(2.0)
        assert not cluster.unexpected_errors, cluster.unexpected_errors
        return await collect(cluster)

    try:
        return loop.run_until_complete(scenario())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class RecordedRun(SimulatedRun):
    """A simulated run with all its checks, that records telemetry as well."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.cluster._settings |= RECORDED
        self.tables: Tables = {}

    async def _check_logs(self) -> None:
        await asyncio.sleep(2.0)
        self.tables = as_rows(await collect(self.cluster))
        assert not self.cluster.unexpected_errors, self.cluster.unexpected_errors
        await super()._check_logs()


def record_a_run(seed: int, seconds: float) -> Tables:
    with virtual_time() as loop, keep_stalls() as stalls:
        run = RecordedRun(seed, loop)
        loop.run_until_complete(run.run(seconds))
        assert all(row in stalls for row in run.tables["stalls"])
        kept = [{name: row[name] for name in TABLES["stalls"].names} for row in stalls]
        return run.tables | {"stalls": kept}


@contextmanager
def keep_stalls() -> Iterator[list[dict[str, Any]]]:
    """The stalls of every broker, also those whose rows a kill takes away.

    They are published apart from the rows of the partitions, which then cannot be replayed.
    """
    stalls: list[dict[str, Any]] = []
    stalled, drained = Recorder.record_stall, Recorder.record_drain

    def on_stall(recorder: Recorder, stall: Stall) -> None:
        stalled(recorder, stall)
        at_ms = stall.began_at_ms + recorder.anchor_ms
        row = {"at_ms": at_ms, "broker": recorder.broker, "stall_ms": stall.length_ms}
        stalls.append(row | {"drained_at_ms": NEVER_DRAINED_MS, "recorder": recorder})

    def on_drained(recorder: Recorder, *, now_ms: int) -> None:
        drained(recorder, now_ms=now_ms)
        for row in stalls:
            if row.get("recorder") is recorder:
                del row["recorder"]
                row["drained_at_ms"] = now_ms + recorder.anchor_ms

    with patch.multiple(Recorder, record_stall=on_stall, record_drain=on_drained):
        yield stalls


async def everything(cluster: Cluster, random: Random) -> None:
    """Links cut and slow, brokers paused and killed, one after the other and at once."""
    for _ in range(12):
        one, other = random.sample(sorted(cluster.brokers), 2)
        match random.choice(("cut", "slow", "pause", "kill", "cold", "nothing")):
            case "cut":
                cluster.network.cut(one, other)
            case "slow":
                cluster.network.slow(one, other, latency_s_max=0.4)
            case "pause":
                cluster.pause(one)
                await asyncio.sleep(random.uniform(0.05, 3.0))
                cluster.resume(one)
            case "kill":
                cluster.kill(one)
                await asyncio.sleep(random.uniform(0.0, 1.0))
                await cluster.start(one)
            case "cold":
                cluster.brokers[one].disk.is_cold = True
            case _:
                pass
        await asyncio.sleep(random.uniform(0.1, 2.5))
        if random.random() < 0.5:
            cluster.network.heal()
