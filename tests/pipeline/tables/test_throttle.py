"""Throttles judged: the documents' formulas, on seconds that were made up."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.tables.throttle import GAP_MS_MAX, PATIENCE_MS, SCHEMA, judgement, throttle
from support.pipeline.spark_frames import as_frames

START_MS = 1_700_000_000_000
MB = 1_000_000
Row = dict[str, Any]


def second(at_s: int, limit: int | None = 10 * MB, **more: Any) -> Row:
    return {
        "at_ms": START_MS + 1_000 * at_s,
        "broker": 1,
        "side": "follower",
        "limit_bytes_per_s": limit,
        "bytes": 8 * MB,
        "exempt_bytes": 0,
        "held_back_partitions": 0,
        "replica_lag_bytes": None,
        "bytes_in": 4 * MB,
    } | more


def span(**more: Any) -> Row:
    return {
        "limit_bytes_per_s": 10 * MB,
        "bytes_in_per_s_max": 4 * MB,
        "ended_at_ms": START_MS + 61_000,
        "lag_bytes_first": 120 * MB,
        "lag_bytes_last": 0,
        "lag_bytes_low": 0,
        "lag_low_at_ms": START_MS + 60_000,
    } | more


def judged(network: int | None = None, **more: Any) -> Row:
    return judgement(span(**more), network_bytes_per_s=network, replication_factor=2)


def test_the_verdict_is_that_of_question_4() -> None:
    """IN < T < N - IN/R, both bounds exclusive; without N only the first is judged."""
    assert judged(13 * MB)["verdict"] == "safe"
    assert judged(12 * MB)["verdict"] == "starves-clients"  # 10 = 12 - 4/2
    assert judged(13 * MB, bytes_in_per_s_max=10 * MB)["verdict"] == "cannot-finish"
    assert judged()["verdict"] == "above-inbound"
    assert judged(bytes_in_per_s_max=10 * MB)["verdict"] == "cannot-finish"
    assert judged(bytes_in_per_s_max=None)["verdict"] is None
    bounds = judged(13 * MB)
    assert (bounds["safe_above_bytes_per_s"], bounds["safe_below_bytes_per_s"]) == (4 * MB, 11 * MB)


def test_the_estimate_is_that_of_question_1() -> None:
    assert judged()["estimated_ms"] == 20_000  # 120 MB at 10 - 4 MB/s
    assert judged(bytes_in_per_s_max=10 * MB)["estimated_ms"] is None
    unknown = judged(lag_bytes_first=None)
    assert (unknown["estimated_ms"], unknown["progress"]) == (None, None)


def test_a_move_whose_lag_has_no_new_low_is_stuck() -> None:
    assert judged()["progress"] == "done"
    low = {"lag_bytes_last": 5 * MB, "lag_bytes_low": 4 * MB}
    last_ms = START_MS + 60_000
    assert judged(**low, lag_low_at_ms=last_ms - PATIENCE_MS)["progress"] == "stuck"
    assert judged(**low, lag_low_at_ms=last_ms - PATIENCE_MS + 1)["progress"] == "moving"


@pytest.mark.spark
def test_seconds_are_joined_into_spans(spark: SparkSession) -> None:
    gap_s = GAP_MS_MAX // 1_000
    copying = [
        # In the first second the new follower has not fetched from the leader yet.
        second(at, replica_lag_bytes=(9 - at) * 10 * MB if at else 0, held_back_partitions=at % 3)
        for at in range(10)
    ]
    rows = [
        *copying,
        copying[3],  # published twice
        second(10, 20 * MB, bytes=10 * MB, bytes_in=25 * MB),  # another limit, another span
        second(11, None),
        second(12, 20 * MB),
        second(12 + gap_s, 20 * MB),  # just near enough
        second(13 + 2 * gap_s, 20 * MB),  # too far
        second(5, 1 * MB, broker=2, side="leader"),
        second(6, None, broker=2, side="leader"),  # it was taken away
        second(6, None, broker=3),  # never had a limit
        # A destination that leads nothing, and the leader it copies from, half a second apart.
        *(second(100 + at, 3 * MB, broker=4, bytes_in=0) for at in range(3)),
        *(
            second(0, 5 * MB, broker=5, side="leader", at_ms=START_MS + at_ms, bytes_in=rate)
            for at_ms, rate in (
                (100_500, 90 * MB),
                (101_500, 4 * MB),
            )  # before it was set, and then
        ),
    ]
    frame = throttle(as_frames(spark, {"throttle": rows})["throttle"])
    assert [(each.name, each.dataType) for each in frame.schema] == [
        (each.name, each.dataType) for each in SCHEMA
    ]
    spans = {(row["broker"], row["began_at_ms"]): row.asDict() for row in frame.collect()}
    begins = [(1, 0), (1, 10), (1, 12), (1, 13 + 2 * gap_s), (2, 5), (4, 100), (5, 100.5)]
    assert set(spans) == {(broker, START_MS + 1_000 * at) for broker, at in begins}
    first = spans[1, START_MS]
    expected = {
        "ended_at_ms": START_MS + 10_000, "is_open": False, "seconds": 10, "bytes": 80 * MB,
        "use": 0.8, "headroom_bytes_per_s": 2 * MB, "held_back_s": 6, "held_back_partitions_max": 2,
        "bytes_in_per_s_max": 4 * MB, "lag_bytes_first": 80 * MB, "lag_bytes_last": 0,
        "real_ms": 9_000, "estimated_ms": 13_334, "verdict": "above-inbound", "progress": "done",
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert spans[1, START_MS + 10_000]["verdict"] == "cannot-finish"
    assert spans[1, START_MS + 12_000]["seconds"] == 2
    assert spans[1, START_MS + 1_000 * (13 + 2 * gap_s)]["is_open"]
    assert not spans[2, START_MS + 5_000]["is_open"]
    # What its leader takes in comes to the destination too: 3 MB/s cannot carry 4.
    destination = spans[4, START_MS + 100_000]
    assert (destination["bytes_in_per_s_max"], destination["verdict"]) == (4 * MB, "cannot-finish")
    assert spans[5, START_MS + 100_500]["verdict"] == "above-inbound"
