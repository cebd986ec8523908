"""Health in words, and the report cut down from tables: both from one made-up record."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.report import PAGE_BYTES_MAX, Tables, render
from insync.pipeline.report.points import (
    COLUMNS_MAX,
    LIMITS_MAX,
    ROWS_MAX,
    SERIES_MAX,
    _health,
    collect,
)
from insync.pipeline.tables.episodes import SCHEMA as EPISODES
from insync.pipeline.tables.episodes import episodes
from insync.pipeline.tables.health import SCHEMA, health
from insync.pipeline.tables.registry import STEPS
from insync.pipeline.tables.throttle import SCHEMA as SPANS
from support.pipeline.episodes_oracle import episodes as expected_episodes
from support.pipeline.exported_tables import BASE
from support.pipeline.exported_tables import record as silent_follower
from support.pipeline.incidents_oracle import incident_groups
from support.pipeline.min_isr_oracle import below_min_isr, out_of_sync
from support.pipeline.random_tables import Tables as Record
from support.pipeline.random_tables import made_up
from support.pipeline.spark_frames import as_frames

pytestmark = pytest.mark.spark
Row = dict[str, Any]


@pytest.fixture(scope="module")
def record() -> Record:
    return made_up(3, partitions=90)


@pytest.fixture(scope="module")
def frames_of_record(spark: SparkSession, record: Record) -> dict[str, DataFrame]:
    rows = [tuple(row[name] for name in EPISODES.names) for row in expected_episodes(record)]
    tables = as_frames(spark, record)
    return tables | {"episodes": spark.createDataFrame(rows, EPISODES)}


def lag_rows(record: Record) -> list[Row]:
    partitions = sorted(
        {(row["topic"], row["partition"], row["follower"]) for row in record["fetches"]}
    )
    return [
        {"topic": topic, "partition": partition, "follower": follower}
        | {"bucket_at_ms": 1_700_000_000_000 + 10_000 * bucket}
        | {f"lag_{unit}_max": 100 * partition + bucket for unit in ("ms", "messages", "bytes")}
        for topic, partition, follower in partitions
        for bucket in range(9)
    ]


def test_one_row_per_topic_and_broker(
    spark: SparkSession, record: Record, frames_of_record: dict[str, DataFrame]
) -> None:
    names = ("episodes", "isr", "fetches", "appends", "elections", "stalls", "configs",
             "assignments")  # fmt: skip
    lag = spark.createDataFrame(lag_rows(record))
    frame = health(**{name: frames_of_record[name] for name in names}, lag=lag)
    assert frame.schema.names == SCHEMA.names
    lines = {(row["level"], row["name"]): row for row in frame.collect()}
    episodes = expected_episodes(record)
    topics = {row["topic"] for row in record["appends"]}
    brokers = {row["leader"] for row in record["appends"]}
    brokers |= {row["follower"] for row in record["fetches"]}
    assert {name for level, name in lines if level == "topic"} == topics
    assert {name for level, name in lines if level == "broker"} == {str(each) for each in brokers}
    below = below_min_isr(record)
    for topic in topics:
        own = [row for row in episodes if row["topic"] == topic]
        line = lines["topic", topic]
        assert line["episodes"] == len(own)
        assert line["out_ms"] == len(set().union(*map(out_of_sync, own)))
        by_replica: dict[tuple[int, int], set[int]] = {}
        for row in own:
            key = row["partition"], row["follower"]
            by_replica.setdefault(key, set()).update(out_of_sync(row))
        assert line["out_partition_ms"] == sum(map(len, by_replica.values()))
        assert line["open_episodes"] == sum(row["ending"] == "open" for row in own)
        of_topic = [moments for key, moments in below.items() if key[0] == topic]
        assert line["under_min_isr_ms"] == len(set().union(*of_topic))
        assert line["under_min_isr_partition_ms"] == sum(map(len, of_topic))
        changes = [row for row in record["elections"] if row["topic"] == topic and is_change(row)]
        assert line["leader_changes"] == len(changes)
        partitions = {row["partition"] for row in record["fetches"] if row["topic"] == topic}
        assert line["lag_ms_max"] == 100 * max(partitions) + 8
        is_bad = line["open_episodes"] or line["under_min_isr_ms"]
        assert line["status"] == ("critical" if is_bad else "warning" if own else line["status"])
        times = "once" if len(own) == 1 else f"{len(own)} times"
        assert not own or f"out of sync {times}, for " in line["reason"]
    for broker in brokers:
        own = [row for row in episodes if row["follower"] == broker]
        assert lines["broker", str(broker)]["episodes"] == len(own)
        lost = [
            row for row in record["elections"] if row["leader_before"] == broker and is_change(row)
        ]
        assert lines["broker", str(broker)]["leader_changes"] == len(lost)
        stalls = {
            (row["at_ms"], row["stall_ms"]) for row in record["stalls"] if row["broker"] == broker
        }
        assert lines["broker", str(broker)]["stall_ms"] == sum(length for _, length in stalls)


@pytest.mark.long_on_spark
def test_what_was_broken_before_the_record_began_is_not_ok(spark: SparkSession) -> None:
    """Broker 3 is down all the while, and broker 2 is caught up: 2 of 3 are in sync."""
    tables = silent_follower() | {"isr": []}
    tables["fetches"] = [row for row in tables["fetches"] if row["follower"] == 2]
    began = BASE | {"at_ms": 1_000_000, "version": 7}
    tables["assignments"] = [
        began | {"topic_id": "a", "replicas": [1, 2, 3], "adding": [], "removing": []}
    ]
    event = {"number": 0, "event": "began", "isr_before": [1, 2], "isr_after": [1, 2]}
    tables["isr_events"] = [began | event | {"late_ms": None, "seq": 0}]
    strict = {"at_ms": 1_000_000, "scope": "broker:1/topic:orders", "name": "min.insync.replicas"}
    tables["configs"] += [strict | {"value": value} for value in ("3", "three", "9" * 12)]
    frames = as_frames(spark, tables)
    names = ("isr", "fetches", "appends", "elections", "stalls", "configs", "assignments",
             "isr_events")  # fmt: skip
    recorded = {name: frames[name] for name in names}
    rows = health(episodes(**recorded), **recorded).collect()
    lines = {row["name"]: row for row in rows}
    end_ms = max(row["at_ms"] for row in tables["fetches"])
    for name in ("orders", "3"):
        assert (lines[name]["status"], lines[name]["open_episodes"]) == ("critical", 1)
        assert lines[name]["under_min_isr_ms"] == end_ms - 1_000_000
        assert "1 still out of sync" in lines[name]["reason"]
    assert (lines["1"]["status"], lines["2"]["status"]) == ("ok", "ok")


def is_change(election: Row) -> bool:
    """An election row is also written for moves, and for a leader that leads again."""
    return bool(election["leader_before"] != election["leader_after"])


def members_of(episodes: list[Row]) -> dict[str, list[int]]:
    topics = sorted({row["topic"] for row in episodes})
    return {
        topic: sorted({row["partition"] for row in episodes if row["topic"] == topic})
        for topic in topics
    }


def test_a_report_is_limited_in_rows(
    spark: SparkSession,
    record: Record,
    frames_of_record: dict[str, DataFrame],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = 30, 7, 60  # this record has fewer incidents than a page has room for
    names = ("INCIDENTS_MAX", "EPISODES_PER_INCIDENT", "EPISODES_MAX")
    for name, limit in zip(names, limits, strict=True):
        monkeypatch.setattr(f"insync.pipeline.report.incidents.{name}", limit)
    lag = spark.createDataFrame(lag_rows(record))
    points = collect(
        Tables(episodes=frames_of_record["episodes"], lag=lag, seconds=frames_of_record["throttle"])
    )
    episodes = expected_episodes(record)
    assert points.incidents is not None
    assert points.lag is not None
    assert points.seconds is not None
    assert points.summary["episodes"] == len(episodes)
    expected = {
        (own[0]["broker"], own[0]["cause"], min(each["from"] for each in own)): own
        for own in incident_groups(episodes)
    }
    assert points.summary["incidents"] == len(expected) > len(points.incidents) == limits[0]
    for row in points.incidents:
        key = (row["broker"], row["cause"], row["began_at_ms"])
        own = expected[key]
        assert row["members"] == members_of(own)
        assert row["episode_count"] == len(own)
        assert row["partitions"] == len({(each["topic"], each["partition"]) for each in own})
        assert (row["ended_at_ms"] is None) == any(each["ending"] == "open" for each in own)
        assert row["duration_ms"] == max(each["to"] for each in own) - row["began_at_ms"]
    listed = [len(row["episodes"]) for row in points.incidents]
    assert (max(listed), sum(listed)) == limits[1:]
    assert len(points.lag["series"]) == SERIES_MAX
    assert points.lag["series"][0]["ms"] == [100 * 89 + bucket for bucket in range(9)]
    assert points.lag["series"][-1]["name"] == "all others"
    assert len(points.seconds) == 8
    assert all(len(each["at_ms"]) <= COLUMNS_MAX for each in points.seconds)
    page = render(points, title="t", recommendation=None)
    assert len(page.encode()) < PAGE_BYTES_MAX
    assert "&lt;went&gt;" not in page  # reasons stay in the table
    assert page.count("Not recorded.") == 2


@pytest.mark.long_on_spark
def test_equal_rows_are_sorted_by_name(spark: SparkSession) -> None:
    """Brokers by number; a topic has none, and Spark looks only where two are level before."""
    facts_of = [("broker", name) for name in ("10", "9")] + [("topic", name) for name in ("b", "a")]
    rows = [(*each, "ok", "", *[0] * (len(SCHEMA) - 4)) for each in facts_of]
    lines = _health(spark.createDataFrame(rows, SCHEMA))
    assert [row["name"] for row in lines] == ["a", "b", "9", "10"]


@pytest.mark.long_on_spark
def test_many_topics_leave_room_for_brokers_and_count_in_full(spark: SparkSession) -> None:
    def line(level: str, name: str, status: str, **facts: int) -> tuple[Any, ...]:
        facts_of = {"level": level, "name": name, "status": status, "reason": ""} | facts
        return tuple(facts_of.get(column, 0) for column in SCHEMA.names)

    facts = {"leader_changes": 1, "under_min_isr_ms": 2}
    topics = [line("topic", f"t{number:04d}", "warning", **facts) for number in range(999)]
    topics.append(line("topic", "z", "critical", **facts))
    brokers = [line("broker", str(number), "ok", **facts) for number in range(500)]
    lines = spark.createDataFrame(topics + brokers, SCHEMA)
    summary = STEPS["health"].summary
    assert summary is not None
    assert (len(summary.rows(lines)), len(summary.rows(lines, as_json=True))) == (20, 1_500)
    points = collect(Tables(health=lines))
    shown = [(row["level"], row["name"]) for row in points.health or []]
    assert shown == [
        ("topic", "z"),
        *(("topic", f"t{number:04d}") for number in range(ROWS_MAX - 1)),
        *(("broker", str(number)) for number in range(ROWS_MAX)),
    ]
    assert points.summary == {
        "critical topics": 1, "warning topics": 999, "critical brokers": 0, "warning brokers": 0,
        "topics": 1_000, "brokers": 500, "leader_changes": 1_000, "under_min_isr_ms": 2,
        "under_min_isr_topic": "z",
    }  # fmt: skip


@pytest.mark.long_on_spark
def test_throttles_that_are_cut_are_the_harmless_ones(spark: SparkSession) -> None:
    def span(broker: int, **facts: Any) -> tuple[Any, ...]:
        facts_of: Row = {"broker": broker, "side": "leader", "held_back_s": 9, "verdict": "safe"}
        return tuple((facts_of | facts).get(name) for name in SPANS.names)

    spans = [span(broker) for broker in range(ROWS_MAX)]
    spans += [span(901, held_back_s=0, progress="stuck"), span(902, verdict=None, held_back_s=10)]
    second = {"at_ms": 1_000, "side": "leader", "limit_bytes_per_s": 5, "bytes": 5}
    seconds = [second | {"broker": broker} for broker in range(LIMITS_MAX + 2)]
    frames = as_frames(spark, {"throttle": [*seconds, seconds[0] | {"at_ms": 2_000}]})
    points = collect(
        Tables(throttle=spark.createDataFrame(spans, SPANS), seconds=frames["throttle"])
    )
    brokers = [row["broker"] for row in points.throttle or []]
    assert brokers == [901, 902, *range(ROWS_MAX - 2)]
    assert len(points.seconds or []) == LIMITS_MAX
    assert points.summary == {"spans": ROWS_MAX + 2, "limits": LIMITS_MAX + 2}
