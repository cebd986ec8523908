"""A played scenario: rows of time and event, with one cell per column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from insync.scenarios.text import Scenario, Step


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class CellPart:
    """A piece of a cell, and whether it is good or bad news."""

    text: str
    mood: Mood = Mood.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    parts: tuple[CellPart, ...]
    values: Mapping[str, object]  # the same as data
    decisions: tuple[str, ...] = ()  # what was decided at this moment

    @property
    def standing(self) -> str:
        """The state, without the decisions of this row."""
        return " ".join(part.text for part in self.parts[: len(self.parts) - len(self.decisions)])


class RowKind(Enum):
    STORY = "story"
    EVENT = "event"
    DECISION = "decision"  # no event: a deadline passed
    EXPECTED = "expected"  # a statement of the document, which holds
    WRONG = "wrong"  # a statement of the document, which does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    kind: RowKind
    at_ms: int | None
    text: str
    cells: Mapping[str, Cell]


def judged(step: Step, columns: Iterable[str], value_of: Callable[[str, str], str]) -> Row:
    """An `expect` step as a row: `value_of(column, key)` is the value there."""
    name = step.word(0, "a column, or all")
    chosen = [column for column in columns if name in ("all", column)]
    if not chosen:
        raise step.refuse(f"there is no column {name!r}")
    if not step.values:
        raise step.refuse("expect needs key=value")
    surprises = [
        f"{column} has {key}={value_of(column, key)}"
        for column in chosen
        for key, expected in step.values.items()
        if value_of(column, key) != expected
    ]
    text = str(step).removeprefix("expect ")
    if surprises:
        text = f"line {step.line}: expected {text}, but {'; '.join(surprises)}"
    kind = RowKind.WRONG if surprises else RowKind.EXPECTED
    return Row(kind=kind, at_ms=step.at_ms, text=text, cells={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    name: str
    title: str
    document: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind is RowKind.WRONG)


def timeline_of(scenario: Scenario, rows: Iterable[Row]) -> Timeline:
    return Timeline(
        name=scenario.name,
        title=scenario.title,
        document=scenario.document,
        columns=scenario.columns,
        rows=tuple(rows),
    )
