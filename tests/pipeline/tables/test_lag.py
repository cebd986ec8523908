"""Lag equals that of an oracle which computes every single millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import SparkSession

from insync.pipeline.tables.lag import COLUMNS, Lag, lag
from insync.pipeline.tables.problems import count_problems, problems
from insync.telemetry.schemas import REASSIGNMENT
from support.pipeline.lag_oracle import in_order, millisecond_by_millisecond
from support.pipeline.sample_tables import many_partitions, one_recorded_run
from support.pipeline.spark_frames import as_frames
from support.pipeline.table_strategies import Tables, arrow, recorded

BUCKET_MS = 250
SECOND_MS = 1_000


def lag_rows(tables: Tables, bucket_ms: int = BUCKET_MS) -> list[dict[str, Any]]:
    tables_of_arrow = arrow(tables)
    table = Lag(bucket_ms)(
        {name: tables_of_arrow[name].select(list(COLUMNS[name])) for name in COLUMNS}
    )
    return sorted(table.to_pylist(), key=in_order)


@pytest.mark.property
@given(tables=recorded(partitions=2))
def test_lag_agrees_with_the_oracle_at_every_millisecond(tables: Tables) -> None:
    assert lag_rows(tables) == millisecond_by_millisecond(tables, BUCKET_MS)


def after_an_election(*moved: int, start: int = 20) -> Tables:
    """3 died at 5 s and 1, the leader, at 10 s; 2 leads from then on and has no follower."""
    partition_columns = {"topic": "t", "partition": 0}
    first, second = (partition_columns | {"leader": each, "leader_epoch": each} for each in (1, 2))
    return {
        "appends": [
            first | appended(1, 0, 10),
            first | appended(6, 10, 20),
            second | appended(10, start, start),
            second | appended(12, start, start + 5),
            second | appended(14, start + 5, start + 10),
        ],
        "fetches": [first | fetched(5, 3, 10), first | fetched(9, 2, 20)],
        "isr": [
            second | {"isr_before": [1, 2, 3], "replica": each, "cause": REASSIGNMENT}
            for each in moved
        ],
    }


def appended(at_s: int, base: int, end: int) -> dict[str, Any]:
    row = {"at_ms": at_s * SECOND_MS, "base_offset": base, "end_offset": end}
    return row | {"bytes": 10 * (end - base)}


def fetched(at_s: int, follower: int, end: int) -> dict[str, Any]:
    row = {"at_ms": at_s * SECOND_MS, "follower": follower, "offset": end}
    return row | {"leader_end_low": end, "leader_end_high": end}


def peaks(rows: list[dict[str, Any]], follower: int) -> list[tuple[int, ...]]:
    """Of the epoch after the election: samples and the highest lag in ms, messages and bytes."""
    names = ("bucket_at_ms", "samples", "lag_ms_max", "lag_messages_max", "lag_bytes_max")
    own = [row for row in rows if (row["leader_epoch"], row["follower"]) == (2, follower)]
    return [tuple(row[name] for name in names) for row in own]


def test_a_follower_that_died_before_an_election_lags_since_the_election() -> None:
    rows = lag_rows(after_an_election(), SECOND_MS)
    assert peaks(rows, 3) == [
        (10_000, 1_000, 999, 10, 0),
        (11_000, 1_000, 1_999, 10, 0),
        (12_000, 1_000, 2_999, 15, 50),
        (13_000, 1_000, 3_999, 15, 50),
        (14_000, 1, 4_000, 20, 100),
    ]
    assert [peak[3] for peak in peaks(rows, 1)] == [0, 0, 5, 5, 10]  # it led up to 20
    assert not peaks(rows, 2)
    # Another began its epoch at 15: what 1 has from there on is not its own.
    rows = lag_rows(after_an_election(start=15), SECOND_MS)
    assert [peak[3] for peak in peaks(rows, 3)] == [5, 5, 10, 10, 15]
    assert [peak[3] for peak in peaks(rows, 1)] == [0, 0, 5, 5, 10]


@pytest.mark.parametrize(("away", "stays"), [(3, 1), (1, 3)])
def test_a_replica_that_was_moved_away_has_no_lag(away: int, stays: int) -> None:
    rows = lag_rows(after_an_election(away), SECOND_MS)
    assert not peaks(rows, away)
    assert peaks(rows, stays) == peaks(lag_rows(after_an_election(), SECOND_MS), stays)


def assigned(at_s: int, epoch: int, replicas: list[int], **more: Any) -> dict[str, Any]:
    row = {"topic": "t", "partition": 0, "leader": epoch, "leader_epoch": epoch, "version": at_s}
    row |= {"at_ms": at_s * SECOND_MS, "topic_id": "first", "replicas": replicas}
    return row | {"adding": [], "removing": []} | more


def test_a_replica_that_was_out_of_sync_when_it_was_removed_has_no_lag() -> None:
    """3 died, and a reassignment removed it: no ISR changed."""
    rows = after_an_election() | {
        "assignments": [assigned(1, 1, [1, 2, 3]), assigned(10, 2, [2, 1])]
    }
    without = lag_rows(rows, SECOND_MS)
    assert not peaks(without, 3)
    assert peaks(without, 1) == peaks(lag_rows(after_an_election(), SECOND_MS), 1)


def test_an_old_leader_that_goes_on_recording_adds_no_lag() -> None:
    """1 has not learnt that 2 leads from 10 s on; the last it recorded before is of 9 s."""
    tables = after_an_election()
    old = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 1}
    tables["appends"].append(old | appended(13, 20, 30))
    assert lag_rows(tables, SECOND_MS) == lag_rows(after_an_election(), SECOND_MS)


def test_a_topic_that_was_created_again_has_new_followers() -> None:
    """At 20 s, on 2 and 4: neither 1 nor 3 is behind in it, and its epochs begin again."""
    tables = after_an_election()
    again = {"topic": "t", "partition": 0, "leader": 2, "leader_epoch": 1}
    tables["appends"] += [again | appended(20, 0, 0), again | appended(22, 0, 7)]
    tables["fetches"].append(again | fetched(21, 4, 0))
    tables["assignments"] = [
        assigned(1, 1, [1, 2, 3]),
        assigned(10, 2, [1, 2, 3]),
        assigned(20, 1, [2, 4], topic_id="second"),
    ]
    rows = lag_rows(tables, SECOND_MS)
    later = [row for row in rows if row["bucket_at_ms"] >= 20_000]
    assert {row["follower"] for row in later} == {4}
    assert max(row["lag_messages_max"] for row in later) == 7
    assert [row for row in rows if row not in later] == lag_rows(after_an_election(), SECOND_MS)


@pytest.mark.spark
@pytest.mark.parametrize(
    "made", [one_recorded_run, pytest.param(many_partitions, marks=pytest.mark.long)]
)
def test_spark_computes_the_same_lag(spark: SparkSession, made: Callable[[], Tables]) -> None:
    tables = made()
    away = {  # of a topic of its own: a made table may have the same partition at other times
        name: [row | {"topic": "moved"} for row in rows]
        for name, rows in after_an_election(3).items()
    }
    shard = arrow(tables | {name: [*tables[name], *rows] for name, rows in away.items()})
    tables = {name: rows.to_pylist() for name, rows in shard.items()}
    frames = as_frames(spark, tables)
    names = ("fetches", "appends", "isr", "assignments")
    table = lag(*(frames[name] for name in names), bucket_ms=1_000).collect()
    assert table
    assert sorted((row.asDict() for row in table), key=in_order) == millisecond_by_millisecond(
        tables, 1_000
    )
    wrong = [
        row.asDict()
        for row in problems(
            **{name: frames[name] for name in ("fetches", "appends", "assignments")}
        ).collect()
    ]
    assert sorted(map(str, wrong)) == sorted(map(str, count_problems(shard).to_pylist()))
