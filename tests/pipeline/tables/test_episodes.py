"""Episodes on Spark are those of the oracle, row by row."""

from __future__ import annotations

from collections import Counter
from inspect import signature
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.tables.episodes import CAUSES, SCHEMA, episodes
from insync.telemetry.schemas import REASSIGNMENT
from support.pipeline.episodes_oracle import episodes as expected_episodes
from support.pipeline.exported_tables import BASE, SILENT, STEP_MS, STEPS, fetch
from support.pipeline.exported_tables import record as silent_follower
from support.pipeline.random_tables import Tables, made_up
from support.pipeline.spark_frames import as_frames
from support.telemetry.recorded_runs import record_a_run

pytestmark = pytest.mark.spark
Row = dict[str, Any]
COLUMNS = [(each.name, each.dataType) for each in SCHEMA]


def frames_of(spark: SparkSession, tables: Tables) -> dict[str, DataFrame]:
    """The tables that episodes are made of, and that the oracle knows."""
    names = signature(episodes).parameters.keys() - {"isr_events"}
    return {name: frame for name, frame in as_frames(spark, tables).items() if name in names}


def episodes_of_tables(spark: SparkSession, tables: Tables) -> list[Row]:
    frame = episodes(**frames_of(spark, tables))
    assert [(each.name, each.dataType) for each in frame.schema] == COLUMNS
    return [row.asDict() for row in frame.collect()]


def in_order(rows: list[Row]) -> list[Row]:
    key = ("topic", "partition", "follower", "began_at_ms", "rejoined_at_ms", "left_at_ms")
    return sorted(rows, key=lambda row: tuple((row[name] is None, row[name]) for name in key))


def same(ours: list[Row], theirs: list[Row]) -> None:
    for one, other in zip(in_order(ours), in_order(theirs), strict=False):
        differing = {
            name: (one[name], other[name]) for name in SCHEMA.names if one[name] != other[name]
        }
        assert not differing, (one, "found, expected:", differing)
    assert len(ours) == len(theirs)


def test_episodes_agree_with_the_oracle_on_random_tables(spark: SparkSession) -> None:
    tables = made_up(1, partitions=150)
    expected = expected_episodes(tables)
    same(episodes_of_tables(spark, tables), expected)
    counts = Counter(row["cause"] for row in expected)
    assert set(counts) == set(CAUSES), f"not every cause was made up: {counts}"
    for column in ("under_min_isr_ms", "leader_changes", "leader_stall_ms", "held_back_ms"):
        assert any(row[column] for row in expected), f"{column} was never tested"
    assert {row["kip501_would_hold"] for row in expected} == {None, True, False}
    assert {row["ending"] for row in expected} == {
        *("rejoined", "open", "unrecorded"),
        *("moved-away", "move-cancelled", "topic-deleted"),
    }
    assert any(row["flaps"] > 1 for row in expected)


def test_episodes_agree_with_the_oracle_on_a_recorded_run_with_every_fault(
    spark: SparkSession,
) -> None:
    tables = record_a_run(1, seconds=15.0) | {"throttle": []}
    expected = expected_episodes(tables)
    assert expected, "no replica was out of sync"
    same(episodes_of_tables(spark, tables), expected)


def with_another_partition(*, silent: bool) -> Tables:
    """Follower 3 fetches another partition too, from another leader."""
    tables = silent_follower()
    steps = [step for step in range(STEPS) if not (silent and step in SILENT)]
    tables["fetches"] += [
        fetch(1_000_000 + step * STEP_MS + 10, step, 3, 0) | {"partition": 1, "leader": 2}
        for step in steps
    ]
    return tables


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    ("tables", "cause"),
    [
        (silent_follower(), "stuck"),
        (with_another_partition(silent=True), "frozen"),
        (with_another_partition(silent=False), "stuck"),
    ],
)
def test_a_broker_is_frozen_if_more_than_one_partition_shows_its_silence(
    spark: SparkSession, tables: Tables, cause: str
) -> None:
    """It stops fetching the first one for 12 s. If that is the only one, the record cannot tell."""
    (episode,) = episodes_of_tables(spark, tables)
    assert (episode["follower"], episode["cause"]) == (3, cause)


@pytest.mark.long_on_spark
@pytest.mark.parametrize(
    ("replicas", "ending"),
    [([1, 2], "moved-away"), ([], "topic-deleted"), ([1, 2, 3], "open")],
)
def test_a_removal_whose_earlier_assignment_is_missing_ends_an_episode(
    spark: SparkSession, replicas: list[int], ending: str
) -> None:
    """The first assignment of the record does not list a replica that was seen before."""
    tables = silent_follower()
    shrink, _ = tables["isr"]
    tables["isr"] = [shrink]
    later = {"at_ms": shrink["at_ms"] + 500, "leader_epoch": 4 if not replicas else 5}
    assigned = {"version": 9, "topic_id": "a", "adding": [], "removing": []}
    tables["assignments"] = [BASE | later | assigned | {"replicas": replicas}]
    (episode,) = episodes_of_tables(spark, tables)
    assert (episode["follower"], episode["ending"]) == (3, ending)
    assert ending == "open" or episode["out_ms"] == 500
    same([episode], expected_episodes(tables))


@pytest.mark.long_on_spark
def test_no_tables_have_no_episodes(spark: SparkSession) -> None:
    assert episodes_of_tables(spark, {}) == []


@pytest.mark.long_on_spark
def test_isr_changes_of_an_earlier_version_have_no_cause(spark: SparkSession) -> None:
    """A table of an earlier version is read as one in which no cause is known.

    The brokers of that version recorded no `assignments` either.
    """
    tables = made_up(7, partitions=6) | {"assignments": []}
    unknown = [row | {"cause": None, "late_ms": None} for row in tables["isr"]]
    frames = frames_of(spark, tables)
    earlier = frames | {"isr": frames["isr"].drop("cause", "late_ms")}
    del earlier["assignments"]
    rows = [row.asDict() for row in episodes(**earlier).collect()]
    same(rows, expected_episodes(tables | {"isr": unknown}))
    assert any(row["cause"] == REASSIGNMENT for row in tables["isr"]), "none was moved away"
    assert all(row["ending"] != "moved-away" for row in rows)
