"""The same few handles on one tree, whichever store keeps it: what the contract suite runs on."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.sqlite import SqliteStore
from insync.metadata.store import Change, MetadataStore

DEADLINE_S = 10.0
CHANGE_LOG_MAX = 40
VIEW_ELSEWHERE = -1  # in place of the revision, when the view was not at the step told


class World(Protocol):
    """A tree, and handles on it. A quiet handle hears nothing until it is `wake`d."""

    async def open(self) -> MetadataStore: ...
    async def end_session(self, incarnation: int) -> None: ...
    def quiet(self, store: MetadataStore) -> None: ...
    def wake(self, store: MetadataStore) -> None: ...
    async def close(self) -> None: ...


class MemoryWorld:
    def __init__(self, _: Path) -> None:
        self._tree = MemoryTree(change_log_steps_max=CHANGE_LOG_MAX)
        self._stores: list[MemoryStore] = []

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
            assert await store._in_writer(lambda: store._make_end(incarnation))
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


WORLDS: dict[str, Callable[[Path], World]] = {"memory": MemoryWorld, "sqlite": SqliteWorld}


Life = Callable[[World], Coroutine[Any, Any, None]]


def play(kind: str, folder: Path, life: Life) -> None:
    """Run one life in a new world, and close the world whatever happened."""

    async def run() -> None:
        world = WORLDS[kind](folder)
        try:
            await life(world)
        finally:
            await world.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Return once the condition holds; fail at the deadline."""
    give_up = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        await asyncio.sleep(0.001)


def hear(store: MetadataStore) -> list[tuple[int, Sequence[Change]]]:
    """What the store tells from now on, each with the revision its view was at."""
    heard: list[tuple[int, Sequence[Change]]] = []

    def on_changes(changes: Sequence[Change]) -> None:
        at_that_step = all(store.get(change.path) == change.after for change in changes)
        heard.append((store.revision if at_that_step else VIEW_ELSEWHERE, changes))

    store.watch(on_changes)
    return heard
