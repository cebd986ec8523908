"""Commands of `insync cluster` never take another process for one of the cluster's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from insync.cli import cluster_files as files
from insync.cli import main as cli


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the id of a supervisor that was killed long ago."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def describe(folder: Path, pid: int, started: str | None) -> dict[str, Any]:
    process = {"pid": pid, "started": started}
    description = {
        "bootstrap": "127.0.0.1:1",
        **process,
        "brokers": [{"id": 1, "host": "127.0.0.1", "port": 1, **process}],
    }
    (folder / files.DESCRIPTION).write_text(json.dumps(description))
    return description


@pytest.mark.parametrize("started", [None, "another boot/1"])
def test_a_process_with_the_same_id_is_not_signalled(
    tmp_path: Path,
    foreign: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    started: str | None,
) -> None:
    describe(tmp_path, foreign.pid, started)
    for command in (["stop"], ["restart", "--broker", "1"]):
        assert cli.main(["cluster", *command, "--data-dir", str(tmp_path)]) == 1
        message = capsys.readouterr().err
        assert message == f"insync: the cluster's process {foreign.pid} in {tmp_path} is gone\n"
    assert cli.main(["cluster", "status", "--data-dir", str(tmp_path), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["brokers"][0]["running"]
    files.refuse_running(tmp_path)  # a new cluster may start
    files.terminate({"pid": foreign.pid, "started": started})
    time.sleep(0.1)
    assert foreign.poll() is None


def test_the_described_process_is_recognised_and_stopped(foreign: subprocess.Popen[bytes]) -> None:
    process = {"pid": foreign.pid, "started": files.start_of(foreign.pid)}
    assert files.is_running(process)
    files.terminate(process)
    os.waitid(os.P_PID, foreign.pid, os.WEXITED | os.WNOWAIT)
    assert not files.is_running(process)  # it has ended, though its parent has not noticed
    files.terminate(process)
    assert foreign.wait() == -15
    files.terminate(process)


def test_a_process_that_ended_or_never_started_is_not_running() -> None:
    assert not files.is_running({"pid": None, "started": None})
    assert files.start_of(2**22 + 1) is None
    assert files.start_of(os.getpid()) == files.start_of(os.getpid()) is not None
