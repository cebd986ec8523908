"""A log that the disk refuses to open at a start has failed, and is opened later: it lost nothing
as far as its broker knows."""

from __future__ import annotations

import asyncio

import pytest

from insync.metadata import paths
from insync.sim.cluster import Cluster
from insync.storage.directory import CLEAN
from insync.storage.partition_metadata import TOPIC_ID
from insync.storage.replica_checkpoint import REPLICA_CHECKPOINT
from support.sim.few_brokers import (
    KEY,
    ONE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    stays,
    topic,
    until,
)

SEGMENT = f"/logs/t-0/{0:020}.log"
FLUSHED = {"log.flush.interval.messages": "1"}
CHECKPOINT_S = 6  # by then every watermark is noted


def reports(cluster: Cluster, root: str) -> list[str]:
    return [path for path in cluster.tree.entries if path.startswith(root)]


async def start_with_failing_disk(cluster: Cluster, number: int, *, reads: bool) -> None:
    disk = cluster.brokers[number].disk
    disk.fails_reads, disk.fails_flushes = reads, not reads
    await cluster.start(number)
    await until(lambda: state_of(cluster)["leader"] != number)


def mend(cluster: Cluster, number: int) -> None:
    disk = cluster.brokers[number].disk
    disk.fails_reads = disk.fails_flushes = False


@pytest.mark.parametrize("reads", [True, False])
def test_a_replica_whose_log_could_not_be_opened_leads_again_when_the_disk_works_again(
    *, reads: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        await client_of(cluster).append([b"first"])
        cluster.kill(1)
        await start_with_failing_disk(cluster, 1, reads=reads)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=2)
        assert KEY in node_of(cluster, 1).directory.unopened
        assert len(reports(cluster, paths.FAILED_REPLICAS)) == 1
        assert reports(cluster, paths.DAMAGED_REPLICAS) == [], "nothing shows that it lost records"
        mend(cluster, 1)
        await until(lambda: state_of(cluster)["leader"] == 1, within_s=1)
        assert reports(cluster, paths.FAILED_REPLICAS) == []
        assert (await client_of(cluster, 102).read(0))[0] == [b"first"]

    play(scenario, settings=FLUSHED)


def test_an_eligible_replica_does_not_replace_a_replica_whose_log_is_not_opened() -> None:
    """It may lack records that were written with acks=1 and that consumers have read."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        client = client_of(cluster)
        await client.append([b"first"])
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        assert state_of(cluster)["eligible"] == [2]
        assert await client.append_once([b"second"]) == 1
        assert (await client.read(0))[0] == [b"first", b"second"]
        cluster.kill(1)
        await cluster.start(2)
        await start_with_failing_disk(cluster, 1, reads=False)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=2)
        mend(cluster, 1)
        await until(lambda: isr_of(cluster) == [1, 2])
        assert (await client_of(cluster, 102).read(0))[0] == [b"first", b"second"]

    play(scenario, settings=FLUSHED | {"min.insync.replicas": "2"})


def test_a_log_that_lacks_committed_records_when_it_is_opened_is_damaged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        for value in (b"first", b"second"):
            await client_of(cluster).append([value])
        await asyncio.sleep(CHECKPOINT_S)
        cluster.kill(1)
        disk = cluster.brokers[1].disk
        disk.open(SEGMENT).truncate(disk.file_size(SEGMENT) // 2)
        disk.remove("/logs/t-0/segment-inventory")
        await start_with_failing_disk(cluster, 1, reads=True)
        await asyncio.sleep(CHECKPOINT_S)
        assert reports(cluster, paths.DAMAGED_REPLICAS) == []
        mend(cluster, 1)
        await until(lambda: reports(cluster, paths.DAMAGED_REPLICAS) != [], within_s=1)
        assert reports(cluster, paths.FAILED_REPLICAS) == []
        assert replica_of(cluster, 1).log.end == 1
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=2)

    play(scenario)


def test_a_failure_after_it_was_opened_is_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"first"])
        cluster.kill(2)
        await start_with_failing_disk(cluster, 2, reads=True)
        cluster.store_delay_ms = (100, 100)
        mend(cluster, 2)
        await until(lambda: KEY in node_of(cluster, 2).replicas.partitions)
        replica_of(cluster, 2).log.fail("of a test")
        await asyncio.sleep(1)
        incarnation = node_of(cluster, 2).replicas.incarnation
        assert reports(cluster, paths.FAILED_REPLICAS) == [paths.failed_replica(*KEY, incarnation)]

    play(scenario)


def test_a_stop_is_not_clean_while_a_log_is_not_opened() -> None:
    """The next start would believe what no start has verified."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        await client_of(cluster).append([b"first"])
        cluster.kill(1)
        await start_with_failing_disk(cluster, 1, reads=True)
        node_of(cluster, 1).directory.close()
        assert CLEAN not in cluster.brokers[1].disk.list("/logs")

    play(scenario)


def test_a_log_whose_topic_id_cannot_be_read_is_opened_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        await client_of(cluster).append([b"first"])
        cluster.kill(1)
        disk = cluster.brokers[1].disk
        disk.unreadable_names = {TOPIC_ID}
        await cluster.start(1)
        await until(lambda: state_of(cluster)["leader"] is None)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=2)
        assert KEY in node_of(cluster, 1).directory.unopened
        assert reports(cluster, paths.DAMAGED_REPLICAS) == []
        disk.unreadable_names = set()
        await until(lambda: state_of(cluster)["leader"] == 1)
        values, _ = await client_of(cluster, 102).read(0)
        assert values == [b"first"]
        assert not [path for path in disk.paths() if "-stray" in path]

    play(scenario)


def test_a_broker_does_not_start_without_its_inventory_of_replicas() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        await asyncio.sleep(CHECKPOINT_S)
        cluster.kill(1)
        disk = cluster.brokers[1].disk
        disk.unreadable_names = {REPLICA_CHECKPOINT}
        await cluster.start(1)
        assert "held-replicas-checkpoint: Input/output error" in (cluster.brokers[1].refusal or "")
        disk.unreadable_names = set()
        await cluster.start(1)
        await until(lambda: state_of(cluster)["leader"] == 1)

    play(scenario)
