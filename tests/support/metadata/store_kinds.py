"""Several stores on one tree, of each kind: what the contract suite runs on."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.sqlite import SqliteStore
from insync.metadata.store import Change, MetadataStore
from insync.sim.sqlite_tree import SqliteTree

DEADLINE_S = 10.0
CHANGE_LOG_MAX = 40
VIEW_ELSEWHERE = -1  # instead of the revision, if the view was not at the step of the notification


class World(Protocol):
    """A tree, and stores on it. A quiet store gets no notification until `wake`."""

    async def open(self) -> MetadataStore: ...
    async def end_session(self, incarnation: int) -> None: ...
    def quiet(self, store: MetadataStore) -> None: ...
    def wake(self, store: MetadataStore) -> None: ...
    async def close(self) -> None: ...


class MemoryWorld:
    def __init__(self, _: Path) -> None:
        self._tree = self._new_tree()
        self._stores: list[MemoryStore] = []

    def _new_tree(self) -> MemoryTree:
        return MemoryTree(change_log_steps_max=CHANGE_LOG_MAX)

    async def open(self) -> MetadataStore:
        store = MemoryStore(self._tree, clock_ms=lambda: 0)
        await store.start()
        self._stores.append(store)
        return store

    async def end_session(self, incarnation: int) -> None:
        self._tree.end_session(incarnation)

    def quiet(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.pause()

    def wake(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.resume()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        self._tree.close()


class SimulatedSqliteWorld(MemoryWorld):
    def _new_tree(self) -> MemoryTree:
        return SqliteTree(change_log_steps_max=CHANGE_LOG_MAX)


class SqliteWorld:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "metadata.db"
        self._stores: list[SqliteStore] = []

    async def open(self) -> MetadataStore:
        store = SqliteStore(
            self._path, poll_interval_ms=5, change_log_rows_max=CHANGE_LOG_MAX, observes=False
        )
        await store.start()
        self._stores.append(store)
        return store

    async def end_session(self, incarnation: int) -> None:
        store = SqliteStore(self._path, poll_interval_ms=5, observes=False)
        await store.start()
        try:
            assert await store._in_writer(lambda: store._write_session_end(incarnation))
        finally:
            await store.close()

    def quiet(self, store: MetadataStore) -> None:
        assert isinstance(store, SqliteStore)
        store._reading.acquire()

    def wake(self, store: MetadataStore) -> None:
        assert isinstance(store, SqliteStore)
        store._reading.release()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


WORLDS: dict[str, Callable[[Path], World]] = {
    "memory": MemoryWorld,
    "sqlite": SqliteWorld,
    "simulated sqlite": SimulatedSqliteWorld,
}


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def play(kind: str, folder: Path, scenario: Scenario) -> None:
    """Run one scenario in a new world, and close the world at the end."""

    async def run() -> None:
        world = WORLDS[kind](folder)
        try:
            await scenario(world)
        finally:
            await world.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; fail at the deadline."""
    give_up = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up, "the condition did not hold in time"
        await asyncio.sleep(0.001)


def record_notifications(store: MetadataStore) -> list[tuple[int, Sequence[Change]]]:
    """Changes the store notifies of from now on, each with the revision its view was at."""
    received: list[tuple[int, Sequence[Change]]] = []

    def on_changes(changes: Sequence[Change]) -> None:
        at_that_step = all(store.get(change.path) == change.after for change in changes)
        received.append((store.revision if at_that_step else VIEW_ELSEWHERE, changes))

    store.watch(on_changes)
    return received
