"""The recommendation, from what-if tables small enough to decide by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.tables.recommendation import RECOMMENDATION, Running, recommendation
from insync.pipeline.tables.schemas import WHAT_IF

pytestmark = pytest.mark.spark


def scenario_row(policy: str, limit_ms: int, **other: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(WHAT_IF.names, 0)
    row |= {"level": "all", "topic": None, "partition": None, "policy": policy}
    row |= {"lag_time_max_ms": limit_ms, "lag_max_messages": None, "half_period_check": False}
    return row | {"below_resolution": False, "detection_ms_p99": limit_ms // 10} | other


def recommended(
    spark: SparkSession, rows: list[dict[str, Any]], running: Running
) -> dict[tuple[str, bool], dict[str, Any]]:
    frame = spark.createDataFrame([tuple(row[n] for n in WHAT_IF.names) for row in rows], WHAT_IF)
    rows_by_policy = recommendation(frame, running)
    assert rows_by_policy.schema.names == RECOMMENDATION.names
    return {(row.policy, row.half_period_check): row.asDict() for row in rows_by_policy.collect()}


def test_the_smallest_good_limit_of_each_policy(spark: SparkSession) -> None:
    rows = [
        scenario_row("caught-up", 500, below_resolution=True),
        scenario_row("caught-up", 1_000, false_evictions=1),
        scenario_row("caught-up", 2_000, flaps=1),
        scenario_row(
            "caught-up", 5_000, under_min_isr_ms=70
        ),  # of a silent follower: that is no fault
        scenario_row("caught-up", 9_000),
        scenario_row("true-lag", 5_000),
        scenario_row("true-lag", 2_000, under_min_isr_fetching_ms=1),
        scenario_row("lag-begin", 9_000, flaps=3),
        scenario_row("messages", 1_000, level="topic"),
    ]
    rows_by_policy = recommended(spark, rows, Running(policy="true-lag", lag_time_max_ms=2_000))
    assert {key[0]: row["lag_time_max_ms"] for key, row in rows_by_policy.items()} == {
        "caught-up": 5_000,
        "true-lag": 5_000,
        "lag-begin": None,
    }
    assert [key[0] for key, row in rows_by_policy.items() if row["is_headline"]] == ["true-lag"]
    assert rows_by_policy["lag-begin", False]["reason"] == "no limit replayed is good"
    assert rows_by_policy["caught-up", False]["under_min_isr_ms"] == 70
    assert rows_by_policy["caught-up", False]["detection_ms_p99"] == 500
    assert rows_by_policy["caught-up", False]["running_detection_ms_p99"] == 200


def test_the_recommendation_for_apache_kafka_can_be_set_there(spark: SparkSession) -> None:
    rows = [
        scenario_row("true-lag", 1_000, half_period_check=True),
        scenario_row("caught-up", 1_000),
        scenario_row("caught-up", 8_000, half_period_check=True),
    ]
    rows_by_policy = recommended(spark, rows, Running(is_apache_kafka=True))
    assert [key for key, row in rows_by_policy.items() if row["is_headline"]] == [
        ("caught-up", True)
    ]
    assert rows_by_policy["caught-up", True]["running_watermark_stall_ms"] is None


def test_without_a_good_limit_there_is_no_headline(spark: SparkSession) -> None:
    rows_by_policy = recommended(spark, [scenario_row("caught-up", 1_000, flaps=1)], Running())
    assert [row["is_headline"] for row in rows_by_policy.values()] == [False]
