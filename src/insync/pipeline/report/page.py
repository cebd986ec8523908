"""Points to HTML. All recorded values are escaped: a topic's name can be anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from insync.pipeline.report.advice_words import (
    TRADE_COLUMNS,
    advice_commands,
    advice_sentences,
    trade_rows,
)
from insync.pipeline.report.points import BARS_MAX, Points
from insync.pipeline.tables.episodes import CAUSES, OPEN
from insync.pipeline.tables.health import CRITICAL, OK, WARNING
from insync.pipeline.words import duration

PAGE_BYTES_MAX: Final = 1_000_000

CAUSE_WORDS: Final = {
    "stuck": "stopped fetching",
    "slow": "fetched, but fell behind",
    "bootstrapping": "new, catching up for the first time",
    "leader-slow-reads": "the leader's reads were slow",
    "throttled": "held back by a throttle",
    "burst": "a burst of messages, no real lag",
    "controller": "its broker died or restarted",
    "unrecorded": "its leaving is not recorded",
}
assert set(CAUSE_WORDS) == set(CAUSES), "every cause in words"


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


def render(points: Points, *, title: str, recommendation: str | None) -> str:
    folder = files("insync.pipeline.report")
    template = Template((folder / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        css=(folder / "page.css").read_text(encoding="utf-8"),
        js=(folder / "page.js").read_text(encoding="utf-8"),
        data=_as_script_data(points),
        span=_span(points),
        recommendation=_recommendation(points, recommendation),
        facts=_facts(points),
        timeline=_timeline(points),
        lag=_lag(points),
        what_if=_what_if(points),
        throttle=_throttle(points),
        health=_health(points),
        episodes=_episodes(points),
    )


def _as_script_data(points: Points) -> str:
    """JSON that cannot end its script element."""
    data = {
        "span": points.span_ms,
        "causes": CAUSE_WORDS,
        "timeline": points.timeline,
        "lag": points.lag,
        "limitMs": _limit_ms(points),
        "whatIf": points.what_if,
        "seconds": points.seconds,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _limit_ms(points: Points) -> int | None:
    """The lag limit in force, if there was one alone."""
    lowest, highest = (points.summary.get(f"limit_ms_{end}") for end in ("min", "max"))
    return lowest if lowest == highest else None


# The parts of the page.


def _missing(what: str, how: str) -> str:
    return f'<p class="missing"><strong>Not recorded.</strong> {escape(what)} {escape(how)}</p>'


def _nothing(what: str) -> str:
    return f'<p class="missing good">{escape(what)}</p>'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _cut(shown: Sequence[Any], total: int, what: str) -> str:
    """A note where there is more than is shown."""
    if total <= len(shown):
        return ""
    return _note(f"The {len(shown):,} {what} of {total:,}; all are in the table.")


def _chart(name: str, label: str) -> str:
    return (
        f'<div class="chart" data-chart="{name}" role="img" aria-label="{escape(label)}">'
        "<noscript>This chart is drawn by a script in this file.</noscript></div>"
    )


def _span(points: Points) -> str:
    if points.span_ms is None:
        return ""
    from_ms, to_ms = points.span_ms
    return (
        f'<time data-ms="{from_ms}"></time> to <time data-ms="{to_ms}"></time> '
        f"UTC ({duration(to_ms - from_ms)})"
    )


def _recommendation(points: Points, recommendation: str | None) -> str:
    if recommendation:
        return f"<p>{escape(recommendation)}</p>"
    if points.recommendation is not None:
        return _advice(points.recommendation)
    if points.what_if is None:
        return "<p>There is no what-if of this record, so no setting is recommended.</p>"
    return "<p>No recommendation was made of this what-if.</p>"


def _advice(row: dict[str, Any]) -> str:
    """What to do, what that rests on, the trade, and the commands."""
    headline, *statements = advice_sentences(row)
    lines = [[_text(text) for text in trade.values()] for trade in trade_rows(row)]
    headings = [Heading(name) for name in TRADE_COLUMNS]
    commands = "".join(
        f"<p>{escape(name)}: <code>{escape(command)}</code></p>"
        for name, command in advice_commands(row)
    )
    return (
        f"<p>{escape(headline)}</p>"
        + "".join(_note(statement) for statement in statements)
        + (_table("trade", headings, lines) if lines else "")
        + commands
    )


def _facts(points: Points) -> str:
    facts: list[tuple[str, str, str]] = []
    summary = points.summary
    if points.episodes is not None:
        replicas = _count(summary["replicas"], "replica")
        still = f"{summary['open']} still out" if summary["open"] else "all back in sync"
        facts.append((f"{summary['episodes']:,}", "times out of sync", still))
        facts.append(
            (
                duration(summary["out_ms"]),
                "with a replica out of sync",
                replicas,
            )
        )
    if points.health is not None:
        under_ms, topic = summary["under_min_isr_ms"], summary["under_min_isr_topic"]
        note = f"{topic}: acks=all was refused" if under_ms else "acks=all was never refused for it"
        facts.append((duration(under_ms), "below min ISR, the longest topic", note))
        topics = _count(summary["topics"], "topic")
        facts.append((f"{summary['leader_changes']:,}", "leader changes", topics))
    peaks = [value for each in (points.lag or {}).get("series", []) for value in each["ms"]]
    lags_ms = [value for value in peaks if value is not None]
    if lags_ms:
        facts.append((duration(max(lags_ms)), "highest lag", "by KAFKA-4485's definition"))
    return "".join(
        f'<div class="fact"><b>{escape(value)}</b><span>{escape(what)}</span>'
        f"<small>{escape(note)}</small></div>"
        for value, what, note in facts
    )


def _timeline(points: Points) -> str:
    if points.timeline is None or points.episodes is None:
        return _missing("There is no table of episodes.", "Run insync pipeline episodes.")
    if not points.episodes:
        return _nothing("No replica was out of sync.")
    replicas, bars = points.timeline["replicas"], points.timeline["bars"]
    note = _cut(replicas, points.summary["replicas"], "replicas that were out longest,")
    if len(bars) == BARS_MAX < points.summary["episodes"]:
        note += _note(f"Of their times out of sync the {BARS_MAX:,} longest.")
    return _chart("timeline", "When each replica was out of sync, and why") + note


def _lag(points: Points) -> str:
    if points.lag is None:
        return _missing("There is no table of lags.", "Run insync pipeline lag.")
    if not points.lag["series"]:
        return _nothing("No follower fetched.")
    units = "".join(
        f'<button type="button" data-unit="{unit}" aria-pressed="{str(unit == "ms").lower()}">'
        f"{label}</button>"
        for unit, label in (("ms", "time"), ("messages", "messages"), ("bytes", "bytes"))
    )
    return (
        f'<div class="choice" role="group" aria-label="Lag in">{units}</div>'
        + _chart("lag", "The highest lag at each moment, worst replicas apart")
    )  # fmt: skip


def _what_if(points: Points) -> str:
    if points.what_if is None:
        return _missing("There is no what-if.", "Run insync pipeline what-if.")
    if not points.what_if:
        return _nothing("The what-if has no rows: nothing was replayed.")
    return (
        '<div class="pair"><div><h3>False evictions</h3>'
        + _chart("false-evictions", "False evictions against the threshold, a line per policy")
        + "</div><div><h3>Detection delay of a real lag, p99</h3>"
        + _chart("detection", "Detection delay against the threshold, a line per policy")
        + '</div></div><div class="legend" data-legend="policies"></div>'
        '<p class="note">Traffic is taken as recorded: another policy changes verdicts, not '
        "traffic. Hollow points are below the resolution of the record.</p>"
        + _cut(points.what_if, points.summary["scenarios"], "first rules and thresholds")
    )


def _throttle(points: Points) -> str:
    if points.seconds is None and points.throttle is None:
        return _missing("No throttle was recorded.", "Brokers record throttles while they are set.")
    if not points.seconds and not points.throttle:
        return _nothing("No throttle was set.")
    charts = table = ""
    if points.seconds:
        charts = _chart("throttle", "Throttled bytes per second against the limit")
        charts += _cut(points.seconds, points.summary["limits"], "limits that held back longest,")
    if points.throttle:
        table = _table("throttles", _SPAN_HEADINGS, _span_rows(points.throttle))
        table += _cut(points.throttle, points.summary["spans"], "worst spans")
    return charts + table


_SPAN_HEADINGS: Final = (
    Heading("broker"),
    Heading("side"),
    Heading("limit"),
    Heading("used", "mean rate over the limit"),
    Heading("held back"),
    Heading("verdict", "KIP-73: IN < T < N - IN/R"),
    Heading("estimated"),
    Heading("real"),
    Heading("move"),
)


def _span_rows(spans: Sequence[dict[str, Any]]) -> list[list[Cell]]:
    rows = []
    for row in spans:
        is_known = row["lag_bytes_first"] is not None  # what was to be copied
        rows.append(
            [
                _text(str(row["broker"]), "broker"),
                _text(row["side"]),
                _measure(row["limit_bytes_per_s"], rate),
                _measure(row["use"], lambda use: f"{100 * use:.0f} %"),
                _measure(1_000 * row["held_back_s"], duration),
                _text(row["verdict"] or "unknown", f"verdict-{row['verdict']}"),
                _measure(row["estimated_ms"], duration, none="never" if is_known else "unknown"),
                _measure(row["real_ms"], duration, none="not yet" if is_known else "unknown"),
                _text(row["progress"] or "unknown", f"progress-{row['progress']}"),
            ]
        )
    return rows


def _health(points: Points) -> str:
    if points.health is None:
        return _missing("There is no table of health.", "Run insync pipeline report.")
    order = {CRITICAL: 0, WARNING: 1, OK: 2}
    parts = []
    for level in ("topic", "broker"):
        rows = [
            [
                _text(row["name"], "name" if level == "topic" else "broker"),
                Cell(row["status"], order[row["status"]], f"status status-{row['status']}"),
                _text(row["reason"] or "nothing happened", "reason"),
                _measure(row["lag_ms_max"], duration, none="unknown"),
                _number(row["episodes"]),
                _measure(row["out_ms"], duration),
                _measure(row["under_min_isr_ms"], duration),
                _number(row["leader_changes"]),
            ]
            for row in points.health
            if row["level"] == level
        ]
        headings = (
            Heading(level), Heading("state"), Heading("why"), Heading("highest lag"),
            Heading("times out"), Heading("time out"), Heading("below min ISR"),
            Heading("leader changes"),
        )  # fmt: skip
        parts += [
            f"<h3>{level.capitalize()}s</h3>",
            _table(f"health-{level}", headings, rows),
            _cut(rows, points.summary[f"{level}s"], f"worst {level}s"),
        ]
    return "".join(parts)


_EPISODE_HEADINGS: Final = (
    Heading("replica"),
    Heading("cause"),
    Heading("began", "the first cause, UTC"),
    Heading("left", "after the first cause"),
    Heading("out for"),
    Heading("lag", "true lag when it left"),
    Heading("lacked", "messages that it lacked when it left"),
    Heading("leader"),
    Heading("below min ISR"),
    Heading("leader changes"),
    Heading("in a row", "episodes of one series of flaps"),
    Heading("KIP-501", "would a pending read have kept it in the ISR?"),
)


def _episodes(points: Points) -> str:
    if points.episodes is None:
        return _missing("There is no table of episodes.", "Run insync pipeline episodes.")
    if not points.episodes:
        return _nothing("No replica was out of sync.")
    note = _cut(points.episodes, points.summary["episodes"], "longest")
    search = (
        '<input type="search" data-filters="episodes" placeholder="Filter: topic, cause, broker"'
        ' aria-label="Filter episodes">'
    )
    rows = [_episode_row(row) for row in points.episodes]
    return search + _table("episodes", _EPISODE_HEADINGS, rows) + note


def _episode_row(row: dict[str, Any]) -> list[Cell]:
    first_ms = row["began_at_ms"] or row["left_at_ms"] or row["rejoined_at_ms"]
    out = duration(row["out_ms"]) if row["out_ms"] is not None else "unknown"
    is_open = row["ending"] == OPEN
    replica = f"{row['topic']}-{row['partition']} on {row['follower']}"
    sort_key = f"{row['topic']} {row['partition']:09d} {row['follower']:09d}"
    left = row["left_at_ms"]
    after = None if left is None or row["began_at_ms"] is None else left - row["began_at_ms"]
    would_hold = row["kip501_would_hold"]
    return [
        Cell(replica, sort_key, "name"),
        Cell(row["cause"], row["cause"], f"cause cause-{row['cause']}", CAUSE_WORDS[row["cause"]]),
        Cell("", first_ms, "moment"),
        _measure(after, lambda ms: f"+{duration(ms)}"),
        Cell(
            f"{out}, still" if is_open else out, _or_less(row["out_ms"]), "open" if is_open else ""
        ),
        _measure(row["lag_ms"], duration),
        _measure(row["lag_messages"], lambda count: f"{count:,}"),
        _text(str(row["leader"])),
        _measure(row["under_min_isr_ms"], duration),
        _number(row["leader_changes"]),
        _number(row["flaps"]),
        Cell({None: "-", True: "held", False: "no"}[would_hold], str(would_hold)),
    ]


def _or_less(value: int | None) -> int:
    """What is unknown sorts below everything."""
    return -1 if value is None else value


# Tables.


def _table(name: str, headings: Sequence[Heading], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(
        f'<th scope="col"{_class(_kind(cell))}{_hint(each.hint)}>'
        f'<button type="button">{escape(each.text)}</button></th>'
        for each, cell in zip(
            headings, rows[0] if rows else [_text("")] * len(headings), strict=True
        )
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows
    )  # fmt: skip
    return (
        f'<div class="scroll"><table data-table="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    key = f' data-v="{escape(str(cell.sorts_by))}"'
    text = f"<span>{escape(cell.text)}</span>" if "status" in cell.kind else escape(cell.text)
    return f"<td{_class(cell.kind, _kind(cell))}{key}{_hint(cell.hint)}>{text}</td>"


def _kind(cell: Cell) -> str:
    is_measured = isinstance(cell.sorts_by, int | float) and not cell.kind.startswith("status")
    return "number" if is_measured and cell.kind != "moment" else ""


def _class(*kinds: str) -> str:
    kind = " ".join(part for part in kinds if part)
    return f' class="{escape(kind)}"' if kind else ""


def _hint(hint: str) -> str:
    return f' title="{escape(hint)}"' if hint else ""


def _text(text: str, kind: str = "") -> Cell:
    return Cell(text, text, kind)


def _number(value: int | None) -> Cell:
    return _measure(value, lambda count: f"{count:,}")


def _measure(value: Any, words: Callable[[Any], str], *, none: str = "-") -> Cell:
    if value is None:
        return Cell(none, -1, "none")
    return Cell(words(value), value) if value else Cell("0", 0, "none")


# Numbers in words.


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def rate(bytes_per_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s:.0f} B/s"
