"""A topic deleted and created again: nothing of the old one counts for the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from insync.metadata import paths
from insync.metadata.records import TopicRecord, encode_state
from insync.metadata.store import Create, Operation
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import virtual_time
from support.sim.simulated_cluster import client_of, new_cluster

CHECKPOINTED_S = 6


def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    with virtual_time() as loop:
        cluster = new_cluster(loop, 11)

        async def whole() -> None:
            for number in cluster.brokers:
                await cluster.start(number)
            client = client_of(cluster, 200)
            await client.append([b"%d" % number for number in range(100)])
            await asyncio.sleep(CHECKPOINTED_S)
            await scenario(cluster)

        loop.run_until_complete(whole())


async def delete(cluster: Cluster) -> None:
    node = cluster.brokers[1].node
    assert node is not None
    await node.topics.delete("life")
    await asyncio.sleep(1)


async def create_led_by_2(cluster: Cluster) -> None:
    """As one step, also when broker 2 is down: it died before it could take the partition up."""
    record = TopicRecord(topic_id=UUID(int=4), partitions=1, replication_factor=1)
    state = PartitionState(
        replicas=(BrokerId(2),), isr=(BrokerId(2),), leader=None, leader_epoch=LeaderEpoch(0)
    )
    step: list[Operation] = [
        Create(paths.topic("life"), record.encode()),
        Create(paths.topic_id(record.topic_id), b"life"),
        Create(paths.partition_state("life", 0), encode_state(state)),
    ]
    cluster.tree.step(step, None)
    await asyncio.sleep(1)


@pytest.mark.parametrize("is_down_meanwhile", [False, True])
def test_the_high_watermark_of_the_deleted_topic_does_not_count(is_down_meanwhile: bool) -> None:  # noqa: FBT001
    """It would be past whatever the leader appends next: acknowledged before it is copied."""

    async def scenario(cluster: Cluster) -> None:
        cluster.kill(2)
        if not is_down_meanwhile:
            await cluster.start(2)
            await asyncio.sleep(CHECKPOINTED_S)
        await delete(cluster)
        await create_led_by_2(cluster)
        if is_down_meanwhile:
            await cluster.start(2)
            await asyncio.sleep(1)
        node = cluster.brokers[2].node
        assert node is not None
        replica = node.replicas.partitions["life", 0]
        assert replica.topic_id == UUID(int=4)
        assert (replica.high_watermark, replica.log.end) == (0, 0)

    play(scenario)


def test_logs_of_topics_deleted_meanwhile_are_removed_at_the_next_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.kill(2)
        await delete(cluster)
        await cluster.start(2)
        node = cluster.brokers[2].node
        assert node is not None
        assert not node.directory.logs

    play(scenario)
