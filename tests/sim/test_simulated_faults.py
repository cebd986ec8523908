"""What simulated disks, links and stores do when they fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from insync.broker.accepted import NOTHING
from insync.metadata.store import Create, Write
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.sim.faults import EXCLUSIVE, MIXES, FaultInjector
from insync.sim.sqlite_tree import SqliteTree
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk
from support.sim.few_brokers import (
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


def test_every_named_fault_exists() -> None:
    names = {name for mix in MIXES.values() for name in mix} | EXCLUSIVE
    assert [name for name in sorted(names) if not hasattr(FaultInjector, name)] == []


# The disk.


def test_a_flush_that_lies_keeps_nothing_when_power_is_lost() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"one"])
    file.flush()
    disk.lies_about_flushes = True
    file.append([b"two"])
    file.flush()
    assert disk.read_all("/f") == b"onetwo"
    disk.lose_power()
    assert disk.read_all("/f") == b"one"


def test_an_append_that_fails_writes_nothing() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    disk.fails_appends = True
    with pytest.raises(DiskError):
        file.append([b"one"])
    disk.fails_appends = False
    assert (file.append([b"two"]), disk.read_all("/f")) == (3, b"two")


def test_power_loss_may_keep_unflushed_bytes_with_holes_but_never_touches_flushed_ones() -> None:
    outcomes = set()
    for seed in range(50):
        disk = MemoryDisk()
        file = disk.create("/f")
        file.append([b"a" * 1_000])
        file.flush()
        file.append([b"b" * 5_000])
        disk.lose_power(Random(seed))  # noqa: S311 - chance, not secrecy
        data = disk.read_all("/f")
        assert data[:1_000] == b"a" * 1_000
        assert set(data[1_000:]) <= {0, ord("b")}
        outcomes.add((len(data) > 1_000, 0 in data))
    assert outcomes >= {(True, False), (True, True)}


def test_power_loss_may_undo_an_atomic_write_whose_name_was_not_flushed() -> None:
    def content_after(seed: int, *, flushed: bool) -> bytes:
        disk = MemoryDisk()
        disk.make_dirs("/d")
        disk.write_atomic("/d/checkpoint", b"old")
        disk.create("/d/log").flush()
        disk.write_atomic("/d/checkpoint", b"new")
        disk.write_atomic("/d/checkpoint", b"newer")
        if flushed:
            disk.open("/d/log").flush()
        disk.lose_power(Random(seed))  # noqa: S311
        return disk.read_all("/d/checkpoint")

    assert {content_after(seed, flushed=False) for seed in range(30)} == {b"old", b"newer"}
    assert {content_after(seed, flushed=True) for seed in range(30)} == {b"newer"}


def test_power_loss_may_leave_no_file_where_an_atomic_write_made_the_first() -> None:
    def names_after(seed: int) -> tuple[str, ...]:
        disk = MemoryDisk()
        disk.write_atomic("/checkpoint", b"new")
        disk.lose_power(Random(seed))  # noqa: S311
        return tuple(disk.list(""))

    assert {names_after(seed) for seed in range(30)} == {(), ("checkpoint",)}


# The network.


def test_a_link_that_is_cut_one_way_carries_the_other_direction() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        cluster.network.cut(1, 3, one_way=True)  # the leader's responses do not arrive
        assert cluster.network.is_cut(1, 3)
        assert not cluster.network.is_cut(3, 1)
        client = client_of(cluster)
        await client.append_once([b"more"])
        await until(lambda: isr_of(cluster) == [1, 2])
        assert replica_of(cluster, 3).log.end == 0
        cluster.network.mend(1, 3)
        await until(lambda: isr_of(cluster) == [1, 2, 3])

    play(scenario)


def test_connections_with_requests_under_way_break_and_records_are_written_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        client = client_of(cluster)
        for number in range(20):
            appending = asyncio.ensure_future(client.append([b"%d" % number]))
            await asyncio.sleep(0.002)
            cluster.network.break_pending(1)
            await appending
        values, _ = await client.read(0)
        assert values == [b"%d" % number for number in range(20)]

    play(scenario)


# The store.


@pytest.mark.parametrize("accepts", [False, True])
def test_an_earlier_copy_of_the_store_is_refused_and_the_newest_is_used(*, accepts: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        backup = cluster.tree.backup()
        await client_of(cluster).append([b"1"])
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        await asyncio.sleep(6)  # until brokers have noted how far they had read
        for number in (1, 2):
            cluster.kill(number)
        accepted = replace(NOTHING, older_metadata=accepts)
        await cluster.start(1, tree=backup, accepted=accepted)
        assert (cluster.brokers[1].node is not None) == accepts
        assert ("older" in cluster.brokers[1].refusal) != accepts
        cluster.kill(1)
        for number in (1, 2, 3):
            await cluster.start(number)
        if not accepts:
            await until(lambda: isr_of(cluster) == [1, 2, 3])
            assert (await client_of(cluster).read(0))[0] == [b"1"]

    play(scenario)


def test_a_loss_of_power_takes_no_step_of_a_store_that_flushes_each() -> None:
    for seed in range(20):
        tree = SqliteTree()
        session = str(tree.begin_session("one"))
        for number in range(seed + 1):
            tree.step([Create(f"/a/{number}", b"x" * 3_000, ephemeral=number % 2 == 1)], session)
        before = dict(tree.entries)
        for _ in range(3):
            tree.lose_power(Random(seed))  # noqa: S311 - chance, not secrecy
            revision = tree.revision
            assert tree.step([Write("/a/0", b"y", before["/a/0"].version)], session) > revision
            before = dict(tree.entries)
        tree.end_session(session)
        assert set(tree.entries) == {f"/a/{number}" for number in range(0, seed + 1, 2)}
        tree.close()


def test_a_lost_answer_of_the_store_leaves_the_step_made() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        cluster.brokers[1].store_faults.lost_answers = 1.0
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await until(lambda: isr_of(cluster) == [1, 2])
        version = cluster.tree.entries["/brokers/topics/t/partitions/0/state"].version
        await stays(
            lambda: cluster.tree.entries["/brokers/topics/t/partitions/0/state"].version == version,
            for_s=1.0,
        )

    play(scenario)


def test_a_controller_whose_election_is_not_answered_acts_as_controller() -> None:
    async def scenario(cluster: Cluster) -> None:
        for number in cluster.brokers:
            cluster.brokers[number].store_faults.lost_answers = 1.0
        before = cluster.controller()
        cluster.kill(before or 0)
        await until(lambda: cluster.controller() not in {before, None})
        for number in cluster.brokers:
            cluster.mend_store(number)
        controller = BrokerId(cluster.controller() or 0)
        other = next(each.number for each in cluster.up() if each.number != controller)
        await topic(cluster, (BrokerId(other), controller))
        cluster.kill(other)
        await until(lambda: state_of(cluster)["leader"] == controller)

    play(scenario)


def test_a_read_only_store_makes_no_step() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        for broker in cluster.brokers.values():
            broker.store_faults.is_read_only = True
        cluster.network.cut(1, 3)
        await client_of(cluster).append_once([b"more"])
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=3.0)
        for number in cluster.brokers:
            cluster.mend_store(number)
        await until(lambda: isr_of(cluster) == [1, 2])

    play(scenario)


def test_a_broker_that_cannot_read_the_store_learns_of_changes_when_it_can() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        cluster.brokers[2].store_faults.is_unreadable = True
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] not in {1, None})
        known = node_of(cluster, 2).world.store.revision
        await stays(lambda: node_of(cluster, 2).world.store.revision == known, for_s=1.0)
        cluster.mend_store(2)
        await until(lambda: node_of(cluster, 2).world.store.revision > known)

    play(scenario)


# Clocks.


def test_a_clock_that_drifts_is_the_brokers_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.brokers[1].clock_rate = 1.01
        await asyncio.sleep(10.0)
        ahead_ms = node_of(cluster, 1).world.clock_ms() - node_of(cluster, 2).world.clock_ms()
        assert ahead_ms > 90

    play(scenario)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_broker_starts_though_the_fault_that_starts_it_is_cancelled(*, refuses: bool) -> None:
    """The checks skip brokers that have not started."""

    async def scenario(cluster: Cluster) -> None:
        broker = cluster.brokers[2]
        cluster.kill(2)
        broker.disk.is_full = refuses
        starting = asyncio.ensure_future(cluster.start(2))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        assert not broker.has_started
        await cluster.heal()
        assert broker.has_started

    play(scenario)
