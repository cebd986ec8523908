"""Results as Delta tables, with Delta's own package, by the command."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, DataType, StructType

from insync.pipeline.io import output
from insync.pipeline.io.session import session
from insync.pipeline.tables import episodes, health, incidents, throttle
from insync.pipeline.tables.inbound import INBOUND
from insync.pipeline.tables.plans import PLANS
from insync.pipeline.tables.recommendation import RECOMMENDATION
from insync.pipeline.tables.record import RECORD
from insync.pipeline.tables.registry import STEPS
from insync.pipeline.tables.schemas import LAG, PROBLEMS, WHAT_IF
from peers.apache_kafka import DELTA_POM, classpath
from support.pipeline.exported_tables import record, write

pytestmark = pytest.mark.interop

SCHEMAS = {
    "problems": PROBLEMS,
    "lag": LAG,
    "episodes": episodes.SCHEMA,
    "incidents": incidents.SCHEMA,
    "what_if": WHAT_IF,
    "record": RECORD,
    "recommendation": RECOMMENDATION,
    "throttle": throttle.SCHEMA,
    "inbound": INBOUND,
    "plans": PLANS,
    "health": health.SCHEMA,
}
VALUES = {"string": "a", "int": 7, "bigint": 1 << 40, "boolean": True, "double": 0.5}
WITHIN_S = 300


def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "insync", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def delta_settings() -> dict[str, str]:
    return {
        "spark.jars": classpath(DELTA_POM).replace(os.pathsep, ","),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """By Delta's log, which alone says what belongs to a table."""
    log = [json.loads(line) for line in (table / "_delta_log" / f"{0:020}.json").open()]
    added = [each["add"]["path"] for each in log if "add" in each]
    return [row for path in added for row in pq.read_table(table / path).to_pylist()]


def test_a_table_is_written_as_delta_and_not_over_another(tmp_path: Path) -> None:
    source = str(write(tmp_path / "exported", record()))
    settings = delta_settings().items()
    conf = [flag for key, value in settings for flag in ("--conf", f"{key}={value}")]
    arguments = [
        "episodes",
        "--source",
        source,
        "--out",
        str(tmp_path / "out"),
        "--format",
        "delta",
    ]
    done = pipeline(*arguments, "--json", *conf)
    assert done.returncode == 0, done.stderr
    rows = delta_rows(tmp_path / "out" / "episodes")
    assert [(row["topic"], row["follower"]) for row in rows] == [("orders", 3)]
    again = pipeline(*arguments, *conf)
    assert again.returncode == 1
    assert "exists; choose another --out, or --overwrite" in again.stderr


def a_row(schema: StructType) -> dict[str, Any]:
    return {field.name: a_value(field.dataType) for field in schema}


def a_value(data_type: DataType) -> Any:
    match data_type:
        case ArrayType():
            return [a_value(data_type.elementType)]
        case StructType():
            return a_row(data_type)
        case _:
            return VALUES[data_type.simpleString()]


def write_every_table(settings: dict[str, str], out: Path) -> None:
    with session(master="local[2]", settings=settings) as spark:
        for name, schema in SCHEMAS.items():
            rows = spark.createDataFrame([a_row(schema)], schema)
            output.write(rows, str(out / name), form="delta")


def test_every_table_can_be_written_as_delta(tmp_path: Path) -> None:
    assert set(SCHEMAS) == set(STEPS)
    # Java takes Delta's package when it starts: a process of its own.
    work = multiprocessing.get_context("spawn").Process(
        target=write_every_table, args=(delta_settings(), tmp_path)
    )
    work.start()
    work.join(WITHIN_S)
    assert work.exitcode == 0
    assert {name: delta_rows(tmp_path / name) for name in SCHEMAS} == {
        name: [a_row(schema)] for name, schema in SCHEMAS.items()
    }


def test_without_the_package_the_error_names_it(tmp_path: Path) -> None:
    source = str(write(tmp_path / "exported", record()))
    done = pipeline("lag", "--source", source, "--out", str(tmp_path / "out"), "--format", "delta")
    assert done.returncode == 1
    assert "io.delta:delta-spark_4.2_2.13" in done.stderr
