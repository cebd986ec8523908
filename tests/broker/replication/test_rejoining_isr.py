"""Rejoining the ISR under steady writes, which a random run seldom covers."""

from __future__ import annotations

import asyncio
from random import Random

from insync.sim.checks import Monitor
from insync.sim.clients import Admin, SimClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop


def test_no_follower_joins_below_the_high_watermark() -> None:
    """The leader is alone in the ISR, so all it writes is committed at once.

    A follower one fetch behind has caught up by its policy, and lacks what was committed since.
    """
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    cluster = Cluster(loop, Random(1), brokers=2)  # noqa: S311 - chance, not secrecy
    monitor = Monitor(cluster, unclean=False)

    async def write(client: SimClient) -> None:
        while True:
            await client.append_once([b"more"])
            await asyncio.sleep(0.002)

    async def scenario() -> None:
        for number in cluster.brokers:
            await cluster.start(number)
        client = SimClient(cluster, 100, ("t", 0), Random(1))  # noqa: S311
        await Admin(cluster, client).create("t", 1, factor=2)
        cluster.network.slow(1, 2, latency_s_max=0.02)
        cluster.network.cut(1, 2)
        await asyncio.sleep(1.0)
        writing = loop.create_task(write(client))
        await asyncio.sleep(1.6)
        assert len(monitor.states()["t", 0].state["isr"]) == 1
        cluster.network.mend(1, 2)
        for _ in range(50):
            await asyncio.sleep(0.02)
            monitor.check_brokers()
            monitor.raise_failure()
        assert len(monitor.states()["t", 0].state["isr"]) == 2
        writing.cancel()

    loop.run_until_complete(scenario())
    asyncio.set_event_loop(None)
    loop.close()
