"""A move's progress for people: a bar per broker and in total; and the same as data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from insync.cli.console import make_console
from insync.cli.replica_words import duration
from insync.moves.progress import BrokerProgress, MoveProgress, rate_text, size_text

LINE_EVERY_MS = 10_000
BAR_WIDTH = 30


class ProgressDisplay(Protocol):
    """Shows how far moves are, and what prevents a newer view."""

    def show(self, progress: MoveProgress) -> None: ...

    def warn(self, problem: str) -> None: ...


class NoDisplay:
    """For --json: only the result is printed."""

    def show(self, progress: MoveProgress) -> None:
        pass

    def warn(self, problem: str) -> None:
        pass


class _LineDisplay:
    """Not a terminal: a line every few seconds, and when moves are stuck."""

    def __init__(self) -> None:
        self._at_ms: int | None = None
        self._stuck: str | None = None

    def show(self, progress: MoveProgress) -> None:
        is_due = self._at_ms is None or progress.at_ms >= self._at_ms + LINE_EVERY_MS
        if is_due or not progress.moving:
            self._at_ms = progress.at_ms
            sys.stdout.write(f"{line(progress)}\n")
        if progress.stuck != self._stuck:
            self._stuck = progress.stuck
            if progress.stuck is not None:
                sys.stdout.write(f"STUCK: {progress.stuck}\n")
        sys.stdout.flush()

    def warn(self, problem: str) -> None:
        sys.stderr.write(f"insync: {problem}\n")


class _TerminalDisplay:
    def __init__(self, update: Callable[[RenderableType], None]) -> None:
        self._update = update
        self._progress: MoveProgress | None = None

    def show(self, progress: MoveProgress) -> None:
        self._progress = progress
        self._update(view(progress))

    def warn(self, problem: str) -> None:
        warning = Text(f"not updated: {problem}", style="bold red")
        self._update(warning if self._progress is None else Group(view(self._progress), warning))


@contextmanager
def progress_display(*, as_json: bool) -> Iterator[ProgressDisplay]:
    console = make_console()
    if as_json:
        yield NoDisplay()
    elif not console.is_terminal:
        yield _LineDisplay()
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield _TerminalDisplay(lambda shown: live.update(shown, refresh=True))


def view(progress: MoveProgress) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("broker", "", "", "done", "left", "rate", "limit", "inbound", "ends in"):
        table.add_column(column, justify="left" if column in ("broker", "") else "right")
    for each in progress.brokers:
        table.add_row(
            str(each.broker),
            *_bar(each.done_bytes, each.left_bytes),
            *_amounts(each),
            "" if each.limit_bytes_per_s is None else rate_text(each.limit_bytes_per_s),
            "" if not each.inbound_bytes_per_s else rate_text(each.inbound_bytes_per_s),
            _ends_in(each.left_ms if each.moving else 0),
        )
    rate = "" if progress.rate_bytes_per_s is None else rate_text(progress.rate_bytes_per_s)
    table.add_row(
        "total",
        *_bar(progress.done_bytes, progress.left_bytes),
        size_text(progress.done_bytes),
        size_text(progress.left_bytes),
        rate,
        "",
        "",
        _ends_in(progress.left_ms),
        style="bold",
    )
    parts: list[RenderableType] = [table]
    parts += [
        Text(f"broker {broker}: {why}", style="red")
        for broker, why in sorted(progress.silent.items())
    ]
    if progress.stuck is not None:
        parts.append(Text(f"STUCK: {progress.stuck}", style="bold red"))
    return Group(*parts)


def _amounts(each: BrokerProgress) -> tuple[str, str, str]:
    rate = "" if each.rate_bytes_per_s is None else rate_text(each.rate_bytes_per_s)
    return size_text(each.done_bytes), size_text(each.left_bytes), rate


def _bar(done: int, left: int) -> tuple[RenderableType, str]:
    total = done + left
    bar = ProgressBar(total=max(total, 1), completed=done if total else 1, width=BAR_WIDTH)
    return bar, f"{percent(done, left)}%"


def percent(done: int, left: int) -> int:
    return 100 * done // (done + left) if done + left else 100


def _ends_in(left_ms: int | None) -> str:
    return "?" if left_ms is None else duration(left_ms)


def line(progress: MoveProgress) -> str:
    rate = (
        "" if progress.rate_bytes_per_s is None else f" at {rate_text(progress.rate_bytes_per_s)}"
    )
    return (
        f"{percent(progress.done_bytes, progress.left_bytes)}% "
        f"{size_text(progress.done_bytes)} done, "
        f"{size_text(progress.left_bytes)} left{rate}, ends in {_ends_in(progress.left_ms)} "
        f"({progress.moving} of {progress.copies} replicas move)"
    )


def data(progress: MoveProgress) -> dict[str, Any]:
    return {
        "moving": progress.moving,
        "replicas": progress.copies,
        "done_bytes": progress.done_bytes,
        "left_bytes": progress.left_bytes,
        "stuck": progress.stuck,
        "brokers": [
            {
                "broker": each.broker,
                "done_bytes": each.done_bytes,
                "left_bytes": each.left_bytes,
                "rate_bytes_per_s": each.rate_bytes_per_s,
                "limit_bytes_per_s": each.limit_bytes_per_s,
                "inbound_bytes_per_s": each.inbound_bytes_per_s,
                "left_ms": each.left_ms,
            }
            for each in progress.brokers
        ],
    }
