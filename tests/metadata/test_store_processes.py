"""Several processes on one store: killed, stopped, hung, and racing."""

import asyncio
import contextlib
import os
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from insync.metadata.sqlite import SqliteStore, monotonic_ms
from insync.metadata.store import Create, Write
from support.metadata import store_process
from support.metadata.store_kinds import until
from support.metadata.store_process import COUNTERS

pytestmark = [pytest.mark.process, pytest.mark.timed]

SCRIPT = Path(store_process.__file__)
TIMEOUT_MS = 400
INTERVAL_MS = 50
DEADLINE_S = 10.0
# An observer sees the last heartbeat at one check, and ends the session at another; then a poll.
SILENT_MS_MAX = TIMEOUT_MS + 3 * INTERVAL_MS


class Process:
    """One `store_process`, and what it printed."""

    def __init__(self, path: Path, action: str, argument: str, *, timeout_ms: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, path, str(timeout_ms), str(INTERVAL_MS), action, argument],
            stdout=subprocess.PIPE,
        )
        self._output = bytearray()
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self._selector.register(self._stdout, selectors.EVENT_READ)

    def next_line(self, *, deadline_s: float = DEADLINE_S) -> list[str]:
        give_up = time.monotonic() + deadline_s
        while b"\n" not in self._output:
            left_s = give_up - time.monotonic()
            assert left_s > 0, f"the process printed no line within {deadline_s} s"
            if self._selector.select(left_s):
                piece = os.read(self._stdout.fileno(), 4096)
                assert piece, "the process ended without output"
                self._output += piece
        line, _, rest = bytes(self._output).partition(b"\n")
        self._output = bytearray(rest)
        return line.decode().split()

    async def expect(self, word: str) -> list[str]:
        """The words after `word` of its next line; does not block the event loop."""
        line = await asyncio.to_thread(self.next_line)
        assert line[0] == word, line
        return line[1:]

    def is_silent(self) -> bool:
        return not self._output and not self._selector.select(0)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()  # a stopped process too
        self._process.wait(DEADLINE_S)
        self._selector.close()
        self._stdout.close()


class Processes:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Process] = []

    def begin(self, action: str, argument: str, *, timeout_ms: int = TIMEOUT_MS) -> Process:
        process = Process(self.path, action, argument, timeout_ms=timeout_ms)
        self.all.append(process)
        return process

    async def ready(self, action: str, argument: str, *, timeout_ms: int = TIMEOUT_MS) -> Process:
        process = self.begin(action, argument, timeout_ms=timeout_ms)
        await process.expect("ready")
        return process


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path / "metadata.db")
    try:
        yield started
    finally:
        for process in started.all:
            process.end()


@contextlib.asynccontextmanager
async def opened(path: Path, *, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, session_timeout_ms=timeout_ms, heartbeat_interval_ms=INTERVAL_MS)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def wait_ms(duration_ms: int) -> None:
    """Wait, to see that something does not happen meanwhile."""
    end_ms = monotonic_ms() + duration_ms
    await until(lambda: monotonic_ms() >= end_ms, deadline_s=duration_ms / 1000 + DEADLINE_S)


def test_no_update_is_lost_between_processes(processes: Processes) -> None:
    async def scenario() -> None:
        async with opened(processes.path) as store:
            await store.commit(*(Create(f"/counters/{n}", b"0") for n in range(COUNTERS)))
            racers = [await processes.ready("count", "2") for _ in range(4)]
            made = [int((await racer.expect("made"))[0]) for racer in racers]
            assert min(made) > 0
            await until(lambda: sum(int(e.value) for e in store.under("/counters")) >= sum(made))
            counters = list(store.under("/counters"))
            assert sum(int(entry.value) for entry in counters) == sum(made)
            assert all(int(entry.value) == entry.version for entry in counters)

    asyncio.run(scenario())


def test_a_killed_owner_is_noticed_at_once(processes: Processes) -> None:
    async def scenario() -> None:
        # The timeout cannot have passed: the lock shows the death.
        async with opened(processes.path, timeout_ms=60_000) as store:
            noticed_ms = []
            owners = [
                await processes.ready("own", str(number), timeout_ms=60_000) for number in range(7)
            ]
            await until(lambda: len(store.children("/brokers/ids")) == 7)
            for number, owner in enumerate(owners):
                began = time.monotonic()
                owner.send(signal.SIGKILL)
                await until(
                    lambda path=f"/brokers/ids/{number}": store.get(path) is None,  # type: ignore[misc]
                    deadline_s=2,
                )
                noticed_ms.append((time.monotonic() - began) * 1000)
            assert statistics.median(noticed_ms) < 50
            await until(lambda: store.children("/sessions") == [])
            folder = processes.path.parent / "sessions"
            await until(lambda: list(folder.iterdir()) == [])

    asyncio.run(scenario())


def test_a_session_whose_owner_died_unobserved_ends_when_a_store_opens(
    processes: Processes,
) -> None:
    async def scenario() -> None:
        owner = await processes.ready("own", "1", timeout_ms=60_000)
        owner.end()
        async with opened(processes.path, timeout_ms=60_000) as store:
            incarnation = await store.open_session("2")  # and need not wait for it
            await until(lambda: store.children("/sessions") == [str(incarnation)], deadline_s=2)
            assert store.children("/brokers/ids") == []

    asyncio.run(scenario())


def test_an_owner_stopped_past_the_timeout_loses_its_session_and_notices(
    processes: Processes,
) -> None:
    async def scenario() -> None:
        async with opened(processes.path) as store:
            noticed_ms = []
            for number in range(5):
                owner = await processes.ready("own", str(number))
                await until(lambda name=str(number): store.children("/brokers/ids") == [name])  # type: ignore[misc]
                owner.send(signal.SIGSTOP)
                began_ms = monotonic_ms()
                await until(lambda: store.children("/brokers/ids") == [])
                noticed_ms.append(monotonic_ms() - began_ms)
                assert store.children("/sessions") == []
                owner.send(signal.SIGCONT)
                assert await owner.expect("lost") == ["False"]
            assert min(noticed_ms) > TIMEOUT_MS - 2 * INTERVAL_MS
            assert statistics.median(noticed_ms) < SILENT_MS_MAX

    asyncio.run(scenario())


def test_an_owner_stopped_past_the_timeout_is_never_alive_again_even_if_unobserved(
    processes: Processes,
) -> None:
    async def scenario() -> None:
        owner = await processes.ready("poll_alive", "1")
        owner.send(signal.SIGSTOP)
        await wait_ms(TIMEOUT_MS + 2 * INTERVAL_MS)
        owner.send(signal.SIGCONT)
        await owner.expect("not-alive")
        assert await owner.expect("still") == ["False"]

    asyncio.run(scenario())


def test_an_owner_stopped_for_less_than_the_timeout_keeps_its_session(
    processes: Processes,
) -> None:
    async def scenario() -> None:
        async with opened(processes.path, timeout_ms=1500) as store:
            owner = await processes.ready("own", "1", timeout_ms=1500)
            await until(lambda: store.children("/brokers/ids") == ["1"])
            for _ in range(2):
                owner.send(signal.SIGSTOP)
                await wait_ms(700)
                owner.send(signal.SIGCONT)
                await wait_ms(200)
            assert store.children("/brokers/ids") == ["1"]
            assert owner.is_silent()

    asyncio.run(scenario())


def test_an_observer_that_was_stopped_itself_ends_no_session(processes: Processes) -> None:
    async def scenario() -> None:
        owner = await processes.ready("own", "1", timeout_ms=60_000)
        # After each stop it sees the same counter, of an owner that was stopped too.
        observer = await processes.ready("own", "2", timeout_ms=TIMEOUT_MS)
        async with opened(processes.path, timeout_ms=60_000) as store:
            await until(lambda: len(store.children("/brokers/ids")) == 2)
            for _ in range(3):
                owner.send(signal.SIGSTOP)
                observer.send(signal.SIGSTOP)
                await wait_ms(TIMEOUT_MS + 100)
                observer.send(signal.SIGCONT)
                await wait_ms(INTERVAL_MS)
                owner.send(signal.SIGCONT)
                await wait_ms(3 * INTERVAL_MS)
            assert "1" in store.children("/brokers/ids")
            assert owner.is_silent()

    asyncio.run(scenario())


def test_an_owner_whose_loop_hangs_loses_its_session(processes: Processes) -> None:
    async def scenario() -> None:
        async with opened(processes.path) as store:
            noticed_ms = []
            for number in range(5):
                await processes.ready("hang", str(number))
                began_ms = monotonic_ms()
                await until(lambda: len(store.children("/sessions")) == 1)
                await until(lambda: store.children("/sessions") == [])
                noticed_ms.append(monotonic_ms() - began_ms)
            assert statistics.median(noticed_ms) < SILENT_MS_MAX

    asyncio.run(scenario())


def test_a_change_is_seen_by_another_process_soon(processes: Processes) -> None:
    async def scenario() -> None:
        async with opened(processes.path) as store:
            await store.commit(Create("/tick", b"0"))
            watcher = await processes.ready("watch", "/tick")
            late_ms = []
            for version in range(100):
                await store.commit(Write("/tick", b"%d" % version, version))
                made_ns = time.monotonic_ns()
                [value, heard_ns] = await watcher.expect("received")
                assert value == str(version)
                late_ms.append((int(heard_ns) - made_ns) / 1e6)
            # Nine of ten: the machine may be busy now and then.
            assert sorted(late_ms)[89] < 50
            assert max(late_ms) < 1000

    asyncio.run(scenario())


def test_a_process_killed_among_its_commits_leaves_whole_steps(processes: Processes) -> None:
    async def scenario() -> None:
        for round_number in range(4):
            writer = processes.begin("twins", f"scenario-{round_number}")
            acknowledged = 0
            while acknowledged < 20 + 17 * round_number:
                acknowledged = int((await writer.expect("made"))[0])
            writer.send(signal.SIGKILL)
            with contextlib.suppress(AssertionError):  # the process ended
                while True:
                    acknowledged = int(writer.next_line()[1])
            async with opened(processes.path) as store:
                left = store.get(f"/scenario-{round_number}/left")
                right = store.get(f"/scenario-{round_number}/right")
                assert left is not None
                assert right is not None
                assert (left.value, left.version) == (right.value, right.version)
                assert left.version in {acknowledged, acknowledged + 1}
                await store.commit(Write(left.path, b"after", left.version))

    asyncio.run(scenario())
