"""The pipeline's commands on one record, from a broker and as it was exported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from insync.cli.main import main
from insync.pipeline.tables.advice import Recorded
from insync.pipeline.tables.running import grid_of
from insync.telemetry.schemas import TABLES
from insync.testing.cluster import Cluster
from support.pipeline.exported_tables import SILENT, STEP_MS, record, write
from support.pipeline.spark_frames import as_frames
from support.pipeline.telemetry_topic import SETTINGS, Row, Topic

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.insync_cluster(brokers=1, settings=SETTINGS, scope="module"),
]

RUNNING_MS = 7_000
FLOOR_MS = 31_000  # a quarter more than twice the silence, rounded up
# By caught-up, from its last fetch and the limit on to its next fetch.
OUT_MS = (SILENT.stop - SILENT.start + 1) * STEP_MS - RUNNING_MS - 1
Run = Callable[..., str]


def config(scope: str, name: str, value: object) -> Row:
    return {"at_ms": 1_000_000, "scope": scope, "name": name, "value": str(value)}


def second(broker: int, at_s: int, **others: int) -> Row:
    usual = {"at_ms": 1_000_000 + 1_000 * at_s, "broker": broker, "side": "leader"}
    usual |= {"limit_bytes_per_s": 1_000_000, "bytes": 900_000, "exempt_bytes": 0}
    usual |= {"held_back_partitions": 0, "replica_lag_bytes": 0, "bytes_in": 100}
    return usual | others


def recorded() -> dict[str, list[Row]]:
    tables = record()
    tables["configs"] = [
        config("broker:1", "replica.lag.time.max.ms", RUNNING_MS),
        config("broker:1", "replica.fetch.wait.max.ms", 600),
        config("broker:1", "min.insync.replicas", 1),
        config("broker:1/topic:orders", "min.insync.replicas", 3),
    ]
    # Broker 2 has more to take in than its limit lets out, and does not end.
    stuck = {"bytes_in": 2_000_000, "replica_lag_bytes": 5_000_000}
    tables["throttle"] = [second(1, at, held_back_partitions=1) for at in range(3)]
    tables["throttle"] += [second(2, at, **stuck) for at in range(10, 13)]
    return tables


@pytest.fixture(scope="module")
def cluster(insync_module_cluster: Cluster) -> Cluster:
    """Its telemetry is what the test wrote: a broker's own would grow meanwhile."""
    topic = Topic(insync_module_cluster)
    for name, rows in recorded().items():
        if rows:
            topic.block(0, name, rows)
    return insync_module_cluster


@pytest.fixture
def insync(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """A command, on the session that all tests share."""

    @contextmanager
    def shared(**_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("insync.pipeline.io.session.session", shared)

    def run(*arguments: object) -> str:
        code = main([str(each) for each in arguments])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


def rows(folder: Path) -> list[str]:
    return sorted(map(str, pq.read_table(folder).to_pylist()))


@pytest.mark.long
def test_a_broker_and_its_export_give_the_same_results(
    insync: Run, cluster: Cluster, tmp_path: Path
) -> None:
    source = ("--source", cluster.bootstrap, "--out")
    exported, from_export, alone = (
        tmp_path / "exported",
        tmp_path / "from-export",
        tmp_path / "alone",
    )
    insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap, "--out", exported)
    raw = json.loads(insync("pipeline", "raw", *source, tmp_path / "raw", "--json"))
    assert raw["rows"] == {name: len(each) for name, each in recorded().items()}
    for name in TABLES:
        assert rows(tmp_path / "raw" / name) == rows(exported / name)

    page = insync("pipeline", "report", *source, from_export)
    assert "<html" in (from_export / "report.html").read_text()
    assert f"{from_export}/report.html" in page
    # Eight limits, the one in force and the floor, by five policies; so for topic and partition.
    assert "50 of 150 rows: over all partitions" in page
    assert "No advice: 19.9 s of record is less than the 24 h that advice needs" in page
    assert "…" not in page
    lines = page[page.index("what_if") : page.index("recommendation")].splitlines()
    for policy in ("messages", "lag-begin", "caught-up", "true-lag", "pending-reads"):
        assert sum(line.startswith(policy) for line in lines) == 10

    of_export = ("--source", exported, "--out", alone, "--json", "--overwrite")
    summary: dict[str, list[dict[str, Any]]] = {}
    for name, engine in (
        ("lag", "local"), ("throttle", "spark"), ("what-if", "local"), ("health", "spark"),
    ):  # fmt: skip
        flags = ("--engine", "spark") if engine == "spark" else ()
        answer = json.loads(insync("pipeline", name, *of_export, *flags))
        assert answer["engine"]["name"] == engine
        summary |= answer["summary"]
    for name in summary:
        assert rows(from_export / name) == rows(alone / name), name
        assert len(rows(from_export / name)) >= len(summary[name]) > 0
    _is_worst_first(summary)
    _is_as_recorded(summary)


def _is_worst_first(summary: dict[str, list[dict[str, Any]]]) -> None:
    lags = [row["lag_ms_max"] for row in summary["lag"]]
    assert lags == sorted(lags, reverse=True)
    assert [(row["broker"], row["verdict"]) for row in summary["throttle"]] == [
        (2, "cannot-finish"),
        (1, "above-inbound"),
    ]
    statuses = [row["status"] for row in summary["health"]]
    assert statuses == sorted(statuses, key=["critical", "warning", "ok"].index)
    assert statuses[0] == "critical"


def _is_as_recorded(summary: dict[str, list[dict[str, Any]]]) -> None:
    rows = {(row["policy"], row["lag_time_max_ms"]): row for row in summary["what_if"]}
    assert rows["caught-up", RUNNING_MS]["under_min_isr_partition_ms"] == OUT_MS
    below = {limit_ms for (_, limit_ms), row in rows.items() if row["below_resolution"]}
    assert below == {1_000}  # judged by a wait of 500 ms, not by one of 600 ms
    (advice,) = summary["recommendation"]
    assert (advice["verdict"], advice["lag_time_max_ms"]) == ("too-short", RUNNING_MS)
    (running,) = (row for row in advice["trade"] if row["role"] == "running")
    assert running["under_min_isr_ms_max"] == OUT_MS


def test_flags_go_before_the_record(insync: Run, cluster: Cluster, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap, "--out", exported)
    flags = ["--policies", "caught-up", "--lag-time-max-ms", "900,7000"]
    flags += ["--min-insync-replicas", "2", "--fetch-wait-max-ms", "400"]
    output = insync(
        "pipeline", "what-if", "--source", exported, "--out", tmp_path, "--json", *flags
    )
    rows = {row["lag_time_max_ms"]: row for row in json.loads(output)["summary"]["what_if"]}
    assert sorted(rows) == [900, RUNNING_MS, FLOOR_MS]
    assert not any(row["below_resolution"] for row in rows.values())
    assert not any(row["under_min_isr_partition_ms"] for row in rows.values())  # two are left


def test_advice_from_a_short_record_has_to_be_asked_for_and_says_so(
    insync: Run, cluster: Cluster, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap, "--out", exported)
    command = ["pipeline", "what-if", "--source", exported, "--out", tmp_path, "--overwrite"]
    command += ["--policies", "caught-up", "--lag-time-max-ms", "60000"]
    assert "No advice: 19.9 s of record" in insync(*command)
    page = insync(*command, "--min-record", "10s")
    assert "This is advice from 19.9 s, not from a day (24 h)" in page
    assert "The floor is 30.3 s: healthy followers were silent for up to 12.1 s" in page
    assert main([*map(str, command), "--min-record", "soon"]) == 2


def test_a_command_says_which_engine_it_took_and_why(
    insync: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java, as far as the command can see."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    source = write(tmp_path / "exported", recorded())
    command = ["pipeline", "throttle", "--source", source, "--overwrite", "--out", tmp_path / "out"]
    rows = sum(map(len, recorded().values()))
    page = insync(*command)
    assert f"engine  local: {rows} rows; Spark takes records of more than 10,000,000" in page
    assert "engine  spark: --engine spark" in insync(*command, "--engine", "spark")
    assert main([*map(str, command), "--engine", "local", "--master", "local[1]"]) == 1
    assert main([*map(str, command), "--engine", "slow"]) == 2


def test_the_grid_has_the_callers_limits_and_those_that_advice_needs(spark: SparkSession) -> None:
    usual = [1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 45_000, 60_000]

    def limits_of(*rows: Row, recorded: Recorded | None = None, **options: Any) -> list[int]:
        configs = as_frames(spark, {"configs": rows})["configs"]
        return sorted(set(grid_of(options, configs, recorded).lag_time_max_ms))

    assert limits_of() == usual  # as of Apache Kafka's logs
    assert limits_of(config("broker:1", "replica.lag.time.max.ms", "soon")) == usual
    settings = [
        config("broker:1", "replica.lag.time.max.ms", 1_500),
        config("broker:2", "replica.lag.time.max.ms", 1_500),
        config("broker:1/topic:t", "replica.lag.time.max.ms", 10_001),
        config("broker:1", "replica.fetch.wait.max.ms", 500),
        config("broker:2", "replica.fetch.wait.max.ms", 2_000),
        config("broker:1", "min.insync.replicas", 1),
        config("broker:1/topic:t", "min.insync.replicas", 2),
    ]
    assert limits_of(*settings) == sorted([*usual, 1_500, 10_001])
    recorded = Recorded(covered_ms=1, span_ms=1, silence_ms_max=40_000)
    assert limits_of(*settings, recorded=recorded, lag_time_max_ms=[7]) == [
        7, 1_500, 10_001, 100_000,
    ]  # fmt: skip
    configs = as_frames(spark, {"configs": settings})["configs"]
    grid = grid_of({}, configs, None)
    assert (grid.fetch_wait_max_ms, grid.min_insync_replicas) == (2_000, None)
