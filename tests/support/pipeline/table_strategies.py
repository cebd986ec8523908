"""Made-up telemetry: anything a leader could have recorded, and some that it could not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from insync.telemetry.schemas import MIN_ISR, REASSIGNMENT, TABLES
from insync.telemetry.tables import arrow_schema

Tables = dict[str, list[dict[str, Any]]]
BROKERS = (1, 2, 3, 4)


def arrow(tables: Tables) -> dict[str, pa.Table]:
    return {
        name: pa.Table.from_pylist(tables.get(name, []), schema=arrow_schema(TABLES[name]))
        for name in ("fetches", "appends", "isr", "stalls", "assignments", "configs")
    }


@st.composite
def recorded(draw: st.DrawFn, *, partitions: int = 3) -> Tables:
    tables: Tables = {"fetches": [], "appends": [], "isr": [], "stalls": [], "configs": []}
    tables["assignments"] = []
    for _ in range(draw(st.integers(0, 4))):
        scope = f"broker:{draw(st.sampled_from(BROKERS[:2]))}"
        tables["configs"].append(
            {
                "at_ms": draw(st.sampled_from((-9, 0, 30, 100, 400, 1_500))),
                "scope": scope + draw(st.sampled_from(("", "/topic:t", "/topic:u"))),
                "name": draw(st.sampled_from((MIN_ISR, MIN_ISR, MIN_ISR, "node.id"))),
                "value": draw(st.sampled_from(("1", "2", "3"))),
            }
        )
    for _ in range(draw(st.integers(0, 3))):
        tables["stalls"].append(
            {
                "at_ms": draw(st.integers(0, 3_000)),
                "broker": draw(st.sampled_from(BROKERS[:2])),
                "stall_ms": draw(st.sampled_from((40, 100, 130, 250, 700))),
            }
        )
    for number in range(draw(st.integers(1, partitions))):
        _partition(draw, tables, draw(st.sampled_from(("t", "u"))), number)
    return tables


def _partition(draw: st.DrawFn, tables: Tables, topic: str, number: int) -> None:
    at_ms, end = draw(st.integers(0, 50)), draw(st.integers(0, 5))
    has_seq = draw(st.booleans())
    if draw(st.booleans()):
        some = draw(st.lists(st.sampled_from(BROKERS), min_size=1, unique=True))
        tables["isr"].append(_isr(topic, number, sorted(some)))
    has_assignments = draw(st.booleans())
    epochs = [(0, epoch) for epoch in range(draw(st.integers(1, 3)))]
    if has_assignments and draw(st.booleans()):  # the topic is created again
        epochs += [(1, epoch) for epoch in range(draw(st.integers(1, 2)))]
    for creation, epoch in epochs:
        end = 0 if (creation, epoch) == (1, 0) else end
        if has_assignments:
            began = {"topic": topic, "partition": number, "leader_epoch": epoch, "at_ms": at_ms}
            tables["assignments"] += _assignments(draw, began, creation)
        leader = draw(st.sampled_from(BROKERS[:2]))
        if draw(st.integers(0, 3)) == 0:
            away = {"leader_epoch": epoch, "version": 2, "decided_by": "controller"}
            away |= {"replica": draw(st.sampled_from(BROKERS)), "cause": REASSIGNMENT}
            tables["isr"] += [_isr(topic, number, [1, 2, 3]) | away] * draw(st.integers(1, 2))
        rows, at_ms, end = _epoch(draw, at_ms, end, leader)
        for seq, (name, row) in enumerate(rows):
            named = {
                "topic": topic,
                "partition": number,
                "leader": leader,
                "leader_epoch": epoch,
                "seq": seq if has_seq else None,
            }
            tables[name].append(row | named)
            if has_seq and draw(st.integers(0, 12)) == 0:  # again, or its number once more
                later_ms = draw(st.sampled_from((0, 0, 40)))
                tables[name].append(row | named | {"at_ms": row["at_ms"] + later_ms})
        at_ms += draw(st.sampled_from((0, 1, 90, 2_000))) - draw(st.sampled_from((0, 0, 20)))
        end = max(0, end - draw(st.sampled_from((0, 0, 0, 2))))  # the next leader had less
    for name in ("fetches", "appends"):
        if draw(st.integers(0, 4)) == 0:
            tables[name] = draw(st.permutations(tables[name]))


def _assignments(draw: st.DrawFn, began: dict[str, Any], creation: int) -> list[dict[str, Any]]:
    """The replicas when an epoch begins, and perhaps others that a reassignment is adding."""
    topic_id = f"{began['topic']}, creation {creation}"
    version = 10 * began["leader_epoch"]
    row = began | {"leader": 1, "topic_id": topic_id, "adding": [], "removing": []}
    replicas = draw(st.lists(st.sampled_from(BROKERS), min_size=1, unique=True))
    others = [broker for broker in BROKERS if broker not in replicas]
    adding = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    rows = [row | {"version": version, "replicas": replicas}]
    if adding:
        moving = {"at_ms": began["at_ms"] + 5, "version": version + 1, "adding": adding}
        rows.append(row | moving | {"replicas": [*adding, *replicas]})
    return rows * draw(st.integers(1, 2))


def _epoch(
    draw: st.DrawFn, at_ms: int, end: int, leader: int
) -> tuple[list[tuple[str, dict[str, Any]]], int, int]:
    followers = [broker for broker in BROKERS[:3] if broker != leader]
    ends = {broker: max(0, end - draw(st.integers(0, 3))) for broker in followers}
    rows: list[tuple[str, dict[str, Any]]] = []
    if draw(st.booleans()):
        rows.append(("appends", _append(at_ms, end, end)))
    quiet = draw(st.sampled_from((None, *followers)))
    for _ in range(draw(st.integers(0 if rows else 1, 25))):
        at_ms += draw(st.sampled_from((0, 0, 1, 3, 7, 20, 60, 101, 180, 400)))
        if draw(st.integers(0, 2)) == 0:
            size = draw(st.sampled_from((1, 1, 2, 10)))
            rows.append(("appends", _append(at_ms, end, end + size)))
            end += size
            continue
        follower = draw(st.sampled_from(followers))
        if follower == quiet and draw(st.integers(0, 3)):
            continue
        ahead = draw(st.sampled_from((0, 1, 2, 100, 100, -1)))
        ends[follower] = min(end, max(0, ends[follower] + ahead))
        row = _fetch(at_ms, follower, ends[follower], end)
        what = draw(st.sampled_from(("", "", "", "", "read", "merged", "failed", "odd")))
        if what == "read" or (what == "failed" and draw(st.booleans())):
            row["read_ms"] = draw(st.sampled_from((1, 5, 50, 300)))
            rows.append(("fetches", row))
        elif what == "merged":
            row["repeats"] = draw(st.integers(1, 6))
            row["last_at_ms"] = at_ms + draw(st.sampled_from((0, 2, 30, 200, 900)))
            rows.append(("fetches", row))
        elif what == "odd":
            row["leader_end_low"] = draw(st.sampled_from((None, max(0, end - 1))))
            row["read_ms"] = None
            rows.append(("fetches", row))
        else:
            rows.append(("fetches", row))
        if what == "failed":
            row["outcome"] = draw(st.sampled_from(("error", "diverging", None)))
    if not rows:
        rows.append(("appends", _append(at_ms, end, end)))
    return rows, at_ms, end


def _append(at_ms: int, base: int, end: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "base_offset": base, "end_offset": end, "bytes": 10 * (end - base)}


def _fetch(at_ms: int, follower: int, offset: int, end: int) -> dict[str, Any]:
    return {
        "at_ms": at_ms,
        "follower": follower,
        "offset": offset,
        "leader_end_low": end,
        "leader_end_high": end,
        "high_watermark": None,
        "log_start": 0,
        "bytes": 0,
        "read_ms": 0,
        "wait_ms": 0,
        "outcome": "ok",
        "throttled": None,
        "repeats": 1,
        "last_at_ms": at_ms,
    }


def _isr(topic: str, number: int, before: list[int]) -> dict[str, Any]:
    return {
        "at_ms": 0,
        "decided_at_ms": 0,
        "decided_by": "leader",
        "topic": topic,
        "partition": number,
        "leader": before[0],
        "leader_epoch": 0,
        "version": 1,
        "isr_before": before,
        "isr_after": before,
        "replica": before[0],
        "change": "shrink",
        "reason": "",
        "replica_end": 0,
        "leader_end": 0,
        "caught_up_at_ms": 0,
        "seq": 0,
        "cause": None,
        "late_ms": None,
    }
