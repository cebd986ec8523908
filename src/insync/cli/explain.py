"""`insync explain`: a documented scenario as a timeline, each policy's verdict side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from insync.cli.answer import Answer, JsonFlag
from insync.scenarios import library
from insync.scenarios.text import BadScenario, Scenario, parse
from insync.scenarios.timeline import Cell, Mood, Row, RowKind, Timeline

FILE_BYTES_MAX = 1 << 20

STYLES = {Mood.GOOD: "green", Mood.BAD: "bold red", Mood.PLAIN: ""}


def register(on: typer.Typer) -> None:
    on.command("explain")(explain)


def explain(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A scenario's name or the beginning of several (kip-16), or a file of your own "
            "(./mine.txt). Without it: the list.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: JsonFlag = False,
) -> Answer:
    """Play a documented scenario: time, event, and each policy's verdict side by side."""
    if scenario is None:
        return _list(as_json=as_json)
    timelines = [library.play(found) for found in _find(scenario)]
    return Answer(
        data=[timeline_data(timeline) for timeline in timelines],
        view=Group(*(timeline_view(timeline) for timeline in timelines)),
        as_json=as_json,
        exit_code=1 if any(timeline.wrong for timeline in timelines) else 0,
    )


def _list(*, as_json: bool) -> Answer:
    scenarios = [library.load(name) for name in library.names()]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario", no_wrap=True, style="cyan")
    table.add_column("what it shows")
    table.add_column("document", style="dim")
    for scenario in scenarios:
        table.add_row(scenario.name, scenario.title, scenario.document)
    hint = Text("\nPlay one with: insync explain kip-501", style="dim")
    return Answer(
        data=[
            {"name": each.name, "title": each.title, "document": each.document}
            for each in scenarios
        ],
        view=Group(table, hint),
        as_json=as_json,
    )


def _find(wanted: str) -> list[Scenario]:
    if wanted.endswith(".txt") or "/" in wanted:
        return [_read(Path(wanted))]
    found = library.matching(wanted)
    if not found:
        raise BadScenario(f"there is no scenario {wanted!r}; 'insync explain' lists them")
    return [library.load(name) for name in found]


def _read(path: Path) -> Scenario:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadScenario(f"cannot read {path}: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise BadScenario(f"{path} is larger than {FILE_BYTES_MAX} bytes; that is no scenario")
    try:
        return parse(path.stem, content.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadScenario(f"{path} is not UTF-8 text") from None


def timeline_data(timeline: Timeline) -> dict[str, object]:
    return {
        "name": timeline.name,
        "title": timeline.title,
        "document": timeline.document,
        "columns": list(timeline.columns),
        "rows": [
            {
                "kind": row.kind.value,
                "at_ms": row.at_ms,
                "text": row.text,
                "cells": {
                    column: {**cell.values, "decisions": list(cell.decisions)}
                    for column, cell in row.cells.items()
                },
            }
            for row in timeline.rows
        ],
    }


def timeline_view(timeline: Timeline) -> RenderableType:
    table = Table(
        title=f"{timeline.title}\n[dim]{timeline.document}[/dim]",
        title_justify="left",
        title_style="bold",
        header_style="bold",
        expand=False,
    )
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("event", max_width=48)
    for column in timeline.columns:
        table.add_column(column)
    shown: dict[str, str] = {}
    for row in timeline.rows:
        cells = [_cell_text(row.cells.get(column), shown, column) for column in timeline.columns]
        at = "" if row.at_ms is None else str(row.at_ms)
        table.add_row(at, _event_text(row), *cells)
    return Group(table, _summary(timeline), "")


def _cell_text(cell: Cell | None, shown: dict[str, str], column: str) -> Text:
    """A cell is shown where it changes; an unchanged one would hide what did."""
    if cell is None or (shown.get(column) == cell.standing and not cell.decisions):
        return Text("")
    shown[column] = cell.standing
    texts = [Text(part.text, style=STYLES[part.mood]) for part in cell.parts]
    stands = len(texts) - len(cell.decisions)
    return Text("\n").join((Text(" ").join(texts[:stands]), *texts[stands:]))


def _event_text(row: Row) -> Text:
    match row.kind:
        case RowKind.STORY:
            return Text(row.text, style="italic")
        case RowKind.EXPECTED:
            return Text(f"ok {row.text}", style="dim green")
        case RowKind.WRONG:
            return Text(f"WRONG {row.text}", style="bold red")
        case RowKind.DECISION:
            return Text(row.text, style="dim")
        case RowKind.EVENT:
            return Text(row.text)


def _summary(timeline: Timeline) -> Text:
    told = sum(row.kind in (RowKind.EXPECTED, RowKind.WRONG) for row in timeline.rows)
    if timeline.wrong:
        return Text(f"{len(timeline.wrong)} of {told} statements do not hold", style="bold red")
    return Text(f"*leader +in sync -out of sync; {told} statements checked", style="dim")
