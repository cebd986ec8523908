"""A tree in memory that several stores share: for tests and for simulated clusters.

Nothing here reads a clock or sleeps. Time is the caller's `clock_ms`, and delays go through the
event loop, which may be virtual; so the same calls in the same order give the same results.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
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
    Write,
    check_step,
    expectation,
)
from insync.metadata.view import ReadsFromView, Steps, View, fingerprint

CHANGE_LOG_STEPS_MAX = 1000  # a store further behind compares whole trees instead
SESSION_TIMEOUT_MS = 9_000  # broker.session.timeout.ms

NodesAfter = list[tuple[str, Entry | None]]


def no_delay() -> int:
    return 0


def _holds(operation: Operation, entry: Entry | None) -> bool:
    match operation:
        case Create() | CheckAbsent():
            return entry is None
        case Write(version=version) | Delete(version=version) | Check(version=version):
            return entry is not None and version in {None, entry.version}


class TreeWatcher(Protocol):
    def notify(self, revision: int) -> None:
        """Called right after a step."""


class MemoryTree:
    """What the stores share. `delay_ms` is called once for each notification and each commit."""

    def __init__(
        self,
        *,
        delay_ms: Callable[[], int] = no_delay,
        change_log_steps_max: int = CHANGE_LOG_STEPS_MAX,
    ) -> None:
        self.delay_ms = delay_ms
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self._log: deque[tuple[int, NodesAfter]] = deque(maxlen=change_log_steps_max)
        self._watchers: list[TreeWatcher] = []
        self._incarnation = 0
        self.expired: set[int] = set()  # sessions that ended because their heartbeats stopped
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def freeze(self) -> None:
        """Let all steps wait until `thaw`, as when a stopped process holds the write lock."""
        self._is_writable.clear()

    def thaw(self) -> None:
        self._is_writable.set()

    async def wait_until_writable(self) -> None:
        await self._is_writable.wait()

    def step(self, operations: Sequence[Operation], session: str | None) -> int:
        """Make one step now, or change nothing and raise."""
        for index, operation in enumerate(operations):
            self._check(index, operation, session)
        nodes: NodesAfter = []
        for operation in operations:
            match operation:
                case Create(path, value, ephemeral):
                    nodes.append((path, Entry(path, value, 0, session if ephemeral else None)))
                case Write(path, value, version):
                    after = replace(self.entries[path], value=value, version=version + 1)
                    nodes.append((path, after))
                case Delete(path):
                    nodes.append((path, None))
                case Check() | CheckAbsent():
                    pass
        return self._commit(nodes)

    def begin_session(self, name: str) -> int:
        self._incarnation += 1
        path, session = paths.session(self._incarnation), str(self._incarnation)
        self._commit([(path, Entry(path, name.encode(), 0, session))])
        return self._incarnation

    def end_session(self, session: int | str) -> None:
        """End a session with its ephemeral nodes, in one step; a second time does nothing."""
        session_paths = sorted(
            path for path, entry in self.entries.items() if entry.session == str(session)
        )
        if session_paths:
            self._commit([(path, None) for path in session_paths])

    def expire_session(self, session: int) -> None:
        """End a session whose owner lives and writes no heartbeats."""
        if paths.session(session) in self.entries:
            self.expired.add(session)
            self.end_session(session)

    def steps_after(self, revision: int, *, until: int) -> Steps | None:
        """The steps in (revision, until], or None if the log no longer has them all."""
        if revision < until and (not self._log or self._log[0][0] > revision + 1):
            return None
        steps: list[tuple[int, NodesAfter]] = []
        for step in reversed(self._log):  # a store is a few steps behind, the log is long
            if step[0] <= revision:
                break
            if step[0] <= until:
                steps.append(step)
        return steps[::-1]

    def last_step(self) -> NodesAfter:
        """The nodes that the last step wrote or deleted; for a watcher that was just notified."""
        return self._log[-1][1] if self._log else []

    def fingerprint_of(self, revision: int) -> str | None:
        return next((fingerprint(nodes) for step, nodes in self._log if step == revision), None)

    def backup(self) -> "MemoryTree":
        """The tree as it is now, as a copy of a store's file would have it."""
        copy = MemoryTree(delay_ms=self.delay_ms, change_log_steps_max=self._log.maxlen or 0)
        copy.revision, copy.entries = self.revision, dict(self.entries)
        copy._log.extend(self._log)
        copy._incarnation = self._incarnation
        return copy

    def lose_power(self, random: Random) -> None:
        """Nothing: every step is on disk when its commit returns."""

    def close(self) -> None:
        """Release what the tree keeps outside memory."""

    def attach(self, watcher: TreeWatcher) -> None:
        self._watchers.append(watcher)

    def detach(self, watcher: TreeWatcher) -> None:
        self._watchers.remove(watcher)

    def _check(self, index: int, operation: Operation, session: str | None) -> None:
        entry = self.entries.get(operation.path)
        if not _holds(operation, entry):
            raise Conflict(
                operation.path,
                index=index,
                expected=expectation(operation),
                found_version=None if entry is None else entry.version,
            )
        is_session_live = session is not None and f"{paths.SESSIONS}/{session}" in self.entries
        if isinstance(operation, Create) and operation.ephemeral and not is_session_live:
            raise SessionEnded(f"{operation.path}: the session it should belong to has ended")

    def _commit(self, nodes: NodesAfter) -> int:
        self.revision += 1
        for path, after in nodes:
            if after is None:
                del self.entries[path]
            else:
                self.entries[path] = after
        self._log.append((self.revision, nodes))
        for watcher in self._watchers:
            watcher.notify(self.revision)
        return self.revision


class MemoryStore(ReadsFromView):
    """One broker's connection to a `MemoryTree`; it can be paused, or cut off, and resumed.

    Paused or cut off, it gets no notifications. Its commits wait while it is paused, and raise
    Unavailable while it is cut off. Either way its heartbeats stop, but only
    `MemoryTree.end_session` ends its session.
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
        self._disconnected_since_ms: int | None = None
        self._incarnation: int | None = None
        self._session_lost = asyncio.Event()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._view.reset_to(self._tree.revision, self._tree.entries.values())
        self._tree.attach(self)

    async def close(self) -> None:
        if self._loop is None:
            return
        await self.close_session()
        self._tree.detach(self)
        self._loop = None

    def pause(self) -> None:
        self._disconnect()

    def cut_off(self) -> None:
        self._cut_off = True
        self._disconnect()

    def resume(self) -> None:
        """Reconnect. Missed notifications are delivered at once, in order."""
        self._check_expiry(self._clock_ms())
        self._cut_off = False
        self._disconnected_since_ms = None
        self._reachable.set()
        if self._incarnation is not None and self._session_lost.is_set():
            self._tree.end_session(self._incarnation)
        self._catch_up(self._tree.revision)

    async def fingerprint_of(self, revision: int) -> str | None:
        return self._tree.fingerprint_of(revision)

    def catch_up(self) -> None:
        if self._view.is_notifying:
            asyncio.get_running_loop().call_soon(self.catch_up)
        elif self._loop is not None and self._reachable.is_set():
            self._catch_up(self._tree.revision)

    async def commit(self, *operations: Operation) -> int:
        check_step(operations)
        await self._wait_until_reachable()
        try:
            return self._tree.step(operations, self.session)
        finally:
            # Refused or not, the local view is as new as the tree that decided.
            self._catch_up(self._tree.revision)

    async def open_session(self, name: str) -> int:
        assert self._incarnation is None or self._session_lost.is_set(), "one session at a time"
        await self._wait_until_reachable()
        self._incarnation = self._tree.begin_session(name)
        self._session_lost.clear()
        self._catch_up(self._tree.revision)
        return self._incarnation

    async def close_session(self) -> None:
        if self._incarnation is None:
            return
        incarnation, self._incarnation = self._incarnation, None
        if self._reachable.is_set():  # else it ends by its timeout
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
        self._check_expiry(now_ms)
        return self.session is not None

    def is_frozen(self, incarnation: int) -> bool:
        return incarnation in self._tree.expired

    def notify(self, revision: int) -> None:
        """Called by the tree after a step; handled after the tree's delay."""
        assert self._loop is not None, "only a started store is notified"
        delay_ms = self._tree.delay_ms()
        if delay_ms:
            self._loop.call_later(delay_ms / 1000, self._on_notification, revision)
        else:
            self._loop.call_soon(self._on_notification, revision)

    def _on_notification(self, revision: int) -> None:
        if self._loop is not None and self._reachable.is_set():
            self._catch_up(revision)

    def _catch_up(self, until: int) -> None:
        steps = self._tree.steps_after(self._view.revision, until=until)
        if steps is None:
            self._view.reset_to(self._tree.revision, self._tree.entries.values())
        else:
            self._view.apply(steps)
        if self._incarnation is not None and not self._view.get(paths.session(self._incarnation)):
            self._session_lost.set()

    async def _wait_until_reachable(self) -> None:
        if self._loop is None:
            raise Unavailable("this store is closed")
        delay_ms = self._tree.delay_ms()
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        if self._cut_off:
            raise Unavailable("this broker is cut off from the metadata store")
        await self._reachable.wait()
        await self._tree.wait_until_writable()

    def _disconnect(self) -> None:
        if self._disconnected_since_ms is None:
            self._disconnected_since_ms = self._clock_ms()
        self._reachable.clear()

    def _check_expiry(self, now_ms: int) -> None:
        since_ms = self._disconnected_since_ms
        if self._incarnation is None or since_ms is None:
            return
        if now_ms - since_ms > self._session_timeout_ms:
            # Other brokers may have ended this session: from here on it is lost, for good.
            self._session_lost.set()
