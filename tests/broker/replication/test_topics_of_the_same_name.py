"""A topic is deleted and created again while a step or a deletion of the first is under way."""

from __future__ import annotations

import asyncio
import errno

import pytest

from insync.broker.admin.topics import RequestedTopic
from insync.metadata import paths
from insync.sim.aimed_faults import HeldSteps
from insync.sim.cluster import Cluster
from insync.sim.ownership import acting_as
from insync.storage.errors import DiskError
from support.sim.few_brokers import (
    ONE,
    PATH,
    THREE,
    TWO,
    client_of,
    node_of,
    play,
    replica_of,
    state_of,
    topic,
    until,
)

MIN_ISR_TWO = {"min.insync.replicas": "2"}
NEW = [b"NEW 0", b"NEW 1", b"NEW 2"]


def hold_first_step(cluster: Cluster, broker: int, path: str) -> HeldSteps:
    """The first step of a broker that has an operation on this path waits for `release`."""
    store = cluster.brokers[broker].store
    assert store is not None
    return HeldSteps(store, lambda step: any(each.path == path for each in step), at_most=1)


async def create(cluster: Cluster, *replicas: int) -> None:
    topics = node_of(cluster, 2).topics
    assignment = {0: tuple(replicas)}
    await topics.create(RequestedTopic(name="t", assignment=assignment, config=MIN_ISR_TWO))
    await asyncio.sleep(0.5)


async def append_new(cluster: Cluster) -> None:
    client = client_of(cluster, 120)
    for offset, value in enumerate(NEW):
        assert await client.append([value]) == offset


async def records(cluster: Cluster) -> list[bytes]:
    return [value for _, value in (await client_of(cluster, 150).fetch(0)).records]


def test_a_late_step_of_the_controller_does_not_replace_the_state_of_the_second_topic() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert cluster.controller() == 1
        await create(cluster, 4, 5)
        await client_of(cluster).append([b"OLD"])
        held = hold_first_step(cluster, 1, PATH)
        cluster.kill(5)
        await until(lambda: len(held) > 0)
        await node_of(cluster, 2).topics.delete("t")
        await create(cluster, 2, 3)
        await append_new(cluster)
        held.release()
        await asyncio.sleep(2)
        assert state_of(cluster)["replicas"] == [2, 3]
        assert await records(cluster) == NEW

    play(scenario, brokers=5)


def test_late_new_partitions_do_not_bring_the_first_topic_id_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, 2, 3)
        held = hold_first_step(cluster, 1, paths.topic("t"))
        with acting_as(1):
            growing = asyncio.get_running_loop().create_task(
                node_of(cluster, 1).topics.add_partitions("t", 2, None)
            )
        await until(lambda: len(held) > 0)
        await node_of(cluster, 2).topics.delete("t")
        await create(cluster, 2, 3)
        await append_new(cluster)
        held.release()
        await growing
        cluster.kill(3)
        await asyncio.sleep(2)
        assert replica_of(cluster, 2).log.end == len(NEW)
        await cluster.start(3)
        await asyncio.sleep(2)
        assert await records(cluster) == NEW

    play(scenario)


@pytest.mark.parametrize("created_after_s", [0.05, 2.0])
def test_a_deletion_that_the_disk_refused_is_repeated(created_after_s: float) -> None:
    """Also before the second topic gets a log: the records of the first are none of its own."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config=MIN_ISR_TWO)
        client = client_of(cluster)
        for number in range(5):
            await client.append([b"OLD %d" % number])
        disk = cluster.brokers[2].disk
        rename, refusals = disk.rename, [1]

        def refuse_once(path: str, to: str) -> None:
            if path == "/logs/t-0" and refusals:
                refusals.pop()
                raise DiskError(errno.EIO, path)
            rename(path, to)

        disk.rename = refuse_once  # type: ignore[method-assign]
        await node_of(cluster, 1).topics.delete("t")
        await asyncio.sleep(created_after_s)
        await topic(cluster, (ONE, TWO), config=MIN_ISR_TWO, settled_s=0)
        await append_new(cluster)
        assert not refusals
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == 2)
        await asyncio.sleep(1)
        assert (await records(cluster))[: len(NEW)] == NEW

    play(scenario)


def test_a_failure_of_the_first_topics_log_is_none_of_the_seconds() -> None:
    """Its report would hide the next one, and no other replica would be elected."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        await client_of(cluster).append([b"a"])
        replica_of(cluster, 1).log.fail("the first disk error")
        await until(lambda: state_of(cluster)["leader"] == 2)
        await node_of(cluster, 2).topics.delete("t")
        await until(lambda: not list(cluster.tree.entries.keys() & _reports(cluster)))
        await topic(cluster, (ONE, TWO, THREE))
        client = client_of(cluster, 120)
        await client.append([b"b"])
        assert replica_of(cluster, 1).is_leader
        replica_of(cluster, 1).log.fail("the second disk error")
        async with asyncio.timeout(30):
            assert await client.append([b"c"]) == 1
        assert state_of(cluster)["leader"] == 2

    play(scenario)


def _reports(cluster: Cluster) -> set[str]:
    incarnation = node_of(cluster, 1).replicas.incarnation
    return {paths.failed_replica("t", 0, incarnation), paths.damaged_replica("t", 0, incarnation)}
