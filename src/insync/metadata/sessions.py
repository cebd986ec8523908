"""Who lives, on one host: a locked file per session, and a counter in it.

The owner of a session holds an exclusive flock on its file. Whoever watches it asks for a shared
one and waits: the kernel grants it the moment the owner is dead, however it died. An owner that
lives but does nothing (stopped, or its event loop stuck) is told from a healthy one by the
counter: each turn of its loop's heartbeat timer raises it.

Two clocks decide, and the owner's decides first. An observer ends a session when the counter
stood still for more than the timeout since the observer first saw that value. The owner gives its
session up, for good, when more than the timeout has passed since before it wrote that value,
which is earlier. So whoever is still allowed to act as its session has not been ended.

An observer that was itself stopped saw nothing: a gap between two of its checks of more than
twice the check interval does not count as the owner's silence.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

COUNTER_BYTES = 8
_held_descriptors: set[int] = set()


def _let_go_in_child() -> None:
    # A forked child shares the parent's lock: were it kept open, the parent's death would go
    # unnoticed. Closing the child's copy leaves the parent's lock alone. (exec closes by itself.)
    for descriptor in sorted(_held_descriptors):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long an observer has seen a session's counter stand still. Observer milliseconds."""

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
    """The owner's side: created, locked and beaten here; gone when released."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _create_locked(path)
        _held_descriptors.add(self._descriptor)

    def beat(self, counter: int) -> None:
        os.pwrite(self._descriptor, counter.to_bytes(COUNTER_BYTES, "big"), 0)

    def release(self) -> None:
        """Remove the file and let the lock go; a second time does nothing."""
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
        os.close(descriptor)  # `sweep` of another process took it before it was locked


def sweep(folder: Path, *, living: Callable[[int], bool]) -> None:
    """Remove files of sessions that neither live nor are being opened."""
    for path in sorted(folder.iterdir()):
        number = path.name.partition("-")[0]
        if not number.isdecimal() or living(int(number)):
            continue
        with contextlib.suppress(OSError):  # locked: somebody is just opening it
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def wait_for_release(path: Path) -> None:
    """Return when the owner of this session file is dead or the file is gone."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)  # at once: nobody may mistake this lock for the owner's


def read_counter(path: Path) -> int | None:
    """The owner's latest heartbeat, or None if the file is gone."""
    try:
        return int.from_bytes(path.read_bytes(), "big")
    except FileNotFoundError:
        return None


@dataclass(slots=True)
class _Watched:
    """One foreign session, as this process sees it."""

    path: Path
    silence: Silence | None = None  # the keeper's thread alone touches it
    dead: bool = False  # its lock came free, or its file is gone
    ending: bool = False  # asked for, not answered yet
    forgotten: bool = False


class Keeper:
    """One thread that writes the own heartbeat and looks at everybody else's.

    `end` is called from threads, with incarnation, file and reason, and asks for that session's
    end; it must answer with `ended` whether or not that succeeded. `expired` is called from the
    keeper's thread when the own session must be given up. The keeper's thread alone writes and
    closes the own file: a write that stalls in the kernel stalls nobody else.
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
        self._lock = threading.Lock()  # never held over a file operation
        self._watched: dict[int, _Watched] = {}
        self._own: SessionFile | None = None
        self._released: list[SessionFile] = []
        self._pulse = 0  # turns of the loop's heartbeat timer in this session
        self._beaten = 0  # the last of them that reached the file
        self._beaten_at_ms = 0  # taken before that was written
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="insync-sessions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Watch nobody any more. Threads that wait for a death stay until it comes."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._let_go()
        for incarnation in list(self._watched):
            self.forget(incarnation)

    def own(self, file: SessionFile, *, at_ms: int) -> None:
        """Beat for this session from now on; `at_ms` is before anybody could see it."""
        with self._lock:
            self._own, self._pulse, self._beaten, self._beaten_at_ms = file, 0, 0, at_ms

    def disown(self) -> None:
        """Beat no more, and let the file and its lock go."""
        with self._lock:
            if self._own is not None:
                self._released.append(self._own)
            self._own = None
        self._wake.set()

    def pulse(self) -> None:
        """The loop turns: let the next beat say so."""
        self._pulse += 1  # the loop alone counts
        self._wake.set()

    def silent_for_ms(self, now_ms: int) -> int:
        """How long nobody may have heard of the own session."""
        return now_ms - self._beaten_at_ms

    def watch(self, incarnation: int, path: Path) -> None:
        with self._lock:
            if incarnation in self._watched:
                return
            watched = self._watched[incarnation] = _Watched(path)
        threading.Thread(
            target=self._await_death,
            args=(incarnation, watched),
            name=f"insync-watch-{incarnation}",
            daemon=True,  # it waits in the kernel for as long as that session lives
        ).start()

    def forget(self, incarnation: int) -> None:
        with self._lock:
            watched = self._watched.pop(incarnation, None)
            if watched is not None:
                watched.forgotten = True

    def ended(self, incarnation: int) -> None:
        """`end` was tried: if the session is still watched, the next check may try again."""
        with self._lock:
            watched = self._watched.get(incarnation)
            if watched is not None:
                watched.ending = False

    def _await_death(self, incarnation: int, watched: _Watched) -> None:
        wait_for_release(watched.path)
        watched.dead = True
        self._ask_for_end(incarnation, watched)

    def _ask_for_end(self, incarnation: int, watched: _Watched) -> None:
        with self._lock:
            if watched.ending or watched.forgotten:
                return
            watched.ending = True
        reason = "its process is gone" if watched.dead else "its heartbeat stood still"
        self._end(incarnation, watched.path, reason)

    def _run(self) -> None:
        while not self._stopping:
            self.check()
            self._wake.wait(self._interval_ms / 1000)
            self._wake.clear()

    def check(self) -> None:
        """Beat if the loop has turned, and look at everybody: what the thread does each time."""
        self._let_go()
        self._beat()
        with self._lock:
            watched = list(self._watched.items())
        for incarnation, one in watched:
            if one.dead or self._is_silent(one):
                self._ask_for_end(incarnation, one)

    def _let_go(self) -> None:
        with self._lock:
            released, self._released = self._released, []
        for file in released:
            file.release()

    def _beat(self) -> None:
        with self._lock:
            own, pulse = self._own, self._pulse
            if own is None or pulse == self._beaten:
                return
        now_ms = self._clock_ms()
        if self.silent_for_ms(now_ms) > self._timeout_ms:
            self._on_expired()
            return
        try:
            own.beat(pulse)
        except OSError:
            return  # a beat that failed is a beat nobody heard; the next turn tries again
        with self._lock:
            if self._own is own:
                self._beaten, self._beaten_at_ms = pulse, now_ms

    def _is_silent(self, watched: _Watched) -> bool:
        counter = read_counter(watched.path)
        now_ms = self._clock_ms()  # after the reading: silence is never counted before it was
        if counter is None:
            watched.dead = True
            return True
        if watched.silence is None:
            watched.silence = Silence(counter=counter, checked_at_ms=now_ms)
        watched.silence = watched.silence.on_check(
            counter=counter, now_ms=now_ms, interval_ms=self._interval_ms
        )
        return watched.silence.unchanged_ms > self._timeout_ms
