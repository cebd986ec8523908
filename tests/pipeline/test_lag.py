"""Lag equals what one gets by looking at every single millisecond."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import SparkSession
from recorded_life import as_rows, live
from recorded_tables import Tables, arrow, recorded
from test_replay import everything

from insync.pipeline.lag_table import COLUMNS, Lag, lag
from insync.pipeline.oracle import APPEND, BEGAN, Epoch, histories
from insync.pipeline.problems_table import count_problems, problems
from insync.pipeline.schemas import LAG

BUCKET_MS = 250


def millisecond_by_millisecond(tables: Tables) -> list[dict[str, Any]]:
    rows = []
    for (topic, number), history in histories(tables).items():
        for epoch in history.epochs:
            for follower in sorted(history.replicas):
                for bucket, seen in sorted(samples(epoch, follower).items()):
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
    return rows


def samples(epoch: Epoch, follower: int) -> dict[int, list[tuple[int, int, int]]]:
    """At the end of every millisecond from its first fetch on."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    end, offset = epoch.start, None
    appended: list[tuple[int, int, int]] = []
    events = list(epoch.events)
    for now_ms in range(epoch.begins_at_ms, epoch.ends_at_ms + 1):
        while events and events[0].at_ms == now_ms:
            event = events.pop(0)
            row = event.row
            if event.kind == APPEND:
                if row["end_offset"] > end:
                    end = row["end_offset"]
                    appended.append((now_ms, end, row["bytes"]))
            elif (
                event.when != BEGAN
                and row["follower"] == follower
                and row["outcome"] in ("ok", None)
            ):
                offset = row["offset"]
        if offset is not None:
            lacking = [one for one in appended if one[1] > offset]
            since_ms = epoch.begins_at_ms if offset < epoch.start else None
            if lacking and since_ms is None:
                since_ms = lacking[0][0]
            found[now_ms // BUCKET_MS * BUCKET_MS].append(
                (
                    0 if since_ms is None else now_ms - since_ms,
                    max(0, end - offset),
                    sum(size for _, _, size in lacking),
                )
            )
    return found


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in LAG.names[:5])


@pytest.mark.property
@given(tables=recorded(partitions=2))
def test_lag_is_that_of_every_millisecond(tables: Tables) -> None:
    told = arrow(tables)
    found = Lag(BUCKET_MS)({name: told[name].select(list(COLUMNS[name])) for name in COLUMNS})
    rows = sorted(found.to_pylist(), key=in_order)
    expected = sorted(millisecond_by_millisecond(tables), key=in_order)
    assert rows == [{name: row[name] for name in LAG.names} for row in expected]


@pytest.mark.spark
def test_spark_tells_the_same_of_a_recorded_life(spark: SparkSession) -> None:
    told = arrow(as_rows(live(1, everything)))
    frames = [spark.createDataFrame(told[name]) for name in ("fetches", "appends")]
    shard = {name: told[name].select(list(COLUMNS[name])) for name in COLUMNS}
    found = [row.asDict() for row in lag(*frames, bucket_ms=1_000).collect()]
    assert found
    assert sorted(found, key=in_order) == sorted(Lag(1_000)(shard).to_pylist(), key=in_order)
    wrong = [row.asDict() for row in problems(*frames).collect()]
    assert sorted(map(str, wrong)) == sorted(map(str, count_problems(shard).to_pylist()))
