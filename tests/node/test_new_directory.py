"""Defect 8: a broker's id belongs to one data directory, and another one is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.static.primitive import i8, i32Timedelta

from insync.broker.accepted import Accepted
from insync.metadata import paths
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.storage.memory_disk import MemoryDisk
from support.sim.few_brokers import (
    client_of,
    isr_of,
    play,
    replica_of,
    state_of,
    stays,
    topic,
    until,
)

NEW = Accepted(new_directory=True)
UNCLEAN_ELECTION = ElectLeadersRequest(
    election_type=i8(1), topic_partitions=None, timeout=i32Timedelta.parse(timedelta(seconds=5))
)
VALUES = [str(number).encode() for number in range(100)]


async def filled(cluster: Cluster, *, min_isr: int = 2) -> None:
    await topic(cluster, config={"min.insync.replicas": str(min_isr)})
    await client_of(cluster).append(VALUES)
    await until(lambda: all(replica_of(cluster, each).log.end == 100 for each in (1, 2, 3)))


def test_a_second_process_with_an_empty_folder_does_not_replace_a_live_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        before = cluster.tree.entries[paths.broker_id(2)]
        for accepted in (Accepted(), NEW):
            refusal = await refusal_of_second(cluster, accepted)
            assert "broker 2" in refusal
            assert "broker-2:9092" in refusal
            assert cluster.tree.entries[paths.broker_id(2)] == before
        assert isr_of(cluster) == [1, 2, 3]

    async def refusal_of_second(cluster: Cluster, accepted: Accepted) -> str:
        other = Cluster(cluster.loop, Random(7), brokers=3)  # noqa: S311
        other.tree = cluster.tree
        await other.start(2, accepted=accepted)
        assert not other.brokers[2].has_started
        return other.brokers[2].refusal

    play(scenario)


def test_an_empty_folder_needs_the_flag_and_is_filled_by_the_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1, 3])
        cluster.brokers[2].disk = MemoryDisk()
        await cluster.start(2)
        assert "--new-directory" in cluster.brokers[2].refusal
        assert cluster.brokers[2].disk.list("/logs") == [".lock"]
        await cluster.start(2, accepted=NEW)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert replica_of(cluster, 2).log.end == 100
        cluster.kill(2)
        await cluster.start(2)  # from now on it is the broker's directory
        assert cluster.brokers[2].has_started

    play(scenario)


def test_the_former_directory_is_another_one_then() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        former = cluster.brokers[2].disk
        cluster.kill(2)
        await asyncio.sleep(1)
        cluster.brokers[2].disk = MemoryDisk()
        await cluster.start(2, accepted=NEW)
        cluster.kill(2)
        cluster.brokers[2].disk = former
        await cluster.start(2)
        assert "--new-directory" in cluster.brokers[2].refusal

    play(scenario)


def test_a_last_in_sync_replica_that_comes_back_empty_does_not_lead() -> None:
    """Factor 3, min ISR 2: everything acknowledged is on broker 2 too, which is eligible."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        await come_back_empty(cluster)
        await cluster.start(1)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        cluster.kill(3, loses_power=True)  # what is wrong with its log outlives the flag
        await cluster.start(3)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        await cluster.start(2)
        await until(lambda: isr_of(cluster) == [1, 2, 3] and state_of(cluster)["leader"] == 2)
        assert [replica_of(cluster, number).log.end for number in (1, 2, 3)] == [100] * 3

    play(scenario)


def test_where_no_other_replica_is_eligible_an_operator_elects() -> None:
    """Min ISR 1: broker 3 may have acknowledged records alone."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster, min_isr=1)
        await come_back_empty(cluster)
        for number in (1, 2):
            await cluster.start(number)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        assert [replica_of(cluster, number).log.end for number in (1, 2, 3)] == [100, 100, 0]
        # An operator elects one of the others; the empty one is filled from it.
        await client_of(cluster, 111).ask_any_broker(UNCLEAN_ELECTION)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert [replica_of(cluster, number).log.end for number in (1, 2, 3)] == [100] * 3

    play(scenario)


async def come_back_empty(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        cluster.kill(number)
        await asyncio.sleep(1)
    assert isr_of(cluster) == [3]
    cluster.brokers[3].disk = MemoryDisk()
    await cluster.start(3, accepted=NEW)
    await until(lambda: state_of(cluster)["leader"] is None)
    assert isr_of(cluster) == [3]


def test_the_only_replica_that_comes_back_empty_waits_for_an_operator() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, replicas=(BrokerId(1),))
        await client_of(cluster).append(VALUES)
        cluster.kill(1)
        await asyncio.sleep(1)
        cluster.brokers[1].disk = MemoryDisk()
        await cluster.start(1, accepted=NEW)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        await client_of(cluster, 111).ask_any_broker(UNCLEAN_ELECTION)
        await until(lambda: state_of(cluster)["leader"] == 1)

    play(scenario)


def test_a_leader_that_comes_back_empty_at_once_does_not_lead() -> None:
    """Its session has not ended yet when it registers again."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        assert state_of(cluster)["leader"] == 1
        cluster.kill(1, noticed_after_ms=500)
        cluster.brokers[1].disk = MemoryDisk()
        await cluster.start(1, accepted=NEW)
        await until(lambda: isr_of(cluster) == [1, 2, 3] and state_of(cluster)["leader"] != 1)
        assert [replica_of(cluster, number).log.end for number in (1, 2, 3)] == [100] * 3

    play(scenario)


def test_a_directory_without_id_is_accepted_once() -> None:
    """A directory and a store of an Insync that had no such ids."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(2)
        await asyncio.sleep(1)
        disk = cluster.brokers[2].disk
        meta = disk.read_all("/logs/meta.properties").splitlines()
        disk.write_atomic("/logs/meta.properties", b"\n".join(meta[:3]) + b"\n")
        del cluster.tree.entries[paths.broker_directory(2)]
        await cluster.start(2)
        assert cluster.brokers[2].has_started
        assert paths.broker_directory(2) in cluster.tree.entries
        await until(lambda: isr_of(cluster) == [1, 2, 3])

    play(scenario)


def test_an_empty_folder_of_a_broker_from_before_ids_needs_the_flag_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(2)
        await asyncio.sleep(1)
        del cluster.tree.entries[paths.broker_directory(2)]
        for _ in range(2):  # a refused start changes nothing, so the next one is refused too
            cluster.brokers[2].disk.remove_tree("/logs")
            await cluster.start(2)
            assert "--new-directory" in cluster.brokers[2].refusal

    play(scenario)
