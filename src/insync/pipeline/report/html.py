"""Pieces of HTML. All recorded values are escaped: a topic's name can be anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from insync.pipeline.words import utc


@dataclass(frozen=True, slots=True)
class Cell:
    """What a reader sees, and what a table sorts by."""

    text: str
    sorts_by: float | str
    kind: str = ""  # a class of the style sheet
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    hint: str = ""


def missing(what: str, how: str) -> str:
    return f'<p class="missing"><strong>Not recorded.</strong> {escape(what)} {escape(how)}</p>'


def nothing(what: str) -> str:
    return f'<p class="missing good">{escape(what)}</p>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def cut(shown: Sequence[Any], total: int, what: str, *, table: str) -> str:
    """A note where there is more than is shown, and where the rest is."""
    if total <= len(shown):
        return ""
    return note(f"The {len(shown):,} {what} of {total:,}; all are in the table {table}.")


def chart(name: str, label: str) -> str:
    return (
        f'<div class="chart" data-chart="{name}" role="figure" aria-label="{escape(label)}">'
        "<noscript>This chart is drawn by a script in this file.</noscript></div>"
    )


def details(summary: str, body: str, attributes: str = "") -> str:
    """Both are HTML."""
    return f"<details{attributes}><summary>{summary}</summary>{body}</details>"


def moment(at_ms: int, *, with_date: bool) -> str:
    """In UTC, to the second."""
    form = "%F %T" if with_date else "%T"
    return utc(at_ms, form)


def time(at_ms: int, *, with_date: bool) -> str:
    full = utc(at_ms, "%FT%TZ")
    return f'<time datetime="{full}">{moment(at_ms, with_date=with_date)}</time>'


# Tables.


def table(
    name: str, label: str, headings: Sequence[Heading], rows: Sequence[Sequence[Cell]]
) -> str:
    """A wide table scrolls by itself, also with the keyboard."""
    head = "".join(
        f'<th scope="col"{_class(_kind(cell))}{_hint(each.hint)}>'
        f'<button type="button">{escape(each.text)}</button></th>'
        for each, cell in zip(
            headings, rows[0] if rows else [text("")] * len(headings), strict=True
        )
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows
    )  # fmt: skip
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table data-table="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    is_apart = str(cell.sorts_by) != cell.text
    key = f' data-v="{escape(str(cell.sorts_by))}"' if is_apart else ""
    words = f"<span>{escape(cell.text)}</span>" if "status" in cell.kind else escape(cell.text)
    return f"<td{_class(cell.kind, _kind(cell))}{key}{_hint(cell.hint)}>{words}</td>"


def _kind(cell: Cell) -> str:
    is_measured = isinstance(cell.sorts_by, int | float) and not cell.kind.startswith("status")
    return "number" if is_measured and cell.kind != "moment" else ""


def _class(*kinds: str) -> str:
    kind = " ".join(part for part in kinds if part)
    return f' class="{escape(kind)}"' if kind else ""


def _hint(hint: str) -> str:
    return f' title="{escape(hint)}"' if hint else ""


def text(words: str, kind: str = "") -> Cell:
    return Cell(words, words, kind)


def number(value: int | None) -> Cell:
    return measure(value, lambda count: f"{count:,}")


def measure(value: Any, words: Callable[[Any], str], *, none: str = "-") -> Cell:
    if value is None:
        return Cell(none, -1, "none")
    return Cell(words(value), value) if value else Cell("0", 0, "none")
