"""A table on a terminal of any width: no cell is cut, and columns left out are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from insync.pipeline.words import duration, percent, rate, size, utc

GAP: Final = 2
PROSE_WIDTH_MIN: Final = 20  # sentences are folded, but not into a ladder of words
NAME_WIDTH_MAX: Final = 40  # a topic's may have 249 characters
SECOND_MS: Final = 1_000
SETTINGS: Final = frozenset({"lag_time_max_ms", "lag_max_messages"})


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    cells: Sequence[str]
    is_number: bool

    @property
    def widest(self) -> int:
        words = self.heading.split()
        return max(map(cell_len, (*words, *self.cells)))

    @property
    def least(self) -> int:
        """In less width the column is left out."""
        is_prose = any(" " in cell for cell in self.cells)
        return min(self.widest, PROSE_WIDTH_MIN if is_prose else NAME_WIDTH_MAX)


class ResultTable:
    """Columns in the order of importance: those that do not fit are left out, and named."""

    def __init__(
        self, title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], caption: str
    ) -> None:
        self._title, self._caption, self._count = title, caption, len(rows)
        every = [_column(name, [row[name] for row in rows]) for name in columns]
        self._columns = [column for column in every if any(column.cells)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(_fit(self._columns, options.max_width))
        yield line(self._title, "bold")
        if shown:
            yield self._table(shown, options.max_width)
        names = [column.heading for column in self._columns if column not in shown]
        omitted = f"; no room for {', '.join(names)}" if names else ""
        yield Text(f"{self._caption}{omitted}", style="dim italic")

    def _table(self, columns: Sequence[Column], width: int) -> Table:
        spare = width - sum(column.least + GAP for column in columns) + GAP
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for column in columns:
            more = min(max(spare, 0), column.widest - column.least)
            spare -= more
            table.add_column(
                Text(column.heading),
                width=column.least + more,
                justify="right" if column.is_number else "left",
                overflow="fold",
            )
        for at in range(self._count):
            table.add_row(*(Text(column.cells[at]) for column in columns))
        return table


def line(text: str, style: str = "") -> Text:
    """Plain text: brackets are no markup. A terminal folds it, a pipe does not."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _fit(columns: Sequence[Column], width: int) -> Iterator[Column]:
    room = width + GAP
    for column in columns:
        if column.least + GAP <= room or column is columns[0]:
            room -= column.least + GAP
            yield column


def _column(name: str, values: Sequence[Any]) -> Column:
    heading, words = _unit(name)
    return Column(
        heading.replace("_", " "),
        [_text(value, words) for value in values],
        is_number=any(isinstance(value, int | float) for value in values),
    )


def _unit(name: str) -> tuple[str, Callable[[Any], str]]:
    """The heading of a column and the words for its values: a column's name ends with its unit.

    Settings keep theirs: their values are typed, not read.
    """
    if name in SETTINGS:
        return name, str
    if name.endswith("_at_ms"):
        return f"{name.removesuffix('_ms')} UTC", _time
    if name.endswith("_bytes_per_s"):
        return name.removesuffix("_bytes_per_s"), rate
    if "_ms" in name:
        return name.replace("_ms", ""), duration
    if name.endswith("_s"):
        return name.removesuffix("_s"), _seconds
    return name, size if "bytes" in name else percent if name == "use" else str


def _seconds(number: int) -> str:
    return duration(number * SECOND_MS)


def _time(at_ms: int) -> str:
    return utc(at_ms, "%FT%T")


def _text(value: object, words: Callable[[Any], str]) -> str:
    """None and False are empty: a column with nothing in it is left out."""
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case float() if words is str:
            return f"{value:.2f}"
        case _:
            return _printable(words(value))


def _printable(text: str) -> str:
    """With escapes for what would control the terminal: an export's names may be anybody's."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
