"""Results as Delta tables, with Delta's own package, by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from exported_tables import record, write

from peers.apache_kafka import DELTA_POM, classpath

pytestmark = pytest.mark.interop


def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "insync", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_table_is_written_as_delta_and_not_over_another(tmp_path: Path) -> None:
    source = str(write(tmp_path / "exported", record()))
    settings = {
        "spark.jars": classpath(DELTA_POM).replace(os.pathsep, ","),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    conf = [flag for key, value in settings.items() for flag in ("--conf", f"{key}={value}")]
    asked = ["episodes", "--source", source, "--out", str(tmp_path / "out"), "--format", "delta"]
    done = pipeline(*asked, "--json", *conf)
    assert done.returncode == 0, done.stderr
    table = tmp_path / "out" / "episodes"
    log = [json.loads(line) for line in (table / "_delta_log" / f"{0:020}.json").open()]
    added = [each["add"]["path"] for each in log if "add" in each]
    rows = [row for path in added for row in pq.read_table(table / path).to_pylist()]
    assert [(row["topic"], row["follower"]) for row in rows] == [("orders", 3)]
    again = pipeline(*asked, *conf)
    assert again.returncode == 1
    assert "exists; choose another --out, or --overwrite" in again.stderr


def test_without_the_package_it_says_what_to_give(tmp_path: Path) -> None:
    source = str(write(tmp_path / "exported", record()))
    done = pipeline("lag", "--source", source, "--out", str(tmp_path / "out"), "--format", "delta")
    assert done.returncode == 1
    assert "io.delta:delta-spark_4.2_2.13" in done.stderr
