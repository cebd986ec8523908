"""Epochs and producer ids in the logs that the store has not allocated are found and skipped."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from insync.broker.cluster_view import ClusterView
from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.records import TopicRecord, encode_state
from insync.metadata.store import Create
from insync.node.corrections import (
    EPOCH_LEAP_MAX,
    PRODUCER_ID_LEAP_MAX,
    PRODUCER_IDS_SKIPPED,
    Corrections,
    UnissuedIds,
    find_unissued_ids,
)
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.virtual_loop import VirtualLoop, virtual_time

ONE = BrokerId(1)
OLD, NEW = UUID(int=1), UUID(int=2)


def log_of(epoch: int | None, producers: Iterable[int] = ()) -> Any:
    return SimpleNamespace(epochs=SimpleNamespace(latest=epoch), producers=list(producers))


def directory_of(logs: dict[tuple[str, int], Any], topic_id: UUID = OLD) -> Any:
    return SimpleNamespace(logs=logs, topic_ids=dict.fromkeys(logs, topic_id))


async def store_with(loop: VirtualLoop, *, given_out: int | None, partitions: int) -> MemoryStore:
    """Partitions of topic t in epoch 5, and so many producer ids."""
    store = MemoryStore(MemoryTree(), clock_ms=loop.clock_ms)
    await store.start()
    record = TopicRecord(topic_id=OLD, partitions=partitions, replication_factor=1)
    state = PartitionState(replicas=(ONE,), isr=(ONE,), leader=ONE, leader_epoch=LeaderEpoch(5))
    await store.commit(
        Create(paths.topic("t"), record.encode()),
        *(
            Create(paths.partition_state("t", number), encode_state(state))
            for number in range(partitions)
        ),
    )
    if given_out is not None:
        await store.commit(Create(paths.PRODUCER_IDS, str(given_out).encode()))
    return store


def test_epochs_beyond_the_stores_are_found() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        store = await store_with(loop, given_out=None, partitions=4)
        view = ClusterView(store)
        epochs = [6, 5, None, 5 + EPOCH_LEAP_MAX + 1]
        logs = {("t", number): log_of(epoch) for number, epoch in enumerate(epochs)}
        logs["gone", 0] = log_of(9)
        unissued = find_unissued_ids(view, store, directory_of(logs))
        assert unissued == UnissuedIds(epochs={("t", 0): LeaderEpoch(6)}, producer_ids_end=0)
        # Of a deleted topic with the same name: its epochs mean nothing for the new one.
        namesake = find_unissued_ids(view, store, directory_of({("t", 0): log_of(6)}, NEW))
        assert namesake.epochs == {}

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_producer_ids_of_the_logs_are_skipped() -> None:
    async def scenario(loop: VirtualLoop, given_out: int | None) -> None:
        store = await store_with(loop, given_out=given_out, partitions=1)
        start = given_out or 0
        invented = start + 2 * PRODUCER_ID_LEAP_MAX
        directory = directory_of({("t", 0): log_of(5, [start + 7, invented, 3])})
        unissued = find_unissued_ids(ClusterView(store), store, directory)
        assert unissued.producer_ids_end == start + 8
        await Corrections(broker=ONE, store=store, unissued=unissued).write()
        entry = store.get(paths.PRODUCER_IDS)
        assert entry is not None
        assert int(entry.value) == start + 8 + PRODUCER_IDS_SKIPPED
        revision = store.revision
        again = find_unissued_ids(ClusterView(store), store, directory)
        assert again.producer_ids_end == 0
        await Corrections(broker=ONE, store=store, unissued=unissued).write()
        assert store.revision == revision  # written once

    for given_out in (None, 1_000):
        with virtual_time() as loop:
            loop.run_until_complete(scenario(loop, given_out))


def test_ids_that_were_given_out_are_no_trace() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        store = await store_with(loop, given_out=1_000, partitions=1)
        directory = directory_of({("t", 0): log_of(5, [0, 999])})
        assert find_unissued_ids(ClusterView(store), store, directory).producer_ids_end == 0

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))
