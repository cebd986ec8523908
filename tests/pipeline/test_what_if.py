"""The what-if table on Spark equals what the rules come to, row by row, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from made_up_telemetry import made_up
from pyspark.sql import SparkSession
from recorded_life import as_rows, live
from recorded_tables import Tables, arrow
from test_replay import everything
from what_if_oracle import by_rules, in_order

from insync.pipeline.scenarios import Asked
from insync.pipeline.schemas import COUNTS, WHAT_IF
from insync.pipeline.what_if_table import what_if, what_if_exported

pytestmark = pytest.mark.spark

ASKED = Asked(
    lag_time_max_ms=(200, 1_000, 1_500),
    lag_max_messages=(20,),
    half_period_check=(False, True),
    min_insync_replicas=2,
    fetch_wait_max_ms=500,
)
TOPICS = 7  # of what is made up
FILES = 3


def a_life() -> Tables:
    return as_rows(live(0, everything))


def many_partitions() -> Tables:
    """Of several topics, each numbering its own from 0."""
    return {
        name: [
            row | ({"partition": row["partition"] // TOPICS} if "partition" in row else {})
            for row in rows
        ]
        for name, rows in made_up(2, partitions=150).items()
    }


@pytest.fixture(scope="module", params=[a_life, many_partitions])
def told(request: pytest.FixtureRequest) -> tuple[Tables, list[dict[str, Any]]]:
    """What was recorded, and the table that the rules make of it."""
    tables = request.param()
    expected = by_rules(tables, ASKED)
    assert any(row["shrinks"] for row in expected)
    if request.param is many_partitions:
        _asks_everything(expected)
    return tables, expected


def _asks_everything(rows: list[dict[str, Any]]) -> None:
    """There are rows at each level, and each policy has each count."""
    assert len({row["topic"] for row in rows if row["level"] == "topic"}) == TOPICS
    assert len({(row["topic"], row["partition"]) for row in rows}) == 150 + TOPICS + 1
    for policy in ASKED.policies:
        own = [row for row in rows if (row["level"], row["policy"]) == ("all", policy)]
        assert [name for name in COUNTS if not any(row[name] for row in own)] == [], policy


def test_tables_from_anywhere(
    spark: SparkSession, told: tuple[Tables, list[dict[str, Any]]]
) -> None:
    tables, expected = told
    frames = {name: spark.createDataFrame(table) for name, table in arrow(tables).items()}
    found = what_if(**frames, asked=ASKED)
    assert found.schema.names == WHAT_IF.names
    assert [field.dataType for field in found.schema] == [field.dataType for field in WHAT_IF]
    rows = sorted((row.asDict() for row in found.collect()), key=in_order)
    assert rows == expected


def test_an_export(
    spark: SparkSession, told: tuple[Tables, list[dict[str, Any]]], tmp_path: Path
) -> None:
    tables, expected = told
    for name, table in arrow(tables).items():
        for number in range(FILES):  # of a life the last has nothing: nobody's partition went there
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            part = table
            if "partition" in table.column_names:
                part = table.filter([n % FILES == number for n in table["partition"].to_pylist()])
            elif number:
                part = table.slice(0, 0)
            pq.write_table(part, folder / f"part-{number:05d}.parquet")
    found = what_if_exported(spark, tmp_path, asked=ASKED)
    rows = sorted((row.asDict() for row in found.collect()), key=in_order)
    assert rows == expected
