"""Tables on terminals of any width: no cell is cut, and what does not fit is named."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from insync.cli.sheet import ResultTable
from insync.pipeline.tables.registry import STEPS

COLUMNS = ("policy", "began_at_ms", "lag_time_max_ms", "is_headline", "share", "nothing", "reason")
REASON = "1000 ms is the smallest limit asked [without] a false eviction or a flap"


def row(**others: Any) -> dict[str, Any]:
    usual = {"policy": "pending-reads", "began_at_ms": 86_400_000, "lag_time_max_ms": 1_000}
    return usual | {"is_headline": False, "share": None, "nothing": None, "reason": None} | others


def drawn(rows: list[dict[str, Any]], width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(ResultTable("what_if", COLUMNS, rows, f"{len(rows)} rows: by policy"))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_is_as_wide_as_its_cells() -> None:
    rows = [row(is_headline=True, share=0.456, reason=REASON), row(lag_time_max_ms=20)]
    gap = "  "
    assert drawn(rows, 160) == [
        "what_if",
        "                                     lag",
        "                                    time",
        "                                     max        is",
        "policy                began at UTC    ms  headline  share  reason",
        gap.join(["pending-reads", "1970-01-02T00:00:00", "1000", "     yes", " 0.46", REASON]),
        "pending-reads  1970-01-02T00:00:00    20",
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
    assert "0.50" in lines[5]
    narrow = drawn([row(is_headline=True, share=0.5, reason=REASON)], 30)
    assert " ".join(narrow[-3:]).endswith("no room for began at UTC, share, reason")


def test_a_long_name_is_folded_and_whole() -> None:
    lines = drawn([row(policy="t" * 249)], 80)
    assert sum(line.count("t") for line in lines[5:-1] if line.startswith("tt")) == 249
    assert max(map(len, lines)) <= 80
    assert "1970-01-02T00:00:00  1000" in lines[5]


def test_without_rows() -> None:
    assert drawn([], 80) == ["what_if", "0 rows: by policy"]


def test_values_have_the_units_that_people_read() -> None:
    values = {
        "out_ms": 8_800, "lag_ms_max": 3_725_000, "held_back_s": 90, "use": 0.456,
        "limit_bytes_per_s": 2_400_000, "lag_bytes_max": 13_000_000_000, "lag_messages_max": 12,
    }  # fmt: skip
    console = Console(file=StringIO(), width=120)
    console.print(ResultTable("t", tuple(values), [values], ""))
    assert isinstance(console.file, StringIO)
    cells = [line.strip() for line in console.file.getvalue().splitlines()]
    assert re.split(r" {2,}", cells[-2]) == [
        "8.8 s", "1 h 2 min", "1 min 30 s", "46 %", "2.4 MB/s", "13 GB", "12",
    ]  # fmt: skip
    headings = " ".join(cells[1:-2])
    assert " ms" not in headings
    assert "per" not in headings


def health_rows() -> list[dict[str, Any]]:
    worst = {
        "status": "critical", "level": "broker", "name": "3",
        "reason": "24 still out of sync; 8.8 s below min ISR; out of sync 48 times, for 2 min 5 s; "
        "lag up to 31 s; 12 leader changes; stalled for 1.5 s; replicas held back for 6 s",
    }  # fmt: skip
    topic = {"status": "warning", "level": "topic", "name": "orders", "reason": "1 leader change"}
    calm = {"status": "ok", "level": "topic", "name": "t" * 60, "reason": ""}
    return [worst, topic, calm]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_health_fits_any_terminal_with_every_column(width: int) -> None:
    summary = STEPS["health"].summary
    assert summary is not None
    console = Console(file=StringIO(), width=width)
    console.print(ResultTable("health", summary.columns, health_rows(), "3 rows: the worst first"))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0] == "health"
    assert lines[1].split() == ["status", "level", "name", "reason"]
    assert lines[2].startswith("critical  broker  3 ")
    assert lines[-1] == "3 rows: the worst first"
    words = " ".join(" ".join(lines).split())
    for row in health_rows()[:2]:
        assert all(word in words for word in row["reason"].split())
    assert sum(line.count("t" * 20) for line in lines) == 3, "the name is whole"


@pytest.mark.parametrize("name", ["lag", "episodes", "throttle", "health"])
def test_a_table_shows_what_it_is_for_in_100_columns(name: str) -> None:
    """What is left out at that width is said in other columns too, or has its own command."""
    summary = STEPS[name].summary
    assert summary is not None
    values = {
        "topic": "orders", "partition": 123, "follower": 12, "bucket_at_ms": 86_400_000,
        "cause": "leader-slow-reads", "ending": "rejoined", "out_ms": 125_000,
        "left_at_ms": 86_400_000, "began_at_ms": 86_400_000, "lag_ms_max": 125_000,
        "lag_messages_max": 1_000_000, "lag_bytes_max": 12_300_000, "lag_ms_p99": 59_900,
        "lag_ms_p50": 59_900, "reason": REASON, "broker": 12, "side": "follower",
        "limit_bytes_per_s": 12_300_000, "verdict": "inbound-unknown", "progress": "moving",
        "estimated_ms": 125_000, "real_ms": 125_000, "difference": REASON, "use": 0.96,
        "held_back_s": 125, "status": "critical", "level": "broker", "name": "orders",
    }  # fmt: skip
    console = Console(file=StringIO(), width=100)
    console.print(ResultTable(name, summary.columns, [values], "1 row"))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    omitted = " ".join(lines).partition("no room for ")[2].split(", ")
    allowed = {"throttle": {"use", "held back", "began at UTC"}, "episodes": {"left at UTC"}}
    assert {each.strip() for each in omitted} - {""} <= allowed.get(name, set())


def test_values_of_a_hostile_export_are_shown_and_control_nothing() -> None:
    rows = [{"topic": "a\x1b[31m\u202eb\u2028c", "reason": "é 日", "left_at_ms": 2**60}]
    console = Console(width=80, record=True, file=StringIO())
    console.print(ResultTable("t", tuple(rows[0]), rows, ""))
    text = console.export_text()
    assert r"a\x1b[31m\u202eb\u2028c" in text
    assert "é 日" in text
    assert str(2**60) in text, "no time, and no traceback"
