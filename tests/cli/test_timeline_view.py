"""Timelines and the demo's first act at the widths that terminals have."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from insync.cli import main as cli
from insync.cli.demo import SHOWN_IN_FULL, timelines_view
from insync.cli.timeline_view import TimelineView
from insync.scenarios import library
from insync.scenarios.text import parse
from insync.scenarios.timeline import RowKind

WIDTHS = (80, 100, 160)


def rendered(view: RenderableType, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(view)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [*WIDTHS, 60])
@pytest.mark.parametrize("name", library.names())
def test_no_line_is_longer_than_the_terminal_and_few_are_added(name: str, width: int) -> None:
    timeline = library.play(library.load(name))
    lines = rendered(TimelineView(timeline), width)
    assert max(map(cell_len, lines)) <= width
    assert "…" not in "".join(lines)
    assert len(lines) <= (2 if width >= min(WIDTHS) else 3) * len(timeline.rows) + 10


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", library.names())
def test_notes_span_the_width(name: str, width: int) -> None:
    timeline = library.play(library.load(name))
    lines = rendered(TimelineView(timeline), width)
    for note in (row.text for row in timeline.rows if row.kind is RowKind.STORY):
        first = next(at for at, line in enumerate(lines) if note.startswith(line) and line)
        last = first
        while " ".join(lines[first : last + 1]) != note:
            last += 1
            assert last < len(lines), f"not whole: {note}"
        assert last - first < len(note) // (width - 20) + 1


MINE = """
title T
document D
columns messages lag-begin caught-up
replicas 1 2
lag-time-max-ms 1000
lag-max-messages 4
0 append 3
0 fetch 2 offset=3
1 append 5
1 expect messages isr=1
1 expect lag-begin isr=1,2
1 expect caught-up isr=1,2
"""


def test_policies_with_the_same_verdicts_share_a_column() -> None:
    lines = rendered(TimelineView(library.play(parse("mine", MINE))), 80)
    assert "    lag-begin" in lines[3]
    assert lines[4].split() == ["ms", "event", "messages", "caught-up"]
    assert lines[5].split() == ["0", "append", "3", *("*1", "+2", "hw", "0") * 2]
    assert lines[7].split() == ["1", "append", "5", "*1", "-2", "hw", "8"]
    assert lines[9] == " 1  ok messages isr=1; all but messages isr=1,2"


def test_without_room_for_the_columns_each_row_lists_what_changes() -> None:
    lines = rendered(TimelineView(library.play(parse("mine", MINE))), 42)
    assert lines[3] == "ms  event             verdicts that change"
    assert lines[4] == " 0  append 3          all: *1 +2 hw 0"
    assert lines[6] == " 1  append 5          messages: *1 -2 hw 8"
    assert lines[7] == "                        [2 leaves]"


def test_each_wrong_statement_has_its_own_line() -> None:
    text = MINE + "1 expect all end=7\n1 expect messages hw=1\n"
    lines = rendered(TimelineView(library.play(parse("mine", text))), 160)
    assert sum(line.startswith("    WRONG") or "  WRONG" in line for line in lines) == 2
    assert lines[-1] == "2 of 5 statements do not hold"


@pytest.mark.parametrize(("width", "lines_max"), [(80, 230), (100, 225), (160, 220)])
def test_the_demo_shows_one_example_per_document_in_full(width: int, lines_max: int) -> None:
    timelines = [library.play(library.load(name)) for name in library.names()]
    lines = rendered(timelines_view(timelines), width)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= lines_max
    assert lines[-1] == "All examples: 128 statements, 0 wrong."
    for timeline in timelines:
        in_full = timeline.document in lines
        assert in_full == (timeline.name in SHOWN_IN_FULL)
        in_short = [line for line in lines if line.split()[:1] == [timeline.name]]
        assert len(in_short) == (not in_full)
        assert all(line.endswith("statements, 0 wrong") for line in in_short)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("arguments", [["explain"], ["explain", "kip"]])
def test_a_pipe_honours_columns(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    arguments: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main(arguments) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert min(width - 20, 120) < max(map(cell_len, lines)) <= width


def test_a_pipe_without_columns_is_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["explain", "kip-501"]) == 0
    out = capsys.readouterr().out
    assert "verdicts that change" not in out, "side by side"
