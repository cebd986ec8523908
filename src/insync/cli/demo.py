"""`insync demo`: the documents' examples, played one after another.

It grows with the project; for now it shows what the rules decide.
"""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from insync.cli.answer import Answer, JsonFlag
from insync.cli.explain import timeline_data, timeline_view
from insync.scenarios import library
from insync.scenarios.timeline import RowKind

SHOWN = (
    "article-burst",
    "kip-16-lagging",
    "kafka-4485-flapping",
    "kip-501",
    "kip-73-amendment",
    "epoch-start",
    "leader-stall",
)


def demo(*, as_json: JsonFlag = False) -> Answer:
    """Play the documents' examples, and check every statement of all of them."""
    timelines = [library.play(library.load(name)) for name in library.names()]
    statements = sum(
        row.kind in (RowKind.EXPECTED, RowKind.WRONG) for each in timelines for row in each.rows
    )
    wrong = sum(len(timeline.wrong) for timeline in timelines)
    shown = [timeline for name in SHOWN for timeline in timelines if timeline.name == name]
    closing = Text(
        f"{len(timelines)} scenarios, {statements} statements of the documents, {wrong} wrong. "
        "'insync explain' lists them all.",
        style="bold red" if wrong else "bold green",
    )
    return Answer(
        data=[timeline_data(timeline) for timeline in timelines],
        view=Group(*(timeline_view(timeline) for timeline in shown), closing),
        as_json=as_json,
        exit_code=1 if wrong else 0,
    )
