"""Defect 7: metadata that goes back destroys no log, and is refused unless it is accepted."""

from __future__ import annotations

import asyncio

import pytest

from insync.broker.accepted import Accepted
from insync.metadata import paths
from insync.metadata.memory import MemoryTree
from insync.sim.clients import Admin
from insync.sim.cluster import Cluster
from insync.storage.strays import find_strays
from support.sim.few_brokers import (
    KEY,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    topic,
    until,
)

OLDER = Accepted(older_metadata=True)
VALUES = [str(number).encode() for number in range(200)]


def strays(cluster: Cluster, number: int) -> list[str]:
    return [stray.name for stray in find_strays(cluster.brokers[number].disk, "/logs")]


def logs(cluster: Cluster, number: int) -> list[str]:
    return [name for name in cluster.brokers[number].disk.list("/logs") if name.startswith("t-")]


async def filled(cluster: Cluster) -> None:
    await topic(cluster)
    await client_of(cluster).append(VALUES)
    await until(lambda: all(replica_of(cluster, each).log.end == 200 for each in (1, 2, 3)))


async def read_back(cluster: Cluster, host: int = 110) -> list[bytes]:
    client, offset, values = client_of(cluster, host), 0, list[bytes]()
    while len(values) < len(VALUES):
        more, offset = await client.read(offset)
        values += more
    return values


def kill_all(cluster: Cluster) -> None:
    for number in cluster.brokers:
        cluster.kill(number)


def restore(cluster: Cluster, tree: MemoryTree) -> None:
    """The sessions in it are of processes that are gone, which is noticed at once."""
    cluster.tree = tree
    sessions = [number for path in tree.entries if (number := paths.session_of(path)) is not None]
    for number in sorted(sessions):
        tree.end_session(number)


async def start_all(cluster: Cluster, accepted: Accepted | None = None) -> None:
    for number in cluster.brokers:
        await cluster.start(number, accepted=accepted or Accepted())


def all_serve(cluster: Cluster) -> bool:
    return all(broker.has_started for broker in cluster.brokers.values())


def test_a_topic_that_was_deleted_while_a_broker_was_down_leaves_a_stray(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(3)
        await asyncio.sleep(1)
        await Admin(cluster, client_of(cluster, 120)).delete("t")
        await until(lambda: not logs(cluster, 1), within_s=20)  # deleted where the broker runs
        size_bytes = replica_size(cluster, 3)
        await cluster.start(3)
        await asyncio.sleep(1)
        (name,) = strays(cluster, 3)
        assert logs(cluster, 3) == [name]
        (line,) = [each for each in caplog.messages if "aside" in each]
        assert line.startswith("t-0: set the log aside as t-0.")
        assert f"{size_bytes} bytes" in line
        assert "has no topic id" in line
        assert "log.stray.retention.ms=604800000" in line
        assert line.endswith(f"insync strays --log-dir /logs --delete {name}")

    def replica_size(cluster: Cluster, number: int) -> int:
        return cluster.brokers[number].disk.file_size("/logs/t-0/00000000000000000000.log")

    play(scenario)


def test_a_replica_that_was_moved_away_while_a_broker_was_down_is_a_stray_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stray comes back at a start, for the same topic id, and truncation does the rest."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        admin = Admin(cluster, client_of(cluster, 120))
        cluster.kill(3)
        await admin.move(KEY, [1, 2])
        await until(lambda: state_of(cluster)["replicas"] == [1, 2])
        await cluster.start(3)
        await asyncio.sleep(1)
        assert strays(cluster, 3)
        assert "has no replica of it on this broker" in caplog.text
        cluster.kill(3)
        await client_of(cluster, 121).append([b"later"])
        move = asyncio.get_running_loop().create_task(admin.move(KEY, [1, 2, 3]))
        await asyncio.sleep(1)
        await cluster.start(3)
        assert "brought the stray log" in caplog.text
        assert strays(cluster, 3) == []
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert replica_of(cluster, 3).log.end == 201
        await move

    play(scenario)


def test_a_topic_recreated_while_a_broker_was_down_gets_an_empty_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(3)
        await asyncio.sleep(1)
        await Admin(cluster, client_of(cluster, 120)).delete("t")
        await topic(cluster)
        await cluster.start(3)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert replica_of(cluster, 3).log.end == 0
        assert len(strays(cluster, 3)) == 1

    play(scenario)


def test_an_older_store_is_refused_and_keeps_every_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        older = cluster.tree.backup()
        await filled(cluster)
        await asyncio.sleep(6)  # a checkpoint is written every 5 s
        newer = cluster.tree
        kill_all(cluster)
        restore(cluster, older)
        await start_all(cluster)
        for number, broker in cluster.brokers.items():
            assert not broker.has_started
            assert "is older than this broker" in broker.refusal
            assert "/logs/metadata-checkpoint" in broker.refusal
            assert "/unused" in broker.refusal  # metadata.dir
            assert "--accept-older-metadata" in broker.refusal
            assert logs(cluster, number) == ["t-0"]
        restore(cluster, newer)  # the right one: nothing happened
        await start_all(cluster)
        assert all_serve(cluster)
        assert await read_back(cluster) == VALUES

    play(scenario)


def test_an_older_store_that_is_accepted_sets_logs_aside_and_the_newer_brings_them_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        older = cluster.tree.backup()
        await filled(cluster)
        await asyncio.sleep(6)
        newer = cluster.tree
        kill_all(cluster)
        restore(cluster, older)
        await start_all(cluster, OLDER)
        assert all_serve(cluster)
        await asyncio.sleep(1)
        for number in cluster.brokers:
            assert len(strays(cluster, number)) == 1
            assert logs(cluster, number) == strays(cluster, number)
        kill_all(cluster)
        await asyncio.sleep(1)
        await start_all(cluster)  # accepted once: the older store is the store now
        assert all_serve(cluster)
        kill_all(cluster)
        restore(cluster, newer)  # which has other steps than the accepted one: accepted too
        await start_all(cluster)
        assert not all_serve(cluster)
        await start_all(cluster, OLDER)
        assert all_serve(cluster)
        assert await read_back(cluster) == VALUES
        assert not any(strays(cluster, number) for number in cluster.brokers)

    play(scenario)


def test_a_store_that_reached_the_revision_again_by_other_steps_is_refused() -> None:
    """As when brokers with older checkpoints start first after a power failure."""

    async def scenario(cluster: Cluster) -> None:
        older = cluster.tree.backup()
        await filled(cluster)
        await asyncio.sleep(6)
        reached = cluster.tree.revision
        kill_all(cluster)
        restore(cluster, older)
        while older.revision <= reached + 5:
            older.begin_session("another")
        await start_all(cluster)
        for broker in cluster.brokers.values():
            assert not broker.has_started
            assert "has another step at revision" in broker.refusal

    play(scenario)


def test_a_clean_stop_notes_how_far_the_store_was_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        await asyncio.sleep(6)
        before = cluster.tree.revision
        older = cluster.tree.backup()
        await topic(cluster)
        node = node_of(cluster, 2)
        await node.stop()
        cluster.kill(2)
        assert cluster.tree.revision > before
        restore(cluster, older)
        await cluster.start(2)
        assert "is older than this broker" in cluster.brokers[2].refusal

    play(scenario)


def test_epochs_of_logs_are_never_given_to_a_second_leader() -> None:
    """The older store knows the topic, and fewer of its leader epochs."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        older = cluster.tree.backup()
        for number in (1, 2):
            cluster.kill(number)
            await asyncio.sleep(1)
            await client_of(cluster, 100 + number).append(VALUES[:100])
            await cluster.start(number)
            await until(lambda: isr_of(cluster) == [1, 2, 3])
        await asyncio.sleep(6)
        written = max(replica_of(cluster, each).log.epochs.latest or 0 for each in (1, 2, 3))
        kill_all(cluster)
        restore(cluster, older)
        await start_all(cluster, OLDER)
        assert all_serve(cluster)
        await until(lambda: state_of(cluster)["leader_epoch"] > written)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert len(await read_back(cluster)) == 200
        await client_of(cluster, 130).append([b"later"])
        await until(lambda: all(replica_of(cluster, each).log.end == 201 for each in (1, 2, 3)))

    play(scenario)


def test_strays_are_deleted_when_their_retention_is_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        cluster.kill(3)
        await asyncio.sleep(1)
        await Admin(cluster, client_of(cluster, 120)).delete("t")
        await cluster.start(3)
        await asyncio.sleep(50)
        assert strays(cluster, 3)
        await asyncio.sleep(20)
        assert strays(cluster, 3) == []
        assert paths.partition_state(*KEY) not in cluster.tree.entries

    settings = {"log.stray.retention.ms": "60000", "log.retention.check.interval.ms": "1000"}
    play(scenario, settings=settings)
