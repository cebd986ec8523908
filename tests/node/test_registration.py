"""Registration: each start and each lost session gives a new incarnation."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.records import BrokerRecord
from insync.metadata.store import Operation
from insync.node.admission import DirectoryRefused
from insync.node.registration import OwnDirectory, Registration
from insync.rules.values import BrokerId, Incarnation
from insync.sim.virtual_loop import VirtualLoop, virtual_time


class Replicas:
    """Records the calls of a registration to the replicas."""

    def __init__(self) -> None:
        self.events: list[Incarnation | str] = []

    def start(self, incarnation: Incarnation) -> None:
        self.events.append(incarnation)

    @property
    def offline(self) -> Replicas:
        return self

    def steps(self, _incarnation: Incarnation) -> list[Operation]:
        return []

    def end_terms(self) -> None:
        self.events.append("end_terms")


FIRST, SECOND = UUID(int=1), UUID(int=2)


def registration_of(
    store: MemoryStore,
    replicas: Any,
    *,
    port: int = 9092,
    directory_id: UUID = FIRST,
    is_another: bool = False,
) -> Registration:
    return Registration(
        broker=BrokerId(1),
        host="h",
        port=port,
        rack="r",
        store=store,
        replicas=replicas,
        directory=OwnDirectory(directory_id=directory_id, is_another=is_another),
    )


def record_in(tree: MemoryTree) -> BrokerRecord:
    return BrokerRecord.decode(BrokerId(1), tree.entries[paths.broker_id(1)].value)


async def store_of(tree: MemoryTree, loop: VirtualLoop) -> MemoryStore:
    store = MemoryStore(tree, clock_ms=loop.clock_ms)
    await store.start()
    return store


def test_a_restart_replaces_the_earlier_incarnation_at_once() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        tree, replicas = MemoryTree(), Replicas()
        await registration_of(await store_of(tree, loop), replicas).register()
        first = record_in(tree)
        assert (first.host, first.port, first.rack) == ("h", 9092, "r")
        # The earlier process never closed its session.
        await registration_of(await store_of(tree, loop), replicas, port=9093).register()
        second = record_in(tree)
        assert second.incarnation > first.incarnation
        assert second.port == 9093
        assert replicas.events == [first.incarnation, second.incarnation]
        assert paths.broker_incarnation(first.incarnation) not in tree.entries
        assert paths.broker_incarnation(second.incarnation) in tree.entries

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_a_lost_session_ends_leadership_before_the_next_incarnation() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        tree, replicas = MemoryTree(), Replicas()
        store = await store_of(tree, loop)
        registration = registration_of(store, replicas)
        await registration.register()
        first = record_in(tree)
        task = loop.create_task(registration.register_again_when_lost())
        tree.end_session(first.incarnation)
        await asyncio.sleep(1)
        second = record_in(tree)
        assert replicas.events == [first.incarnation, "end_terms", second.incarnation]
        task.cancel()

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_another_directory_waits_for_a_session_that_ends_and_no_longer() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        tree, replicas = MemoryTree(), Replicas()
        await registration_of(await store_of(tree, loop), replicas).register()
        first = record_in(tree)
        assert first.directory_id == FIRST
        other = registration_of(
            await store_of(tree, loop), replicas, directory_id=SECOND, is_another=True
        )
        with pytest.raises(DirectoryRefused, match=r"registered with directory .* at h:9092"):
            await other.register()
        assert record_in(tree) == first
        loop.call_later(0.5, tree.end_session, first.incarnation)  # as of a process that died
        await other.register()
        assert record_in(tree).directory_id == SECOND

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_without_acceptance_another_directory_does_not_register() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        tree, replicas = MemoryTree(), Replicas()
        store = await store_of(tree, loop)
        await registration_of(store, replicas).register()
        await store.close()
        other = registration_of(await store_of(tree, loop), replicas, directory_id=SECOND)
        with pytest.raises(DirectoryRefused, match="knows broker 1 with directory"):
            await other.register()
        assert paths.broker_id(1) not in tree.entries

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_a_broker_whose_id_was_taken_does_not_register_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It lost its session, and meanwhile another directory was accepted for its id."""

    async def scenario(loop: VirtualLoop) -> None:
        tree, replicas = MemoryTree(), Replicas()
        paused = await store_of(tree, loop)
        registration = registration_of(paused, replicas)
        await registration.register()
        task = loop.create_task(registration.register_again_when_lost())
        paused.pause()
        tree.end_session(record_in(tree).incarnation)
        other = registration_of(
            await store_of(tree, loop), Replicas(), directory_id=SECOND, is_another=True
        )
        await other.register()
        taken = record_in(tree)
        paused.resume()
        await asyncio.sleep(10)
        assert record_in(tree) == taken
        task.cancel()
        assert "does not register again and serves nothing; stop it" in caplog.text

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_what_was_accepted_once_is_not_accepted_again() -> None:
    """A broker with an accepted directory loses its session, and its id to a third directory."""

    async def scenario(loop: VirtualLoop) -> None:
        tree = MemoryTree()
        first = await store_of(tree, loop)
        await registration_of(first, Replicas()).register()
        await first.close()
        paused = await store_of(tree, loop)
        second = registration_of(paused, Replicas(), directory_id=SECOND, is_another=True)
        await second.register()
        task = loop.create_task(second.register_again_when_lost())
        paused.pause()
        store = await store_of(tree, loop)
        third = registration_of(store, Replicas(), directory_id=UUID(int=3), is_another=True)
        tree.end_session(record_in(tree).incarnation)
        await third.register()
        await store.close()
        paused.resume()
        await asyncio.sleep(10)
        task.cancel()
        assert paths.broker_id(1) not in tree.entries

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_registrations_of_brokers_without_directory_ids_are_read() -> None:
    value = b'{"version":1,"incarnation":7,"host":"h","port":1,"rack":null}'
    assert BrokerRecord.decode(1, value).directory_id is None
