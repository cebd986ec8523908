"""What make runs, where the tests that it runs would not show it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.parametrize(("argument", "is_quick"), [(None, False), ("QUICK=1", True)])
def test_figures_are_measured_in_full_unless_a_first_look_is_wanted(
    argument: str | None, *, is_quick: bool
) -> None:
    arguments = ["make", "--dry-run", "bench", *([argument] if argument else [])]
    printed = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "-m bench" in printed
    assert ("--quick" in printed) == is_quick
