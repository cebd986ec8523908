"""The what-if table on Spark equals what the rules come to, row by row, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from recorded_life import as_rows, live
from recorded_tables import Tables, arrow
from test_replay import everything

from insync.pipeline import oracle
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


def by_rules(tables: Tables, asked: Asked) -> list[dict[str, Any]]:
    """Every level, by adding up and sorting."""
    sums: dict[tuple[Any, ...], tuple[dict[str, int], list[int]]] = {}
    for (topic, number), history in oracle.histories(tables).items():
        for scenario in asked.scenarios():
            verdicts = oracle.replay(
                history,
                scenario,
                min_insync_replicas=asked.min_insync_replicas,
                fetch_wait_max_ms=asked.fetch_wait_max_ms,
            )
            for level in (
                ("partition", topic, number),
                ("topic", topic, None),
                ("all", None, None),
            ):
                counts, delays = sums.setdefault((level, scenario), (dict.fromkeys(COUNTS, 0), []))
                for name in COUNTS:
                    counts[name] += getattr(verdicts, name)
                delays.extend(verdicts.detection_ms)
    rows = []
    for (level, scenario), (counts, delays) in sums.items():
        ordered = sorted(delays)
        rows.append(
            counts
            | dict(zip(("level", "topic", "partition"), level, strict=True))
            | {
                "policy": scenario.policy,
                "lag_time_max_ms": scenario.lag_time_max_ms,
                "lag_max_messages": scenario.lag_max_messages,
                "half_period_check": scenario.half_period_check,
                "detection_ms_p50": nearest_rank(ordered, 0.50),
                "detection_ms_p99": nearest_rank(ordered, 0.99),
                "below_resolution": scenario.lag_time_max_ms < 2 * asked.fetch_wait_max_ms,
            }
        )
    return sorted(rows, key=in_order)


def nearest_rank(ordered: list[int], part: float) -> int | None:
    """The smallest value that at least this part of them does not exceed."""
    reached = (v for at, v in enumerate(ordered, start=1) if at / len(ordered) >= part)
    return next(reached, None)


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    key = [row[name] for name in WHAT_IF.names[:7]]
    return tuple((value is not None, value) for value in key)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return as_rows(live(0, everything))


def test_tables_from_anywhere(spark: SparkSession, tables: Tables) -> None:
    frames = {name: spark.createDataFrame(table) for name, table in arrow(tables).items()}
    found = what_if(**frames, asked=ASKED)
    assert found.schema.names == WHAT_IF.names
    assert [field.dataType for field in found.schema] == [field.dataType for field in WHAT_IF]
    rows = sorted((row.asDict() for row in found.collect()), key=in_order)
    expected = by_rules(tables, ASKED)
    assert any(row["shrinks"] for row in expected)
    assert rows == expected


def test_an_export(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    for name, table in arrow(tables).items():
        for number in (0, 1, 2):  # the last has nothing: nobody's partition went there
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            part = table
            if "partition" in table.column_names:
                part = table.filter([n == number for n in table["partition"].to_pylist()])
            elif number:
                part = table.slice(0, 0)
            pq.write_table(part, folder / f"part-{number:05d}.parquet")
    found = what_if_exported(spark, tmp_path, asked=ASKED)
    rows = sorted((row.asDict() for row in found.collect()), key=in_order)
    assert rows == by_rules(tables, ASKED)
