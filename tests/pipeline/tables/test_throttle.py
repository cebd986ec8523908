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
        "bytes_in_per_s": 4 * MB,
        "bytes": 200 * MB,
        "exempt_bytes": 0,
        "held_back_s": 20,
        "ended_at_ms": START_MS + 61_000,
        "is_open": False,
        "lag_bytes_first": 120 * MB,
        "lag_bytes_last": 0,
        "lag_bytes_low": 0,
        "lag_low_at_ms": START_MS + 60_000,
        # 10 MB/s for 20 s, of which clients wrote 4: as estimated.
        "real_ms": 20_000,
        "copied_bytes": 200 * MB,
        "copied_exempt_bytes": 0,
        "destination_held_back_s": 0,
    } | more


def judged(network: int | None = None, **more: Any) -> Row:
    return judgement(span(**more), network_bytes_per_s=network, replication_factor=2)


def test_the_verdict_is_that_of_question_4() -> None:
    """IN < T < N - IN/R, both bounds exclusive; without N only the first is judged."""
    assert judged(13 * MB)["verdict"] == "safe"
    assert judged(12 * MB)["verdict"] == "starves-clients"  # 10 = 12 - 4/2
    assert judged()["verdict"] == "above-inbound"
    unfinished = {"bytes_in_per_s": 10 * MB, "lag_bytes_last": 7 * MB, "real_ms": None}
    assert judged(13 * MB, **unfinished)["verdict"] == "cannot-finish"
    assert judged(**unfinished)["verdict"] == "cannot-finish"
    assert judged(**unfinished | {"lag_bytes_first": None})["verdict"] == "cannot-finish"
    bounds = judged(13 * MB)
    assert (bounds["safe_above_bytes_per_s"], bounds["safe_below_bytes_per_s"]) == (4 * MB, 11 * MB)


def test_every_span_has_a_verdict() -> None:
    """Also where inbound is unknown, and where a move ended that the bounds say cannot end."""
    assert judged(bytes_in_per_s=None)["verdict"] == "inbound-unknown"
    assert judged(13 * MB, bytes_in_per_s=None)["verdict"] == "inbound-unknown"
    assert judged(bytes_in_per_s=10 * MB)["verdict"] == "below-inbound"


def test_the_estimate_is_that_of_question_1() -> None:
    assert judged()["estimated_ms"] == 20_000  # 120 MB at 10 - 4 MB/s
    assert judged(bytes_in_per_s=10 * MB)["estimated_ms"] is None
    unknown = judged(lag_bytes_first=None)
    assert (unknown["estimated_ms"], unknown["progress"]) == (None, None)


def test_a_move_whose_lag_has_no_new_low_is_stuck() -> None:
    assert judged()["progress"] == "done"
    low = {"lag_bytes_last": 5 * MB, "lag_bytes_low": 4 * MB}
    last_ms = START_MS + 60_000
    assert judged(**low, lag_low_at_ms=last_ms - PATIENCE_MS)["progress"] == "stuck"
    assert judged(**low, lag_low_at_ms=last_ms - PATIENCE_MS + 1)["progress"] == "moving"


WROTE = "clients wrote {} to what moved, where the estimate has 4 MB/s, of the busiest broker"


@pytest.mark.parametrize(
    ("move", "words"),
    [
        ({}, "as estimated"),
        ({"real_ms": 22_000}, "as estimated"),  # a tenth
        # 10 MB/s for 13 s are 130 MB, 10 of which clients wrote.
        (
            {"real_ms": 13_000, "copied_bytes": 130 * MB},
            "7 s shorter: " + WROTE.format("769 kB/s"),
        ),
        # 5 MB/s for 40 s are 200 MB; half the limit is not used.
        (
            {"real_ms": 40_000, "destination_held_back_s": 33},
            (
                "20 s longer: 5 MB/s of the limit were not used, "
                "a destination's throttle held replicas back"
            ),
        ),
        (
            {"real_ms": 40_000, "held_back_s": 0},
            (
                "20 s longer: 5 MB/s of the limit were not used, "
                "the throttle did not hold replicas back"
            ),
        ),
        # 10 MB/s for 60 s: 6 MB/s went to in-sync replicas, 4 to the others, 2 of which were new.
        (
            {"real_ms": 60_000, "copied_bytes": 600 * MB, "copied_exempt_bytes": 360 * MB},
            "40 s longer: in-sync replicas took 6 MB/s of the limit",
        ),
        # 10 MB/s for 60 s; of these clients wrote 8.
        (
            {"real_ms": 60_000, "copied_bytes": 600 * MB},
            "40 s longer: " + WROTE.format("8 MB/s"),
        ),
        (
            {"bytes_in_per_s": 10 * MB, "real_ms": 12_000, "copied_bytes": 120 * MB},
            (
                "finished, though the limit is not above inbound: clients wrote 0 B/s to what "
                "moved, where the estimate has 10 MB/s, of the busiest broker"
            ),
        ),
        (
            {"real_ms": None, "lag_bytes_last": 5 * MB, "is_open": True},
            "5 MB left to copy when the record ended",
        ),
        (
            {"real_ms": None, "lag_bytes_last": 5 * MB},
            "5 MB left to copy when the limit was changed or removed",
        ),
        (
            {"lag_bytes_last": 5 * MB},
            (
                "as estimated; then more to copy: "
                "5 MB left to copy when the limit was changed or removed"
            ),
        ),
        ({"lag_bytes_first": None}, "not known here: only leaders record what is left to copy"),
        ({"lag_bytes_first": 0, "real_ms": 0}, "nothing was to be copied"),
        (
            {"lag_bytes_first": None, "bytes": 7, "exempt_bytes": 7, "held_back_s": 0},
            "nothing was to be copied",
        ),
    ],
)
def test_a_difference_between_estimate_and_reality_is_explained(move: Row, words: str) -> None:
    """120 MB at 10 MB/s with 4 MB/s inbound: 20 s."""
    assert judged(**move)["difference"] == words


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
    rows += early_throttle()
    frame = throttle(as_frames(spark, {"throttle": rows})["throttle"])
    assert [(each.name, each.dataType) for each in frame.schema] == [
        (each.name, each.dataType) for each in SCHEMA
    ]
    spans = {(row["broker"], row["began_at_ms"]): row.asDict() for row in frame.collect()}
    begins = [(1, 0), (1, 10), (1, 12), (1, 13 + 2 * gap_s), (2, 5), (4, 100), (5, 100.5)]
    begins += [(6, 200), (7, 212.4)]
    assert set(spans) == {(broker, START_MS + 1_000 * at) for broker, at in begins}
    first = spans[1, START_MS]
    expected = {
        "ended_at_ms": START_MS + 10_000, "is_open": False, "seconds": 10, "bytes": 80 * MB,
        "use": 0.8, "headroom_bytes_per_s": 2 * MB, "held_back_s": 6, "held_back_partitions_max": 2,
        "bytes_in_per_s_max": 4 * MB, "lag_bytes_first": 80 * MB, "lag_bytes_last": 0,
        "real_ms": 8_000, "estimated_ms": 13_334, "verdict": "above-inbound", "progress": "done",
        "copied_bytes": 64 * MB, "difference": "5.3 s shorter: " + WROTE.format("0 B/s"),
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
    early = spans[6, START_MS + 200_000]
    expected = {
        "bytes_in_per_s": 2 * MB, "bytes_in_per_s_max": 12 * MB, "estimated_ms": 5_000,
        "real_ms": 5_000, "difference": "as estimated", "verdict": "above-inbound",
        "copied_bytes": 50 * MB, "destination_held_back_s": 2,
    }  # fmt: skip
    assert {name: early[name] for name in expected} == expected


def early_throttle() -> list[Row]:
    """Set 9 s before the move begins, with a short peak of inbound: 40 MB at 10 - 2 MB/s."""
    lags = [0] * 9 + [40, 32, 24, 16, 8, 0]
    leader = [
        second(
            200 + at,
            broker=6,
            side="leader",
            bytes=10 * MB if at >= 9 else 0,
            replica_lag_bytes=lag * MB,
            bytes_in=12 * MB if at == 5 else 1_230_769,  # 28 MB in the 14 s after the first
        )
        for at, lag in enumerate(lags)
    ]
    return leader + [
        second(0, broker=7, at_ms=START_MS + at_ms, held_back_partitions=1, bytes_in=0)
        for at_ms in (212_400, 213_400)
    ]


DEMO_LAGS = (24_038_832, 24_044_952, 24_051_000, 18_025_290, 10_014_050, 2_002_810, 0)
DEMO_BYTES = (3_009_183, 4_011_740, 4_011_668, 4_028_372, 4_005_620, 4_005_620, 1_001_405)


@pytest.mark.spark
def test_a_move_is_done_in_the_second_in_which_its_throttle_is_removed(spark: SparkSession) -> None:
    """As brokers record it: 24 MB at 4 MB/s, while a client writes a little."""
    limits = [4 * MB] * 6 + [None]
    leader = [
        second(at, limit, side="leader", replica_lag_bytes=lag, bytes=size, bytes_in=6_000)
        for at, (limit, lag, size) in enumerate(zip(limits, DEMO_LAGS, DEMO_BYTES, strict=True))
    ]
    destination = [
        second(at, limit, broker=3, held_back_partitions=12 if limit else 0, bytes_in=0)
        for at, limit in enumerate(limits)
    ]
    idle = [second(at, 4 * MB, broker=2, bytes=0, bytes_in=None) for at in range(6)]
    frame = as_frames(spark, {"throttle": leader + destination + idle})["throttle"]
    spans = {row["broker"]: row for row in throttle(frame).collect()}
    copying = spans[1]
    assert (copying["seconds"], copying["ended_at_ms"]) == (6, START_MS + 6_000)
    assert (copying["progress"], copying["verdict"]) == ("done", "above-inbound")
    assert copying["estimated_ms"] == 6_019  # 24 038 832 B at 4 000 000 - 6 000 B/s
    assert (copying["real_ms"], copying["difference"]) == (6_000, "as estimated")
    assert spans[3]["difference"].startswith("not known here")
    assert spans[2]["difference"] == "nothing was to be copied"
