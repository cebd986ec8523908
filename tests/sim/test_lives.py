"""Whole lives of a cluster on virtual time. A failure names the command that replays it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from effort import IS_THOROUGH

from insync.sim.life import live
from insync.sim.troubles import MIXES

SECONDS = 20.0
LIVES = 60 if IS_THOROUGH else 3
LONG_LIVES_PER_MIX = 24


@pytest.mark.property
@pytest.mark.parametrize("seed", range(LIVES))
def test_whatever_happens_every_promise_is_kept(seed: int) -> None:
    _, acknowledged = live(seed, SECONDS if IS_THOROUGH else 8.0)
    assert acknowledged > 0, "a life in which nothing was written shows nothing"


@pytest.mark.property
@pytest.mark.parametrize("seed", range(100, 112 if IS_THOROUGH else 101))
def test_moves_among_the_troubles_all_end_and_leave_no_throttle(seed: int) -> None:
    _, acknowledged = live(seed, SECONDS if IS_THOROUGH else 8.0, "moves")
    assert acknowledged > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_000 + LONG_LIVES_PER_MIX))
@pytest.mark.parametrize("mix", MIXES)
def test_every_promise_is_kept_in_longer_lives(mix: str, seed: int) -> None:
    seconds = 20.0 + seed % 5 * 10.0
    _, acknowledged = live(seed, seconds, mix)
    assert acknowledged > 0


def test_one_seed_is_one_life() -> None:
    assert live(3, 4.0) == live(3, 4.0)
    assert live(3, 4.0)[0] != live(4, 4.0)[0]


@pytest.mark.process
def test_a_seed_means_the_same_in_every_process() -> None:
    """Order never comes from a set: strings hash differently in each process."""
    lives = {
        subprocess.run(
            [sys.executable, "-m", "insync.sim.life", "7", "10", "everything"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(lives) == 1


def test_a_failure_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("insync.sim.checks.Witness.check", _fail)
    with pytest.raises(AssertionError) as failure:
        live(5, 2.0, "deaths")
    assert "python -m insync.sim.life 5 2 deaths" in "".join(failure.value.__notes__)


def _fail(*_: object) -> None:
    raise AssertionError
