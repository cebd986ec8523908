"""Incidents on Spark are those of a slow and obvious computation."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.tables.episodes import SCHEMA as EPISODES
from insync.pipeline.tables.health import health
from insync.pipeline.tables.incidents import SCHEMA, incidents
from insync.pipeline.tables.schemas import LAG
from insync.pipeline.words import duration
from support.pipeline.episodes_oracle import episodes as expected_episodes
from support.pipeline.incidents_oracle import incident_groups
from support.pipeline.random_tables import START_MS, made_up
from support.pipeline.spark_frames import as_frames

pytestmark = pytest.mark.spark
Row = dict[str, Any]


def as_episodes(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(row.get(name) for name in EPISODES.names) for row in rows], EPISODES
    )


def lags(episodes: list[Row]) -> list[Row]:
    """Buckets of 5 s of some replicas, with lags of any size."""
    replicas = sorted({(row["topic"], row["partition"], row["follower"]) for row in episodes})
    return [
        dict.fromkeys(LAG.names, 0)
        | {"topic": topic, "partition": partition, "follower": follower}
        | {"bucket_at_ms": START_MS + 5_000 * bucket}
        | {"lag_ms_max": 40 * partition * bucket, "lag_messages_max": 7 * bucket}
        for topic, partition, follower in replicas[::2]
        for bucket in range(0, 30, 3)
    ]


def oracle(episodes: list[Row], lag: list[Row]) -> list[Row]:
    return [incident(group, lag) for group in incident_groups(episodes)]


def incident(group: list[Row], lag: list[Row]) -> Row:
    began, last = min(row["from"] for row in group), max(row["to"] for row in group)
    is_open = any(row["ending"] == "open" for row in group)
    partitions = {(row["topic"], row["partition"]) for row in group}
    largest = {}
    for unit in ("ms", "messages"):
        seen = [row[f"lag_{unit}"] for row in group if row[f"lag_{unit}"] is not None]
        for row in group:
            key = (row["topic"], row["partition"], row["follower"])
            seen += [
                bucket[f"lag_{unit}_max"]
                for bucket in lag
                if (bucket["topic"], bucket["partition"], bucket["follower"]) == key
                and row["from"] <= bucket["bucket_at_ms"] <= row["to"]
            ]
        largest[f"lag_{unit}_max"] = max(seen, default=None)
    broker, cause = group[0]["broker"], group[0]["cause"]
    noun = "partition" if len(partitions) == 1 else "partitions"
    so_far = " so far" if is_open else ""
    return largest | {
        "broker": broker,
        "cause": cause,
        "began_at_ms": began,
        "ended_at_ms": None if is_open else last,
        "duration_ms": last - began,
        "episodes": len(group),
        "open_episodes": sum(row["ending"] == "open" for row in group),
        "partitions": len(partitions),
        "topics": len({row["topic"] for row in group}),
        "summary": f"broker {broker} {cause}: {len(partitions)} {noun}, "
        f"{duration(last - began)}{so_far}",
    }


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["broker"], row["cause"], row["began_at_ms"]))


@pytest.mark.parametrize("with_lag", [False, True])
def test_incidents_agree_with_the_oracle_on_random_tables(
    spark: SparkSession, *, with_lag: bool
) -> None:
    episodes = expected_episodes(made_up(4, partitions=60))
    lag = lags(episodes) if with_lag else []
    columns = [tuple(row[name] for name in LAG.names) for row in lag]
    frame = incidents(
        as_episodes(spark, episodes), spark.createDataFrame(columns, LAG) if with_lag else None
    )
    assert [(each.name, each.dataType) for each in frame.schema] == [
        (each.name, each.dataType) for each in SCHEMA
    ]
    rows = [row.asDict() for row in frame.collect()]
    expected = oracle(episodes, lag)
    assert len(expected) < len(episodes)
    assert any(row["ended_at_ms"] is None for row in expected)
    assert in_order(rows) == in_order(expected)


def frozen(partition: int, *, at_ms: int = 0, out_ms: int = 8_000) -> Row:
    """Broker 3, which fetched last 0.7 s before its session ended."""
    left_ms = START_MS + at_ms + partition % 5
    return {
        "topic": f"topic {partition % 4}", "partition": partition, "follower": 3, "leader": 1,
        "cause": "frozen", "began_at_ms": left_ms - 796, "left_at_ms": left_ms, "out_ms": out_ms,
        "rejoined_at_ms": left_ms + out_ms, "ending": "rejoined", "lag_ms": 700, "flaps": 1,
        "lag_messages": partition, "under_min_isr_ms": 0,
    }  # fmt: skip


@pytest.mark.long_on_spark
def test_a_broker_that_freezes_is_one_incident_however_many_partitions_it_has(
    spark: SparkSession,
) -> None:
    rows = [frozen(partition) for partition in range(205)]
    (row,) = incidents(as_episodes(spark, rows)).collect()
    assert row["summary"] == "broker 3 frozen: 205 partitions, 8.8 s"
    assert (row["episodes"], row["partitions"], row["topics"]) == (205, 205, 4)
    assert (row["duration_ms"], row["lag_messages_max"]) == (8_800, 204)


@pytest.mark.long_on_spark
def test_health_names_incidents_of_a_broker_and_not_each_episode(spark: SparkSession) -> None:
    rows = [frozen(partition) for partition in range(205)]
    rows += [frozen(7, at_ms=60_000 * again, out_ms=1_000) for again in (1, 2, 3)]
    made = as_episodes(spark, rows)
    names = ("isr", "fetches", "appends", "elections", "stalls", "configs")
    telemetry = {name: frame for name, frame in as_frames(spark, {}).items() if name in names}
    lines = health(made, **telemetry, incidents=incidents(made)).collect()
    (line,) = (row for row in lines if row["level"] == "broker")
    assert (line["name"], line["status"]) == ("3", "warning")
    assert line["reason"] == (
        "frozen: 205 partitions, 8.8 s; frozen: 1 partition, 1.8 s; frozen: 1 partition, 1.8 s; "
        "1 more incident"
    )
