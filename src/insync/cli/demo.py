"""`insync demo`: the documents' examples, then real clusters: a leader dies, others get slow.

It grows with the project; for now it shows what the rules decide, that brokers which decide by them
lose nothing, the same decisions live, with faults, and replicas that move under a throttle.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.text import Text

from insync.cli import demo_cluster, demo_in_sync, demo_move, telemetry
from insync.cli.answer import Answer, JsonFlag
from insync.cli.explain import timeline_data, timeline_view
from insync.scenarios import library
from insync.scenarios.timeline import RowKind
from insync.testing.cluster import Cluster

SHOWN = (
    "article-burst",
    "kip-16-lagging",
    "kafka-4485-flapping",
    "kip-501",
    "kip-73-amendment",
    "epoch-start",
    "leader-stall",
)


PUBLISHED_WITHIN_S = 5.0  # brokers publish what they record every 2 s


def register(on: typer.Typer) -> None:
    on.command("demo")(demo)


Telemetry = Annotated[
    Path | None,
    typer.Option("--telemetry", metavar="DIR", help="Keep what the brokers recorded as Parquet."),
]


def demo(*, telemetry_dir: Telemetry = None, as_json: JsonFlag = False) -> Answer:
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
        brokers = len(demo_in_sync.EVERYBODY)
        with Cluster(brokers=brokers, settings=demo_in_sync.SETTINGS) as cluster:
            in_sync = demo_in_sync.play(cluster, console)
            moved = demo_move.play(cluster, console, as_json=as_json)
            if telemetry_dir is not None:
                time.sleep(PUBLISHED_WITHIN_S)
                telemetry.export(cluster.bootstrap, telemetry_dir)
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
