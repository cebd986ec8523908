"""A store that goes back while it is open is neither applied nor written, and ends the session."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from insync.metadata.errors import StoreWentBack, Unavailable
from insync.metadata.sqlite import SqliteStore
from insync.metadata.store import Create
from support.metadata.store_kinds import until

NAMES = ("metadata.db", "metadata.db-wal", "metadata.db-shm")


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path, poll_interval_ms=5)
    await store.start()
    return store


def replace_by_backup(folder: Path) -> None:
    shutil.copy(folder / "backup" / "metadata.db", folder / "new")
    (folder / "new").rename(folder / "metadata.db")  # at no moment is there no file
    for name in NAMES[1:]:
        (folder / name).unlink(missing_ok=True)


def remove(folder: Path) -> None:
    for name in NAMES:
        (folder / name).unlink()


def go_back_in_place(folder: Path) -> None:
    """As when the file's content is overwritten with an older one."""
    with sqlite3.connect(folder / "metadata.db") as other:
        other.execute("DELETE FROM nodes WHERE path = '/later'")
        other.execute("UPDATE head SET revision = revision - 1")
    other.close()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (replace_by_backup, "the file was replaced"),
        (remove, "the file is gone"),
        (go_back_in_place, "revision"),
    ],
)
def test_a_store_that_went_back_to_an_earlier_revision_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "metadata.db"

    async def backed_up() -> None:
        store = await opened(path)
        await store.commit(Create("/early", b""))
        await store.close()
        (tmp_path / "backup").mkdir()
        shutil.copy(path, tmp_path / "backup")

    async def scenario() -> None:
        store = await opened(path)
        await store.open_session("broker-1")
        await store.commit(Create("/later", b""))
        revision = store.revision
        harm(tmp_path)
        await until(store.session_lost.is_set)
        assert store.revision == revision
        assert store.get("/later") is not None
        for attempt in (store.commit(Create("/new", b"")), store.open_session("broker-1")):
            with pytest.raises(StoreWentBack, match=reason) as caught:
                await attempt
            assert isinstance(caught.value, Unavailable)
        store.catch_up()
        assert not store.is_alive(0)
        await asyncio.sleep(0.05)
        await store.close()

    asyncio.run(backed_up())
    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert str(path) in line
    assert "went back" in line
    if path.exists():
        with sqlite3.connect(path) as other:
            assert other.execute("SELECT count(*) FROM nodes WHERE path = '/new'").fetchall() == [
                (0,)
            ]
        other.close()
