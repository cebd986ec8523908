"""The cluster's id and secret: one broker creates them, and all brokers have the same."""

from __future__ import annotations

import asyncio
from random import Random

from insync.metadata.memory import MemoryStore, MemoryTree
from insync.node.cluster_identity import ID_CHARACTERS, ClusterIdentity, read_or_create_identity
from insync.sim.virtual_loop import virtual_time


async def identity_of_broker(tree: MemoryTree, seed: int) -> ClusterIdentity:
    store = MemoryStore(tree, clock_ms=lambda: 0)
    await store.start()
    identity = await read_or_create_identity(store, Random(seed))  # noqa: S311
    await store.close()
    return identity


def test_brokers_that_start_at_once_agree() -> None:
    with virtual_time() as loop:
        delays = Random(7)  # noqa: S311
        tree = MemoryTree(delay_ms=lambda: delays.randint(0, 20))

        async def start_three() -> list[ClusterIdentity]:
            return await asyncio.gather(*(identity_of_broker(tree, seed) for seed in range(3)))

        first, *others = loop.run_until_complete(start_three())
        assert others == [first, first]
        assert len(first.cluster_id) == ID_CHARACTERS
        later = loop.run_until_complete(identity_of_broker(tree, 9))
        assert later == first
