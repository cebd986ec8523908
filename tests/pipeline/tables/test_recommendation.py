"""The numbers that advice is decided by, from tables small enough to check by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.advice import Running
from insync.pipeline.tables.min_isr import spans_below_min_isr
from insync.pipeline.tables.recommendation import RECOMMENDATION, outcomes, recommendation
from insync.pipeline.tables.record import RECORD
from insync.pipeline.tables.running import running_of
from insync.pipeline.tables.schemas import WHAT_IF
from insync.pipeline.tables.what_if import what_if
from support.pipeline.exported_tables import LAG_MS, SILENT, STEP_MS
from support.pipeline.exported_tables import record as silent_follower
from support.pipeline.spark_frames import as_frames

LEFT_MS = 1_000_000 + (SILENT.start - 1) * STEP_MS + 10 + LAG_MS + 1
BACK_MS = 1_000_000 + SILENT.stop * STEP_MS + 10
DAY_MS = 24 * 3_600_000
Row = dict[str, Any]


def scenario_row(policy: str, limit_ms: int, level: str = "all", **other: Any) -> Row:
    row: Row = dict.fromkeys(WHAT_IF.names, 0)
    row |= {"level": level, "topic": None, "partition": None, "policy": policy}
    row |= {"lag_time_max_ms": limit_ms, "lag_max_messages": None, "half_period_check": False}
    return row | {"below_resolution": False} | other


def record_row(**facts: Any) -> tuple[Any, ...]:
    usual = {"first_at_ms": 0, "last_at_ms": DAY_MS, "covered_ms": DAY_MS, "silences": 9}
    usual["recorded_ms"] = DAY_MS
    row = dict.fromkeys(RECORD.names) | usual | {"silence_ms_p9999": 300, "silence_ms_max": 2_000}
    return tuple((row | facts)[name] for name in RECORD.names)


@pytest.mark.spark
def test_a_recommendation_has_sums_of_all_and_the_longest_of_one_partition(
    spark: SparkSession,
) -> None:
    under = [scenario_row("caught-up", 30_000, "partition", under_min_isr_ms=ms) for ms in (7, 9)]
    rows = [
        *under,
        scenario_row("caught-up", 30_000, "topic", shrinks=5, under_min_isr_ms=16),
        scenario_row(
            "caught-up", 30_000, shrinks=5, false_evictions=1, flaps=2, under_min_isr_ms=16,
            acks_all_stall_ms=30, acks_all_stall_ms_max=20, catch_up_ms=400,
        ),
        scenario_row("caught-up", 10_000, catch_up_ms=100),
    ]  # fmt: skip
    frame = spark.createDataFrame([tuple(row[n] for n in WHAT_IF.names) for row in rows], WHAT_IF)
    numbers = {each.limit_ms: each for each in outcomes(frame)}
    each = numbers[30_000]
    assert (each.evictions, each.false_evictions, each.flaps) == (5, 1, 2)
    assert (each.under_min_isr_ms_max, each.under_min_isr_partition_ms) == (9, 16)
    assert (each.acks_all_stall_ms_max, each.acks_all_stall_partition_ms) == (20, 30)
    assert each.harm_partition_ms == 16 + 30 + 400
    made = recommendation(frame, spark.createDataFrame([record_row()], RECORD))
    assert made.schema == RECOMMENDATION
    (row,) = (row.asDict(recursive=True) for row in made.collect())
    assert (row["verdict"], row["policy"], row["lag_time_max_ms"]) == ("set", "caught-up", 10_000)
    assert (row["floor_ms"], row["covered_ms"]) == (5_000, DAY_MS)
    assert [line["role"] for line in row["trade"]] == ["advised", "running"]
    short = recommendation(frame, spark.createDataFrame([record_row(covered_ms=15_000)], RECORD))
    assert [row["verdict"] for row in short.collect()] == ["too-short"]
    nothing = recommendation(frame, spark.createDataFrame([], RECORD))
    assert [row["covered_ms"] for row in nothing.collect()] == [0]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("scope", "at_ms", "below_ms"),
    [
        # Of another topic: one page said both "0 s below min ISR" and "2 s below min ISR" of it.
        ("broker:1/topic:other", 1_000_000, 0),
        ("broker:1/topic:orders", 1_000_000, BACK_MS - LEFT_MS),
        ("broker:1/topic:orders", BACK_MS - 700, 700),  # while the follower is out
        ("broker:2/topic:orders", 1_000_000, 0),  # which does not lead it
    ],
)
def test_what_if_and_health_count_the_same_time_below_min_isr(
    spark: SparkSession, scope: str, at_ms: int, below_ms: int
) -> None:
    """Two of three are in sync for 2 s, and a setting says that it takes three."""
    tables = silent_follower()
    strict = {"at_ms": at_ms, "scope": scope, "name": "min.insync.replicas", "value": "3"}
    tables["configs"].append(strict)
    frames = as_frames(spark, tables)
    names = ("fetches", "appends", "isr", "stalls", "configs")
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[LAG_MS])
    replayed = what_if(**{name: frames[name] for name in names}, grid=grid)
    (row,) = replayed.where("level = 'all'").collect()
    assert (row["shrinks"], row["under_min_isr_ms"]) == (1, below_ms)
    recorded = spans_below_min_isr(
        **{name: frames[name] for name in ("isr", "fetches", "appends", "configs")}
    )
    # It took a millisecond to be back in the ISR.
    spans = [(span["from_ms"], span["to_ms"] - 1) for span in recorded.collect()]
    assert sum(to_ms - from_ms for from_ms, to_ms in spans) == below_ms


def setting(at_ms: int, broker: int, name: str, value: object) -> tuple[int, str, str, str]:
    return at_ms, f"broker:{broker}", name, str(value)


LIMIT = "replica.lag.time.max.ms"
DIFFERENT = "7000 on broker:1, 500 on broker:2"


@pytest.mark.parametrize(
    ("settings", "limit_ms", "changes"),
    [
        ([], 30_000, ()),
        ([setting(1, 1, LIMIT, 500), setting(2, 2, LIMIT, 500)], 500, ()),
        (
            [setting(9, 1, LIMIT, 7_000), setting(1, 1, LIMIT, 500), setting(2, 1, LIMIT, "soon")],
            7_000,
            (f"{LIMIT} was 500 before: the advice takes the latest, 7000.",),
        ),
        (
            [setting(9, 1, LIMIT, 7_000), setting(1, 2, LIMIT, 500)],
            7_000,
            (f"{LIMIT} differs ({DIFFERENT}): the advice takes the latest, 7000.",),
        ),
    ],
)
def test_of_changed_settings_the_latest_counts(
    settings: list[tuple[int, str, str, str]], limit_ms: int, changes: tuple[str, ...]
) -> None:
    assert running_of(settings) == Running(lag_time_max_ms=limit_ms, changes=changes)


def test_the_flag_of_kip_501_is_the_policy_pending_reads() -> None:
    flag = "follower.fetch.pending.reads.insync.enable"
    assert running_of([setting(1, 1, flag, "true")]).policy == "pending-reads"
    assert running_of([setting(1, 1, flag, "false")]).policy == "caught-up"
