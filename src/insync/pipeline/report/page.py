"""Points to HTML: the sections of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from insync.pipeline.report import incident_section
from insync.pipeline.report.advice_words import (
    TRADE_COLUMNS,
    advice_commands,
    advice_sentences,
    trade_rows,
)
from insync.pipeline.report.html import (
    Cell,
    Heading,
    chart,
    cut,
    details,
    measure,
    missing,
    moment,
    note,
    nothing,
    number,
    table,
    text,
    time,
)
from insync.pipeline.report.incident_section import CAUSE_WORDS
from insync.pipeline.report.points import Points
from insync.pipeline.report.ticks import COUNTS, STEPS_MS, time_ticks
from insync.pipeline.tables.health import CRITICAL, OK, WARNING
from insync.pipeline.words import count as _count
from insync.pipeline.words import duration, percent, rate

PAGE_BYTES_MAX: Final = 1_000_000


def render(points: Points, *, title: str, recommendation: str | None) -> str:
    folder = files("insync.pipeline.report")
    template = Template((folder / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        css=(folder / "page.css").read_text(encoding="utf-8"),
        js=(folder / "page.js").read_text(encoding="utf-8"),
        data=_as_script_data(points),
        span=_span(points),
        health=_overall(points) + _health(points),
        recommendation=_recommendation(points, recommendation),
        facts=_facts(points),
        incidents=_incidents(points),
        lag=_lag(points),
        what_if=_what_if(points),
        throttle=_throttle(points),
    )


def _as_script_data(points: Points) -> str:
    """JSON that cannot end its script element."""
    from_ms, to_ms = points.span_ms or (0, 0)
    data = {
        "span": points.span_ms,
        "ticks": {each: time_ticks(from_ms, to_ms, each) for each in COUNTS},
        "steps": STEPS_MS,
        "causes": CAUSE_WORDS,
        "incidents": incident_section.bars(points.incidents or [], to_ms),
        "lag": points.lag,
        "limitMs": _limit_ms(points),
        "whatIf": points.what_if,
        "seconds": points.seconds,
    }
    script = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return script.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _limit_ms(points: Points) -> int | None:
    """The lag limit in force, if there was one alone."""
    lowest, highest = (points.summary.get(f"limit_ms_{end}") for end in ("min", "max"))
    return lowest if lowest == highest else None


# The parts of the page.


def _with_date(points: Points) -> bool:
    """Whether a time of day alone could be of several days."""
    return (
        points.span_ms is None
        or len({moment(at, with_date=True)[:10] for at in points.span_ms}) > 1
    )


def _span(points: Points) -> str:
    if points.span_ms is None:
        return ""
    from_ms, to_ms = points.span_ms
    ends = (time(each, with_date=True) for each in (from_ms, to_ms))
    return f"{' to '.join(ends)} UTC ({duration(to_ms - from_ms)})"


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
    lines = [[text(value) for value in trade.values()] for trade in trade_rows(row)]
    headings = [Heading(name) for name in TRADE_COLUMNS]
    commands = "".join(
        f"<p>{escape(name)}: <code>{escape(command)}</code></p>"
        for name, command in advice_commands(row)
    )
    return (
        f"<p>{escape(headline)}</p>"
        + "".join(note(statement) for statement in statements)
        + (table("trade", "The trade between limits", headings, lines) if lines else "")
        + commands
    )


def _facts(points: Points) -> str:
    facts: list[tuple[str, str, str]] = []
    summary = points.summary
    if points.incidents is not None:
        still = f"{summary['open']} still out" if summary["open"] else "all back in sync"
        facts.append((f"{summary['episodes']:,}", "times out of sync", still))
        facts.append(
            (
                duration(summary["out_ms"]),
                "with a replica out of sync",
                _count(summary["replicas"], "replica"),
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


def _incidents(points: Points) -> str:
    if points.incidents is None:
        return missing("There is no table of episodes.", "Run insync pipeline episodes.")
    if not points.incidents:
        return nothing("No replica was out of sync.")
    return chart(
        "incidents", "When replicas of each broker were out of sync, and why"
    ) + incident_section.section(
        points.incidents, points.summary["incidents"], with_date=_with_date(points)
    )


def _lag(points: Points) -> str:
    if points.lag is None:
        return missing("There is no table of lags.", "Run insync pipeline lag.")
    if not points.lag["series"]:
        return nothing("No follower fetched.")
    units = "".join(
        f'<button type="button" data-unit="{unit}" aria-pressed="{str(unit == "ms").lower()}">'
        f"{label}</button>"
        for unit, label in (("ms", "time"), ("messages", "messages"), ("bytes", "bytes"))
    )
    return (
        f'<div class="choice" role="group" aria-label="Lag in">{units}</div>'
        + chart("lag", "The highest lag at each moment, worst replicas apart")
    )  # fmt: skip


def _what_if(points: Points) -> str:
    if points.what_if is None:
        return missing("There is no what-if.", "Run insync pipeline what-if.")
    if not points.what_if:
        return nothing("The what-if has no rows: nothing was replayed.")
    return (
        '<div class="pair"><div><h3>False evictions</h3>'
        + chart("false-evictions", "False evictions against the threshold, a line per policy")
        + "</div><div><h3>Detection delay of a real lag, p99</h3>"
        + chart("detection", "Detection delay against the threshold, a line per policy")
        + '</div></div><div class="legend" data-legend="policies"></div>'
        '<p class="note">Traffic is taken as recorded: another policy changes verdicts, not '
        "traffic. Hollow points are below the resolution of the record.</p>"
        + cut(
            points.what_if,
            points.summary["scenarios"],
            "first rules and thresholds",
            table="what_if",
        )
    )


def _throttle(points: Points) -> str:
    if points.seconds is None and points.throttle is None:
        return missing("No throttle was recorded.", "Brokers record throttles while they are set.")
    if not points.seconds and not points.throttle:
        return nothing("No throttle was set.")
    charts = spans = ""
    if points.seconds:
        charts = chart("throttle", "Throttled bytes per second against the limit")
        limits = points.summary["limits"]
        charts += cut(points.seconds, limits, "limits that held back longest,", table="throttle")
    if points.throttle:
        spans += table("throttles", "Throttles", _SPAN_HEADINGS, _span_rows(points.throttle))
        spans += cut(points.throttle, points.summary["spans"], "worst spans", table="throttle")
    return charts + spans


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
    Heading("difference", "why the real time is not the estimated one"),
)


def _span_rows(spans: Sequence[dict[str, Any]]) -> list[list[Cell]]:
    rows = []
    for row in spans:
        is_known = row["lag_bytes_first"] is not None  # what was to be copied
        rows.append(
            [
                text(str(row["broker"]), "broker"),
                text(row["side"]),
                measure(row["limit_bytes_per_s"], rate),
                measure(row["use"], percent),
                measure(1_000 * row["held_back_s"], duration),
                text(row["verdict"], f"verdict-{row['verdict']}"),
                measure(row["estimated_ms"], duration, none="never" if is_known else "unknown"),
                measure(row["real_ms"], duration, none="not yet" if is_known else "unknown"),
                text(row["progress"] or "unknown", f"progress-{row['progress']}"),
                text(row["difference"], "reason"),
            ]
        )
    return rows


_HEALTH_HEADINGS: Final = (
    Heading("state"), Heading("why"), Heading("highest lag"), Heading("times out"),
    Heading("time out"), Heading("below min ISR"), Heading("leader changes"),
)  # fmt: skip


def _overall(points: Points) -> str:
    """The answer of a daily check, in a line."""
    if points.health is None:
        return ""
    facts = []
    for level in ("topic", "broker"):
        total = points.summary[f"{level}s"]
        bad = [(points.summary[f"{status} {level}s"], status) for status in (CRITICAL, WARNING)]
        states = ", ".join(f"{each} {status}" for each, status in bad if each) or "all ok"
        facts.append(f"{_count(total, level)}: {states}")
    worst = next(
        (
            status
            for status in (CRITICAL, WARNING)
            if any(points.summary[f"{status} {level}s"] for level in ("topic", "broker"))
        ),
        OK,
    )
    return (
        f'<p class="overall status status-{worst}"><span>{worst}</span> '
        f"{escape('; '.join(facts))}</p>"
    )


def _health(points: Points) -> str:
    if points.health is None:
        return missing("There is no table of health.", "Run insync pipeline report.")
    parts = []
    for level in ("topic", "broker"):
        lines = [row for row in points.health if row["level"] == level]
        news = [_health_row(row) for row in lines if row["status"] != OK]
        calm = [_health_row(row) for row in lines if row["status"] == OK]
        headings = (Heading(level), *_HEALTH_HEADINGS)
        parts += [f"<h3>{level.capitalize()}s</h3>"] if lines else []
        parts += [table(f"health-{level}", f"Health of {level}s", headings, news)] if news else []
        if calm:
            well = table(f"health-{level}-ok", f"{level}s that are ok", headings, calm)
            parts.append(details(f"{_count(len(calm), level)} ok", well))
        total = points.summary[f"{level}s"]
        parts.append(cut(lines, total, f"worst {level}s", table="health"))
    return "".join(parts)


def _health_row(row: dict[str, Any]) -> list[Cell]:
    order = {CRITICAL: 0, WARNING: 1, OK: 2}
    return [
        text(row["name"], "name" if row["level"] == "topic" else "broker"),
        Cell(row["status"], order[row["status"]], f"status status-{row['status']}"),
        text(row["reason"] or "nothing happened", "reason"),
        measure(row["lag_ms_max"], duration, none="unknown"),
        number(row["episodes"]),
        measure(row["out_ms"], duration),
        measure(row["under_min_isr_ms"], duration),
        number(row["leader_changes"]),
    ]
