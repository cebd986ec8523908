"""Logs are read again in the background; a damaged follower fetches what it lost."""

from __future__ import annotations

import asyncio

import pytest

from insync.node.scrub import BYTES_PER_S_MIN, RETRY_S
from insync.sim.cluster import Cluster
from insync.storage.memory_disk import MemoryDisk
from support.sim.few_brokers import (
    KEY,
    ONE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    stays,
    topic,
    until,
    write_on,
)
from support.storage.log_model import read_all

PASS_MS = 5_000
SETTINGS = {"log.scrub.interval.ms": str(PASS_MS), "log.segment.bytes": "1024"}
RECORDS = 40


async def make_topic(cluster: Cluster) -> bytes:
    """A partition with several segments on brokers 1 and 2, and its bytes."""
    await topic(cluster, (ONE, TWO))
    for number in range(RECORDS):
        await client_of(cluster).append([b"%0100d" % number])
    await until(lambda: replica_of(cluster, 2).high_watermark == RECORDS)
    assert len(replica_of(cluster, 1).log.segment_bases) > 4
    return read_all(replica_of(cluster, 1).log)


def segment_paths(cluster: Cluster, number: int) -> list[str]:
    path = replica_of(cluster, number).log.path
    return [f"{path}/{base:020d}.log" for base in replica_of(cluster, number).log.segment_bases]


def garble(disk: MemoryDisk, path: str) -> None:
    """As a bad sector does: the file that is open has the new bytes too."""
    data = disk._files[path].data
    data[150] ^= 0xFF


def damaged(cluster: Cluster, number: int) -> dict[tuple[str, int], str]:
    return node_of(cluster, number).directory.damaged


@pytest.mark.parametrize("segment", [0, 2, -1])
def test_a_follower_fetches_again_what_its_disk_damaged(
    segment: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        whole = await make_topic(cluster)
        garble(cluster.brokers[2].disk, segment_paths(cluster, 2)[segment])
        assert read_all(replica_of(cluster, 2).log) != whole
        await until(lambda: KEY in damaged(cluster, 2), within_s=2 * PASS_MS / 1_000)
        assert "CRC" in damaged(cluster, 2)[KEY]
        assert "t-0: damaged: segment" in caplog.text
        await until(lambda: KEY not in damaged(cluster, 2), within_s=20)
        await until(lambda: isr_of(cluster) == [1, 2], within_s=20)
        assert read_all(replica_of(cluster, 2).log) == whole
        await stays(lambda: not damaged(cluster, 1) and not damaged(cluster, 2), for_s=12)

    play(scenario, settings=SETTINGS)


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "written to"])
def test_a_follower_truncates_nothing_while_it_is_in_the_isr(*, is_idle: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        garble(cluster.brokers[2].disk, segment_paths(cluster, 2)[1])
        await until(lambda: KEY in damaged(cluster, 2), within_s=2 * PASS_MS / 1_000)
        writing = None if is_idle else asyncio.ensure_future(write_on(cluster))
        while replica_of(cluster, 2).log.end >= RECORDS:
            await asyncio.sleep(0.001)
        assert isr_of(cluster) == [1]
        while replica_of(cluster, 2).log.end < RECORDS:
            await asyncio.sleep(0.001)
            assert isr_of(cluster) == [1], "a delayed fetch may claim what it had"
        await until(lambda: isr_of(cluster) == [1, 2], within_s=20)
        if writing is not None:
            writing.cancel()

    play(scenario, settings=SETTINGS)


def test_an_only_replica_serves_on_after_damage_was_found() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        for number in range(RECORDS):
            await client_of(cluster).append([b"%0100d" % number])
        garble(cluster.brokers[1].disk, segment_paths(cluster, 1)[1])
        await until(lambda: KEY in damaged(cluster, 1), within_s=2 * PASS_MS / 1_000)
        await stays(lambda: replica_of(cluster, 1).is_leader, for_s=5)
        await client_of(cluster).append([b"one more"])

    play(scenario, settings=SETTINGS)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_leader_that_finds_damage_is_replaced_and_repaired(*, is_killed: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        whole = await make_topic(cluster)
        garble(cluster.brokers[1].disk, segment_paths(cluster, 1)[1])
        await until(lambda: KEY in damaged(cluster, 1), within_s=2 * PASS_MS / 1_000)
        if is_killed:
            cluster.kill(1)
            await cluster.start(1)
            assert KEY in damaged(cluster, 1), "known over a restart"
        await until(lambda: replica_of(cluster, 2).is_leader, within_s=30)
        await until(lambda: not damaged(cluster, 1), within_s=60)
        await until(lambda: isr_of(cluster) in ([1, 2], [2, 1]), within_s=20)
        assert read_all(replica_of(cluster, 1).log) == whole

    play(scenario, settings=SETTINGS)


@pytest.mark.parametrize("segment", [0, 2])
def test_a_follower_that_starts_without_a_segment_gets_it_from_the_leader(segment: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        whole = await make_topic(cluster)
        path = segment_paths(cluster, 2)[segment]
        await asyncio.sleep(70)  # until the inventory is noted
        cluster.kill(2)
        cluster.brokers[2].disk.remove(path)
        await until(lambda: isr_of(cluster) == [1], within_s=20)
        await cluster.start(2)
        assert KEY in damaged(cluster, 2)
        await until(lambda: not damaged(cluster, 2), within_s=60)
        await until(lambda: isr_of(cluster) == [1, 2], within_s=20)
        assert read_all(replica_of(cluster, 2).log) == whole

    play(scenario, settings=SETTINGS | {"log.scrub.interval.ms": "0"})


def test_a_follower_without_its_oldest_segment_joins_when_it_has_it_again() -> None:
    """A leader without it would take it from the others."""

    async def scenario(cluster: Cluster) -> None:
        whole = await make_topic(cluster)
        path = segment_paths(cluster, 2)[0]
        await asyncio.sleep(70)  # until the inventory is noted
        cluster.kill(2)
        cluster.brokers[2].disk.remove(path)
        await until(lambda: isr_of(cluster) == [1], within_s=20)
        await cluster.start(2)
        await until(lambda: isr_of(cluster) == [1, 2], within_s=20)
        assert read_all(replica_of(cluster, 2).log) == whole

    play(scenario, settings=SETTINGS | {"log.scrub.interval.ms": "0"})


@pytest.mark.parametrize("off", ["0", "-1"])
def test_a_scrub_that_is_off_reads_nothing(off: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        garble(cluster.brokers[2].disk, segment_paths(cluster, 2)[0])
        await stays(lambda: not damaged(cluster, 2), for_s=30)
        assert node_of(cluster, 2).replicas.counters.scrubbed_bytes == 0

    play(scenario, settings=SETTINGS | {"log.scrub.interval.ms": off})


def test_one_read_error_is_no_damage_and_a_lasting_one_is() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        disk = cluster.brokers[2].disk
        disk.fails_reads = True
        await stays(lambda: not damaged(cluster, 2), for_s=RETRY_S - 5)
        await until(lambda: KEY in damaged(cluster, 2), within_s=20)
        disk.fails_reads = False
        await until(lambda: not damaged(cluster, 2), within_s=60)

    play(scenario, settings=SETTINGS)


def test_a_pass_keeps_to_its_rate() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        counters = node_of(cluster, 2).replicas.counters
        for _ in range(50):
            before = counters.scrubbed_bytes
            await asyncio.sleep(0.1)
            assert counters.scrubbed_bytes - before <= BYTES_PER_S_MIN * 0.1 + (1 << 10)
        assert counters.scrubbed_bytes > 0

    play(scenario, settings=SETTINGS | {"log.scrub.interval.ms": "500"})
