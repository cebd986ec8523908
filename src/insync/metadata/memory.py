"""One tree in memory, several handles on it: for tests and for simulated clusters.

Nothing here reads a clock or sleeps: time is the caller's `clock_ms`, delays go through the
event loop (which may be virtual), so the same calls in the same order give the same life.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded, Unavailable
from insync.metadata.store import (
    Check,
    CheckAbsent,
    Create,
    Delete,
    Entry,
    Operation,
    Watcher,
    Write,
    check_step,
    expectation,
)
from insync.metadata.view import Steps, View

CHANGE_LOG_STEPS_MAX = 1000  # a handle further behind compares whole trees instead
SESSION_TIMEOUT_MS = 9_000  # broker.session.timeout.ms

Left = list[tuple[str, Entry | None]]


def at_once() -> int:
    return 0


def _fits(operation: Operation, entry: Entry | None) -> bool:
    match operation:
        case Create() | CheckAbsent():
            return entry is None
        case Write(version=version) | Delete(version=version) | Check(version=version):
            return entry is not None and version in {None, entry.version}


class TreeWatcher(Protocol):
    def notify(self, revision: int) -> None:
        """A step was made just now."""


class MemoryTree:
    """What the handles share. `delay_ms` is asked once for each notice and each commit."""

    def __init__(
        self,
        *,
        delay_ms: Callable[[], int] = at_once,
        change_log_steps_max: int = CHANGE_LOG_STEPS_MAX,
    ) -> None:
        self.delay_ms = delay_ms
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self._log: deque[tuple[int, Left]] = deque(maxlen=change_log_steps_max)
        self._handles: list[TreeWatcher] = []
        self._incarnation = 0
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def freeze(self) -> None:
        """Nobody can write until `thaw`, as when a stopped process holds the lock; steps wait."""
        self._is_writable.clear()

    def thaw(self) -> None:
        self._is_writable.set()

    async def until_writable(self) -> None:
        await self._is_writable.wait()

    def step(self, operations: Sequence[Operation], session: str | None) -> int:
        """Make one step now, or change nothing and raise."""
        for index, operation in enumerate(operations):
            self._check(index, operation, session)
        left: Left = []
        for operation in operations:
            match operation:
                case Create(path, value, ephemeral):
                    left.append((path, Entry(path, value, 0, session if ephemeral else None)))
                case Write(path, value, version):
                    after = replace(self.entries[path], value=value, version=version + 1)
                    left.append((path, after))
                case Delete(path):
                    left.append((path, None))
                case Check() | CheckAbsent():
                    pass
        return self._commit(left)

    def begin_session(self, name: str) -> int:
        self._incarnation += 1
        path, session = paths.session(self._incarnation), str(self._incarnation)
        self._commit([(path, Entry(path, name.encode(), 0, session))])
        return self._incarnation

    def end_session(self, session: int | str) -> None:
        """End a session with its ephemeral nodes, in one step; a second time does nothing."""
        doomed = sorted(
            path for path, entry in self.entries.items() if entry.session == str(session)
        )
        if doomed:
            self._commit([(path, None) for path in doomed])

    def steps_after(self, revision: int, *, until: int) -> Steps | None:
        """The steps in (revision, until], or None if the log no longer has them all."""
        if revision < until and (not self._log or self._log[0][0] > revision + 1):
            return None
        return [step for step in self._log if revision < step[0] <= until]

    def attach(self, handle: TreeWatcher) -> None:
        self._handles.append(handle)

    def detach(self, handle: TreeWatcher) -> None:
        self._handles.remove(handle)

    def _check(self, index: int, operation: Operation, session: str | None) -> None:
        entry = self.entries.get(operation.path)
        if not _fits(operation, entry):
            raise Conflict(
                operation.path,
                index=index,
                expected=expectation(operation),
                found_version=None if entry is None else entry.version,
            )
        lives = session is not None and f"{paths.SESSIONS}/{session}" in self.entries
        if isinstance(operation, Create) and operation.ephemeral and not lives:
            raise SessionEnded(f"{operation.path}: the session it should belong to has ended")

    def _commit(self, left: Left) -> int:
        self.revision += 1
        for path, after in left:
            if after is None:
                del self.entries[path]
            else:
                self.entries[path] = after
        self._log.append((self.revision, left))
        for handle in self._handles:
            handle.notify(self.revision)
        return self.revision


class MemoryStore:
    """One broker's handle on a `MemoryTree`; it can be paused, or cut off, and resumed.

    Paused, its commits wait and it hears nothing. Cut off, its commits raise Unavailable and it
    hears nothing. Either way its heartbeats stop counting, but nobody ends its session except
    `MemoryTree.end_session`.
    """

    def __init__(
        self,
        tree: MemoryTree,
        *,
        clock_ms: Callable[[], int],
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self._tree = tree
        self._clock_ms = clock_ms
        self._session_timeout_ms = session_timeout_ms
        self._view = View()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._cut_off = False
        self._out_of_touch_since_ms: int | None = None
        self._incarnation: int | None = None
        self._session_lost = asyncio.Event()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._view.become(self._tree.revision, self._tree.entries.values())
        self._tree.attach(self)

    async def close(self) -> None:
        if self._loop is None:
            return
        await self.close_session()
        self._tree.detach(self)
        self._loop = None

    def pause(self) -> None:
        self._lose_touch()

    def cut_off(self) -> None:
        self._cut_off = True
        self._lose_touch()

    def resume(self) -> None:
        """Be in touch again. What was missed is delivered at once, in order."""
        self._see_whether_expired(self._clock_ms())
        self._cut_off = False
        self._out_of_touch_since_ms = None
        self._reachable.set()
        if self._incarnation is not None and self._session_lost.is_set():
            self._tree.end_session(self._incarnation)
        self._catch_up(self._tree.revision)

    @property
    def revision(self) -> int:
        return self._view.revision

    def get(self, path: str) -> Entry | None:
        return self._view.get(path)

    def children(self, path: str) -> list[str]:
        return self._view.children(path)

    def under(self, prefix: str) -> Iterator[Entry]:
        return self._view.under(prefix)

    def snapshot(self) -> Mapping[str, Entry]:
        return self._view.snapshot()

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return self._view.watch(callback)

    def catch_up(self) -> None:
        if self._view.is_telling:
            asyncio.get_running_loop().call_soon(self.catch_up)
        elif self._loop is not None and self._reachable.is_set():
            self._catch_up(self._tree.revision)

    async def commit(self, *operations: Operation) -> int:
        check_step(operations)
        await self._reach()
        try:
            return self._tree.step(operations, self.session)
        finally:
            # Refused or not, the committer knows what the tree knew.
            self._catch_up(self._tree.revision)

    async def open_session(self, name: str) -> int:
        assert self._incarnation is None or self._session_lost.is_set(), "one session at a time"
        await self._reach()
        self._incarnation = self._tree.begin_session(name)
        self._session_lost.clear()
        self._catch_up(self._tree.revision)
        return self._incarnation

    async def close_session(self) -> None:
        if self._incarnation is None:
            return
        incarnation, self._incarnation = self._incarnation, None
        if self._reachable.is_set():  # else it ends as a silent one does
            self._tree.end_session(incarnation)
            self._catch_up(self._tree.revision)

    @property
    def session(self) -> str | None:
        if self._incarnation is None or self._session_lost.is_set():
            return None
        return str(self._incarnation)

    @property
    def session_lost(self) -> asyncio.Event:
        return self._session_lost

    def is_alive(self, now_ms: int) -> bool:
        self._see_whether_expired(now_ms)
        return self.session is not None

    def notify(self, revision: int) -> None:
        """The tree's word that there is a new step; it arrives after the tree's delay."""
        assert self._loop is not None, "a handle that was not started hears nothing"
        delay_ms = self._tree.delay_ms()
        if delay_ms:
            self._loop.call_later(delay_ms / 1000, self._on_notice, revision)
        else:
            self._loop.call_soon(self._on_notice, revision)

    def _on_notice(self, revision: int) -> None:
        if self._loop is not None and self._reachable.is_set():
            self._catch_up(revision)

    def _catch_up(self, until: int) -> None:
        steps = self._tree.steps_after(self._view.revision, until=until)
        if steps is None:
            self._view.become(self._tree.revision, self._tree.entries.values())
        else:
            self._view.apply(steps)
        if self._incarnation is not None and not self._view.get(paths.session(self._incarnation)):
            self._session_lost.set()

    async def _reach(self) -> None:
        if self._loop is None:
            raise Unavailable("this handle is closed")
        delay_ms = self._tree.delay_ms()
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        if self._cut_off:
            raise Unavailable("this broker is cut off from the metadata store")
        await self._reachable.wait()
        await self._tree.until_writable()

    def _lose_touch(self) -> None:
        if self._out_of_touch_since_ms is None:
            self._out_of_touch_since_ms = self._clock_ms()
        self._reachable.clear()

    def _see_whether_expired(self, now_ms: int) -> None:
        since_ms = self._out_of_touch_since_ms
        if self._incarnation is None or since_ms is None:
            return
        if now_ms - since_ms > self._session_timeout_ms:
            # The others may have given this session up: from here on so do we, for good.
            self._session_lost.set()
