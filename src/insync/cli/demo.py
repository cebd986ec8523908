"""`insync demo`: the documents' examples, then real clusters with real faults, in acts.

The acts: what the rules decide; brokers that decide by them lose nothing when a leader dies; the
same decisions live, with faults; replicas that move under a throttle. With `--telemetry` what the
brokers recorded is kept, for an analysis as a fifth act (`make demo`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from insync.cli import demo_cluster, demo_in_sync, demo_move, telemetry
from insync.cli.answer import Answer, JsonFlag
from insync.cli.console import make_console
from insync.cli.explain import timeline_data
from insync.cli.timeline_view import TimelineView, statements_text
from insync.scenarios import library
from insync.scenarios.timeline import Timeline
from insync.testing.cluster import Cluster

# One per document is shown in full; of the others only whether they hold.
SHOWN_IN_FULL = (
    "article-burst",
    "kip-16-lagging",
    "kafka-4485-flapping",
    "kip-501",
    "kip-73-amendment",
)
TRY_NEXT = (
    ("insync explain", "every example, and how to write your own"),
    ("insync cluster start --data-dir /tmp/insync", "three brokers to connect your clients to"),
    ("insync replicas -b 127.0.0.1:9092 --watch", "which followers lag, and why"),
    ("make demo", "all this, and an analysis of the recorded telemetry on Spark"),
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
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - with --json only the result is printed
        console = make_console(nowhere) if as_json else make_console()
        acts = Acts(console, count=4 if telemetry_dir is None else 5)
        acts.begin(
            "What the documents say",
            "five documents argue about when a follower is in sync; each claim is checked here "
            "against the code that the brokers run.",
        )
        timelines = [library.play(library.load(name)) for name in library.names()]
        console.print("", timelines_view(timelines), sep="\n")
        acts.begin(
            "A leader dies",
            "acks=all is worth only as much as what is left after kill -9.",
        )
        outcome = demo_cluster.play(console)
        acts.begin(
            "Faults, and what the brokers decide",
            "a follower that is stopped must leave; a burst or the leader's own slow disk must "
            "not cost healthy followers their place.",
        )
        brokers = len(demo_in_sync.BROKERS)
        with Cluster(brokers=brokers, settings=demo_in_sync.SETTINGS) as cluster:
            in_sync = demo_in_sync.play(cluster, console)
            acts.begin(
                "Replicas move under a throttle",
                "a move without a limit starves clients, and a limit left behind starves "
                "replication.",
            )
            moved = demo_move.play(cluster, console, as_json=as_json)
            if telemetry_dir is not None:
                time.sleep(PUBLISHED_WITHIN_S)
                telemetry.export(cluster.bootstrap, telemetry_dir)
    wrong = sum(len(timeline.wrong) for timeline in timelines)
    is_well = wrong == 0 and outcome.is_well and all(shown.is_well for shown in in_sync)
    is_well = is_well and moved.is_well
    closing = Text(
        f"\n{len(timelines)} scenarios of the documents, {statements_text(timelines)}. "
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
        view=Group(closing, _try_next(telemetry_dir)),
        as_json=as_json,
        exit_code=0 if is_well else 1,
    )


class Acts:
    """Announces each act: its number, its title and why it matters."""

    def __init__(self, console: Console, *, count: int) -> None:
        self._console = console
        self._count = count
        self._number = 0

    def begin(self, title: str, why: str) -> None:
        self._number += 1
        heading = f"\nAct {self._number} of {self._count}: {title}"
        self._console.print(Text(heading, style="bold cyan"))
        self._console.print(Text(f"Why it matters: {why}", style="italic"))


def timelines_view(timelines: Sequence[Timeline]) -> RenderableType:
    """One example per document in full, the others in a line each."""
    by_name = {timeline.name: timeline for timeline in timelines}
    parts: list[RenderableType] = []
    for name in SHOWN_IN_FULL:
        parts += [TimelineView(by_name.pop(name)), ""]
    parts.append(Text("The other examples (insync explain NAME shows one):", style="bold"))
    width = max(map(len, by_name))
    for timeline in by_name.values():
        style = "bold red" if timeline.wrong else "green"
        line = Text(f"  {timeline.name.ljust(width)}  ", style="cyan")
        parts.append(line.append(statements_text([timeline]), style=style))
    parts.append(Text(f"All examples: {statements_text(timelines)}.", style="bold"))
    return Group(*parts)


def _try_next(telemetry_dir: Path | None) -> RenderableType:
    if telemetry_dir is not None:
        return Text(
            f"Next, an analysis of what these brokers recorded:\n"
            f"  insync pipeline report --source {telemetry_dir} --out DIR"
        )
    lines: list[RenderableType] = [Text("\nTry next", style="bold")]
    for command, what in TRY_NEXT:
        lines += [Text(f"  {command}", style="cyan"), Text(f"      {what}", style="dim")]
    return Group(*lines)
