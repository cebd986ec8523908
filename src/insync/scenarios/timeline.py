"""What a played scenario looks like: rows of time, event and one cell per column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from insync.scenarios.text import Step


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a cell, and how it bodes."""

    text: str
    mood: Mood = Mood.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    parts: tuple[Part, ...]
    values: Mapping[str, object]  # the same for scripts
    decisions: tuple[str, ...] = ()  # what was decided at this moment

    @property
    def standing(self) -> str:
        """How things stand, leaving out what was decided just now."""
        return " ".join(part.text for part in self.parts[: len(self.parts) - len(self.decisions)])


class RowKind(Enum):
    STORY = "story"
    EVENT = "event"
    DECISION = "decision"  # nothing happened but time: a deadline came
    EXPECTED = "expected"  # what the document says, and it is so
    WRONG = "wrong"  # what the document says, and it is not so


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    kind: RowKind
    at_ms: int | None
    text: str
    cells: Mapping[str, Cell]


def judged(step: Step, columns: Iterable[str], found: Callable[[str, str], str]) -> Row:
    """An `expect` step as a row: `found(column, key)` is what is so."""
    wanted = step.word(0, "a column, or all")
    chosen = [column for column in columns if wanted in ("all", column)]
    if not chosen:
        raise step.refuse(f"there is no column {wanted!r}")
    if not step.values:
        raise step.refuse("expect needs key=value")
    surprises = [
        f"{column} has {key}={found(column, key)}"
        for column in chosen
        for key, expected in step.values.items()
        if found(column, key) != expected
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
