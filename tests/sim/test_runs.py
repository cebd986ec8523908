"""Simulated runs of a cluster on virtual time. A failure names the command that replays it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from insync.sim.checks import RunFailed
from insync.sim.faults import MIXES
from insync.sim.run import Replay, minimise, parse_replay, run_once, run_seed
from support.search_effort import IS_THOROUGH

SECONDS = 20.0
RUNS = 200 if IS_THOROUGH else 4
LONG_RUNS = 2_000


@pytest.mark.property
@pytest.mark.parametrize("seed", range(RUNS))
def test_runs_with_random_faults_keep_every_guarantee(seed: int) -> None:
    _, acknowledged = run_seed(seed, SECONDS if IS_THOROUGH else 8.0)
    assert acknowledged > 0, "a run in which nothing was written shows nothing"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_000 + LONG_RUNS))
def test_many_runs_keep_every_guarantee(seed: int) -> None:
    """Each mix in turn, and the mix that the seed draws."""
    mixes = (*MIXES, None)
    _, acknowledged = run_seed(seed, SECONDS, mixes[seed % len(mixes)])
    assert acknowledged > 0


def test_a_seed_determines_the_run() -> None:
    run = run_seed(3, 4.0)
    assert run == run_seed(3, 4.0)
    assert run[0] != run_seed(4, 4.0)[0]


@pytest.mark.process
def test_a_seed_determines_the_run_in_every_process() -> None:
    """Order never comes from a set: strings hash differently in each process."""
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "insync.sim.run", "7", "10", "everything"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.slow
def test_a_failure_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("insync.sim.history.History.find_anomalies", _fail)
    with pytest.raises(AssertionError) as failure:
        run_seed(5, 2.0, "deaths")
    notes = "".join(failure.value.__notes__)
    assert "minimised from: python -m insync.sim.run 5 2 deaths" in notes
    assert "replay with: python -m insync.sim.run 5 2 deaths --only none" in notes


@pytest.mark.slow
def test_a_failure_is_shrunk_to_the_faults_that_cause_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise RunFailed("bounced")

    monkeypatch.setattr("insync.sim.faults.FaultInjector.bounce", fail)
    whole = Replay(seed=1, seconds=8.0, mix="deaths")
    result = run_once(whole)
    smallest, last = minimise(whole, result)
    assert {fault.name for fault in last.faults} == {"bounce"}
    assert len(last.faults) == 1 < len(result.faults)
    words = smallest.command().split()
    assert parse_replay(words[3:]) == smallest
    assert str(run_once(smallest).error) == "bounced"


def test_a_command_names_the_kinds_that_are_left_out() -> None:
    replay = Replay(seed=1, mix="power everywhere", off=frozenset({"kill", "damage_file"}))
    command = replay.command()
    assert command.endswith("--without damage_file,kill")
    assert parse_replay(shlex.split(command)[3:]) == replay


def _fail(*_: object, **__: object) -> None:
    raise AssertionError
