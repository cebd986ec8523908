"""`insync demo`: the documents' examples, then real clusters: a leader dies, others get slow.

It grows with the project; for now it shows what the rules decide, that brokers which decide by them
lose nothing, the same decisions live, with faults, and replicas that move under a throttle.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import typer
from rich.console import Console, Group
from rich.text import Text

from insync.cli import demo_cluster, demo_in_sync, demo_move
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


def register(on: typer.Typer) -> None:
    on.command("demo")(demo)


def demo(*, as_json: JsonFlag = False) -> Answer:
    """Play the documents' examples, then the same with real brokers and real faults."""
    timelines = [library.play(library.load(name)) for name in library.names()]
    statements = sum(
        row.kind in (RowKind.EXPECTED, RowKind.WRONG) for each in timelines for row in each.rows
    )
    wrong = sum(len(timeline.wrong) for timeline in timelines)
    shown_first = [timeline for name in SHOWN for timeline in timelines if timeline.name == name]
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - for scripts nothing is told
        console = Console(file=nowhere) if as_json else Console()
        console.print(Group(*(timeline_view(timeline) for timeline in shown_first)))
        outcome = demo_cluster.play(console)
        in_sync = demo_in_sync.play(console)
        moved = demo_move.play(console, as_json=as_json)
    is_well = wrong == 0 and outcome.is_well and all(shown.is_well for shown in in_sync)
    is_well = is_well and moved.is_well
    closing = Text(
        f"{len(timelines)} scenarios, {statements} statements of the documents, {wrong} wrong. "
        f"{outcome.acknowledged:,} records acknowledged across the death of their leader, "
        f"{outcome.lost} lost. {sum(shown.is_well for shown in in_sync)} of {len(in_sync)} live "
        "decisions as the documents say. "
        f"{moved.bytes_moved / 1_000_000:.0f} MB moved at {100 * moved.of_quota:.0f} % of their "
        f"quota, {moved.throttles_left} throttles left behind.",
        style="bold green" if is_well else "bold red",
    )
    return Answer(
        data={
            "scenarios": [timeline_data(timeline) for timeline in timelines],
            "cluster": asdict(outcome),
            "in_sync": [asdict(shown) for shown in in_sync],
            "moved": asdict(moved),
        },
        view=closing,
        as_json=as_json,
        exit_code=0 if is_well else 1,
    )
