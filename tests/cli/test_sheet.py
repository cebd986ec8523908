"""Tables on terminals of any width: no cell is cut, and what does not fit is named."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from insync.cli.sheet import ResultTable

COLUMNS = ("policy", "began_at_ms", "limit_ms", "is_headline", "share", "nothing", "reason")
REASON = "1000 ms is the smallest limit asked [without] a false eviction or a flap"


def row(**others: Any) -> dict[str, Any]:
    usual = {"policy": "pending-reads", "began_at_ms": 86_400_000, "limit_ms": 1_000}
    return usual | {"is_headline": False, "share": None, "nothing": None, "reason": None} | others


def drawn(rows: list[dict[str, Any]], width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(ResultTable("what_if", COLUMNS, rows, f"{len(rows)} rows: by policy"))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_is_as_wide_as_its_cells() -> None:
    rows = [row(is_headline=True, share=0.456, reason=REASON), row(limit_ms=20)]
    gap = "  "
    assert drawn(rows, 160) == [
        "what_if",
        "                                    limit        is",
        "policy                began at UTC     ms  headline  share  reason",
        gap.join(["pending-reads", "1970-01-02T00:00:00", " 1000", "     yes", " 0.46", REASON]),
        "pending-reads  1970-01-02T00:00:00     20",
        "2 rows: by policy",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_cell_is_cut_and_no_line_too_long(width: int) -> None:
    lines = drawn([row(is_headline=True, share=0.5, reason=REASON)] * 3, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    whole = [line for line in lines if line.startswith("pending-reads")]
    assert len(whole) == 3
    assert all("1970-01-02T00:00:00" in line for line in whole)


def test_columns_without_room_are_named() -> None:
    lines = drawn([row(is_headline=True, share=0.5, reason=REASON)], 60)
    assert lines[-1] == "1 rows: by policy; no room for reason"
    assert "0.50" in lines[3]
    narrow = drawn([row(is_headline=True, share=0.5, reason=REASON)], 30)
    assert " ".join(narrow[-3:]).endswith("no room for began at UTC, share, reason")


def test_a_long_name_is_folded_and_whole() -> None:
    lines = drawn([row(policy="t" * 249)], 80)
    assert sum(line.count("t") for line in lines[3:-1] if line.startswith("tt")) == 249
    assert max(map(len, lines)) <= 80
    assert "1970-01-02T00:00:00   1000" in lines[3]


def test_without_rows() -> None:
    assert drawn([], 80) == ["what_if", "0 rows: by policy"]
