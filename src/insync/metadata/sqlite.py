"""The store of a cluster on one host: one SQLite file that every broker's process opens.

Threads of one store, so that nothing that may block runs in the event loop:
- the writer makes the steps, one after another, and waits while another process writes;
- the poller checks, every `poll_interval_ms`, whether another process committed something;
- the monitor of `sessions` writes the heartbeat and observes others, with one thread per session.

Both writer and poller read new steps through one connection, in turns, and post them to the loop,
which updates the view. Posts arrive in the order they were made, so steps do too, and the view has
a step before its commit returns.

If the file at the path is another one than was opened, or has fewer steps than were read, the store
went back. From then on nothing is read or written, and the session is lost: only a new process may
decide whether to use what is there now.
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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from insync.metadata import database, paths
from insync.metadata.errors import (
    SessionEnded,
    StoreUnusable,
    StoreWentBack,
    Unavailable,
)
from insync.metadata.sessions import SessionFile, SessionMonitor, sweep
from insync.metadata.store import Change, Create, Operation, check_step
from insync.metadata.view import ReadsFromView, Steps, View, fingerprint
from insync.rules.refusals import Refusal

SESSION_TIMEOUT_MS = 9_000  # broker.session.timeout.ms
HEARTBEAT_INTERVAL_MS = 500  # broker.heartbeat.interval.ms
POLL_INTERVAL_MS = 20
POLL_INTERVAL_MS_MAX = 25  # with reading and the loop's own delay, 50 ms to every broker
CHECK_FILE_INTERVAL_MS = 500  # for a reader: every step checks it too
COMMIT_TIMEOUT_MS = 30_000  # so that a caller gets an error before its own clients time out
COMMITS_WAITING_MAX = 1_000
BUSY_PAUSE_S_MIN = 0.0002  # about the time another process needs for a small step
BUSY_PAUSE_S_MAX = 0.005

_SESSION_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")  # part of a file's name
_log = logging.getLogger(__name__)
T = TypeVar("T")


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _identify(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at this path."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class SqliteStore(ReadsFromView):
    """One process's connection to the SQLite file at `path`; sessions are files beside it."""

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
        assert 2 * heartbeat_interval_ms <= session_timeout_ms, "a single heartbeat may be late"
        self.path = Path(path)
        self._sessions_folder = self.path.parent / "sessions"
        self._clock_ms = clock_ms
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._poll_interval_ms = poll_interval_ms
        self._commit_timeout_ms = commit_timeout_ms
        self._change_log_rows_max = change_log_rows_max
        self._synchronous = synchronous
        self._observes = observes  # other sessions: a short-lived reader leaves that to brokers

        self._view = View()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._writer_thread = threading.Thread(target=self._work, name="insync-writer", daemon=True)
        self._poller_thread = threading.Thread(target=self._poll, name="insync-poller", daemon=True)
        self._poller_stop = threading.Lock()  # held while the poller runs
        self._reading = threading.Lock()  # guards `_reader` and `_read_revision`
        self._read_revision = 0
        self._read_at_ms = 0  # a moment before the store was last read
        self._writer: database.Writer  # used by the writer thread only
        self._reader: database.Reader
        self._file: tuple[int, int] | None = None  # device and inode of the file that was opened
        self._went_back: str | None = None  # why nothing is read or written any more
        self._monitor = SessionMonitor(
            clock_ms=clock_ms,
            interval_ms=heartbeat_interval_ms,
            timeout_ms=session_timeout_ms,
            end=self._end_session,
            expired=lambda: self._post(self._lose_session),
        )
        self._incarnation: int | None = None
        self._session_lost = asyncio.Event()
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    async def fingerprint_of(self, revision: int) -> str | None:
        def read() -> str | None:
            with self._reading:
                nodes = self._reader.step(revision)
            return None if nodes is None else fingerprint(nodes)

        return await self._in_writer(lambda: self._retry_while_busy(read))

    # Starting and closing.

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
            _log.warning(
                "%s: this process's session could not be closed; another broker will end it: %s",
                self.path,
                error,
            )
        self._closing = True
        await self._in_writer(self._close_connections)
        self._jobs.put(None)
        self._writer_thread.join()

    def _open(self) -> None:
        try:
            self._sessions_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(
                f"{self._sessions_folder}: cannot be made ({error.strerror})"
            ) from None
        writing = self._retry_while_busy(self._connect)
        try:
            self._file = _identify(self.path)
            self._writer = database.Writer(writing, log_rows_max=self._change_log_rows_max)
            self._reader = database.Reader(self._retry_while_busy(self._connect))
            tree = self._retry_while_busy(self._reader.tree)
        except BaseException:
            writing.close()
            raise
        self._read_revision = tree.revision
        self._read_at_ms = self._clock_ms()
        self._post(self._apply, tree)
        self._monitor.start()
        self._poller_stop.acquire()
        self._poller_thread.start()

    def _connect(self) -> sqlite3.Connection:
        return database.connect(self.path, synchronous=self._synchronous)

    def _close_connections(self) -> None:
        self._poller_stop.release()
        self._poller_thread.join()
        self._monitor.stop()
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
        self._check_same_store()
        self._writer.load(operations, incarnation)
        try:
            return self._retry_while_busy(lambda: self._writer.step(operations))
        finally:
            # Refused or not, the local view is as new as the tree that decided.
            self._retry_while_busy(self._refresh)

    def _retry_while_busy(self, attempt: Callable[[], T]) -> T:
        """In the writer's thread: try until no other process is writing."""
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
                holders = database.write_lock_holders(self.path)
                self._post(self._warn_of_lock_holder, holders, waited_ms)
            if waited_ms > self._commit_timeout_ms or self._closing:
                raise Unavailable(
                    f"{self.path}: another process has been writing for {waited_ms} ms;"
                    " nothing was changed"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)

    def _warn_of_lock_holder(self, pids: list[int], waited_ms: int) -> None:
        names = {
            record["pid"]: record["name"]
            for record in (json.loads(entry.value) for entry in self._view.under(paths.SESSIONS))
        }
        holders = [f"pid {pid} ({names.get(pid, 'no session')})" for pid in pids]
        sessions = [f"pid {pid} ({name})" for pid, name in sorted(names.items())]
        _log.warning(
            "%s: the write lock has been held for %d ms by %s; a process stopped in a transaction"
            " blocks all writers: continue or kill it",
            self.path,
            waited_ms,
            ", ".join(holders) or f"one of {', '.join(sessions) or 'no known session'}",
        )

    # Reading steps of other processes.

    def _poll(self) -> None:
        seen: int | None = None
        failing = False
        check_file_at_ms = 0
        while not self._poller_stop.acquire(timeout=self._poll_interval_ms / 1000):
            now_ms = self._clock_ms()
            try:
                if self._went_back is not None or now_ms >= check_file_at_ms:
                    check_file_at_ms = now_ms + CHECK_FILE_INTERVAL_MS
                    self._check_same_store()
                with self._reading:
                    number = self._reader.data_version()
                if number != seen:
                    self._refresh()
                    seen = number
            except StoreWentBack:
                failing = True  # logged once, when it was found
            except sqlite3.Error as error:
                if not failing and not database.is_busy(error):
                    _log.error(
                        "%s: the metadata store cannot be read, retrying: %s", self.path, error
                    )
                    failing = True
            except Exception:  # without this thread no change would ever be seen again
                if not failing:
                    _log.exception("%s: the metadata store cannot be read", self.path)
                    failing = True
            else:
                failing = False
                self._read_at_ms = now_ms

    def _refresh(self) -> None:
        """In any thread: read new steps and post them to the loop."""
        began_ms = self._clock_ms()
        with self._reading:
            news = self._read_after(self._read_revision)
            self._read_at_ms = began_ms
            if isinstance(news, database.Tree):
                self._read_revision = news.revision
            elif news:
                self._read_revision = news[-1][0]
            else:
                return
            # Posted under the lock, so that posts are in the order of reads.
            self._post(self._apply, news)

    def catch_up(self) -> None:
        # Read in the event loop: no writer can block a read of the change log. Steps that the
        # other threads have read already are skipped when they are posted.
        if self._view.is_notifying:
            asyncio.get_running_loop().call_soon(self.catch_up)
            return
        if self._closing:
            return
        try:
            with self._reading:
                news = self._read_after(self._view.revision)
        except StoreWentBack:
            pass
        except sqlite3.Error as error:
            _log.warning("%s: the metadata store cannot be read now: %s", self.path, error)
        else:
            self._apply(news)

    def _read_after(self, revision: int) -> Steps | database.Tree:
        self._check_same_store()
        try:
            return self._reader.after(revision)
        except StoreWentBack as refusal:
            self._give_up_store(str(refusal))
            raise StoreWentBack(f"{self.path}: {self._went_back}") from None

    def _check_same_store(self) -> None:
        """In any thread: raise if the path has another store than the one that was opened."""
        if self._went_back is None:
            file = _identify(self.path)
            if file == self._file:
                return
            self._give_up_store("the file is gone" if file is None else "the file was replaced")
        raise StoreWentBack(f"{self.path}: {self._went_back}; nothing was changed")

    def _give_up_store(self, reason: str) -> None:
        if self._went_back is None:
            self._went_back = reason
            _log.error(
                "%s: the metadata store went back: %s. It is not read any more, and this process"
                " gives its session up; restart it to decide about the store that is there now",
                self.path,
                reason,
            )
            self._post(self._lose_session)

    def _apply(self, news: Steps | database.Tree) -> None:
        if isinstance(news, database.Tree):
            self._view.reset_to(news.revision, news.entries)
        else:
            self._view.apply(news)

    # Sessions.

    async def open_session(self, name: str) -> int:
        assert _SESSION_NAME.fullmatch(name), f"a session's name is part of a file's: {name!r}"
        assert self._incarnation is None or self._session_lost.is_set(), "one session at a time"
        self._check_open()
        self._session_lost.clear()
        live = frozenset(int(number) for number in self._view.children(paths.SESSIONS))
        incarnation = await self._in_writer(lambda: self._begin_session(name, live))
        if incarnation == self._incarnation:  # else the session is lost already
            self._run_heartbeat_timer()
        return incarnation

    def _begin_session(self, name: str, live: frozenset[int]) -> int:
        self._check_same_store()
        incarnation = self._retry_while_busy(self._writer.next_incarnation)
        try:
            sweep(self._sessions_folder, is_live=live.__contains__)
            file = SessionFile(self._session_file(incarnation, name))
        except OSError as error:
            raise StoreUnusable(f"{self._sessions_folder}: {error.strerror}") from None
        # Set before the session is visible: the loop must not observe its own session.
        self._incarnation = incarnation
        value = json.dumps({"name": name, "pid": os.getpid()}).encode()
        operations = (Create(paths.session(incarnation), value, ephemeral=True),)

        def attempt() -> None:
            # The session's time starts with the attempt that succeeds: waiting does not count.
            self._monitor.start_heartbeat(file, at_ms=self._clock_ms())
            self._writer.step(operations)

        try:
            self._writer.load(operations, incarnation)
            self._retry_while_busy(attempt)
            self._retry_while_busy(self._refresh)
        except BaseException:
            self._incarnation = None
            self._monitor.stop_heartbeat()
            raise
        return incarnation

    def _run_heartbeat_timer(self) -> None:
        assert self._loop is not None
        if not self.is_alive(self._clock_ms()):
            return
        self._monitor.on_heartbeat_timer()
        self._heartbeat_timer = self._loop.call_later(
            self._heartbeat_interval_ms / 1000, self._run_heartbeat_timer
        )

    async def close_session(self) -> None:
        if self.session is None:
            return
        incarnation = self._forget_session()
        await self._in_writer(lambda: self._write_session_end(incarnation))

    @property
    def session(self) -> str | None:
        return None if self._incarnation is None else str(self._incarnation)

    @property
    def session_lost(self) -> asyncio.Event:
        return self._session_lost

    def is_alive(self, now_ms: int) -> bool:
        if self._incarnation is None:
            return False
        # Without a heartbeat other brokers may have ended this session. Without a read of the store
        # this process does not know whether they did, or elected other leaders.
        silent_ms = max(self._monitor.silent_for_ms(now_ms), now_ms - self._read_at_ms)
        if silent_ms > self._session_timeout_ms:
            self._lose_session()  # for good
            return False
        return True

    def is_frozen(self, incarnation: int) -> bool:
        return self._monitor.is_frozen(incarnation)

    def _lose_session(self) -> None:
        if self._incarnation is None:
            return
        incarnation = self._forget_session()
        self._session_lost.set()
        # Does nothing if another broker ended it; otherwise the others see its end at once.
        self._jobs.put(partial(self._try_to_end, incarnation))

    def _forget_session(self) -> int:
        assert self._incarnation is not None
        incarnation, self._incarnation = self._incarnation, None
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._monitor.stop_heartbeat()
        return incarnation

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            incarnation = paths.session_of(change.path)
            if incarnation is None:
                continue
            if change.after is None:
                self._monitor.forget(incarnation)
                if incarnation == self._incarnation:
                    self._lose_session()
            elif change.before is None and incarnation != self._incarnation and self._observes:
                name = json.loads(change.after.value)["name"]
                self._monitor.watch(incarnation, self._session_file(incarnation, name))

    def _session_file(self, incarnation: int, name: str) -> Path:
        return self._sessions_folder / f"{incarnation}-{name}"

    def _end_session(self, incarnation: int, file: Path, reason: str) -> None:
        """In any thread: end the session of another process."""

        def job() -> None:
            if self._closing or self._went_back is not None:
                return
            try:
                if self._try_to_end(incarnation):
                    _log.info("ended the session %s: %s", file.name, reason)
                file.unlink(missing_ok=True)
            finally:
                self._monitor.on_end_attempted(incarnation)

        self._jobs.put(job)

    def _write_session_end(self, incarnation: int) -> bool:
        self._check_same_store()
        try:
            return self._retry_while_busy(lambda: self._writer.end_session(incarnation))
        finally:
            self._retry_while_busy(self._refresh)

    def _try_to_end(self, incarnation: int) -> bool:
        try:
            return self._write_session_end(incarnation)
        except Refusal as error:
            _log.warning("session %d: cannot be ended yet: %s", incarnation, error)
            return False

    # Threads.

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable(f"{self.path}: this store is closed")

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # without this thread nothing could be written any more
                _log.exception("%s: a step failed", self.path)

    async def _in_writer(self, job: Callable[[], T]) -> T:
        assert self._loop is not None, "start the store first"
        if self._jobs.qsize() > COMMITS_WAITING_MAX:
            raise Unavailable(f"{self.path}: {COMMITS_WAITING_MAX} steps wait for the write lock")
        done: asyncio.Future[T] = self._loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return  # the caller was cancelled
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type] # no error, so a result

        def run() -> None:
            try:
                result = job()
            except BaseException as error:  # raised in the caller
                self._post(settle, None, error)
            else:
                self._post(settle, result, None)

        self._jobs.put(run)
        return await done

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # else `close` was not called, and no caller waits any more
