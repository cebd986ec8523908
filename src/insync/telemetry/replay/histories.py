"""Each partition as recorded: its epochs, their events, and the replicas it had.

What the design leaves open about the tables is decided here:

- **Events.** An append at `at_ms`; a fetch that succeeded at `at_ms + read_ms`, a merged one at
  each of its evenly spaced points. A slow read is pending from `at_ms` on, after the rows of that
  millisecond. Other outcomes are no fetch: they only end their read.
- **Order** in an epoch: time, `seq`, then (without `seq`) the leader's end a row was judged by, a
  fetch before an append there, follower, offset. A row seen twice (`seq`) counts once.
- **Replicas known** are leaders, followers that fetch, and the first `isr_before`.
- **In sync at the start** is that `isr_before`; where no change of the ISR is known, those that
  fetch in the first epoch, except replicas that a reassignment was adding when they are first
  assigned.
- **Moved away** is a replica that a reassignment, or the cancellation of one, removed
  (`assignments`, and `isr.cause`; where both are unknown, none was). It begins an epoch.
- **Created again.** A topic with a new id (`assignments`) has another history (`by_creation`).
- **An epoch** begins with its first event and ends with its last: a dead leader evicts no follower.
  What an old leader records after a later epoch began is left out: time counts once.
- **Min ISR** is that of the table `configs`: a topic's value, else its leader's, else 1; from the
  moment on at which its leader recorded it, until the next epoch begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Final

from insync.rules.values import NEVER_MS
from insync.telemetry.schemas import INT32_MAX, MIN_ISR, OK, REASSIGNMENT, RUN_BEGINS

Row = Mapping[str, Any]
Rows = Sequence[Row]
LATER_THAN_ANY: Final = 2**62

ROW, BEGAN = 0, 1  # what comes first in a millisecond
FETCH, APPEND = 0, 1


@dataclass(frozen=True, slots=True)
class Event:
    at_ms: int
    when: int
    kind: int
    row: Row


Minimums = list[tuple[int, int]]
"""Since when each value of min.insync.replicas is in force; the first since ever."""


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    leader: int
    events: list[Event]
    minimums: Minimums

    @property
    def begins_at_ms(self) -> int:
        return self.events[0].at_ms

    @property
    def start(self) -> int:
        first = self.events[0]
        return int(first.row["base_offset"]) if first.kind == APPEND else leader_end(first.row) or 0

    @property
    def ends_at_ms(self) -> int:
        return self.events[-1].at_ms


@dataclass(frozen=True, slots=True)
class History:
    """One partition as recorded."""

    epochs: list[Epoch]
    replicas: frozenset[int]
    in_sync_at_start: frozenset[int]
    moved_away: list[tuple[int, int]]  # the first epoch without it, and which replica
    stalls: list[Row]


def leader_end(row: Row) -> int | None:
    low: int | None = row["leader_end_low"]
    high: int | None = row["leader_end_high"]
    return high if low is None else low


def by_creation(tables: Mapping[str, Rows]) -> list[Mapping[str, Rows]]:
    """The tables of topics as they were created first, second and so on; stalls are in each."""
    created_ms: dict[tuple[str, int], dict[str, int]] = {}
    for row in tables.get("assignments", ()):
        by_id = created_ms.setdefault((row["topic"], row["partition"]), {})
        by_id[row["topic_id"]] = min(row["at_ms"], by_id.get(row["topic_id"], row["at_ms"]))

    def creation(row: Row) -> int:
        by_id = created_ms.get((row["topic"], row["partition"]), {})
        created: int = sum(at_ms <= row["at_ms"] for at_ms in by_id.values())
        return max(0, created - 1)

    return [
        {
            name: [row for row in rows if "topic" not in row or creation(row) == number]
            for name, rows in tables.items()
        }
        for number in range(max((len(by_id) for by_id in created_ms.values()), default=1))
    ]


def histories(tables: Mapping[str, Rows]) -> dict[tuple[str, int], History]:
    """Each partition that has a fetch or an append, of topics that were created once."""
    events_by_partition: dict[tuple[str, int], list[Event]] = {}
    for name, kind in (("fetches", FETCH), ("appends", APPEND)):
        for row in tables[name]:
            events = _events(row, kind)
            if events:
                events_by_partition.setdefault((row["topic"], row["partition"]), []).extend(events)
    changes: dict[tuple[str, int], list[Row]] = {}
    for row in tables.get("isr", ()):
        changes.setdefault((row["topic"], row["partition"]), []).append(row)
    assignments: dict[tuple[str, int], list[Row]] = {}
    for row in tables.get("assignments", ()):
        assignments.setdefault((row["topic"], row["partition"]), []).append(row)
    stalls = sorted(tables.get("stalls", ()), key=lambda row: (row["at_ms"], row["stall_ms"]))
    settings = [
        row
        for row in tables.get("configs", ())
        if row["name"] == RUN_BEGINS or (row["name"] == MIN_ISR and is_int32(row["value"]))
    ]
    return {
        key: _history(
            events_by_partition[key],
            changes=changes.get(key, []),
            assignments=assignments.get(key, []),
            stalls=stalls,
            settings=settings,
        )
        for key in sorted(events_by_partition)
    }


def _minimums(settings: Rows, *, topic: str, leader: int) -> Minimums:
    """At each moment the latest value of the topic in its leader's run, else the latest of its
    leader, else 1."""
    broker = f"broker:{leader}"
    scopes = (f"{broker}/topic:{topic}", broker)
    own = [row for row in settings if row["scope"] in scopes and row["name"] == MIN_ISR]
    starts_ms = {
        row["at_ms"] for row in settings if (row["scope"], row["name"]) == (broker, RUN_BEGINS)
    }
    minimums = [(NEVER_MS, 1)]
    for at_ms in sorted({row["at_ms"] for row in own} | starts_ms):
        run_ms = max((each for each in starts_ms if each <= at_ms), default=NEVER_MS)
        latest = (
            max(
                (
                    (row["at_ms"], row["value"])
                    for row in own
                    if row["scope"] == scope
                    and row["at_ms"] <= at_ms
                    and (scope == broker or row["at_ms"] >= run_ms)
                ),
                default=None,
            )
            for scope in scopes
        )
        minimums.append((at_ms, next((int(value[1]) for value in latest if value is not None), 1)))
    return minimums


def is_int32(text: str | None) -> bool:
    """A damaged record may have any text as the value of a setting."""
    is_number = text is not None and text.isascii() and text.isdecimal()
    return is_number and int(text or 0) <= INT32_MAX


def _events(row: Row, kind: int) -> list[Event]:
    at_ms: int = row["at_ms"]
    if kind == APPEND:
        return [Event(at_ms, ROW, kind, row)]
    if leader_end(row) is None or row["follower"] == row["leader"]:
        return []  # cannot be judged; counted by `problems`
    read_ms = row["read_ms"] or 0
    if read_ms > 0:
        return [Event(at_ms, BEGAN, kind, row), Event(at_ms + read_ms, ROW, kind, row)]
    if not is_ok(row):
        return []
    gaps = max(1, row["repeats"] or 1) - 1
    span_ms = max(0, at_ms if row["last_at_ms"] is None else row["last_at_ms"]) - at_ms
    if gaps == 0 or span_ms <= 0:
        return [Event(at_ms, ROW, kind, row)]
    points = dict.fromkeys(at_ms + span_ms * point // gaps for point in range(gaps + 1))
    return [Event(point_ms, ROW, kind, row) for point_ms in points]


def is_ok(row: Row) -> bool:
    return row["outcome"] in (OK, None)


def _order(event: Event) -> tuple[int, ...]:
    row = event.row
    seq = LATER_THAN_ANY if row["seq"] is None else row["seq"]
    if event.kind == APPEND:
        return (event.at_ms, event.when, seq, row["base_offset"], APPEND, row["end_offset"], 0)
    return (
        event.at_ms,
        event.when,
        seq,
        leader_end(row) or 0,
        FETCH,
        row["follower"],
        row["offset"],
    )


def _history(
    events: list[Event],
    *,
    changes: list[Row],
    assignments: list[Row],
    stalls: list[Row],
    settings: list[Row],
) -> History:
    topic, epochs = events[0].row["topic"], []
    by_epoch = sorted(events, key=lambda event: event.row["leader_epoch"])
    for number, some in groupby(by_epoch, key=lambda event: event.row["leader_epoch"]):
        ordered = sorted(some, key=_order)
        leader = ordered[0].row["leader"]
        own = _each_once([event for event in ordered if event.row["leader"] == leader])
        epochs.append(Epoch(number, leader, own, _minimums(settings, topic=topic, leader=leader)))
    first = epochs[0]
    replicas = {epoch.leader for epoch in epochs}
    for epoch in epochs:
        replicas |= {event.row["follower"] for event in epoch.events if event.kind == FETCH}
    if changes:
        change = min(changes, key=lambda row: (row["leader_epoch"], row["version"] or 0))
        at_start = set(change["isr_before"])
    else:
        at_start = {event.row["follower"] for event in first.events if event.kind == FETCH}
        at_start -= _added(assignments)
    return History(
        epochs=_until_superseded(epochs),
        replicas=frozenset(replicas | at_start),
        in_sync_at_start=frozenset(at_start | {first.leader}),
        moved_away=[
            *(
                (row["leader_epoch"], row["replica"])
                for row in changes
                if row.get("cause") == REASSIGNMENT
            ),
            *_removed(assignments),
        ],
        stalls=stalls,
    )


def _until_superseded(epochs: list[Epoch]) -> list[Epoch]:
    """Each epoch until a later one begins."""
    result = []
    for index, epoch in enumerate(epochs):
        begun_ms = min((later.begins_at_ms for later in epochs[index + 1 :]), default=None)
        until_ms = epoch.ends_at_ms if begun_ms is None else max(epoch.begins_at_ms, begun_ms)
        own = [event for event in epoch.events if event.at_ms <= until_ms]
        result.append(replace(epoch, events=own))
    return result


def _in_order(assignments: list[Row]) -> list[Row]:
    return sorted(assignments, key=lambda row: (row["leader_epoch"], row["version"], row["at_ms"]))


def _removed(assignments: list[Row]) -> list[tuple[int, int]]:
    """The first epoch without a replica, and which; a deleted topic has no epoch after it."""
    return [
        (after["leader_epoch"], broker)
        for before, after in pairwise(_in_order(assignments))
        for broker in before["replicas"]
        if after["replicas"] and broker not in after["replicas"]
    ]


def _added(assignments: list[Row]) -> set[int]:
    """The replicas that a reassignment is adding where they are first assigned."""
    first: dict[int, bool] = {}
    for row in _in_order(assignments):
        for broker in row["replicas"]:
            first.setdefault(broker, broker in row["adding"])
    return {broker for broker, is_adding in first.items() if is_adding}


def _each_once(events: list[Event]) -> list[Event]:
    """The first row with a number stays, with all its events."""
    first: dict[tuple[int, int], Row] = {}
    kept = []
    for event in events:
        seq = event.row["seq"]
        if seq is not None and event.row is not first.setdefault((event.kind, seq), event.row):
            continue
        kept.append(event)
    return kept
