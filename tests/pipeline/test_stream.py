"""Tables appended as blocks come: each row once, also when blocks repeat and after kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cluster_helpers import eventually
from exported_tables import record
from pyspark.sql import SparkSession
from telemetry_topic import SETTINGS, Row, Topic, append_row

from insync.pipeline import stream
from insync.pipeline.files import BadSource, read_tables
from insync.pipeline.lag_table import lag
from insync.testing.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process]

EMPTY = ("fetches", "isr", "elections", "throttle", "configs", "lag")
WITHIN_S = 300.0  # of a machine that does other things, too


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1, settings=SETTINGS) as started:
        yield started


def taken(out: Path, table: str = "appends") -> list[Row]:
    """As pyarrow reads it: nobody needs Spark to read the tables."""
    rows = pq.read_table(out / table).drop_columns(["batch"]).to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["seq"]))


def some(partition: int, first: int) -> list[Row]:
    return [append_row(seq, partition=partition) for seq in range(first, first + 5)]


def drain(spark: SparkSession, cluster: Cluster, out: Path, *, blocks: int) -> dict[str, Any]:
    options = {"maxBlocksPerTrigger": str(blocks)}
    query, appender = stream.start(
        spark, bootstrap=cluster.bootstrap, out=str(out), options=options
    )
    assert query.awaitTermination(int(WITHIN_S))
    return appender.summary()


def test_blocks_that_come_twice_or_broken_or_late(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic, out = Topic(cluster), tmp_path / "out"
    sent: list[Row] = []
    again: list[tuple[int, bytes, bytes]] = []
    for first in (0, 5, 10):
        for partition in (0, 1):
            rows = some(partition, first)
            sent += rows
            key, value = topic.block(partition, "appends", rows)
            again.append((partition, key, value))
    topic.block(0, "stalls", [{"at_ms": 5, "broker": 3, "stall_ms": 40}])
    drained = drain(spark, cluster, out, blocks=4)
    assert drained == {
        "batches": 2,
        "rows": {"appends": 30, "stalls": 1} | dict.fromkeys(EMPTY, 0),
        "repeated_rows": 0,
        "late_rows": 0,
        "bad_blocks": 0,
        "lag_until_ms": None,
    }
    wanted = sorted(sent, key=lambda row: (row["partition"], row["seq"]))
    assert taken(out) == wanted

    # All of it once more, some under other names, and something new among it.
    for partition, key, value in again:
        topic.send(partition, key, value)
    topic.block(1, "appends", some(1, 10))
    topic.block(0, "stalls", [{"at_ms": 5, "broker": 3, "stall_ms": 40}])
    topic.send(0, b"no label", b"")
    new = some(0, 15)
    topic.block(0, "appends", new)
    second = drain(spark, cluster, out, blocks=100)
    assert (second["rows"]["appends"], second["rows"]["stalls"]) == (35, 1)
    assert (second["repeated_rows"], second["bad_blocks"]) == (36, 1)
    wanted = sorted(sent + new, key=lambda row: (row["partition"], row["seq"]))
    assert taken(out) == wanted
    assert pq.read_table(out / "bad_blocks").column("error").to_pylist() == ["its key is no label"]
    # What a stream wrote is a source like any other.
    assert read_tables(spark, str(out), needed=["appends"]).frames["appends"].count() == 35


def test_lag_is_told_up_to_the_watermark(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """As the batch tells it of the same rows, bucket by bucket, each once."""
    topic, out, tables = Topic(cluster), tmp_path / "out", record()
    for at in range(0, 400, 100):
        for name in ("appends", "fetches"):
            topic.block(0, name, tables[name][at : at + 100])
    asked = stream.LagAsked(bucket_ms=1_000, late_ms=2_500)
    query, appender = stream.start(
        spark, bootstrap=cluster.bootstrap, out=str(out), lag=asked,
        options={"maxBlocksPerTrigger": "3"},
    )  # fmt: skip
    assert query.awaitTermination(int(WITHIN_S))
    latest_ms = max(row["at_ms"] for name in ("appends", "fetches") for row in tables[name])
    watermark_ms = (latest_ms - 2_500) // 1_000 * 1_000
    assert appender.summary()["lag_until_ms"] == watermark_ms
    frames = read_tables(spark, str(out), needed=["fetches"]).frames
    whole = lag(frames["fetches"], frames["appends"], bucket_ms=1_000).collect()
    wanted = [row.asDict() for row in whole if row["bucket_at_ms"] < watermark_ms]
    told = pq.read_table(out / "lag").drop_columns(["batch"]).to_pylist()
    assert told
    assert sorted(told, key=str) == sorted(wanted, key=str)


def test_a_folder_with_other_tables_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "fetches"))
    with pytest.raises(BadSource, match="has tables that no stream wrote"):
        stream.start(spark, bootstrap="127.0.0.1:1", out=str(tmp_path))


def command(cluster: Cluster, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "insync", "pipeline", "stream", "--source", cluster.bootstrap,
         "--out", str(out), "--max-blocks", "2", "--master", "local[1]", "--json", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_killed_in_the_middle_it_goes_on_and_every_row_is_there_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, out = Topic(cluster), tmp_path / "out"
    sent: list[Row] = []
    for first in range(0, 100, 5):
        for partition in (0, 1):
            rows = some(partition, first)
            sent += rows
            topic.block(partition, "appends", rows)
    # Killed after the offsets of a batch are written down: before, within or after its tables.
    for number in (1, 4, 8):
        running = command(cluster, out, "--every", "1")
        try:
            offsets = out / "_checkpoint" / "offsets" / str(number)
            eventually(offsets.exists, within_s=WITHIN_S, what=f"batch {number} has begun")
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate()
    last = command(cluster, out, "--available-now")
    try:
        said, errors = last.communicate(timeout=WITHIN_S)
    finally:
        last.kill()
    assert last.returncode == 0, errors
    assert json.loads(said)["rows"]["appends"] == 200
    assert taken(out) == sorted(sent, key=lambda row: (row["partition"], row["seq"]))


@pytest.mark.long
def test_asked_to_end_it_ends_well(cluster: Cluster, tmp_path: Path) -> None:
    Topic(cluster).block(0, "appends", some(0, 0))
    running = command(cluster, tmp_path / "out", "--every", "1")
    try:
        told = tmp_path / "out" / "batches" / "batch=0" / "_SUCCESS"
        eventually(told.exists, within_s=WITHIN_S, what="the first batch is done")
        running.send_signal(signal.SIGTERM)
        said, errors = running.communicate(timeout=WITHIN_S)
    finally:
        running.kill()
    assert running.returncode == 0, errors
    assert errors == ""
    assert json.loads(said)["rows"]["appends"] == 5
