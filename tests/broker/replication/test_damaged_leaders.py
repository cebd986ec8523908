"""One damaged replica truncates no intact one: acknowledged records stay, without an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.metadata import paths
from insync.metadata.records import encode_config
from insync.metadata.store import Create, Delete
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.sim.ownership import acting_as
from insync.storage.inventory import Damage as NotedDamage
from insync.storage.memory_disk import MemoryDisk
from insync.storage.partition_metadata import TOPIC_ID, write_topic_id
from insync.wire.apis import Api
from support.sim.few_brokers import (
    KEY,
    ONE,
    THREE,
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
from support.sim.reassignments import alter, ask, moved_to

ALL = (ONE, TWO, THREE)
SETTINGS = {"min.insync.replicas": "2"}
RECORDS = [b"%d" % number for number in range(400)]
FOLDER = "/logs/t-0"
SEGMENT = f"{FOLDER}/{0:020}.log"
CHECKPOINT_S = 6  # by then every watermark is noted


def remove_folder(disk: MemoryDisk) -> None:
    disk.remove_tree(FOLDER)


def garble_topic_id(disk: MemoryDisk) -> None:
    disk.write_atomic(f"{FOLDER}/{TOPIC_ID}", b"\x00garbled\xff")


def change_topic_id(disk: MemoryDisk) -> None:
    disk.write_atomic(f"{FOLDER}/{TOPIC_ID}", write_topic_id(UUID(int=7, version=4)))


def cut_segment(disk: MemoryDisk) -> None:
    disk.open(SEGMENT).truncate(disk.file_size(SEGMENT) // 2)


def empty_segment(disk: MemoryDisk) -> None:
    disk.open(SEGMENT).truncate(0)


def remove_segment(disk: MemoryDisk) -> None:
    disk.remove(SEGMENT)


DAMAGES = [
    remove_folder,
    garble_topic_id,
    change_topic_id,
    cut_segment,
    empty_segment,
    remove_segment,
]
Damage = Callable[[MemoryDisk], None]


async def append_all(cluster: Cluster, replicas: tuple[BrokerId, ...] = ALL) -> None:
    """Acknowledged with acks=all, and noted as committed on every replica."""
    await topic(cluster, replicas)
    client = client_of(cluster)
    for first in range(0, len(RECORDS), 20):
        await client.append(RECORDS[first : first + 20])
    await asyncio.sleep(CHECKPOINT_S)


async def stop(cluster: Cluster, number: int, *, cleanly: bool) -> None:
    node = node_of(cluster, number)
    if cleanly:
        with acting_as(number):
            stopping = cluster.loop.create_task(node.stop())
        await asyncio.wait([stopping])
    cluster.kill(number)
    await asyncio.sleep(0.3)  # the controller, if one is left, has handled it


async def stop_all(cluster: Cluster, *, cleanly: bool) -> None:
    for number in cluster.brokers:
        await stop(cluster, number, cleanly=cleanly)


def read_log(disk: MemoryDisk) -> bytes:
    names = [name for name in disk.list(FOLDER) if name.endswith(".log")]
    return b"".join(disk.read_all(f"{FOLDER}/{name}") for name in names)


async def assert_nothing_lost(cluster: Cluster, replicas: tuple[BrokerId, ...] = ALL) -> None:
    await until(lambda: isr_of(cluster) == sorted(replicas), within_s=30)
    values, _ = await client_of(cluster, 102).read(0)
    while len(values) < len(RECORDS):
        more, _ = await client_of(cluster, 102).read(len(values))
        assert more, f"only {len(values)} records are left"
        values += more
    assert values == RECORDS
    await until(lambda: all(replica_of(cluster, n).log.end == len(RECORDS) for n in replicas))
    assert len({read_log(cluster.brokers[number].disk) for number in replicas}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [1, 2, 3])
@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_one_damaged_replica_does_not_truncate_an_intact_one(
    damage: Damage, damaged: int, *, cleanly: bool
) -> None:
    async def scenario(order: tuple[int, ...], cluster: Cluster) -> None:
        await append_all(cluster)
        await stop_all(cluster, cleanly=cleanly)
        damage(cluster.brokers[damaged].disk)
        for number in order:
            await cluster.start(number)
            await asyncio.sleep(1)
        await assert_nothing_lost(cluster)
        assert node_of(cluster, damaged).directory.damaged == {}
        assert not [path for path in cluster.tree.entries if path.startswith("/damaged")]

    for order in permutations((1, 2, 3)):
        play(lambda cluster, order=order: scenario(order, cluster), settings=SETTINGS)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [1, 2, 3])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_one_damaged_replica_does_not_truncate_the_others_after_all_were_killed(
    damage: Damage, damaged: int
) -> None:
    async def scenario(order: tuple[int, ...], cluster: Cluster) -> None:
        await append_all(cluster)
        for number in cluster.brokers:
            cluster.kill(number)
        damage(cluster.brokers[damaged].disk)
        for number in order:
            await cluster.start(number)
        await assert_nothing_lost(cluster)

    for order in permutations((1, 2, 3)):
        play(lambda cluster, order=order: scenario(order, cluster), settings=SETTINGS)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("min_isr", ["1", "2", "3"])
def test_intact_replicas_need_no_operator(min_isr: str, *, cleanly: bool) -> None:
    async def scenario(order: tuple[int, ...], cluster: Cluster) -> None:
        await append_all(cluster)
        await stop_all(cluster, cleanly=cleanly)
        for number in order:
            await cluster.start(number)
        for number in order:
            assert node_of(cluster, number).directory.damaged == {}
        await assert_nothing_lost(cluster)

    for order in permutations((1, 2, 3)):
        play(
            lambda cluster, order=order: scenario(order, cluster),  # type: ignore[misc]
            settings={"min.insync.replicas": min_isr},
        )


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
def test_if_all_are_damaged_no_replica_leads(*, cleanly: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster)
        await stop_all(cluster, cleanly=cleanly)
        for number, damage in zip(
            cluster.brokers, (remove_folder, cut_segment, empty_segment), strict=True
        ):
            damage(cluster.brokers[number].disk)
        for number in cluster.brokers:
            await cluster.start(number)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        # So it stays after another restart: the damage is noted until a replica is whole again.
        await stop_all(cluster, cleanly=cleanly)
        for number in cluster.brokers:
            await cluster.start(number)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        for number in cluster.brokers:
            assert KEY in node_of(cluster, number).directory.damaged

    play(scenario, settings=SETTINGS)


def test_a_new_topic_and_one_of_the_same_name_are_not_damaged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster)
        for path in list(cluster.tree.entries):
            is_topic = path.startswith((paths.topic("t"), paths.TOPIC_IDS))
            if is_topic:
                cluster.tree.step([Delete(path)], None)
        await stop_all(cluster, cleanly=False)
        for number in cluster.brokers:
            await cluster.start(number)
        await topic(cluster)
        for number in cluster.brokers:
            cluster.kill(number)
        for number in cluster.brokers:
            await cluster.start(number)
        await until(lambda: state_of(cluster)["leader"] is not None, within_s=2)
        assert await client_of(cluster, 103).append([b"new"]) == 0

    play(scenario, settings=SETTINGS)


def test_an_unclean_election_by_the_operator_takes_the_longest_damaged_replica() -> None:
    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster)
        await stop_all(cluster, cleanly=True)
        damages = (remove_folder, cut_segment, empty_segment)
        for number, damage in zip(cluster.brokers, damages, strict=True):
            damage(cluster.brokers[number].disk)
        for number in cluster.brokers:
            await cluster.start(number)
        await asyncio.sleep(1)
        assert state_of(cluster)["leader"] is None
        values = {"election_type": 1, "topic_partitions": None}
        answer = await ask(cluster, Api.ELECT_LEADERS, values, version=2, of=1)
        (result,) = answer.replica_election_results
        assert result.partition_result[0].error_code is ErrorCode.none
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert state_of(cluster)["leader"] == 2
        values_left, _ = await client_of(cluster, 102).read(0)
        assert values_left == RECORDS[: len(values_left)]
        assert 0 < replica_of(cluster, 2).log.end < len(RECORDS)
        assert await client_of(cluster, 103).append([b"new"]) == replica_of(cluster, 2).log.end - 1
        # What was lost is known to be lost: no replica is damaged by it any more.
        await asyncio.sleep(CHECKPOINT_S)
        await stop_all(cluster, cleanly=False)
        for number in cluster.brokers:
            await cluster.start(number)
        await until(lambda: isr_of(cluster) == [1, 2, 3])

    play(scenario, settings=SETTINGS)


def test_a_truncation_is_not_damage() -> None:
    """The noted watermark is lowered before the log is cut."""

    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster)
        log = replica_of(cluster, 2).log
        cluster.network.cut(1, 2)
        log.truncate_to(200)
        assert (
            node_of(cluster, 2).directory.replica_checkpoint.replicas[KEY].high_watermark == log.end
        )
        cluster.kill(2)
        cluster.network.heal()
        await cluster.start(2)
        assert node_of(cluster, 2).directory.damaged == {}
        await assert_nothing_lost(cluster)

    play(scenario, settings=SETTINGS)


def test_acks_all_waits_until_no_other_replica_is_eligible() -> None:
    """min.insync.replicas is lowered while another replica is eligible."""

    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster)
        for number in (2, 3):
            await stop(cluster, number, cleanly=True)
        assert (isr_of(cluster), state_of(cluster)["eligible"]) == ([1], [3])
        await asyncio.sleep(0.5)
        entry = cluster.tree.entries.get(paths.topic_config(KEY[0]))
        assert entry is None
        config = encode_config({"min.insync.replicas": "1"})
        cluster.tree.step([Create(paths.topic_config(KEY[0]), config)], None)
        assert await client_of(cluster, 103).append([b"new"]) == len(RECORDS)
        assert "eligible" not in state_of(cluster)

    play(scenario, settings=SETTINGS)


def test_a_full_disk_at_the_start_does_not_hide_the_damage() -> None:
    async def scenario(cluster: Cluster) -> None:
        await append_all(cluster, (ONE,))
        await stop(cluster, 1, cleanly=False)
        disk = cluster.brokers[1].disk
        remove_folder(disk)
        disk.is_full = True
        await cluster.start(1)
        await asyncio.sleep(2)
        disk.is_full = False
        await asyncio.sleep(CHECKPOINT_S)
        for _ in range(2):
            await stays(lambda: state_of(cluster)["leader"] is None, for_s=2)
            assert KEY in node_of(cluster, 1).directory.damaged
            await stop(cluster, 1, cleanly=False)
            await cluster.start(1)

    play(scenario)


def test_a_damaged_leader_that_was_alone_in_the_isr_hands_over_to_a_follower_that_joins() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={"min.insync.replicas": "1"})
        client = client_of(cluster)
        await client.append([b"0"])
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        await client.append([b"1"])
        node = node_of(cluster, 1)
        node.directory.mark(KEY, NotedDamage(reason="a test", up_to=2, keep_to=1))
        with acting_as(1):
            node.replicas.offline.report_damage(KEY)
        await stays(lambda: replica_of(cluster, 1).is_leader, for_s=2)
        await cluster.start(2)
        await until(lambda: state_of(cluster)["leader"] == 2)
        async with asyncio.timeout(30):
            assert await client.append([b"2"]) == 2

    play(scenario)


def test_an_only_replica_that_is_damaged_leads_on_while_a_replica_is_added() -> None:
    """The new replica copies what the damaged one still has: ending the term would prevent it."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,), config={"min.insync.replicas": "1"})
        client = client_of(cluster)
        for value in (b"0", b"1"):
            await client.append([value])
        node = node_of(cluster, 1)
        node.directory.mark(KEY, NotedDamage(reason="a test", up_to=2, keep_to=1))
        with acting_as(1):
            node.replicas.offline.report_damage(KEY)
        await stays(lambda: replica_of(cluster, 1).is_leader, for_s=2)
        assert await alter(cluster, {KEY: (1, 2)}) == {KEY: (ErrorCode.none, None)}
        await until(lambda: moved_to(cluster, 1, 2))
        await until(lambda: state_of(cluster)["leader"] == 2)
        assert (await client_of(cluster, 102).read(0))[0] == [b"0", b"1"]
        async with asyncio.timeout(30):
            assert await client.append([b"2"]) == 2

    play(scenario)
