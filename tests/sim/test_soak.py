"""A soak counts its runs and keeps the seeds that fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from signal import SIGINT
from subprocess import PIPE, Popen, TimeoutExpired

import pytest

from insync.sim import soak


@pytest.mark.process
def test_a_soak_runs_seeds_and_keeps_those_that_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = tmp_path / "failures.txt"
    arguments = ["--seconds", "1", "--workers", "2", "--failures", str(failures)]
    assert soak.main([*arguments, "--runs", "3"]) == 0
    assert not failures.exists()
    assert capsys.readouterr().out.startswith("3 runs, 0 failed")
    monkeypatch.setattr("insync.sim.history.History.find_anomalies", _fail)
    assert soak.main([*arguments, "--runs", "2", "--first", "70"]) == 1
    text = failures.read_text()
    # A run whose second had no fault is as short as it can be.
    for seed in (70, 71):
        assert re.search(rf"replay with: python -m insync.sim.run {seed} 1( --only none)?\n", text)


def _fail(*_: object, **__: object) -> None:
    raise AssertionError("broken on purpose")


@pytest.mark.process
def test_a_soak_that_is_stopped_says_how_many_runs_it_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "insync.sim.soak", "--seconds", "1", "--workers", "1"]
    failures = ["--failures", str(tmp_path / "failures.txt")]
    with Popen([*command, *failures], stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            with pytest.raises(TimeoutExpired):
                process.wait(5)
            process.send_signal(SIGINT)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == soak.STOPPED_EXIT_CODE
    assert errors == ""
    assert re.fullmatch(r"\d+ runs, 0 failed, .* per run; stopped\n", output)
