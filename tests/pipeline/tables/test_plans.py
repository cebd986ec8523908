"""Inbound rates and plans of records that were made up, whose right answers are known."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.moves.plan_file import parse_plan
from insync.pipeline.tables.balance_plan import PlanOptions
from insync.pipeline.tables.inbound import INBOUND, inbound
from insync.pipeline.tables.plans import PLANS, plans
from insync.pipeline.tables.recorded_cluster import (
    LastAssignments,
    RecordedPartition,
    recorded_cluster,
)
from insync.rules.refusals import BadPlan
from support.pipeline.planned_tables import (
    DAY_MS,
    HOURS,
    MIDNIGHT_MS,
    MINUTE_MS,
    PARTITIONS,
    QUIET_HOUR,
    Row,
    Tables,
    append,
    assignment,
    config,
    fetch,
    rate,
    uneven_day,
)
from support.pipeline.spark_frames import as_frames

pytestmark = pytest.mark.spark

NAMES = ("fetches", "appends", "assignments", "isr", "configs")
NETWORK = 1_000_000
Plan = dict[Any, tuple[int, ...]]


def planned(spark: SparkSession, tables: Tables, **options: Any) -> Row:
    frames = as_frames(spark, tables)
    table = plans(**{name: frames[name] for name in NAMES}, options=PlanOptions(**options))
    assert table.schema == PLANS
    (row,) = table.collect()
    return row.asDict(recursive=True)


def test_a_day_is_planned_by_its_quiet_hours(spark: SparkSession) -> None:
    """Six partitions on brokers 1 and 2: four of their twelve replicas go to broker 3."""
    row = planned(spark, uneven_day(), network_bytes_per_s=NETWORK)
    plan: Plan = dict(parse_plan(row["plan"]))
    before: Plan = {("orders", number): (1, 2) for number in range(PARTITIONS)}
    after = {**before, **plan}
    assert row["verdict"] == "move"
    assert Counter(broker for replicas in after.values() for broker in replicas) == {
        1: 4, 2: 4, 3: 4,
    }  # fmt: skip
    # With the idle topic that broker 3 leads; seven partitions, three brokers.
    leaders = Counter(replicas[0] for replicas in after.values()) + Counter({3: 1})
    assert max(leaders.values()) == 3
    assert parse_plan(row["rollback"]) == {partition: before[partition] for partition in plan}
    copied = {each: set(plan[each]) - {1, 2} for each in plan if set(plan[each]) - {1, 2}}
    assert row["partitions_to_move"] == len(copied) == 4
    assert row["move_ratio"] == 4 / 7
    assert row["partitions_to_reorder"] == len(plan) - 4
    _has_the_estimates_of_kip_73(row, plan, len(copied))
    assert "every hour of the day" in row["statements"][0]


def _has_the_estimates_of_kip_73(row: Row, plan: Plan, copies: int) -> None:
    """By the formulas of the document, on the sizes and rates that the record was made of."""
    log = sum(rate(hour) * 3_600 for hour in range(HOURS))  # of one partition, all of it kept
    per_broker = log * PARTITIONS * 2 // 3
    assert row["log_bytes_per_broker"] == per_broker
    assert row["bytes_to_move"] == copies * log
    for hour in row["hours"]:
        least = _lowest_safe(plan, rate(hour["hour"]))
        assert hour["throttle_min_bytes_per_s"] == least
        assert hour["client_inbound_bytes_per_s"] == PARTITIONS * rate(hour["hour"])
        # N - IN/R: brokers 1 and 2 receive all six partitions.
        highest = NETWORK - PARTITIONS * rate(hour["hour"]) / 2
        assert hour["throttle_max_bytes_per_s"] == highest - 1
    assert row["throttle_min_bytes_per_s"] == _lowest_safe(plan, rate(16))
    assert row["throttle_max_bytes_per_s"] == NETWORK - PARTITIONS * rate(16) / 2 - 1
    quota = row["throttle_bytes_per_s"]
    # All of it within an hour from the quiet one, by the broker that has most to send or receive.
    assert row["best_hour"] == QUIET_HOUR
    sent = {1: log * copies, 3: log * copies}
    needed = max(size / 3_600 for size in sent.values()) + _lowest_safe(plan, rate(QUIET_HOUR)) - 1
    assert quota == pytest.approx(needed, abs=1)
    seconds = 4 / 7 * per_broker * 3 / (quota - PARTITIONS * rate(QUIET_HOUR))
    assert row["move_time_ms"] == pytest.approx(1_000 * seconds, abs=1)
    assert row["per_broker_time_ms"] <= 3_600_000


def _lowest_safe(plan: Plan, rate_of_each: int) -> int:
    """One above what a broker has to carry beside the copies: leader 1 sends each partition that
    moves to its new replica and to the follower it has; broker 3 receives them."""
    moved = [replicas for replicas in plan.values() if 3 in replicas]
    return max(2 * len(moved), len(moved)) * rate_of_each + 1


@pytest.mark.long_on_spark
def test_inbound_rates_are_by_hour_of_the_day(spark: SparkSession) -> None:
    """The second day has only the first hour, at half the rate; the hour between has no rows."""
    tables = uneven_day()
    later = [
        append("orders", 0, 2, MIDNIGHT_MS + DAY_MS + 2_000, 99, seq=99, bytes=rate(0) * 1_800)
    ]
    later_fetches = [
        fetch("idle", 0, 3, 2, MIDNIGHT_MS + DAY_MS + minute * MINUTE_MS) for minute in range(61)
    ]
    frames = as_frames(
        spark,
        {
            "appends": [*tables["appends"], *later],
            "fetches": [*tables["fetches"], *later_fetches],
        },
    )
    table = inbound(frames["fetches"], frames["appends"])
    assert table.schema.simpleString() == INBOUND.simpleString()
    rows = {(row["level"], row["name"], row["hour"]): row for row in table.collect()}
    assert {each[:2] for each in rows} == {("topic", "orders"), ("broker", "1"), ("broker", "2")}
    for hour in range(2, HOURS):
        of_topic = rows["topic", "orders", hour]
        assert (of_topic["days"], of_topic["covered_ms"]) == (1, 3_600_000)
        assert of_topic["inbound_bytes_per_s"] == PARTITIONS * rate(hour)
    first = rows["topic", "orders", 0]
    assert (first["days"], first["covered_ms"]) == (2, 2 * 3_600_000)
    assert first["inbound_bytes_per_s"] == (PARTITIONS + 0.5) * rate(0) / 2
    assert first["inbound_max_bytes_per_s"] == PARTITIONS * rate(0)
    second = rows["broker", "2", 0]
    assert second["inbound_max_bytes_per_s"] == rate(0) / 2
    assert rows["broker", "2", 7]["inbound_bytes_per_s"] == 0, "recorded, and nothing came"


END_MS = MIDNIGHT_MS + 10 * MINUTE_MS


def eventful() -> Tables:
    """Ten minutes, after which brokers 4 and 5 are unfit and only some partitions may move."""
    beginning = MIDNIGHT_MS + 1_000
    deleted = assignment("gone", 0, (), version=3, at_ms=END_MS)
    again = assignment("again", 0, (2, 3), topic_id="id-2", at_ms=beginning + 5_000)
    moving = assignment("moving", 0, (1, 2, 3), version=2, adding=[3], removing=[1])
    shrunk = {
        "at_ms": END_MS, "decided_at_ms": END_MS, "decided_by": "leader", "topic": "behind",
        "partition": 0, "leader": 1, "leader_epoch": 1, "version": 2, "isr_before": [1, 5],
        "isr_after": [1], "replica": 5, "change": "shrink",
    }  # fmt: skip
    return {
        "assignments": [
            assignment("gone", 0, (1, 2)), deleted, assignment("again", 0, (1, 2)), again, moving,
            assignment("moving", 0, (1, 2)), assignment("behind", 0, (1, 5)),
            assignment("kept", 0, (3, 4)), assignment("kept", 1, (3, 4)),
        ],
        "isr": [shrunk],
        "appends": [
            append("again", 0, 1, beginning, 0, bytes=77_000),  # of the first topic of that name
            append("again", 0, 2, beginning + 6_000, 0, bytes=500),
            # Of 100 offsets 90 are kept, and the last 10 are recorded.
            append("kept", 0, 3, END_MS, 90, end_offset=100, bytes=2_000),
            append("kept", 1, 3, beginning, 40, end_offset=40, bytes=0),  # the beginning of a term
            append("behind", 0, 1, END_MS, 0),
        ],
        "fetches": [
            fetch("kept", 0, 3, 4, beginning, log_start=10),
            fetch("kept", 0, 3, 2, END_MS - 10_001, log_start=10),
            fetch("behind", 0, 1, 5, END_MS),
            fetch("again", 0, 2, 3, END_MS - 9_000),
        ],
        "configs": [
            config(1, "broker.rack", "a"), config(2, "broker.rack", ""),
            config(1, "broker.rack", "b", at_ms=END_MS), config(6, "broker.rack", ""),
            config(1, "replica.lag.time.max.ms", "10000"),
            {"at_ms": 1, "scope": "broker:1/topic:x", "name": "broker.rack", "value": "c"},
        ],
    }  # fmt: skip


@pytest.mark.long_on_spark
def test_the_cluster_is_that_of_the_records_end(spark: SparkSession) -> None:
    frames = as_frames(spark, eventful())
    assigned = LastAssignments(frames["assignments"])
    others = {name: frames[name] for name in NAMES if name != "assignments"}
    cluster = recorded_cluster(assigned=assigned, **others)
    partitions: dict[Any, RecordedPartition] = dict(cluster.partitions)
    assert {name for name, _ in partitions} == {"again", "behind", "kept", "moving"}
    assert partitions["again", 0].replicas == (2, 3)
    assert partitions["again", 0].bytes_written == 500, "an earlier topic's bytes do not count"
    assert partitions["moving", 0].is_moving
    assert partitions["behind", 0].out_of_sync == (5,)
    # 90 offsets of 200 bytes; 40 of the mean of the topic; of another nothing is known.
    assert partitions["kept", 0].size_bytes == 18_000
    assert partitions["kept", 1].size_bytes == 40 * 200
    assert partitions["moving", 0].size_bytes is None
    assert cluster.unfit == {
        4: "silent for the last 9 min 59 s of the record",
        5: "out of sync at the end of the record",
    }
    assert cluster.racks == {1: "b"}
    assert list(cluster.unused) == [6]
    assert list(cluster.brokers) == [1, 2, 3, 4, 5]


@pytest.mark.long_on_spark
def test_a_record_of_deleted_topics_has_no_plan(spark: SparkSession) -> None:
    tables = eventful()
    tables["assignments"] = tables["assignments"][:2]
    with pytest.raises(BadPlan, match="every topic of the record was deleted"):
        planned(spark, tables)
