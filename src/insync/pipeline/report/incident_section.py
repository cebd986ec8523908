"""Incidents on the page: a line each, that opens to its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from insync.pipeline.report import html
from insync.pipeline.report.html import Cell, Heading
from insync.pipeline.tables.episodes import CAUSES, OPEN
from insync.pipeline.tables.partition_episodes import SLOW_READS
from insync.pipeline.words import count, duration, ranges_text

PARTITIONS_WIDTH_MAX: Final = 600  # characters of an incident's list of partitions
UNFOLDED_MAX: Final = 20  # incidents in the list; those after them are behind one more line

CAUSE_WORDS: Final = {
    "broker-down": "its broker died, restarted or was shut down",
    "frozen": "its broker was silent: process or host stopped, or cut off",
    "replica-offline": "its log failed or is damaged",
    "stuck": "stopped fetching this partition",
    "slow": "fetched, but fell behind",
    "bootstrapping": "new, catching up for the first time",
    "leader-slow-reads": "the leader's reads were slow",
    "throttled": "held back by a throttle",
    "burst": "a burst of messages, no real lag",
    "controller": "removed by the controller; why is not recorded",
    "unrecorded": "its leaving is not recorded",
}
assert set(CAUSE_WORDS) == set(CAUSES), "every cause in words"

Row = dict[str, Any]


def section(incidents: Sequence[Row], total: int, *, with_date: bool) -> str:
    search = (
        '<input type="search" data-filters="incidents" placeholder="Filter: topic, cause, broker"'
        ' aria-label="Filter incidents">'
    )
    entries = [_entry(at, row, with_date=with_date) for at, row in enumerate(incidents)]
    shown, folded = entries[:UNFOLDED_MAX], entries[UNFOLDED_MAX:]
    rest = html.details(f"{count(len(folded), 'more incident')}", "".join(folded)) if folded else ""
    note = html.cut(incidents, total, "worst incidents", table="incidents")
    return f'{search}<div data-list="incidents">{"".join(shown)}{rest}</div>{note}'


def bars(incidents: Sequence[Row], end_ms: int) -> dict[str, Any]:
    """For the chart: a lane per broker and cause, a bar per incident."""
    lanes = sorted({(row["broker"], row["cause"]) for row in incidents})
    return {
        "lanes": [{"broker": broker, "cause": cause} for broker, cause in lanes],
        "bars": [
            {
                "lane": lanes.index((row["broker"], row["cause"])),
                "began": row["began_at_ms"],
                "ended": row["ended_at_ms"] or end_ms,
                "cause": row["cause"],
                "open": row["ended_at_ms"] is None,
                "ms": row["duration_ms"],
                "extent": _extent(row),
            }
            for row in incidents
        ],
    }


def _extent(row: Row) -> str:
    if row["partitions"] == 1:
        ((topic, (partition,)),) = row["members"].items()
        return f"{topic}-{partition}"
    return f"{count(row['partitions'], 'partition')} of {count(row['topics'], 'topic')}"


def _partitions(row: Row) -> str:
    """All of them, topic by topic; what is too much for a page is counted."""
    texts: list[str] = []
    for topic, numbers in row["members"].items():
        room = PARTITIONS_WIDTH_MAX - sum(map(len, texts))
        if room <= 0:
            texts.append(f"... {len(row['members']) - len(texts):,} more topics")
            break
        texts.append(f"{topic}: {ranges_text(numbers, room)}")
    return "; ".join(texts)


def _entry(at: int, row: Row, *, with_date: bool) -> str:
    is_open = row["ended_at_ms"] is None
    length = f"{duration(row['duration_ms'])}, still" if is_open else duration(row["duration_ms"])
    summary = (
        f'<span class="cause cause-{row["cause"]}"></span><b>broker {row["broker"]}</b> '
        f"<span>{escape(row['cause'])}: {escape(CAUSE_WORDS[row['cause']])}</span> "
        f"<span>{escape(_extent(row))}</span> "
        f'<span class="when{" open" if is_open else ""}">'
        f"{html.time(row['began_at_ms'], with_date=with_date)}, {length}</span>"
    )
    label = f"Partitions of broker {row['broker']}, {row['cause']}"
    other = "follower" if row["cause"] == SLOW_READS else "leader"  # than the incident's broker
    rows = [_episode(each, other, with_date=with_date) for each in row["episodes"]]
    table = html.table(f"incident-{at}", label, _headings(other), rows) if rows else ""
    note = html.cut(rows, row["episode_count"], "longest episodes", table="episodes")
    if not rows:
        note = html.note(f"{count(row['episode_count'], 'episode')}, in the table episodes.")
    body = f'<p class="partitions">{escape(_partitions(row))}</p>{table}{note}'
    return html.details(summary, body, f' class="incident" id="incident-{at}"')


def _headings(other: str) -> tuple[Heading, ...]:
    return (
        Heading("partition"),
        Heading("began", "the first cause, UTC"),
        Heading("left", "after the first cause"),
        Heading("out for"),
        Heading("lag", "true lag when it left"),
        Heading("lacked", "messages that it lacked when it left"),
        Heading(other),
        Heading("below min ISR"),
        Heading("leader changes"),
        Heading("in a row", "episodes of one series of flaps"),
        Heading("KIP-501", "would a pending read have kept it in the ISR?"),
    )


def _episode(row: Row, other: str, *, with_date: bool) -> list[Cell]:
    first_ms = row["began_at_ms"] or row["left_at_ms"] or row["rejoined_at_ms"]
    out = duration(row["out_ms"]) if row["out_ms"] is not None else "unknown"
    is_open = row["ending"] == OPEN
    left = row["left_at_ms"]
    after = None if left is None or row["began_at_ms"] is None else left - row["began_at_ms"]
    would_hold = row["kip501_would_hold"]
    return [
        Cell(
            f"{row['topic']}-{row['partition']}", f"{row['topic']} {row['partition']:09d}", "name"
        ),
        Cell(
            html.moment(first_ms, with_date=with_date),
            first_ms,
            "moment",
            html.moment(first_ms, with_date=True),
        ),
        html.measure(after, lambda ms: f"+{duration(ms)}"),
        Cell(
            f"{out}, still" if is_open else out,
            -1 if row["out_ms"] is None else row["out_ms"],
            "open" if is_open else "",
        ),
        html.measure(row["lag_ms"], duration),
        html.measure(row["lag_messages"], lambda messages: f"{messages:,}"),
        html.text(str(row[other])),
        html.measure(row["under_min_isr_ms"], duration),
        html.number(row["leader_changes"]),
        html.number(row["flaps"]),
        Cell({None: "-", True: "held", False: "no"}[would_hold], str(would_hold)),
    ]
