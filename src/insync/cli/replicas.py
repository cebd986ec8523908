"""`insync replicas`: every follower, how far it is behind, whether it is in sync, and why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import INTERRUPTED, Answer, JsonFlag, WrongUsage
from insync.cli.console import make_console
from insync.cli.replica_words import duration, lag, size, why
from insync.client.admin import Admin, Topic
from insync.client.admin_connections import Patience
from insync.client.replica_lag import FollowerRow, ReplicaLag, Report
from insync.rules.refusals import Refusal
from insync.wire.describe_replicas import Obstacles

SHORT_PATIENCE = Patience(request_ms=2_000, operation_ms=10_000)  # a paused broker is skipped
MEASUREMENTS = 3  # two differences for every follower that is behind
MEASURE_EVERY_S = 1.0


class NoSuchTopic(Refusal):
    """No topic has this name."""


def register(on: typer.Typer) -> None:
    on.command("replicas")(replicas)


def replicas(
    bootstrap_server: BootstrapServer,
    command_config: CommandConfig = None,
    *,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only this topic.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")
    ] = False,
    as_json: JsonFlag = False,
) -> Answer:
    """Show how far every follower is behind, whether it is in sync, and why.

    A lag with ~ is an estimate; a lag with > is a lower bound.
    """
    if watch and as_json:
        raise WrongUsage("--watch does not go with --json")
    if watch:
        return ask(
            bootstrap_server,
            command_config,
            lambda admin: _watch(admin, topic),
            default=SHORT_PATIENCE,
        )
    report = ask(
        bootstrap_server,
        command_config,
        lambda admin: _read_followers(admin, topic),
        default=SHORT_PATIENCE,
    )
    return Answer(
        data=report_data(report), view=view(report), as_json=as_json, exit_code=_code(report)
    )


def _code(report: Report) -> int:
    """A report that is not complete is shown, and is no success."""
    is_whole = not report.problems and all(row.problem is None for row in report.rows)
    return 0 if is_whole else 1


def _lag_of(admin: Admin, topic: str | None) -> ReplicaLag:
    return ReplicaLag(
        admin.connections,
        clock_ms=lambda: time.monotonic_ns() // 1_000_000,
        is_included=lambda name: topic is None or name == topic,
    )


async def _topics(admin: Admin, topic: str | None) -> Sequence[Topic]:
    topics = await admin.topics()
    if topic is not None and all(each.name != topic for each in topics):
        raise NoSuchTopic(f"topic {topic!r} does not exist")
    return topics


async def _read_followers(
    admin: Admin,
    topic: str | None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Report:
    """Once; and again where followers are behind, to see whether they catch up."""
    replica_lag = _lag_of(admin, topic)
    report = await replica_lag.measure(await _topics(admin, topic))
    for _ in range(MEASUREMENTS - 1):
        if not any(row.problem is not None or row.messages for row in report.rows):
            break
        await pause(MEASURE_EVERY_S)
        report = await replica_lag.measure(await _topics(admin, topic))
    return report


async def _watch(admin: Admin, topic: str | None) -> Answer:
    replica_lag = _lag_of(admin, topic)
    report = await replica_lag.measure(await _topics(admin, topic))
    with _screen() as show, suppress(asyncio.CancelledError):  # that is Ctrl-C
        while True:
            show(view(report))
            await asyncio.sleep(MEASURE_EVERY_S)
            try:
                report = await replica_lag.measure(await _topics(admin, topic))
            except Refusal as refusal:
                report = replace(report, problems=(f"not updated: {refusal}",))
    return Answer(data=None, view="", as_json=False, exit_code=INTERRUPTED)


@contextmanager
def _screen() -> Iterator[Callable[[RenderableType], None]]:
    """Redrawn in place on a terminal; elsewhere one table after the other."""
    console = make_console()
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda shown: live.update(shown, refresh=True)


# The report as data and as a table.


def report_data(report: Report) -> dict[str, Any]:
    return {
        "exact": report.is_exact,
        "complete": _code(report) == 0,
        "problems": list(report.problems),
        "followers": [_row_data(row) for row in report.rows],
    }


def _row_data(row: FollowerRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "leader": row.leader,
        "follower": row.follower,
        "in_sync": row.in_sync,
        "lag_ms": row.lag_ms,
        "lag_is_estimated": row.lag_is_estimated,
        "lag_is_at_least": row.lag_is_at_least,
        "lag_messages": row.messages,
        "lag_bytes": row.bytes,
        "catches_up_in_ms": row.catches_up_in_ms,
        "falls_back": row.falls_back,
        "silent_ms": row.silent_ms,
        "pending_reads": row.pending_reads,
        "held_by_pending_read": row.is_held,
        "obstacles": [bar.name.lower() for bar in Obstacles if bar in row.obstacles and bar.name],
        "leaves_in_ms": row.leaves_in_ms,
        "problem": row.problem,
        "offline": None
        if row.offline is None
        else {
            "damaged": row.offline.is_damaged,
            "reason": row.offline.reason,
            "log_end_offset": row.offline.end,
            "high_watermark": row.offline.high_watermark,
        },
        "why": why(row),
    }


def view(report: Report) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition", no_wrap=True)
    table.add_column("leader", justify="right")
    table.add_column("follower", justify="right")
    table.add_column("in sync")
    table.add_column("lag", justify="right", no_wrap=True)
    table.add_column("messages", justify="right")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("why")
    table.add_column("leaves in", justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row))
    parts: list[RenderableType] = [table, Text(_summary(report), style="dim")]
    parts += [Text(f"NOT COMPLETE: {each}", style="bold red") for each in report.problems]
    return Group(*parts)


def _cells(row: FollowerRow) -> list[Text | str]:
    is_unknown = row.problem is not None
    return [
        Text(f"{row.topic}-{row.partition}"),
        "none" if row.leader is None else str(row.leader),
        str(row.follower),
        Text("yes", style="green") if row.in_sync else Text("no", style="bold red"),
        lag(row),
        "?" if row.messages is None else f"{row.messages:,}",
        size(row.bytes),
        Text(why(row), style="red" if is_unknown else ""),
        "" if row.leaves_in_ms is None else duration(row.leaves_in_ms),
    ]


def _summary(report: Report) -> str:
    inside = sum(row.in_sync for row in report.rows)
    source = "as the leaders know it" if report.is_exact else "measured from outside, ~ estimated"
    return f"{len(report.rows)} followers, {inside} in sync; {source}"
