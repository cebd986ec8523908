"""The what-if table on Spark equals what the rules come to, row by row, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.schemas import COUNTS, WHAT_IF
from insync.pipeline.tables.what_if import what_if, what_if_exported
from support.pipeline.exported_tables import write_split
from support.pipeline.sample_tables import (
    TOPICS,
    many_partitions,
    one_recorded_run,
    some_partitions,
)
from support.pipeline.table_strategies import Tables, arrow
from support.pipeline.what_if_oracle import by_rules, in_order

pytestmark = pytest.mark.spark

GRID = WhatIfGrid(
    lag_time_max_ms=(200, 1_000, 1_500),
    lag_max_messages=(20,),
    half_period_check=(False, True),
    fetch_wait_max_ms=500,
)
FILES = 3


MANY = pytest.param(many_partitions, marks=pytest.mark.long)  # the rules take long over them


@pytest.fixture(scope="module", params=[one_recorded_run, some_partitions, MANY])
def recorded_case(request: pytest.FixtureRequest) -> tuple[Tables, list[dict[str, Any]]]:
    """What was recorded, and the table that the rules make of it."""
    tables = request.param()
    expected = by_rules(tables, GRID)
    assert any(row["shrinks"] for row in expected)
    if request.param is not one_recorded_run:
        _check_coverage(tables, expected)
    return tables, expected


def _check_coverage(tables: Tables, rows: list[dict[str, Any]]) -> None:
    """There are rows at each level, and each policy has each count."""
    assert len({row["topic"] for row in rows if row["level"] == "topic"}) == TOPICS
    partitions = {(row["topic"], row["partition"]) for row in tables["fetches"]}
    assert len({(row["topic"], row["partition"]) for row in rows}) == len(partitions) + TOPICS + 1
    for policy in GRID.policies:
        own = [row for row in rows if (row["level"], row["policy"]) == ("all", policy)]
        assert [name for name in COUNTS if not any(row[name] for row in own)] == [], policy


def test_what_if_agrees_with_the_rules_on_data_frames(
    spark: SparkSession, recorded_case: tuple[Tables, list[dict[str, Any]]]
) -> None:
    tables, expected = recorded_case
    frames = {name: spark.createDataFrame(table) for name, table in arrow(tables).items()}
    table = what_if(**frames, grid=GRID)
    assert table.schema.names == WHAT_IF.names
    assert [field.dataType for field in table.schema] == [field.dataType for field in WHAT_IF]
    rows = sorted((row.asDict() for row in table.collect()), key=in_order)
    assert rows == expected


def test_what_if_agrees_with_the_rules_on_an_export(
    spark: SparkSession, recorded_case: tuple[Tables, list[dict[str, Any]]], tmp_path: Path
) -> None:
    tables, expected = recorded_case
    # Of a simulated run the last is empty: no partition is in it.
    folder = write_split(tmp_path, arrow(tables), files=FILES)
    table = what_if_exported(spark, folder, grid=GRID)
    rows = sorted((row.asDict() for row in table.collect()), key=in_order)
    assert rows == expected


def test_what_if_reads_isr_changes_of_an_earlier_version(spark: SparkSession) -> None:
    """Without the columns `cause` and `late_ms` no replica is known to have been moved away."""
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[1_000])
    tables = some_partitions(12)
    unknown = [row | {"cause": None} for row in tables["isr"]]
    expected = by_rules(tables | {"isr": unknown}, grid)
    assert expected != by_rules(tables, grid), "some replica was moved away"
    frames = {name: spark.createDataFrame(table) for name, table in arrow(tables).items()}
    frames["isr"] = frames["isr"].drop("cause", "late_ms")
    rows = sorted((row.asDict() for row in what_if(**frames, grid=grid).collect()), key=in_order)
    assert rows == expected
