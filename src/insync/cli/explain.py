"""`insync explain`: a documented scenario as a timeline, each policy's verdict side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from insync.cli.answer import Answer, JsonFlag
from insync.cli.timeline_view import TimelineView
from insync.client.small_files import read_small_text
from insync.scenarios import library
from insync.scenarios.text import BadScenario, Scenario, parse
from insync.scenarios.timeline import Timeline

FILE_BYTES_MAX = 1 << 20


def register(on: typer.Typer) -> None:
    on.command("explain")(explain)


def explain(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A scenario's name, the beginning of several names (kip-16), or a file of your "
            "own (./mine.txt).",
            show_default="list the scenarios",
            autocompletion=library.names_from,
        ),
    ] = None,
    *,
    as_json: JsonFlag = False,
) -> Answer:
    """Play a documented scenario: time, event, and each policy's verdict side by side."""
    if scenario is None:
        return _list_scenarios(as_json=as_json)
    timelines = [library.play(each) for each in _find_scenarios(scenario)]
    return Answer(
        data=[timeline_data(timeline) for timeline in timelines],
        view=Group(*(line for each in timelines for line in (TimelineView(each), ""))),
        as_json=as_json,
        exit_code=1 if any(timeline.wrong for timeline in timelines) else 0,
    )


def _list_scenarios(*, as_json: bool) -> Answer:
    scenarios = [library.load(name) for name in library.names()]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario", no_wrap=True, style="cyan")
    table.add_column("what it shows, and the document that says so")
    for scenario in scenarios:
        table.add_row(
            Text(scenario.name), Text(scenario.title).append(f"\n{scenario.document}", style="dim")
        )
    hint = Text("\nPlay one with: insync explain kip-501", style="dim")
    return Answer(
        data=[
            {"name": scenario.name, "title": scenario.title, "document": scenario.document}
            for scenario in scenarios
        ],
        view=Group(table, hint),
        as_json=as_json,
    )


def _find_scenarios(name_or_file: str) -> list[Scenario]:
    if name_or_file.endswith(".txt") or "/" in name_or_file:
        return [_read_scenario(Path(name_or_file))]
    names = library.matching(name_or_file)
    if not names:
        raise BadScenario(f"there is no scenario {name_or_file!r}; 'insync explain' lists them")
    return [library.load(name) for name in names]


def _read_scenario(path: Path) -> Scenario:
    text = read_small_text(path, bytes_max=FILE_BYTES_MAX, refusal=BadScenario)
    return parse(path.stem, text)


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
