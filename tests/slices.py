"""`--slice N` runs one of four slices of what was selected, so that CI affords a part of the long
lane with every commit.

A test's slice comes from its id alone, so it stays when other tests come and go. The longest tests
have the mark `slice(N)`, because chance spreads a few long tests badly.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

SLICES = 4
_left = pytest.StashKey[int]()


def slice_of(item: pytest.Item) -> int:
    mark = item.get_closest_marker("slice")
    if mark is None:
        return crc32(item.nodeid.encode()) % SLICES + 1  # not hash(): it differs by process
    (number,) = mark.args
    if number not in range(1, SLICES + 1):
        raise pytest.UsageError(f"{item.nodeid}: slice({number}) is none of 1 to {SLICES}")
    return int(number)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice",
        type=int,
        choices=range(1, SLICES + 1),
        help=f"run one of {SLICES} slices of the selected tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slice(number): the slice of a test that takes minutes")


def pytest_report_header(config: pytest.Config) -> str | None:
    number = config.getoption("slice")
    return f"slice: {number} of {SLICES}" if number else None


@pytest.hookimpl(trylast=True)  # after `-m` and `-k` made their choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number = config.getoption("slice")
    if not number:
        return
    left = [item for item in items if slice_of(item) != number]
    items[:] = [item for item in items if slice_of(item) == number]
    config.hook.pytest_deselected(items=left)
    config.stash[_left] = len(left)
    if hasattr(config, "workeroutput"):  # xdist's controller collects nothing itself
        config.workeroutput["left_to_other_slices"] = len(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    counted = getattr(node, "workeroutput", {}).get("left_to_other_slices")
    if counted is not None:
        node.config.stash[_left] = counted  # each worker collects everything


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    number = config.getoption("slice")
    if not number:
        return
    left = config.stash.get(_left, 0)
    terminalreporter.write_line(
        f"slice {number} of {SLICES}: {left} tests are in the other slices; "
        f"repeat this one with: make test-long SLICE={number}"
    )
