"""Session files and heartbeats: when a session ends."""

import fcntl
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.metadata import sessions
from insync.metadata.sessions import (
    SessionFile,
    SessionMonitor,
    Silence,
    read_counter,
    sweep,
    wait_for_release,
)

INTERVAL_MS = 500
TIMEOUT_MS = 9_000
DEADLINE_S = 5


def silence_after(*checks: tuple[int, int]) -> int:
    """The silence counted by checks at (time, counter), the first at (0, 0)."""
    seen = Silence(counter=0, checked_at_ms=0)
    for now_ms, counter in checks:
        seen = seen.on_check(counter=counter, now_ms=now_ms, interval_ms=INTERVAL_MS)
    return seen.unchanged_ms


def test_time_between_checks_with_the_same_counter_is_silence() -> None:
    assert silence_after((500, 0), (1100, 0), (2100, 0)) == 2100


def test_a_heartbeat_ends_the_silence() -> None:
    assert silence_after((500, 0), (1000, 1)) == 0
    assert silence_after((500, 0), (1000, 1), (1400, 1)) == 400


def test_a_gap_of_more_than_two_intervals_is_the_observers_own_stall() -> None:
    assert silence_after((1000, 0)) == 1000
    assert silence_after((1001, 0)) == 0
    assert silence_after((500, 0), (60_000, 0), (60_300, 0)) == 800


@pytest.mark.property
@given(gaps=st.lists(st.tuples(st.integers(0, 3_000), st.booleans()), max_size=40))
def test_silence_is_the_sum_of_short_gaps_since_the_last_heartbeat(
    gaps: list[tuple[int, bool]],
) -> None:
    seen, now_ms, counter, expected = Silence(counter=0, checked_at_ms=0), 0, 0, 0
    for gap_ms, beats in gaps:
        now_ms, counter = now_ms + gap_ms, counter + beats
        seen = seen.on_check(counter=counter, now_ms=now_ms, interval_ms=INTERVAL_MS)
        expected = 0 if beats else expected + (gap_ms if gap_ms <= 2 * INTERVAL_MS else 0)
        assert seen.unchanged_ms == expected


def test_waiting_for_a_release_ends_when_the_file_is_released(tmp_path: Path) -> None:
    file = SessionFile(tmp_path / "1-one")
    file.write_heartbeat(7)
    assert read_counter(file.path) == 7
    waiter = threading.Thread(target=wait_for_release, args=(file.path,), daemon=True)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    file.release()
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()
    assert read_counter(file.path) is None
    wait_for_release(file.path)  # a file that is gone has no owner
    file.release()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # threads of other tests
def test_a_session_file_is_closed_on_exec_and_in_forked_children(tmp_path: Path) -> None:
    file = SessionFile(tmp_path / "1-one")
    descriptor = file._descriptor
    assert not os.get_inheritable(descriptor)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(descriptor)
            os.write(write_end, b"open")
        except OSError:
            os.write(write_end, b"closed")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 10) == b"closed"
    os.close(read_end)
    os.close(write_end)
    assert descriptor in sessions._held_descriptors
    waiter = threading.Thread(target=wait_for_release, args=(file.path,), daemon=True)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive(), "the end of the child released the parent's lock"
    file.release()
    waiter.join(DEADLINE_S)


def test_a_sweep_deletes_files_that_are_neither_live_nor_locked(tmp_path: Path) -> None:
    opening = SessionFile(tmp_path / "3-opening")
    (tmp_path / "1-dead").write_bytes(bytes(8))
    (tmp_path / "2-live").write_bytes(bytes(8))
    (tmp_path / "other-file").write_bytes(b"")
    sweep(tmp_path, is_live={2}.__contains__)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "2-live",
        "3-opening",
        "other-file",
    ]
    opening.release()


class SteppedMonitor:
    """A session monitor without its thread, on a clock of the test."""

    def __init__(self, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.now_ms = 0
        self.ended: list[tuple[int, str]] = []
        self.expired = 0
        self.monitor = SessionMonitor(
            clock_ms=lambda: self.now_ms,
            interval_ms=INTERVAL_MS,
            timeout_ms=timeout_ms,
            end=lambda incarnation, _, reason: self.ended.append((incarnation, reason)),
            expired=self._on_expired,
        )

    def _on_expired(self) -> None:
        self.expired += 1

    def turn(self) -> None:
        self.monitor.on_heartbeat_timer()
        self.monitor.check()

    def check_until(self, end_ms: int, *, step_ms: int = INTERVAL_MS) -> None:
        while self.now_ms < end_ms:
            self.now_ms += step_ms
            self.monitor.check()


def test_a_session_ends_when_its_counter_did_not_change_for_the_timeout(tmp_path: Path) -> None:
    owner = SessionFile(tmp_path / "1-one")
    stepped = SteppedMonitor()
    stepped.monitor.watch(1, owner.path)
    stepped.monitor.check()
    stepped.check_until(4_000)
    owner.write_heartbeat(1)
    stepped.check_until(4_500 + TIMEOUT_MS)
    assert stepped.ended == []
    stepped.check_until(4_500 + TIMEOUT_MS + 1, step_ms=1)
    assert stepped.ended == [(1, "its heartbeat stopped")]
    stepped.check_until(stepped.now_ms + 2_000)
    assert len(stepped.ended) == 1  # until the attempt is done
    stepped.monitor.on_end_attempted(1)
    stepped.check_until(stepped.now_ms + INTERVAL_MS)
    assert len(stepped.ended) == 2  # it failed, so there is another
    stepped.monitor.forget(1)
    stepped.monitor.on_end_attempted(1)
    stepped.check_until(stepped.now_ms + 2_000)
    assert len(stepped.ended) == 2
    owner.release()


def test_an_owner_that_holds_its_lock_in_silence_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, stepped = SessionFile(tmp_path / "1-one"), SteppedMonitor()
    lock, is_waiting = fcntl.flock, threading.Event()

    def wait_for_lock(descriptor: int, operation: int) -> None:
        is_waiting.set()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait_for_lock)
    stepped.monitor.watch(1, owner.path)
    assert is_waiting.wait(10.0)
    stepped.monitor.check()
    stepped.check_until(TIMEOUT_MS + INTERVAL_MS)
    assert not stepped.monitor.is_frozen(1)  # its session has not ended
    owner.path.unlink()  # by the observer that ended it; the lock stays
    stepped.monitor.check()
    stepped.monitor.forget(1)
    assert stepped.monitor.is_frozen(1)
    owner.release()
    deadline_s = time.monotonic() + 10.0
    while stepped.monitor.is_frozen(1):  # it is dead: the waiting thread has got the lock
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_an_owner_that_has_just_died_is_not_frozen(tmp_path: Path) -> None:
    """Another observer ended the session before this one got the lock: its heartbeat was recent."""
    owner, stepped = SessionFile(tmp_path / "1-one"), SteppedMonitor()
    stepped.monitor.watch(1, owner.path)
    stepped.monitor.check()
    stepped.check_until(TIMEOUT_MS // 2)
    stepped.monitor.forget(1)
    assert not stepped.monitor.is_frozen(1)
    owner.release()


def test_a_missing_file_is_a_dead_session(tmp_path: Path) -> None:
    stepped = SteppedMonitor()
    stepped.monitor.watch(1, tmp_path / "1-one")
    stepped.monitor.check()
    assert stepped.ended == [(1, "its process died")]


def test_the_owner_writes_one_heartbeat_for_each_run_of_its_timer(tmp_path: Path) -> None:
    stepped, file = SteppedMonitor(), SessionFile(tmp_path / "1-one")
    stepped.monitor.start_heartbeat(file, at_ms=0)
    for turn in (1, 2, 3):
        stepped.now_ms += INTERVAL_MS
        stepped.monitor.on_heartbeat_timer()
        stepped.monitor.check()
        assert read_counter(file.path) == turn
    stepped.check_until(5_000)  # the loop hangs
    assert read_counter(file.path) == 3
    assert stepped.monitor.silent_for_ms(5_000) == 3_500
    file.release()


def test_the_owner_gives_its_session_up_after_the_timeout(tmp_path: Path) -> None:
    stepped, file = SteppedMonitor(), SessionFile(tmp_path / "1-one")
    stepped.monitor.start_heartbeat(file, at_ms=0)
    stepped.now_ms = TIMEOUT_MS
    stepped.monitor.on_heartbeat_timer()
    stepped.monitor.check()
    assert (stepped.expired, read_counter(file.path)) == (0, 1)
    stepped.now_ms += TIMEOUT_MS + 1
    stepped.monitor.on_heartbeat_timer()
    stepped.monitor.check()
    assert (stepped.expired, read_counter(file.path)) == (1, 1)
    assert stepped.monitor.silent_for_ms(stepped.now_ms) == TIMEOUT_MS + 1
    stepped.monitor.stop_heartbeat()
    stepped.monitor.check()
    assert not file.path.exists()


@dataclass(frozen=True, slots=True)
class Phase:
    """Some turns of owner and observer, a gap apart; each runs or is stopped."""

    turns: int
    gap_ms: int
    owner_runs: bool
    observer_runs: bool
    owner_first: bool


PHASES = st.builds(
    Phase,
    st.integers(1, 4),
    st.sampled_from([1, 500, 1_000, 1_001]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.property
@given(phases=st.lists(PHASES, min_size=3, max_size=12))
def test_an_owner_that_may_still_act_has_not_been_ended(
    tmp_path_factory: pytest.TempPathFactory, phases: list[Phase]
) -> None:
    timeout_ms = 1_500  # short, so that a few turns pass it
    owner, observer = SteppedMonitor(timeout_ms=timeout_ms), SteppedMonitor(timeout_ms=timeout_ms)
    file = SessionFile(tmp_path_factory.mktemp("sessions") / "1-one")
    owner.monitor.start_heartbeat(file, at_ms=0)
    observer.monitor.watch(1, file.path)
    now_ms = 0
    for phase in (one for one in phases for _ in range(one.turns)):
        now_ms += phase.gap_ms
        owner.now_ms = observer.now_ms = now_ms
        if phase.owner_runs and phase.owner_first:
            owner.turn()
        if phase.observer_runs:
            observer.monitor.check()
        if phase.owner_runs and not phase.owner_first:
            owner.turn()
        alive = owner.monitor.silent_for_ms(now_ms) <= timeout_ms
        assert not (alive and observer.ended)
    file.release()


def test_a_heartbeat_counts_from_before_it_was_written(tmp_path: Path) -> None:
    stepped = SteppedMonitor()

    class SlowFile(SessionFile):
        def write_heartbeat(self, counter: int) -> None:
            super().write_heartbeat(counter)
            stepped.now_ms += 2_000  # the disk stalls after observers could see it

    file = SlowFile(tmp_path / "1-one")
    stepped.monitor.start_heartbeat(file, at_ms=0)
    stepped.now_ms = 500
    stepped.monitor.on_heartbeat_timer()
    stepped.monitor.check()
    assert stepped.monitor.silent_for_ms(stepped.now_ms) == 2_000
    file.release()


def test_a_sweep_deletes_no_file_that_replaced_the_one_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep deletes a file that is not locked yet, and its owner creates it again."""
    path, lock = tmp_path / "7-broker", fcntl.flock
    path.write_bytes(b"")
    owners: list[SessionFile] = []

    def lock_late(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB and not owners:
            path.unlink()
            owners.append(SessionFile(path))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    sweep(tmp_path, is_live=lambda _: False)
    assert path.exists()
    for owner in owners:
        owner.release()
