"""Sessions of processes on one host: a locked file per session, with a heartbeat counter in it.

The owner of a session holds an exclusive flock on its file. An observer requests a shared one and
waits: the kernel grants it as soon as the owner is dead, however it died. An owner that is alive
but does nothing (stopped, or its event loop stuck) is detected by the counter, which each run of
its loop's heartbeat timer increments.

Two clocks decide, and the owner's decides first. An observer ends a session when the counter did
not change for more than the timeout since the observer first saw its value. The owner gives its
session up, for good, when more than the timeout has passed since a moment before it wrote that
value, which is earlier. So while an owner may act for its session, no observer has ended it.

An observer that was itself stopped saw no heartbeats: a gap between two of its checks of more than
twice the check interval does not count towards the timeout.

An observer remembers how a session ended: an owner that still holds the lock, and whose counter
stood still, is frozen and not dead.
"""

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

COUNTER_BYTES = 8
ENDED_MAX = 256  # sessions that ended, of which an observer remembers how
logger = logging.getLogger(__name__)
_held_descriptors: set[int] = set()


def _close_in_child() -> None:
    # A forked child shares the parent's lock: if it kept it open, the parent's death would go
    # unnoticed. Closing the child's copy does not release the lock. (exec closes it anyway.)
    for descriptor in sorted(_held_descriptors):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long an observer has seen a session's counter unchanged, by the observer's clock."""

    counter: int
    checked_at_ms: int
    unchanged_ms: int = 0

    def on_check(self, *, counter: int, now_ms: int, interval_ms: int) -> "Silence":
        gap_ms = now_ms - self.checked_at_ms
        assert gap_ms >= 0, "observer time went backwards"
        if counter != self.counter:
            return Silence(counter=counter, checked_at_ms=now_ms)
        counted_ms = 0 if gap_ms > 2 * interval_ms else gap_ms
        return replace(self, checked_at_ms=now_ms, unchanged_ms=self.unchanged_ms + counted_ms)


class SessionFile:
    """The owner's session file: created and locked here, deleted when released."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _create_locked(path)
        _held_descriptors.add(self._descriptor)

    def write_heartbeat(self, counter: int) -> None:
        os.pwrite(self._descriptor, counter.to_bytes(COUNTER_BYTES, "big"), 0)

    def release(self) -> None:
        """Delete the file and release the lock; a second time does nothing."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        _held_descriptors.discard(descriptor)
        self.path.unlink(missing_ok=True)
        os.close(descriptor)


def _create_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.pwrite(descriptor, bytes(COUNTER_BYTES), 0)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process's `sweep` deleted it before it was locked


def sweep(folder: Path, *, is_live: Callable[[int], bool]) -> None:
    """Delete files of sessions that are neither live nor being opened."""
    for path in sorted(folder.iterdir()):
        number = path.name.partition("-")[0]
        if not number.isdecimal() or is_live(int(number)):
            continue
        with contextlib.suppress(OSError):  # locked: its process is opening the session
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Else another `sweep` deleted it, and the path may have a new session's file.
                if os.fstat(descriptor).st_nlink:
                    path.unlink()
            finally:
                os.close(descriptor)


def wait_for_release(path: Path) -> bool:
    """True when the owner of this session file has released it; False if the file is gone.

    A file that is deleted meanwhile stays locked until its owner releases it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)  # at once: another observer would take this lock for the owner's
    return True


def read_counter(path: Path) -> int | None:
    """The owner's latest heartbeat, or None if the file is gone."""
    try:
        return int.from_bytes(path.read_bytes(), "big")
    except FileNotFoundError:
        return None


@dataclass(slots=True)
class _ObservedSession:
    """A session of another process, as this process sees it."""

    path: Path
    silence: Silence | None = None  # used by the monitor's thread only
    dead: bool = False  # its lock was released, or its file deleted
    is_released: bool = False  # its lock was: its owner is dead, or has closed the session
    ending: bool = False  # requested, and not done yet
    forgotten: bool = False


class SessionMonitor:
    """A thread that writes this process's heartbeat and checks those of other processes.

    `end` is called from threads, with incarnation, file and reason, to request that session's end;
    after the attempt, the caller must call `on_end_attempted`, also if it failed. `expired` is
    called from the monitor's thread when this process must give its own session up. Only the
    monitor's thread writes and closes the own file, so a write that blocks in the kernel blocks no
    other thread.
    """

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int],
        interval_ms: int,
        timeout_ms: int,
        end: Callable[[int, Path, str], None],
        expired: Callable[[], None],
    ) -> None:
        self._clock_ms = clock_ms
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._end = end
        self._on_expired = expired
        self._lock = threading.Lock()  # not held during file operations
        self._observed: dict[int, _ObservedSession] = {}
        self._ended: dict[int, _ObservedSession] = {}  # the latest, in the order they ended
        self._own: SessionFile | None = None
        self._released: list[SessionFile] = []
        self._timer_runs = 0  # of the loop's heartbeat timer in this session
        self._written = 0  # the value of `_timer_runs` in the file
        self._written_at_ms = 0  # a moment before that was written
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="insync-sessions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop observing. Threads that wait for an owner's death stay until it comes."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._release_files()
        for incarnation in list(self._observed):
            self.forget(incarnation)

    def start_heartbeat(self, file: SessionFile, *, at_ms: int) -> None:
        """Write heartbeats of this session from now on; `at_ms` is before it becomes visible."""
        with self._lock:
            self._own, self._timer_runs, self._written, self._written_at_ms = file, 0, 0, at_ms

    def stop_heartbeat(self) -> None:
        """Write no more heartbeats, and release the file and its lock."""
        with self._lock:
            if self._own is not None:
                self._released.append(self._own)
            self._own = None
        self._wake.set()

    def on_heartbeat_timer(self) -> None:
        """The event loop runs: let the next heartbeat show it."""
        self._timer_runs += 1  # only the event loop increments it
        self._wake.set()

    def silent_for_ms(self, now_ms: int) -> int:
        """For how long other processes may have seen no heartbeat of this session."""
        return now_ms - self._written_at_ms

    def watch(self, incarnation: int, path: Path) -> None:
        with self._lock:
            if incarnation in self._observed:
                return
            session = self._observed[incarnation] = _ObservedSession(path)
        threading.Thread(
            target=self._wait_for_death,
            args=(incarnation, session),
            name=f"insync-watch-{incarnation}",
            daemon=True,  # it waits in the kernel until that session ends
        ).start()

    def forget(self, incarnation: int) -> None:
        with self._lock:
            session = self._observed.pop(incarnation, None)
            if session is None:
                return
            session.forgotten = True
            self._ended[incarnation] = session
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]

    def is_frozen(self, incarnation: int) -> bool:
        """Whether this session has ended because its owner, though alive, wrote no heartbeats.

        The silence tells a stopped owner from one that has just died and whose lock this process
        has not got yet.
        """
        with self._lock:
            session = self._ended.get(incarnation)
        if session is None or session.is_released or session.silence is None:
            return False
        return 2 * session.silence.unchanged_ms > self._timeout_ms

    def on_end_attempted(self, incarnation: int) -> None:
        """If the session is still observed, the next check may request its end again."""
        with self._lock:
            session = self._observed.get(incarnation)
            if session is not None:
                session.ending = False

    def _wait_for_death(self, incarnation: int, session: _ObservedSession) -> None:
        session.is_released = wait_for_release(session.path)
        session.dead = True
        self._request_end(incarnation, session)

    def _request_end(self, incarnation: int, session: _ObservedSession) -> None:
        with self._lock:
            if session.ending or session.forgotten:
                return
            session.ending = True
        reason = "its process died" if session.dead else "its heartbeat stopped"
        self._end(incarnation, session.path, reason)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.check()
            except Exception:  # without this thread the own heartbeat would stop for good
                logger.exception("sessions could not be checked")
            self._wake.wait(self._interval_ms / 1000)
            self._wake.clear()

    def check(self) -> None:
        """Write the heartbeat if the loop ran, and check all other sessions, once per interval."""
        self._release_files()
        self._write_heartbeat()
        with self._lock:
            observed = list(self._observed.items())
        for incarnation, each in observed:
            if each.dead or self._is_silent(each):
                self._request_end(incarnation, each)

    def _release_files(self) -> None:
        with self._lock:
            released, self._released = self._released, []
        for file in released:
            file.release()

    def _write_heartbeat(self) -> None:
        with self._lock:
            own, timer_runs = self._own, self._timer_runs
            if own is None or timer_runs == self._written:
                return
        now_ms = self._clock_ms()
        if self.silent_for_ms(now_ms) > self._timeout_ms:
            self._on_expired()
            return
        try:
            own.write_heartbeat(timer_runs)
        except OSError:
            return  # as if it were never written; the next run of the timer tries again
        with self._lock:
            if self._own is own:
                self._written, self._written_at_ms = timer_runs, now_ms

    def _is_silent(self, session: _ObservedSession) -> bool:
        counter = read_counter(session.path)
        now_ms = self._clock_ms()  # read after the counter, so that silence is not overestimated
        if counter is None:
            session.dead = True
            return True
        if session.silence is None:
            session.silence = Silence(counter=counter, checked_at_ms=now_ms)
        session.silence = session.silence.on_check(
            counter=counter, now_ms=now_ms, interval_ms=self._interval_ms
        )
        return session.silence.unchanged_ms > self._timeout_ms
