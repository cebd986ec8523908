"""When partitions were below min ISR, millisecond by millisecond."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from support.pipeline.episodes_oracle import partitions_of
from support.pipeline.random_tables import Tables

Row = dict[str, Any]
Moments = set[int]


def below_min_isr(record: Tables) -> dict[tuple[str, int], Moments]:
    """The milliseconds of each partition with a change of its ISR, until its topic is deleted."""
    below: dict[tuple[str, int], Moments] = {}
    for known in partitions_of(record):
        if not known.isr:
            continue
        events = [known.tables[name] for name in ("isr", "fetches", "appends")]
        first_ms = min(row["at_ms"] for rows in events for row in rows)
        end_ms = min([known.record_end_ms, *known.deleted_at_ms()])
        moments = _below(known.isr, first_ms, end_ms, record["configs"])
        below.setdefault((known.topic, known.partition), set()).update(moments)
    return below


def _below(changes: list[Row], first_ms: int, end_ms: int, configs: list[Row]) -> Moments:
    replicas = {each for row in changes for each in (*row["isr_before"], *row["isr_after"])}
    states: dict[tuple[int, int], list[Row]] = {}
    for row in changes:
        version = row["at_ms"] if row["version"] is None else row["version"]
        states.setdefault((row["leader_epoch"], version), []).append(row)
    in_order = [rows for _, rows in sorted(states.items())]
    spans = [(first_ms, in_order[0], "isr_before")]
    spans += [(min(row["at_ms"] for row in rows), rows, "isr_after") for rows in in_order]
    below: Moments = set()
    for at, (from_ms, rows, column) in enumerate(spans):
        to_ms = spans[at + 1][0] if at + 1 < len(spans) else end_ms
        in_sync = max(len(row[column]) for row in rows)
        leader, topic = max(row["leader"] for row in rows), rows[0]["topic"]
        minimums = sorted(
            (row["at_ms"], "/topic:" in row["scope"], int(row["value"]))
            for row in configs
            if row["name"] == "min.insync.replicas"
            and row["scope"] in (f"broker:{leader}", f"broker:{leader}/topic:{topic}")
        )
        set_at_ms = {at_ms for at_ms, *_ in minimums if from_ms < at_ms < to_ms}
        for now_ms, until_ms in pairwise(sorted({from_ms, *set_at_ms, max(from_ms, to_ms)})):
            by_then = [each for each in minimums if each[0] <= now_ms]
            own = [value for _, is_topics, value in by_then if is_topics]
            minimum = (own or [value for *_, value in by_then] or [1])[-1]
            if in_sync < min(minimum, len(replicas)):
                below.update(range(now_ms, until_ms))
    return below


def out_of_sync(episode: Row) -> Moments:
    """The milliseconds of an episode."""
    left_ms = episode["left_at_ms"]
    start_ms = episode["began_at_ms"] if left_ms is None else left_ms
    return set(range(start_ms, start_ms + episode["out_ms"])) if episode["out_ms"] else set()
