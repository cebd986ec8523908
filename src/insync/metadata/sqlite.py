"""The store of a cluster on one host: one SQLite file that every broker's process opens.

Threads of one store, so that nothing that may wait runs in the event loop:
- the writer makes the steps, one after another, and waits when another process writes;
- the poller looks, every `poll_interval_ms`, whether anybody committed something;
- the keeper of `sessions` beats and observes, with one thread per session it watches.

Both writer and poller read what is new through one connection, in turns, and post it to the loop,
where the view changes. Posts arrive in the order they were made, so steps do too, and a committer
sees its own step before its commit returns.
"""

import asyncio
import json
import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from insync.metadata import database, paths
from insync.metadata.errors import SessionEnded, StoreUnusable, Unavailable
from insync.metadata.sessions import Keeper, SessionFile, sweep
from insync.metadata.store import Change, Create, Entry, Operation, Watcher, check_step
from insync.metadata.view import Steps, View
from insync.rules.refusals import Refusal

SESSION_TIMEOUT_MS = 9_000  # broker.session.timeout.ms
HEARTBEAT_INTERVAL_MS = 500  # broker.heartbeat.interval.ms
POLL_INTERVAL_MS = 20
POLL_INTERVAL_MS_MAX = 25  # with reading and the loop's own delay, 50 ms to everybody
COMMIT_TIMEOUT_MS = 30_000  # a caller hears that the store is stuck before its clients give up
COMMITS_WAITING_MAX = 1_000
BUSY_PAUSE_S_MIN = 0.0002  # about the time another process needs for a small step
BUSY_PAUSE_S_MAX = 0.005

_SESSION_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")  # part of a file's name
_log = logging.getLogger(__name__)
T = TypeVar("T")


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SqliteStore:
    """One process's handle on the SQLite file at `path`; sessions are files beside it."""

    def __init__(
        self,
        path: Path | str,
        *,
        clock_ms: Callable[[], int] = monotonic_ms,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        poll_interval_ms: int = POLL_INTERVAL_MS,
        commit_timeout_ms: int = COMMIT_TIMEOUT_MS,
        change_log_rows_max: int = database.CHANGE_LOG_ROWS_MAX,
        synchronous: str = "NORMAL",
        observes: bool = True,
    ) -> None:
        assert 0 < poll_interval_ms <= POLL_INTERVAL_MS_MAX, poll_interval_ms
        assert 2 * heartbeat_interval_ms <= session_timeout_ms, "a single beat may be late"
        self.path = Path(path)
        self._sessions_folder = self.path.parent / "sessions"
        self._clock_ms = clock_ms
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._poll_interval_ms = poll_interval_ms
        self._commit_timeout_ms = commit_timeout_ms
        self._change_log_rows_max = change_log_rows_max
        self._synchronous = synchronous
        self._observes = observes  # of sessions: a short-lived reader may leave that to brokers

        self._view = View()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._writer_thread = threading.Thread(target=self._work, name="insync-writer", daemon=True)
        self._poller_thread = threading.Thread(target=self._poll, name="insync-poller", daemon=True)
        self._poller_stop = threading.Lock()  # held while the poller is to go on
        self._reading = threading.Lock()  # guards `_reader` and `_read_revision`
        self._read_revision = 0
        self._writer: database.Writer  # the writer thread's
        self._reader: database.Reader
        self._keeper = Keeper(
            clock_ms=clock_ms,
            interval_ms=heartbeat_interval_ms,
            timeout_ms=session_timeout_ms,
            end=self._end_session,
            expired=lambda: self._post(self._lose_session),
        )
        self._incarnation: int | None = None
        self._session_lost = asyncio.Event()
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    # Reading: all from the local view.

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

    # Life of the handle.

    async def start(self) -> None:
        assert self._loop is None, "a store is started once"
        self._loop = asyncio.get_running_loop()
        self._view.watch(self._on_changes)
        self._writer_thread.start()
        try:
            await self._in_writer(self._open)
        except BaseException:
            self._jobs.put(None)
            self._loop = None
            raise

    async def close(self) -> None:
        if self._loop is None or self._closing:
            return
        try:
            await self.close_session()
        except Unavailable as error:
            _log.warning("the session is left for the others to end: %s", error)
        self._closing = True
        await self._in_writer(self._shut)
        self._jobs.put(None)
        self._writer_thread.join()

    def _open(self) -> None:
        try:
            self._sessions_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(
                f"{self._sessions_folder}: cannot be made ({error.strerror})"
            ) from None
        writing = self._patiently(self._connect)
        try:
            self._writer = database.Writer(writing, log_rows_max=self._change_log_rows_max)
            self._reader = database.Reader(self._patiently(self._connect))
            tree = self._patiently(self._reader.tree)
        except BaseException:
            writing.close()
            raise
        self._read_revision = tree.revision
        self._post(self._follow, tree)
        self._keeper.start()
        self._poller_stop.acquire()
        self._poller_thread.start()

    def _connect(self) -> sqlite3.Connection:
        return database.connect(self.path, synchronous=self._synchronous)

    def _shut(self) -> None:
        self._poller_stop.release()
        self._poller_thread.join()
        self._keeper.stop()
        self._reader.close()
        self._writer.close()

    # Writing.

    async def commit(self, *operations: Operation) -> int:
        check_step(operations)
        self._check_open()
        incarnation = None if self.session is None else self._incarnation
        if incarnation is None:
            for operation in operations:
                if isinstance(operation, Create) and operation.ephemeral:
                    raise SessionEnded(f"{operation.path}: there is no session it could belong to")
        return await self._in_writer(lambda: self._step(operations, incarnation))

    def _step(self, operations: tuple[Operation, ...], incarnation: int | None) -> int:
        self._writer.load(operations, incarnation)
        try:
            return self._patiently(lambda: self._writer.step(operations))
        finally:
            # Refused or not, the committer knows what the store knew.
            self._patiently(self._refresh)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """In the writer's thread: try until nobody else is writing."""
        began_ms, warned, pause_s = self._clock_ms(), False, BUSY_PAUSE_S_MIN
        while True:
            try:
                return attempt()
            except sqlite3.Error as error:
                if not database.is_busy(error):
                    raise database.refusal(error, self.path) from error
            waited_ms = self._clock_ms() - began_ms
            if waited_ms > self._session_timeout_ms and not warned:
                warned = True
                self._post(self._warn_of_holder, database.write_lock_holders(self.path), waited_ms)
            if waited_ms > self._commit_timeout_ms or self._closing:
                raise Unavailable(
                    f"{self.path}: another process has been writing for {waited_ms} ms;"
                    " nothing was changed"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)

    def _warn_of_holder(self, pids: list[int], waited_ms: int) -> None:
        names = {
            record["pid"]: record["name"]
            for record in (json.loads(entry.value) for entry in self._view.under(paths.SESSIONS))
        }
        told = [f"pid {pid} ({names.get(pid, 'no session')})" for pid in pids]
        everybody = [f"pid {pid} ({name})" for pid, name in sorted(names.items())]
        _log.warning(
            "%s: the write lock has been held for %d ms by %s; a process stopped inside a"
            " transaction blocks all writers",
            self.path,
            waited_ms,
            ", ".join(told) or f"one of {', '.join(everybody) or 'no known session'}",
        )

    # Noticing.

    def _poll(self) -> None:
        seen: int | None = None
        failing = False
        while not self._poller_stop.acquire(timeout=self._poll_interval_ms / 1000):
            try:
                with self._reading:
                    number = self._reader.data_version()
                if number != seen:
                    self._refresh()
                    seen = number
                failing = False
            except sqlite3.Error as error:
                if not failing and not database.is_busy(error):
                    _log.error("%s: cannot be read: %s", self.path, error)
                    failing = True

    def _refresh(self) -> None:
        """In any thread: read what is new and post it to the loop."""
        with self._reading:
            found = self._reader.after(self._read_revision)
            if isinstance(found, database.Tree):
                self._read_revision = found.revision
            elif found:
                self._read_revision = found[-1][0]
            else:
                return
            # Posted under the lock, so that posts are in the order of reading.
            self._post(self._follow, found)

    def catch_up(self) -> None:
        # Read in the loop: a look at the log of changes, which no writer can hold up. What the
        # other threads have read of it already is passed over when it is posted.
        if self._view.is_telling:
            asyncio.get_running_loop().call_soon(self.catch_up)
            return
        if self._closing:
            return
        try:
            with self._reading:
                found = self._reader.after(self._view.revision)
        except sqlite3.Error as error:
            _log.warning("%s: cannot be read just now: %s", self.path, error)
        else:
            self._follow(found)

    def _follow(self, found: Steps | database.Tree) -> None:
        if isinstance(found, database.Tree):
            self._view.become(found.revision, found.entries)
        else:
            self._view.apply(found)

    # Sessions.

    async def open_session(self, name: str) -> int:
        assert _SESSION_NAME.fullmatch(name), f"a session's name is part of a file's: {name!r}"
        assert self._incarnation is None or self._session_lost.is_set(), "one session at a time"
        self._check_open()
        self._session_lost.clear()
        living = frozenset(int(number) for number in self._view.children(paths.SESSIONS))
        incarnation = await self._in_writer(lambda: self._begin_session(name, living))
        if incarnation == self._incarnation:  # else it is lost already
            self._beat_on()
        return incarnation

    def _begin_session(self, name: str, living: frozenset[int]) -> int:
        incarnation = self._patiently(self._writer.next_incarnation)
        try:
            sweep(self._sessions_folder, living=living.__contains__)
            file = SessionFile(self._session_file(incarnation, name))
        except OSError as error:
            raise StoreUnusable(f"{self._sessions_folder}: {error.strerror}") from None
        # Known before anybody can hear of it: the loop must not watch its own session.
        self._incarnation = incarnation
        value = json.dumps({"name": name, "pid": os.getpid()}).encode()
        operations = (Create(paths.session(incarnation), value, ephemeral=True),)

        def attempt() -> None:
            # Its time begins with the attempt that succeeds: waiting for the lock costs none.
            self._keeper.own(file, at_ms=self._clock_ms())
            self._writer.step(operations)

        try:
            self._writer.load(operations, incarnation)
            self._patiently(attempt)
            self._patiently(self._refresh)
        except BaseException:
            self._incarnation = None
            self._keeper.disown()
            raise
        return incarnation

    def _beat_on(self) -> None:
        assert self._loop is not None
        self._keeper.pulse()
        self._heartbeat_timer = self._loop.call_later(
            self._heartbeat_interval_ms / 1000, self._beat_on
        )

    async def close_session(self) -> None:
        if self.session is None:
            return
        incarnation = self._forget_session()
        await self._in_writer(lambda: self._make_end(incarnation))

    @property
    def session(self) -> str | None:
        return None if self._incarnation is None else str(self._incarnation)

    @property
    def session_lost(self) -> asyncio.Event:
        return self._session_lost

    def is_alive(self, now_ms: int) -> bool:
        if self._incarnation is None:
            return False
        if self._keeper.silent_for_ms(now_ms) > self._session_timeout_ms:
            # The others may have given this session up: from here on so do we, for good.
            self._lose_session()
            return False
        return True

    def _lose_session(self) -> None:
        if self._incarnation is None:
            return
        incarnation = self._forget_session()
        self._session_lost.set()
        # Nothing to do if others ended it; if we alone know, the others learn of it at once.
        self._jobs.put(partial(self._make_end_quietly, incarnation))

    def _forget_session(self) -> int:
        assert self._incarnation is not None
        incarnation, self._incarnation = self._incarnation, None
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._keeper.disown()
        return incarnation

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            incarnation = paths.session_of(change.path)
            if incarnation is None:
                continue
            if change.after is None:
                self._keeper.forget(incarnation)
                if incarnation == self._incarnation:
                    self._lose_session()
            elif change.before is None and incarnation != self._incarnation and self._observes:
                name = json.loads(change.after.value)["name"]
                self._keeper.watch(incarnation, self._session_file(incarnation, name))

    def _session_file(self, incarnation: int, name: str) -> Path:
        return self._sessions_folder / f"{incarnation}-{name}"

    def _end_session(self, incarnation: int, file: Path, reason: str) -> None:
        """In any thread: end somebody else's session."""

        def job() -> None:
            if self._closing:
                return
            if self._make_end_quietly(incarnation):
                _log.info("ended session %s: %s", file.name, reason)
            file.unlink(missing_ok=True)
            self._keeper.ended(incarnation)

        self._jobs.put(job)

    def _make_end(self, incarnation: int) -> bool:
        try:
            return self._patiently(lambda: self._writer.end_session(incarnation))
        finally:
            self._patiently(self._refresh)

    def _make_end_quietly(self, incarnation: int) -> bool:
        try:
            return self._make_end(incarnation)
        except Refusal as error:
            _log.warning("session %d could not be ended yet: %s", incarnation, error)
            return False

    # Threads.

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable(f"{self.path}: this handle is closed")

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def _in_writer(self, job: Callable[[], T]) -> T:
        assert self._loop is not None, "start the store first"
        if self._jobs.qsize() > COMMITS_WAITING_MAX:
            raise Unavailable(f"{self.path}: {COMMITS_WAITING_MAX} steps are waiting already")
        answer: asyncio.Future[T] = self._loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if answer.done():
                return  # the caller was cancelled
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type] # no error, so a result

        def run() -> None:
            try:
                result = job()
            except BaseException as error:  # the caller's to handle
                self._post(settle, None, error)
            else:
                self._post(settle, result, None)

        self._jobs.put(run)
        return await answer

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # else its owner forgot `close`; there is nobody left to tell
