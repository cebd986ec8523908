"""Whole lives of a cluster on virtual time. A failure names the command that replays it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from insync.sim.life import live

SECONDS = 20.0
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
LIVES = 60 if IS_THOROUGH else 6


@pytest.mark.property
@pytest.mark.parametrize("seed", range(LIVES))
def test_nothing_acknowledged_is_lost_and_nothing_read_changes(seed: int) -> None:
    _, acknowledged = live(seed, SECONDS)
    assert acknowledged > 0, "a life in which nothing was written shows nothing"


def test_one_seed_is_one_life() -> None:
    assert live(3, 5.0) == live(3, 5.0)
    assert live(3, 5.0)[0] != live(4, 5.0)[0]


@pytest.mark.process
def test_a_seed_means_the_same_in_every_process() -> None:
    """Order never comes from a set: strings hash differently in each process."""
    lives = {
        subprocess.run(
            [sys.executable, "-m", "insync.sim.life", "7", "10"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(lives) == 1
