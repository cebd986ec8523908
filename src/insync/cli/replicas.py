"""`insync replicas`: which replicas are out of sync, which broker is the cause, what to do."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import UnsupportedOperation
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live

from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import INTERRUPTED, Answer, JsonFlag
from insync.cli.console import make_console
from insync.cli.replica_advice import broker_data
from insync.cli.replica_causes import Diagnosis, diagnose
from insync.cli.replica_changes import Cluster, changes
from insync.cli.replica_view import ReplicaView
from insync.cli.replica_words import duration, problem_text, reason, why
from insync.client.admin import Admin, Topic
from insync.client.admin_connections import Patience
from insync.client.replica_lag import FollowerRow, ReplicaLag, Report
from insync.client.replica_limits import Limits, ReplicaLimits
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
    shows_all: Annotated[
        bool, typer.Option("--all", help="Show each replica, also those that are healthy.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh every second until Ctrl-C; with --json one object per change.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> Answer:
    """Show which replicas are out of sync or behind, which broker is the cause, and what to do.

    A lag with ~ is an estimate; a lag with > is a lower bound. With --json every replica is listed.
    """

    async def answer(admin: Admin) -> Answer:
        measurement = Measurement(admin, topic)
        if watch and as_json:
            return await _stream(measurement)
        if watch:
            return await _watch(measurement, shows_all=shows_all)
        report, limits = await _read_followers(measurement)
        diagnosis = diagnose(report, limits)
        return Answer(
            data=report_data(report, diagnosis),
            view=ReplicaView(report=report, diagnosis=diagnosis, shows_all=shows_all),
            as_json=as_json,
            exit_code=_code(report),
        )

    return ask(bootstrap_server, command_config, answer, default=SHORT_PATIENCE)


def _code(report: Report) -> int:
    """A report that is not complete is shown, and is no success."""
    is_whole = not report.problems and all(row.problem is None for row in report.rows)
    return 0 if is_whole else 1


class Measurement:
    """Measures again and again, of all topics or of one."""

    def __init__(self, admin: Admin, topic: str | None) -> None:
        self._admin = admin
        self._topic = topic
        self._has_topic = False  # it existed
        self._lag = ReplicaLag(
            admin.connections,
            clock_ms=_clock_ms,
            is_included=lambda name: topic is None or name == topic,
        )
        self._limits = ReplicaLimits(admin, clock_ms=_clock_ms)

    async def take(self) -> tuple[Report, Limits]:
        report = await self._lag.measure(await self._topics())
        return report, await self._limits.read(report)

    async def _topics(self) -> Sequence[Topic]:
        """Only the first time all are listed: old brokers create a topic that a request names."""
        names = [self._topic] if self._topic is not None and self._has_topic else None
        topics = await self._admin.topics(names)
        self._has_topic = self._topic is None or any(each.name == self._topic for each in topics)
        if not self._has_topic:
            raise NoSuchTopic(f"topic {self._topic!r} does not exist")
        return topics


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def _read_followers(
    measurement: Measurement,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Report, Limits]:
    """Once; and again where followers are behind, to see whether they catch up."""
    report, limits = await measurement.take()
    for _ in range(MEASUREMENTS - 1):
        if not any(row.problem is not None or row.messages for row in report.rows):
            break
        await pause(MEASURE_EVERY_S)
        report, limits = await measurement.take()
    return report, limits


# On a screen.


async def _watch(measurement: Measurement, *, shows_all: bool) -> Answer:
    report, limits = await measurement.take()
    taken_at_ms = _clock_ms()
    with _screen() as (show, fits_screen), suppress(asyncio.CancelledError):  # that is Ctrl-C
        while True:
            diagnosis = diagnose(report, limits)
            show(
                ReplicaView(
                    report=report,
                    diagnosis=diagnosis,
                    shows_all=shows_all,
                    fits_screen=fits_screen,
                )
            )
            await asyncio.sleep(MEASURE_EVERY_S)
            try:
                report, limits = await measurement.take()
                taken_at_ms = _clock_ms()
            except Refusal as refusal:
                old = duration(_clock_ms() - taken_at_ms)
                report = replace(report, problems=(f"not updated for {old}: {refusal}",))
    return Answer(data=None, view="", as_json=False, exit_code=INTERRUPTED)


@contextmanager
def _screen() -> Iterator[tuple[Callable[[RenderableType], None], bool]]:
    """How to show a view, and whether it is redrawn in place, on a terminal."""
    console = make_console()
    if not console.is_terminal:

        def show(shown: RenderableType) -> None:
            console.print(shown)
            sys.stdout.flush()

        yield show, False
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda shown: live.update(shown, refresh=True), True


# As a stream of objects.


async def _stream(measurement: Measurement) -> Answer:
    """One object per line: the report, then each change."""
    report, limits = await measurement.take()
    _write_object({"change": "snapshot", **report_data(report, diagnose(report, limits))})
    cluster, problem = Cluster.of(report), None
    with suppress(asyncio.CancelledError):  # that is Ctrl-C
        while True:
            await asyncio.sleep(MEASURE_EVERY_S)
            _check_reader()
            try:
                report, limits = await measurement.take()
            except NoSuchTopic:  # the one that is watched was deleted
                report = replace(report, topics=(), rows=())
            except Refusal as refusal:
                if problem is None:
                    _write_object({"change": "not-updated", "problem": str(refusal)})
                problem = str(refusal)
                continue
            if problem is not None:
                _write_object({"change": "updated", "problem": None})
                problem = None
            before, cluster = cluster, Cluster.of(report)
            for change in changes(before, cluster):
                _write_object(change)
    return Answer(data=None, view="", as_json=False, exit_code=INTERRUPTED)


def _write_object(values: dict[str, Any]) -> None:
    at = datetime.now(UTC)
    stamp = {"at": f"{at:%FT%T}.{at.microsecond // 1_000:03}Z"}
    sys.stdout.write(json.dumps({**stamp, **values}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _check_reader() -> None:
    """Nothing is written while nothing changes, so a reader that has gone is looked for."""
    try:
        descriptor = sys.stdout.fileno()
    except UnsupportedOperation:  # no file
        return
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


# As data.


def report_data(report: Report, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "exact": report.is_exact,
        "complete": _code(report) == 0,
        "problems": list(report.problems),
        "totals": diagnosis.totals.data,
        "brokers": [broker_data(trouble) for trouble in diagnosis.brokers],
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
        "problem": None if row.problem is None else problem_text(row),
        "offline": None
        if row.offline is None
        else {
            "damaged": row.offline.is_damaged,
            "reason": row.offline.reason,
            "log_end_offset": row.offline.end,
            "high_watermark": row.offline.high_watermark,
        },
        "reason": reason(row).value,
        "why": why(row),
    }
