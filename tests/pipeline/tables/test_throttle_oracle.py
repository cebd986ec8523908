"""Throttles on Spark are those of the oracle, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.tables.throttle import SCHEMA, throttle
from support.pipeline.random_tables import MB, throttled_seconds
from support.pipeline.spark_frames import as_frames
from support.pipeline.throttle_oracle import spans

pytestmark = pytest.mark.spark
Row = dict[str, Any]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["broker"], row["side"], row["began_at_ms"]))


@pytest.mark.parametrize(
    ("side", "inbound", "network"),
    [
        ("leader", [MB] * 40 + [3 * MB + 1, 5 * MB], None),
        ("leader", [MB] * 40 + [3 * MB + 1], 9 * MB),
        ("follower", [MB] * 40 + [3 * MB + 1], 9 * MB),
    ],
)
def test_throttle_spans_agree_with_the_oracle_on_random_tables(
    spark: SparkSession, side: str, inbound: list[int], network: int | None
) -> None:
    seconds = throttled_seconds(1, side, inbound)
    expected = in_order(spans(seconds, network=network, factor=2))
    above = {"above-inbound"} if network is None else {"safe", "starves-clients"}
    unfinished = {"cannot-finish", "below-inbound", "inbound-unknown"}
    assert {row["verdict"] for row in expected} == unfinished | above
    assert {row["progress"] for row in expected} == {None, "done", "moving", "stuck"}
    assert {row["is_open"] for row in expected} == {True, False}
    assert {row["use"] is None for row in expected} == {True, False}
    assert any(row["real_ms"] for row in expected)
    frame = as_frames(spark, {"throttle": seconds})["throttle"]
    rows = throttle(frame, network_bytes_per_s=network, replication_factor=2).collect()
    spans_of_spark = in_order([row.asDict() for row in rows])
    names = [name for name in SCHEMA.names if name != "difference"]  # words, tested by themselves
    for one, other in zip(spans_of_spark, expected, strict=True):
        assert one["difference"]
        differing = {name: (one[name], other[name]) for name in names if one[name] != other[name]}
        assert not differing, (one, "found, expected:", differing)
