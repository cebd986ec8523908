"""Deleting topics with many partitions: linear work, and never long in the event loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from insync.broker.replication import replicas as module
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.directory import LogDirectory
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk
from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import Api
from support.sim.one_broker import OneBroker, on_virtual_time

PARTITIONS = 350


class CountingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.listings = 0

    def list(self, path: str) -> list[str]:
        self.listings += 1
        return super().list(path)


def test_deleting_logs_does_not_list_the_directory_for_each() -> None:
    disk = CountingDisk()

    def opened() -> LogDirectory:
        return LogDirectory.open(disk, "/d", cluster_id="c", broker_id=1, lock=False, now_ms=0)

    directory = opened()
    for _ in range(2):  # names of logs that wait to be removed are not used again
        for number in range(50):
            directory.create("t", number, topic_id=UUID(int=1), now_ms=0)
        before = disk.listings
        for number in range(50):
            directory.delete("t", number)
        assert disk.listings == before
        directory = opened()
    assert directory.remove_deleted() == 100
    assert not directory.logs


def test_replicas_of_a_deleted_topic_are_dropped_some_per_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[int] = []
    drop: Callable[[Any], None] = module.Replicas._drop_deleted

    def counted(replicas: module.Replicas) -> None:
        before = len(replicas.partitions)
        drop(replicas)
        if before != len(replicas.partitions):
            turns.append(before - len(replicas.partitions))

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=PARTITIONS)
        replicas = broker.node.replicas
        assert len(replicas.partitions) == PARTITIONS
        monkeypatch.setattr(module.Replicas, "_drop_deleted", counted)
        client = await broker.client()
        request = build(messages.request_type(Api.DELETE_TOPICS, 5), {"topic_names": ["t"]})
        await client.connection.request(request)
        await asyncio.sleep(0.5)
        assert replicas.partitions == {}
        assert turns == [100, 100, 100, 50]
        await broker.create("t", partitions=3)  # the names are free
        assert len(replicas.partitions) == 3

    on_virtual_time(scenario)


def test_a_log_that_the_disk_refused_to_delete_does_not_keep_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the session is lost before it is tried again: the log is not a stray then."""

    def refuse(_disk: MemoryDisk, path: str, _to: str) -> None:
        raise DiskError(errno.EIO, path)

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=2)
        replicas, store = broker.node.replicas, broker.node.world.store
        client = await broker.client()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryDisk, "rename", refuse)
            request = build(messages.request_type(Api.DELETE_TOPICS, 5), {"topic_names": ["t"]})
            await client.connection.request(request)
            await asyncio.sleep(0.1)
            assert len(broker.node.directory.logs) == 2, "the disk refused"
        assert store.session is not None
        broker.tree.end_session(store.session)
        await asyncio.sleep(2.0)
        assert not broker.node.directory.logs
        assert not any("stray" in path for path in broker.disk.paths())
        await broker.create("t", partitions=3)
        assert [replica.is_leader for replica in replicas.partitions.values()] == [True] * 3
        await broker.node.stop()

    on_virtual_time(scenario)
