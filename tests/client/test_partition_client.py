"""A client of one partition, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from insync.sim.virtual_loop import virtual_time
from support.sim.simulated_cluster import client_of, new_cluster


@pytest.mark.parametrize("seed", range(8))
def test_offset_bounds_include_acknowledged_records_right_after_a_leader_died(seed: int) -> None:
    with virtual_time() as loop:
        cluster = new_cluster(loop, seed)

        async def run_scenario() -> None:
            for number in cluster.brokers:
                await cluster.start(number)
            client = client_of(cluster, 200)
            await client.append([b"first"])
            await asyncio.sleep(2)
            for number in range(3):
                await client.append([b"%d" % number])
            cluster.kill(client.leader_id)
            assert await client_of(cluster, 201).bounds() == (0, 4)

        loop.run_until_complete(run_scenario())
