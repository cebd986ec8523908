"""Tables appended as blocks come: each row once, also when blocks repeat and after kill -9."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from insync.pipeline import stream
from insync.pipeline.io.files import BadSource, read_tables
from insync.pipeline.io.output import in_a_line
from insync.pipeline.job import Job, run
from insync.pipeline.tables.lag import COLUMNS, Lag, lag
from insync.telemetry.schemas import TELEMETRY_TOPIC
from insync.testing.cluster import Cluster
from support.cluster.clients import admin, eventually
from support.pipeline.exported_tables import LAG_MS, SILENT, STEP_MS, STEPS, record
from support.pipeline.table_strategies import arrow
from support.pipeline.telemetry_topic import SETTINGS, Row, Topic, append_row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.insync_cluster(brokers=1, settings=SETTINGS),
]

EMPTY = ("fetches", "isr", "assignments", "isr_events", "elections", "throttle", "configs", "lag")
WITHIN_S = 300.0  # of a machine that does other things, too


def taken(out: Path, table: str = "appends") -> list[Row]:
    """As pyarrow reads it: the tables can be read without Spark."""
    rows = pq.read_table(out / table).drop_columns(["batch"]).to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["seq"]))


def some(partition: int, first: int) -> list[Row]:
    return [append_row(seq, partition=partition) for seq in range(first, first + 5)]


def drain(
    spark: SparkSession, cluster: Cluster, out: Path, *, blocks: int = 100, **more: Any
) -> dict[str, Any]:
    options = {"maxBlocksPerTrigger": str(blocks)}
    query, appender = stream.start(
        spark, bootstrap=cluster.bootstrap, out=str(out), options=options, **more
    )
    assert query.awaitTermination(int(WITHIN_S))
    return appender.summary()


def read_lag(out: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(out / "lag").drop_columns(["batch"]).to_pylist()
    return rows


def test_duplicate_bad_and_late_blocks(
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


def test_lag_is_written_up_to_the_watermark(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Equal to the batch result for the same rows, bucket by bucket, each once."""
    topic, out, tables = Topic(cluster), tmp_path / "out", record()
    for at in range(0, 400, 100):
        for name in ("appends", "fetches"):
            topic.block(0, name, tables[name][at : at + 100])
    options = stream.LagOptions(bucket_ms=1_000, late_ms=2_500)
    summary = drain(spark, cluster, out, blocks=3, lag=options)
    latest_ms = max(row["at_ms"] for name in ("appends", "fetches") for row in tables[name])
    watermark_ms = (latest_ms - 2_500) // 1_000 * 1_000
    assert summary["lag_until_ms"] == watermark_ms
    frames = read_tables(spark, str(out), needed=["fetches"]).frames
    whole = lag(frames["fetches"], frames["appends"], bucket_ms=1_000).collect()
    wanted = [row.asDict() for row in whole if row["bucket_at_ms"] < watermark_ms]
    lag_rows = read_lag(out)
    assert lag_rows
    assert sorted(lag_rows, key=str) == sorted(wanted, key=str)


@pytest.mark.long
def test_a_follower_silent_for_longer_than_the_history_still_lags(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Also when no client writes any more: what it lacks must not be forgotten either."""
    topic, out, tables = Topic(cluster), tmp_path / "out", record()
    end, died_ms = 80, 1_000_000 + SILENT.start * STEP_MS
    appends = tables["appends"][:end]
    fetches = [
        row
        | dict.fromkeys(("offset", "leader_end_low", "leader_end_high"), min(row["offset"], end))
        for row in tables["fetches"]
        if row["follower"] == 2 or row["at_ms"] < died_ms
    ]
    for first_ms in range(1_000_000, 1_020_000, 4_000):
        for name, rows in (("appends", appends), ("fetches", fetches)):
            here = [row for row in rows if first_ms <= row["at_ms"] < first_ms + 4_000]
            if here:
                topic.block(0, name, here)
    # Of four batches the third cuts the last fetch off, and the fourth takes it from the third.
    options = stream.LagOptions(bucket_ms=1_000, late_ms=1_000, history_ms=1_000)
    until_ms = drain(spark, cluster, out, blocks=2, lag=options)["lag_until_ms"]
    assert until_ms == 1_018_000
    frames = read_tables(spark, str(out), needed=["fetches"]).frames
    whole = lag(frames["fetches"], frames["appends"], bucket_ms=1_000).collect()
    wanted = [row.asDict() for row in whole if row["bucket_at_ms"] < until_ms]
    lag_rows = read_lag(out)
    exact = [name for name in lag_rows[0] if not name.startswith(("lag_ms", "lag_bytes"))]
    assert sorted([row[name] for name in exact] for row in lag_rows) == sorted(
        [row[name] for name in exact] for row in wanted
    )
    last = [row for row in lag_rows if row["follower"] == 3 and row["bucket_at_ms"] >= 1_014_000]
    assert [row["lag_messages_min"] for row in last] == [end - SILENT.start] * 4
    assert all(row["lag_ms_min"] >= options.history_ms for row in last)


def test_a_stream_resumes_only_with_its_own_checkpoint(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic, out, elsewhere = Topic(cluster), tmp_path / "out", tmp_path / "elsewhere"
    topic.block(0, "appends", some(0, 0))
    drain(spark, cluster, out)
    topic.block(0, "appends", some(0, 5))
    with pytest.raises(BadSource, match=r"checkpoint is not .*elsewhere: use that one"):
        drain(spark, cluster, out, checkpoint=str(elsewhere))
    with pytest.raises(BadSource, match="written with bucket_ms=10000, not 1000"):
        drain(spark, cluster, out, lag=stream.LagOptions(bucket_ms=1_000))
    shutil.copytree(out / "_checkpoint", elsewhere)
    with pytest.raises(PySparkException) as refused:
        drain(spark, cluster, tmp_path / "other", checkpoint=str(elsewhere))
    assert in_a_line(refused.value).endswith("has none before: it belongs to another folder")
    assert not (tmp_path / "other" / "appends").exists()
    drain(spark, cluster, out)
    assert taken(out) == some(0, 0) + some(0, 5)
    shutil.rmtree(out / "_checkpoint")
    with pytest.raises(BadSource, match="whose checkpoint is not"):
        drain(spark, cluster, out)


def test_a_recreated_topic_is_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """However long the new one is: its first blocks are not those that were taken before."""
    out = tmp_path / "out"
    Topic(cluster).block(0, "appends", some(0, 0))
    drain(spark, cluster, out)
    client = admin(cluster)
    client.delete_topics([TELEMETRY_TOPIC])[TELEMETRY_TOPIC].result(10)
    topic = Topic(cluster)
    for first in (5, 10):
        topic.block(0, "appends", some(0, first))
    with pytest.raises(PySparkException) as refused:
        drain(spark, cluster, out)
    assert "the topic was created again, or belongs to another cluster" in in_a_line(refused.value)
    assert taken(out) == some(0, 0)


@pytest.mark.long
def test_what_a_stream_wrote_is_a_source_of_episodes_and_what_if(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """In several batches; the same answers as of an export (`test_job.py`)."""
    topic, out, tables = Topic(cluster), tmp_path / "out", record()
    for name in ("configs", "isr"):
        topic.block(0, name, tables[name])
    for at in range(0, 400, 100):
        for name in ("appends", "fetches"):
            if tables[name][at : at + 100]:
                topic.block(0, name, tables[name][at : at + 100])
    drain(spark, cluster, out, blocks=4)
    options = {"policies": ("caught-up",), "lag_time_max_ms": (LAG_MS, 2 * LAG_MS)}
    job = Job(source=str(out), out=str(tmp_path / "results"))
    run(spark, job, {"episodes": {}, "what_if": options})
    (episode,) = pq.read_table(tmp_path / "results" / "episodes").to_pylist()
    assert (episode["follower"], episode["cause"], episode["ending"]) == (3, "stuck", "rejoined")
    rows = pq.read_table(tmp_path / "results" / "what_if").to_pylist()
    shrinks = {row["lag_time_max_ms"]: row["shrinks"] for row in rows if row["level"] == "all"}
    assert shrinks == {LAG_MS: 1, 2 * LAG_MS: 0}  # silent for 12 s


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
def test_a_killed_stream_resumes_and_writes_every_row_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Lag too is written once, with the values of a batch over the same rows."""
    topic, out, tables = Topic(cluster), tmp_path / "out", record()
    for first_ms in range(1_000_000, 1_000_000 + STEPS * STEP_MS, 5_000):
        for name in ("appends", "fetches"):
            here = range(first_ms, first_ms + 5_000)
            topic.block(0, name, [row for row in tables[name] if row["at_ms"] in here])
    options = ("--bucket-ms", "1000", "--late-ms", "5000")
    # Once the offsets of the first batch are written, and while the third computes lag.
    for begun in (out / "_checkpoint" / "offsets" / "0", out / "lag" / "batch=2"):
        running = command(cluster, out, "--every", "1", *options)
        try:
            eventually(begun.exists, within_s=WITHIN_S, what=f"{begun} is begun")
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate()
    last = command(cluster, out, "--available-now", *options)
    try:
        output, errors = last.communicate(timeout=WITHIN_S)
    finally:
        last.kill()
    assert last.returncode == 0, errors
    summary = json.loads(output)
    for name in ("appends", "fetches"):
        assert taken(out, name) == tables[name]
        assert summary["rows"][name] == len(tables[name])
    until_ms = (max(row["at_ms"] for row in tables["fetches"]) - 5_000) // 1_000 * 1_000
    assert (summary["late_rows"], summary["lag_until_ms"]) == (0, until_ms)
    sent = {name: arrow(tables)[name].select(list(COLUMNS[name])) for name in COLUMNS}
    whole = Lag(1_000)(sent).to_pylist()
    wanted = [row for row in whole if row["bucket_at_ms"] < until_ms]
    assert sorted(read_lag(out), key=str) == sorted(wanted, key=str)


@pytest.mark.long
def test_a_stream_that_is_asked_to_stop_stops_cleanly(cluster: Cluster, tmp_path: Path) -> None:
    Topic(cluster).block(0, "appends", some(0, 0))
    running = command(cluster, tmp_path / "out", "--every", "1")
    try:
        lag_rows = tmp_path / "out" / "batches" / "batch=0" / "_SUCCESS"
        eventually(lag_rows.exists, within_s=WITHIN_S, what="the first batch is done")
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=WITHIN_S)
    finally:
        running.kill()
    assert running.returncode == 0, errors
    assert errors == ""
    assert json.loads(output)["rows"]["appends"] == 5
