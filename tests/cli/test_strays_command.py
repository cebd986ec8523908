"""`insync strays` lists and deletes what a broker set aside, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from insync.cli import main as cli
from insync.storage.directory import LogDirectory
from insync.storage.disk import RealDisk
from support.storage.log_model import CONFIG, append, batch

AT_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    opened = LogDirectory.open(
        RealDisk(),
        str(tmp_path / "logs"),
        cluster_id="c",
        broker_id=1,
        lock=True,
        now_ms=0,
        config_of=lambda _: CONFIG,
    )
    for partition in range(3):
        append(opened.create("a", partition, topic_id=UUID(int=7), now_ms=0), batch(3))
    for partition in range(2):
        opened.set_aside("a", partition, now_ms=AT_MS)
    return opened


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.main(["strays", *words]) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out


def test_strays_are_listed_and_deleted_while_the_broker_runs(
    directory: LogDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--log-dir", directory.path)
    first, second = json.loads(run(capsys, *where, "--json"))
    assert first["size_bytes"] > 0
    assert first == {
        "name": f"a-0.{AT_MS}-stray",
        "topic": "a",
        "partition": 0,
        "topic_id": str(UUID(int=7)),
        "size_bytes": first["size_bytes"],
        "set_aside_at": "2023-11-14T22:13:20+00:00",
    }
    assert second["partition"] == 1
    shown = run(capsys, *where)
    assert first["name"] in shown
    assert run(capsys, *where, "--delete", second["name"]) == f"deleted {second['name']}\n"
    refused = run(capsys, *where, "--delete", "a-2", code=1)
    assert refused.startswith("insync: ")
    assert "has no stray log 'a-2'" in refused
    assert run(capsys, *where, "--delete-all") == f"deleted {first['name']}\n"
    assert run(capsys, *where) == "no stray logs\n"
    assert directory.logs["a", 2].end == 3
    assert sorted(path.name for path in Path(directory.path).glob("a-*")) == ["a-2"]


def test_a_folder_that_is_not_a_log_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        refused = run(capsys, "--log-dir", str(folder), "--delete-all", code=1)
        assert "is not the folder of a broker's logs" in refused
        assert refused.count("\n") == 1
    both = ("--log-dir", str(tmp_path), "--delete", "x", "--delete-all")
    assert "does not go with" in run(capsys, *both, code=2)
