"""A timeline on a terminal of any width.

Notes span the width above the row they belong to. Policies with the same verdicts share a column.
Where the columns do not fit side by side, each row lists the verdicts that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from insync.scenarios.timeline import Cell, Mood, Row, RowKind, Timeline

GAP: Final = "  "
GLUE: Final = "\ue000"  # stands for a space at which no line is broken, while lines are wrapped
EVENT_WIDTH_MAX: Final = 40
EVENT_WIDTH_MAX_IN_LIST: Final = 24  # the verdicts need the room
STYLES: Final = {Mood.GOOD: "green", Mood.BAD: "bold red", Mood.PLAIN: ""}
STATEMENTS: Final = (RowKind.EXPECTED, RowKind.WRONG)


@dataclass(frozen=True, slots=True)
class Column:
    """Policies whose verdicts are the same in every row."""

    names: tuple[str, ...]
    cells: tuple[Cell | None, ...]  # by row; None where nothing changed

    @property
    def heading(self) -> list[str]:
        """One line per policy; a variant (`caught-up/half-period`) has a line of its own."""
        return [
            f"/{word}" if at else word
            for name in self.names
            for at, word in enumerate(name.split("/"))
        ]

    @property
    def width(self) -> int:
        lines = [line.plain for cell in self.cells if cell is not None for line in _lines(cell)]
        return max(map(cell_len, [*self.heading, *lines]))


class TimelineView:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._columns = _merge_columns(timeline)
        events = [row.text for row in timeline.rows if row.cells]
        longest = max(map(cell_len, events), default=0)
        self._event_width = max(len("event"), min(longest, EVENT_WIDTH_MAX))
        self._listed_event_width = min(self._event_width, EVENT_WIDTH_MAX_IN_LIST)
        times = [str(row.at_ms) for row in timeline.rows if row.at_ms is not None]
        self._time_width = max(map(len, ["ms", *times]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield Text(self._timeline.title, style="bold")
        yield Text(self._timeline.document, style="dim")
        yield Text("")
        fixed = self._time_width + len(GAP) + self._event_width
        is_wide = fixed + sum(len(GAP) + each.width for each in self._columns) <= width
        yield from self._headings(is_wide=is_wide)
        numbered = enumerate(self._timeline.rows)
        for key, group in groupby(numbered, key=lambda pair: _kind_and_time(pair[1])):
            if key[0] in STATEMENTS:
                yield from self._statements(console, [row for _, row in group], width)
                continue
            for at, row in group:
                if row.kind is RowKind.STORY:
                    yield Text("")
                    yield from _wrap(console, Text(row.text, style="italic"), width)
                elif is_wide:
                    yield from self._side_by_side(console, at, row)
                else:
                    yield from self._listed(console, at, row, width)
        yield Text("")
        yield _summary(self._timeline)

    def _headings(self, *, is_wide: bool) -> Iterator[Text]:
        cells = [each.heading for each in self._columns] if is_wide else [["verdicts that change"]]
        depth = max(map(len, cells))
        for line in range(depth):
            is_last = line == depth - 1
            event_width = self._event_width if is_wide else self._listed_event_width
            words = ["ms".rjust(self._time_width), "event".ljust(event_width)]
            if not is_last:
                words = [" " * len(word) for word in words]
            for at, heading in enumerate(cells):
                padded = [""] * (depth - len(heading)) + heading
                width = self._columns[at].width if is_wide else 0
                words.append(padded[line].ljust(width))
            yield Text(GAP.join(words).rstrip(), style="bold")

    def _prefix(self, at_ms: int | None) -> Text:
        return Text(("" if at_ms is None else str(at_ms)).rjust(self._time_width) + GAP)

    def _side_by_side(self, console: Console, at: int, row: Row) -> Iterator[Text]:
        blocks = [_wrap(console, _event(row), self._event_width)]
        blocks += [
            [] if (cell := each.cells[at]) is None else _lines(cell) for each in self._columns
        ]
        widths = [self._event_width, *(each.width for each in self._columns)]
        for number, pieces in enumerate(zip_longest(*blocks, fillvalue=Text(""))):
            line = self._prefix(row.at_ms if number == 0 else None)
            for piece, width in zip(pieces, widths, strict=True):
                line.append_text(piece)
                line.append(" " * (width - piece.cell_len) + GAP)
            line.rstrip()
            yield line

    def _listed(self, console: Console, at: int, row: Row, width: int) -> Iterator[Text]:
        verdicts = [
            Text.assemble((f"{names}: ", "bold"), _one_line(cell))
            for names, cell in self._changes(at)
        ]
        prefix = self._prefix(row.at_ms)
        event_width = self._listed_event_width
        room = width - prefix.cell_len - event_width - len(GAP)
        wrapped = [line for verdict in verdicts for line in _hang(console, verdict, room)]
        event = _wrap(console, _event(row), event_width)
        for number, (left, right) in enumerate(zip_longest(event, wrapped, fillvalue=Text(""))):
            line = prefix.copy() if number == 0 else self._prefix(None)
            line.append_text(left)
            line.append(" " * (event_width - left.cell_len) + GAP)
            line.append_text(right)
            line.rstrip()
            yield line

    def _changes(self, at: int) -> Iterator[tuple[str, Cell]]:
        """The verdicts that changed in a row, each with the policies that share it."""
        by_text: dict[str, tuple[list[str], Cell]] = {}
        for column in self._columns:
            cell = column.cells[at]
            if cell is not None:
                names, _ = by_text.setdefault(_one_line(cell).plain, ([], cell))
                names += column.names
        for names, cell in by_text.values():
            yield _name_policies(names, self._timeline.columns), cell

    def _statements(self, console: Console, rows: Sequence[Row], width: int) -> Iterator[Text]:
        """Statements of one moment that hold, in one paragraph; each that does not, by itself."""
        prefix = self._prefix(rows[0].at_ms)
        if rows[0].kind is RowKind.WRONG:
            paragraphs = [Text(f"WRONG {row.text}", style="bold red") for row in rows]
        else:
            text = "; ".join(_merge_statements(rows, self._timeline.columns))
            paragraphs = [Text(f"ok {text}", style="dim green")]
        for paragraph in paragraphs:
            for line in _hang(console, paragraph, width - prefix.cell_len):
                yield prefix + line
                prefix = self._prefix(None)


def statements_text(timelines: Sequence[Timeline]) -> str:
    wrong = sum(len(timeline.wrong) for timeline in timelines)
    return f"{sum(map(_count_statements, timelines))} statements, {wrong} wrong"


def _count_statements(timeline: Timeline) -> int:
    return sum(row.kind in STATEMENTS for row in timeline.rows)


def _kind_and_time(row: Row) -> tuple[RowKind, int | None]:
    return row.kind, row.at_ms


def _merge_columns(timeline: Timeline) -> list[Column]:
    merged: dict[tuple[str, ...], Column] = {}
    for name in timeline.columns:
        cells = tuple(_changed_cells(timeline, name))
        key = tuple("" if cell is None else _one_line(cell).plain for cell in cells)
        same = merged.get(key)
        merged[key] = Column((name,) if same is None else (*same.names, name), cells)
    return list(merged.values())


def _changed_cells(timeline: Timeline, name: str) -> Iterator[Cell | None]:
    """A cell is shown where it changes; an unchanged one would hide what did."""
    standing: str | None = None
    for row in timeline.rows:
        cell = row.cells.get(name)
        if cell is None or (cell.standing == standing and not cell.decisions):
            yield None
        else:
            standing = cell.standing
            yield cell


def _name_policies(names: Sequence[str], every: Sequence[str]) -> str:
    """The policies by name, or by the fewer ones that are not meant."""
    others = [name for name in every if name not in names]
    if not others and len(every) > 1:
        return "all"
    return f"all but {', '.join(others)}" if 0 < len(others) < len(names) else ", ".join(names)


def _merge_statements(rows: Iterable[Row], every: Sequence[str]) -> Iterator[str]:
    """`messages isr=1`, `caught-up isr=1` become one statement about both."""
    by_claim: dict[str, list[str]] = {}
    for row in rows:
        name, _, claim = row.text.partition(" ")
        by_claim.setdefault(claim, []).append(name)
    for claim, names in by_claim.items():
        policies = "all" if "all" in names else _name_policies(list(dict.fromkeys(names)), every)
        yield f"{policies} {claim}"


def _lines(cell: Cell) -> list[Text]:
    """How things stand, then one line per decision."""
    texts = [Text(part.text, style=STYLES[part.mood]) for part in cell.parts]
    stands = len(texts) - len(cell.decisions)
    return [Text(" ").join(texts[:stands]), *texts[stands:]]


def _one_line(cell: Cell) -> Text:
    parts = (Text(part.text.replace(" ", GLUE), style=STYLES[part.mood]) for part in cell.parts)
    return Text(" ").join(parts)


def _hang(console: Console, text: Text, width: int) -> Iterator[Text]:
    """Wrapped, with all lines but the first indented."""
    first, *rest = text.wrap(console, width)
    yield from _wrap(console, first, width)
    if rest:
        for line in rest:
            line.rstrip()
        for line in _wrap(console, Text(" ").join(rest), width - len(GAP)):
            yield Text(GAP) + line


def _wrap(console: Console, text: Text, width: int) -> list[Text]:
    lines = list(text.wrap(console, width))
    for line in lines:
        line.rstrip()
        line.plain = line.plain.replace(GLUE, " ")
    return lines


def _event(row: Row) -> Text:
    return Text(row.text, style="dim" if row.kind is RowKind.DECISION else "")


def _summary(timeline: Timeline) -> Text:
    count = _count_statements(timeline)
    if timeline.wrong:
        return Text(f"{len(timeline.wrong)} of {count} statements do not hold", style="bold red")
    return Text(f"*leader +in sync -out of sync; {count} statements checked", style="dim")
