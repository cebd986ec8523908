"""Every test of the long lane is in exactly one slice, in every process."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

import slices
from slices import SLICES

pytest_plugins = ["pytester"]

MANY = """
import pytest

@pytest.mark.parametrize("seed", range(40))
def test_one_run(seed):
    pass

@pytest.mark.slice(3)
def test_for_minutes():
    pass

def test_not_selected():
    pass
"""
HOOKS = Path(slices.__file__).read_text()


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(HOOKS)
    pytester.makepyfile(test_many=MANY)
    return pytester


def collected(suite: pytest.Pytester, *arguments: str) -> list[str]:
    result = suite.runpytest_inprocess(
        "--collect-only", "-q", "-p", "no:xdist", "-k", "not not_selected", *arguments
    )
    return [line for line in result.outlines if "::" in line]


def test_every_test_is_in_exactly_one_slice(suite: pytest.Pytester) -> None:
    parts = [collected(suite, "--slice", str(number)) for number in range(1, SLICES + 1)]
    assert sorted(chain(*parts)) == sorted(collected(suite))
    assert all(len(part) >= 5 for part in parts), "chance spreads many tests"


def test_a_marked_test_is_in_the_slice_it_names(suite: pytest.Pytester) -> None:
    for number in range(1, SLICES + 1):
        names = collected(suite, "--slice", str(number))
        assert ("test_many.py::test_for_minutes" in names) == (number == 3)


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.process)])
def test_a_slice_says_which_it_is_and_what_it_leaves(
    suite: pytest.Pytester, processes: str
) -> None:
    here = len(collected(suite, "--slice", "2"))
    result = suite.runpytest("--slice", "2", "-n", processes, "-k", "not not_selected")
    result.assert_outcomes(passed=here, deselected=0 if processes == "2" else 42 - here)
    result.stdout.fnmatch_lines(
        ["slice: 2 of 4", f"slice 2 of 4: {41 - here} tests are in the other slices*SLICE=2"]
    )


@pytest.mark.parametrize("number", ["0", "5"])
def test_there_are_no_others(suite: pytest.Pytester, number: str) -> None:
    result = suite.runpytest_inprocess("--slice", number)
    result.stderr.fnmatch_lines(["*--slice: invalid choice*"])


def test_a_mark_that_names_no_slice_is_refused(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_many=MANY.replace("slice(3)", "slice(5)"))
    result = suite.runpytest_inprocess("--slice", "1")
    result.stderr.fnmatch_lines(["*test_for_minutes: slice(5) is none of 1 to 4"])
