"""A move's progress for people: a bar per broker and in total; and the same as data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from insync.cli.replica_words import duration
from insync.moves.progress import BrokerLook, Look, rate_text, size_text

LINE_EVERY_MS = 10_000
BAR_WIDTH = 30


class Screen(Protocol):
    """Where looks go, and what went wrong between them."""

    def show(self, look: Look) -> None: ...

    def complain(self, problem: str) -> None: ...


class Silent:
    """For --json: only the end is told."""

    def show(self, look: Look) -> None:
        pass

    def complain(self, problem: str) -> None:
        pass


class _Lines:
    """Not a terminal: a line now and then, and whatever is new."""

    def __init__(self) -> None:
        self._at_ms: int | None = None
        self._stuck: str | None = None

    def show(self, look: Look) -> None:
        is_due = self._at_ms is None or look.at_ms >= self._at_ms + LINE_EVERY_MS
        if is_due or not look.moving:
            self._at_ms = look.at_ms
            sys.stdout.write(f"{line(look)}\n")
        if look.stuck != self._stuck:
            self._stuck = look.stuck
            if look.stuck is not None:
                sys.stdout.write(f"STUCK: {look.stuck}\n")
        sys.stdout.flush()

    def complain(self, problem: str) -> None:
        sys.stderr.write(f"insync: {problem}\n")


class _Terminal:
    def __init__(self, update: Callable[[RenderableType], None]) -> None:
        self._update = update
        self._look: Look | None = None

    def show(self, look: Look) -> None:
        self._look = look
        self._update(view(look))

    def complain(self, problem: str) -> None:
        words = Text(f"what is shown is old: {problem}", style="bold red")
        self._update(words if self._look is None else Group(view(self._look), words))


@contextmanager
def screen(*, as_json: bool) -> Iterator[Screen]:
    console = Console()
    if as_json:
        yield Silent()
    elif not console.is_terminal:
        yield _Lines()
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield _Terminal(lambda shown: live.update(shown, refresh=True))


def view(look: Look) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("broker", "", "", "done", "left", "rate", "limit", "inbound", "ends in"):
        table.add_column(column, justify="left" if column in ("broker", "") else "right")
    for each in look.brokers:
        table.add_row(
            str(each.broker),
            *_bar(each.done_bytes, each.left_bytes),
            *_amounts(each),
            "" if each.limit_bytes_per_s is None else rate_text(each.limit_bytes_per_s),
            "" if not each.inbound_bytes_per_s else rate_text(each.inbound_bytes_per_s),
            _ends_in(each.left_ms if each.moving else 0),
        )
    rate = "" if look.rate_bytes_per_s is None else rate_text(look.rate_bytes_per_s)
    table.add_row(
        "total",
        *_bar(look.done_bytes, look.left_bytes),
        size_text(look.done_bytes),
        size_text(look.left_bytes),
        rate,
        "",
        "",
        _ends_in(look.left_ms),
        style="bold",
    )
    parts: list[RenderableType] = [table]
    parts += [
        Text(f"broker {broker}: {why}", style="red") for broker, why in sorted(look.silent.items())
    ]
    if look.stuck is not None:
        parts.append(Text(f"STUCK: {look.stuck}", style="bold red"))
    return Group(*parts)


def _amounts(each: BrokerLook) -> tuple[str, str, str]:
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


def line(look: Look) -> str:
    rate = "" if look.rate_bytes_per_s is None else f" at {rate_text(look.rate_bytes_per_s)}"
    return (
        f"{percent(look.done_bytes, look.left_bytes)}% {size_text(look.done_bytes)} done, "
        f"{size_text(look.left_bytes)} left{rate}, ends in {_ends_in(look.left_ms)} "
        f"({look.moving} of {look.copies} replicas move)"
    )


def data(look: Look) -> dict[str, Any]:
    return {
        "moving": look.moving,
        "replicas": look.copies,
        "done_bytes": look.done_bytes,
        "left_bytes": look.left_bytes,
        "stuck": look.stuck,
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
            for each in look.brokers
        ],
    }
