"""The SQLite store: files that are not a store, and a lock that another process holds."""

import asyncio
import errno
import logging
import os
import sqlite3
import time
from pathlib import Path

import pytest

from insync.metadata import database
from insync.metadata.errors import StoreCorrupt, StoreTooNew, StoreUnusable, Unavailable
from insync.metadata.sessions import SessionMonitor
from insync.metadata.sqlite import SqliteStore, monotonic_ms
from insync.metadata.store import Create, Write
from insync.rules.refusals import Refusal
from support.metadata.store_kinds import until


async def opened(path: Path, **settings: int) -> SqliteStore:
    store = SqliteStore(path, poll_interval_ms=5, **settings)  # type: ignore[arg-type]
    await store.start()
    return store


def refused(path: Path) -> Refusal:
    """The refusal to open `path`."""
    with pytest.raises(Refusal) as caught:
        asyncio.run(opened(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return caught.value


def test_a_file_that_is_not_sqlite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"log.dirs=/tmp\n" * 1000)
    assert isinstance(refused(path), StoreCorrupt)
    assert path.read_bytes() == b"log.dirs=/tmp\n" * 1000


def test_another_programs_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE photographs (name TEXT)")
    other.close()
    before = path.read_bytes()
    assert isinstance(refused(path), StoreCorrupt)
    assert path.read_bytes() == before


def test_a_store_of_a_newer_insync_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def scenario() -> None:
        await (await opened(path)).close()

    asyncio.run(scenario())
    with sqlite3.connect(path) as later:
        later.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
    later.close()
    refusal = refused(path)
    assert isinstance(refusal, StoreTooNew)
    assert "upgrade" in str(refusal)


def test_a_path_that_cannot_hold_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnusable, match="Not a directory"):
        asyncio.run(opened(tmp_path / "file" / "metadata.db"))
    assert isinstance(refused(tmp_path / "folder"), StoreUnusable)


def test_a_folder_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", deny)  # tests may run as root, which may write anywhere
    with pytest.raises(StoreUnusable, match="Permission denied"):
        asyncio.run(opened(tmp_path / "metadata.db"))


def test_a_file_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_DIRECTORY
    assert isinstance(database.refusal(error, tmp_path), StoreUnusable)


def test_concurrent_processes_can_create_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        stores = await asyncio.gather(*(opened(tmp_path / "metadata.db") for _ in range(8)))
        await asyncio.gather(*(store.open_session("same") for store in stores))
        await until(lambda: all(len(store.children("/sessions")) == 8 for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(scenario())


def test_committed_steps_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(tmp_path / "metadata.db")
        await store.commit(Create("/a", b"1"))
        revision = await store.commit(Write("/a", b"2", 0))
        before = store.snapshot()
        await store.close()
        await store.close()
        store = await opened(tmp_path / "metadata.db")
        assert (store.snapshot(), store.revision) == (before, revision)
        await store.close()

    asyncio.run(scenario())


def test_a_busy_database_never_blocks_the_loop_and_the_log_names_the_holder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        path = tmp_path / "metadata.db"
        store = await opened(path, session_timeout_ms=200, heartbeat_interval_ms=20)
        await store.open_session("broker-1")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            waiting = asyncio.ensure_future(store.commit(Create("/a", b"")))
            longest_s, seen_s = 0.0, time.monotonic()

            def warned() -> bool:
                nonlocal longest_s, seen_s
                now_s = time.monotonic()
                longest_s, seen_s = max(longest_s, now_s - seen_s), now_s
                return "write lock" in caplog.text

            with caplog.at_level(logging.WARNING):
                await until(warned)
            assert longest_s < 0.15
            assert f"by pid {os.getpid()} (broker-1)" in caplog.text
            assert not waiting.done()
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        await waiting
        assert store.get("/a") is not None
        assert store.session is not None, "heartbeats do not need the write lock"
        await store.close()

    asyncio.run(scenario())


def test_a_commit_that_waits_too_long_for_the_lock_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "metadata.db"
        store = await opened(path, commit_timeout_ms=50)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(Unavailable, match="nothing was changed"):
                await store.commit(Create("/a", b""))
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        await store.commit(Create("/a", b""))
        await store.close()

    asyncio.run(scenario())


def test_a_full_disk_refuses_a_step_whole_and_the_store_stays_usable(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(tmp_path / "metadata.db")
        await store.commit(Create("/a", b""))
        connection = store._writer._connection
        pages = await store._in_writer(
            lambda: connection.execute("PRAGMA page_count").fetchone()[0]
        )
        await store._in_writer(
            lambda: connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
        )
        with pytest.raises(Unavailable, match="full"):
            await store.commit(Write("/a", b"new", 0), Create("/large", bytes(100_000)))
        assert sorted(store.snapshot()) == ["/a"]
        await store.commit(Write("/a", b"small", 0))
        await store.close()

    asyncio.run(scenario())


def test_a_cancelled_commit_leaves_the_store_usable(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(tmp_path / "metadata.db")
        commit = asyncio.ensure_future(store.commit(Create("/a", b"")))
        await asyncio.sleep(0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        await store.commit(Create("/b", b""))
        assert store.children("/") == ["a", "b"]
        await store.close()

    asyncio.run(scenario())


def test_the_change_log_stays_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await opened(tmp_path / "metadata.db", change_log_rows_max=10)
        await store.commit(Create("/a", b""))
        for version in range(50):
            await store.commit(Write("/a", b"", version))
        connection = store._writer._connection
        [(rows,)] = await store._in_writer(
            lambda: connection.execute("SELECT count(*) FROM changes").fetchall()
        )
        assert rows == 10
        await store.close()

    asyncio.run(scenario())


def test_holders_are_read_from_the_kernels_list() -> None:
    lines = [
        "1: POSIX  ADVISORY  WRITE 4711 fd:00:99 120 120",
        "2: POSIX  ADVISORY  READ  4712 fd:00:99 124 124",
        "3: POSIX  ADVISORY  WRITE 4713 fd:00:99 121 121",
        "4: POSIX  ADVISORY  WRITE 4714 fd:00:98 120 120",
        "5: FLOCK  ADVISORY  WRITE 4715 fd:00:99 0 EOF",
        "5: -> POSIX  ADVISORY  WRITE 4716 fd:00:99 120 120",
        "6: POSIX  ADVISORY  WRITE 4717 fd:00:99 0 EOF",
    ]
    assert database._holders(lines, 99) == {4711, 4717}


def test_a_session_silent_past_the_timeout_is_not_alive_at_the_first_check(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = {"now_ms": 1_000}
        store = SqliteStore(
            tmp_path / "metadata.db", clock_ms=lambda: clock["now_ms"], session_timeout_ms=9_000
        )
        await store.start()
        await store.open_session("broker-1")
        assert store.is_alive(10_000)
        assert not store.is_alive(10_001)  # checked before the loop or a thread ran
        assert store.session_lost.is_set()
        assert not store.is_alive(1_000)
        await until(lambda: store.children("/sessions") == [])  # and other stores see it
        await store.open_session("broker-1")
        assert store.is_alive(1_000)
        await store.close()

    asyncio.run(scenario())


def test_a_session_without_a_read_of_the_store_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats go on, so no other process ends it; but it may be deposed and not know."""

    async def scenario() -> None:
        store = SqliteStore(
            tmp_path / "metadata.db", session_timeout_ms=400, heartbeat_interval_ms=50
        )
        await store.start()
        await store.open_session("broker-1")
        await asyncio.sleep(0.6)
        assert store.is_alive(monotonic_ms()), "reads and heartbeats go on"

        def fails(_reader: database.Reader) -> int:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(database.Reader, "data_version", fails)
        async with asyncio.timeout(5):
            await store.session_lost.wait()  # by itself: no call was made in this process
        assert not store.is_alive(monotonic_ms())
        monkeypatch.undo()
        await store.open_session("broker-1")
        await asyncio.sleep(0.6)
        assert store.is_alive(monotonic_ms())
        await store.close()

    asyncio.run(scenario())


def test_an_error_that_no_code_expects_ends_no_thread_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = SqliteStore(
            tmp_path / "metadata.db", session_timeout_ms=400, heartbeat_interval_ms=50
        )
        other = SqliteStore(tmp_path / "metadata.db")
        await store.start()
        await other.start()
        await store.open_session("broker-1")

        def fails(*_: object) -> int:
            raise ZeroDivisionError

        with monkeypatch.context() as failing:
            failing.setattr(database.Reader, "data_version", fails)
            failing.setattr(SessionMonitor, "_write_heartbeat", fails)
            store._jobs.put(fails)
            await asyncio.sleep(0.2)
        await other.commit(Create("/a", b"1"))
        await until(lambda: store.get("/a") is not None)  # the poller goes on
        await store.commit(Create("/b", b"2"))  # and the writer
        await asyncio.sleep(0.6)
        assert store.is_alive(monotonic_ms()), "and heartbeats"
        await other.close()
        await store.close()

    asyncio.run(scenario())
