"""Lag computed at every single millisecond."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from itertools import pairwise
from typing import Any

from insync.pipeline.tables.schemas import LAG
from insync.telemetry.replay.histories import (
    APPEND,
    BEGAN,
    Epoch,
    Event,
    History,
    by_creation,
    histories,
)
from support.pipeline.table_strategies import Tables


def millisecond_by_millisecond(tables: Tables, bucket_ms: int) -> list[dict[str, Any]]:
    rows = []
    each = (pair for some in by_creation(tables) for pair in histories(some).items())
    for (topic, number), history in each:
        for at_epoch, epoch in enumerate(history.epochs):
            for follower in sorted(history.replicas - {epoch.leader}):
                held = held_before(history, at_epoch, follower)
                for bucket, seen in sorted(samples(epoch, follower, held, bucket_ms).items()):
                    row = {
                        "topic": topic,
                        "partition": number,
                        "leader_epoch": epoch.number,
                        "follower": follower,
                        "bucket_at_ms": bucket,
                        "samples": len(seen),
                    }
                    for at, what in enumerate(("lag_ms", "lag_messages", "lag_bytes")):
                        ordered = sorted(sample[at] for sample in seen)
                        ranks = {"min": ordered[0], "max": ordered[-1]}
                        for percent in (50, 99):
                            rank = -(-percent * len(ordered) // 100)
                            ranks[f"p{percent}"] = ordered[rank - 1]
                        row |= {f"{what}_{name}": value for name, value in ranks.items()}
                    rows.append(row)
    return sorted(({name: row[name] for name in LAG.names} for row in rows), key=in_order)


def held_before(history: History, at_epoch: int, follower: int) -> int | None:
    """As much as it can share with this epoch's leader before it fetches; None: not known."""
    held: int | None = None
    for epoch, following in pairwise(history.epochs[: at_epoch + 1]):
        ends = [event.row["end_offset"] for event in epoch.events if event.kind == APPEND]
        if epoch.leader == follower:
            held = max([epoch.start, *ends])
        for event in epoch.events:
            if is_fetch(event, follower):
                held = event.row["offset"]
        moved = [number for number, broker in history.moved_away if broker == follower]
        if any(epoch.number < number <= following.number for number in moved):
            held = None
        if held is not None:
            held = min(held, following.start)
    return held


def is_fetch(event: Event, follower: int) -> bool:
    """That took effect."""
    is_one = event.kind != APPEND and event.when != BEGAN and event.row["outcome"] in ("ok", None)
    return is_one and event.row["follower"] == follower


def samples(
    epoch: Epoch, follower: int, held: int | None, bucket_ms: int
) -> dict[int, list[tuple[int, int, int]]]:
    """At the end of every millisecond from its first fetch on; from the epoch's first, if known."""
    changes_by_follower: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    offset = None
    times: list[int] = []  # of the appends so far
    ends: list[int] = []
    bytes_before = [0]
    events = deque(epoch.events)
    for now_ms in range(epoch.begins_at_ms, epoch.ends_at_ms + 1):
        while events and events[0].at_ms == now_ms:
            event = events.popleft()
            row = event.row
            if event.kind == APPEND:
                if row["end_offset"] > (ends[-1] if ends else epoch.start):
                    times.append(now_ms)
                    ends.append(row["end_offset"])
                    bytes_before.append(bytes_before[-1] + row["bytes"])
            elif is_fetch(event, follower):
                offset = row["offset"]
        end = ends[-1] if ends else epoch.start
        bucket_at_ms = now_ms // bucket_ms * bucket_ms
        if offset is None and held is not None:
            since_ms = epoch.begins_at_ms
            changes_by_follower[bucket_at_ms].append(
                (now_ms - since_ms, end - held, bytes_before[-1])
            )
        elif offset is not None:
            has = bisect_right(ends, offset)  # so many of them
            since_ms = now_ms if has == len(ends) else times[has]
            if offset < epoch.start:
                since_ms = epoch.begins_at_ms
            lag_bytes = bytes_before[-1] - bytes_before[has]
            changes_by_follower[bucket_at_ms].append(
                (now_ms - since_ms, max(0, end - offset), lag_bytes)
            )
    return changes_by_follower


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in LAG.names[:5])
