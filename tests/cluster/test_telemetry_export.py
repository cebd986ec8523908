"""`insync telemetry export` against real brokers, and against clusters without telemetry."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.episodes import episodes
from insync.pipeline.tables.incidents import incidents
from insync.pipeline.tables.lag import lag_exported
from insync.pipeline.tables.what_if import what_if_exported
from insync.telemetry.replay.contract import epochs
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC
from insync.telemetry.tables import arrow_schema
from insync.testing.cluster import Cluster, free_ports
from support.pipeline import lag_oracle, what_if_oracle
from support.pipeline.spark_frames import as_frames
from support.telemetry.recorded_runs import Tables
from support.telemetry.replay_contract import agreed

LAG_MS = 1_000
FETCH_WAIT_MS = 200
WITHIN_S = 30.0
GONE, RESIGNED = "a broker came or went", "its leader resigned"


SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.fetch.wait.max.ms": str(FETCH_WAIT_MS),
    "telemetry.publish.interval.ms": "200",
    "telemetry.topic.partitions": "2",
}
pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(settings=SETTINGS)]


COMMAND = ["-m", "insync"]
WITHOUT_SPARK = """
import sys
from insync.cli.main import main


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "numba", "pandas", "py4j"):
            raise ModuleNotFoundError(f"no module named {name}", name=name)


sys.meta_path.insert(0, NotInstalled())
code = main(sys.argv[1:])
assert not {"pyspark", "numba"} & set(sys.modules)
sys.exit(code)
"""


def insync(
    *arguments: object, program: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def export(cluster: Cluster, out: Path) -> dict[str, Any]:
    done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap, "--out", out,
                  "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def read(out: Path) -> Tables:
    tables = {}
    for name, table in TABLES.items():
        rows = pq.read_table(out / name)
        wanted = arrow_schema(table)
        assert (rows.schema.names, rows.schema.types) == (wanted.names, wanted.types), name
        tables[name] = rows.to_pylist()
    return tables


def write(producer: Producer, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        producer.produce("orders", b"x" * 100)
        producer.poll(0.005)


def test_a_stopped_follower_is_recorded_and_replayed(cluster: Cluster, tmp_path: Path) -> None:
    created = insync("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic",
                     "orders", "--partitions", "3", "--replication-factor", "3")  # fmt: skip
    assert created.returncode == 0, created.stderr
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    write(producer, 1.0)
    cluster.pause(3)
    write(producer, 2.5)
    cluster.resume(3)
    write(producer, 2.0)
    producer.flush(10)
    _exported_when(cluster, tmp_path, lambda now: {("shrink", 3), ("expand", 3)} <= _changes(now))
    summary, tables = export(cluster, tmp_path / "all"), read(tmp_path / "all")
    assert summary["corrupt_blocks"] == 0
    assert set(summary["dropped_rows"].values()) == {0}
    assert summary["rows"] == {name: len(rows) for name, rows in tables.items()}
    assert all(row["topic"] != TELEMETRY_TOPIC for row in tables["appends"])
    assert all(epoch.is_whole for epoch in epochs(tables))
    assert len(agreed(tables, late_ms_max=None)) >= 2


def _changes(tables: Tables) -> set[tuple[str, int]]:
    return {(row["change"], row["replica"]) for row in tables["isr"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterFaults:
    """An export after a killed follower, a stalled leader and a leader with slow reads."""

    folder: Path
    tables: Tables
    led_by: dict[int, int]  # each partition, before all this
    stood_still: set[int]  # partitions whose leader did


@pytest.fixture(scope="module")
def after_faults(tmp_path_factory: pytest.TempPathFactory) -> AfterFaults:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        return _every_fault(cluster, tmp_path_factory.mktemp("faults"))


def _every_fault(cluster: Cluster, folder: Path) -> AfterFaults:
    created = insync("topics", "--bootstrap-server", cluster.bootstrap, "--create", "--topic",
                     "orders", "--partitions", "3", "--replication-factor", "3")  # fmt: skip
    assert created.returncode == 0, created.stderr
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    write(producer, 1.0)
    led_by = _leaders(producer)
    cluster.kill(3)
    write(producer, 0.5)
    cluster.restart(3)
    write(producer, 1.5)
    stood_still = {number for number, leader in _leaders(producer).items() if leader == 1}
    cluster.pause(1)  # two partitions have a follower that stopped, one a leader that did
    write(producer, 2.0 * LAG_MS / 1_000)
    cluster.resume(1)
    write(producer, 1.5)
    cluster.slow_reads(2, delay_ms=2 * LAG_MS)
    write(producer, 4.0 * LAG_MS / 1_000)
    cluster.heal()
    write(producer, 1.5)

    def is_recorded(tables: Tables) -> bool:
        now_led_by = {number: changes[-1] for number, changes in _elected(tables, led_by).items()}
        return _ends_whole(tables) and _has_stalls(tables, 1) and now_led_by == _leaders(producer)

    tables = _exported_when(cluster, folder, is_recorded)
    latest = max(folder.iterdir(), key=lambda out: int(out.name))
    return AfterFaults(folder=latest, tables=tables, led_by=led_by, stood_still=stood_still)


def test_every_fault_is_recorded_and_replayed(after_faults: AfterFaults) -> None:
    """What each fault made leaders decide."""
    tables = after_faults.tables
    assert any(row["read_ms"] >= LAG_MS and row["leader"] == 2 for row in tables["fetches"])
    causes = {(row["partition"], row["leader_before"], row["cause"]) for row in tables["elections"]}
    led_by_3 = {number for number, leader in after_faults.led_by.items() if leader == 3}
    assert {(number, 3, GONE) for number in led_by_3} <= causes
    assert {(number, 1, RESIGNED) for number in after_faults.stood_still} <= causes
    decisions = agreed(tables, late_ms_max=None)
    assert {"shrink", "expand"} <= {each.change for each in decisions}


@pytest.mark.spark
def test_spark_agrees_with_the_rules_on_every_fault(
    spark: SparkSession, after_faults: AfterFaults
) -> None:
    """Every policy at every level, and the lag in every bucket."""
    grid = WhatIfGrid(
        lag_time_max_ms=(LAG_MS // 2, LAG_MS, 2 * LAG_MS),
        lag_max_messages=(50,),
        half_period_check=(False, True),
        min_insync_replicas=2,
        fetch_wait_max_ms=FETCH_WAIT_MS,
    )
    expected = what_if_oracle.by_rules(after_faults.tables, grid)
    for policy in grid.policies:
        assert any(row["shrinks"] and row["expands"] for row in expected if row["policy"] == policy)
    rows = [
        row.asDict() for row in what_if_exported(spark, after_faults.folder, grid=grid).collect()
    ]
    assert sorted(rows, key=what_if_oracle.in_order) == expected
    lags = [
        row.asDict() for row in lag_exported(spark, after_faults.folder, bucket_ms=500).collect()
    ]
    each_ms = lag_oracle.millisecond_by_millisecond(after_faults.tables, 500)
    assert any(row["lag_ms_max"] > LAG_MS for row in each_ms)
    assert sorted(lags, key=lag_oracle.in_order) == each_ms


@pytest.mark.spark
def test_a_killed_broker_is_down_and_a_stopped_one_frozen(
    spark: SparkSession, after_faults: AfterFaults
) -> None:
    """The one was killed and restarted, the other stopped for twice the lag limit."""
    frames = as_frames(spark, after_faults.tables)
    names = signature(episodes).parameters
    made = incidents(episodes(**{name: frames[name] for name in frames if name in names}))
    causes = {(row["broker"], row["cause"]): row for row in made.collect()}
    assert causes[3, "broker-down"]["partitions"] == 3
    assert causes[1, "frozen"]["partitions"] == 3 - len(after_faults.stood_still)
    assert all(row["ended_at_ms"] is not None for row in causes.values())
    assert not any(cause in {"controller", "slow"} for _, cause in causes)


def _exported_when(cluster: Cluster, folder: Path, is_recorded: Callable[[Tables], bool]) -> Tables:
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        out = folder / str(time.monotonic_ns())
        export(cluster, out)
        tables = read(out)
        if is_recorded(tables):
            return tables
        assert time.monotonic() < deadline_s, tables["isr"]
        time.sleep(0.5)


def _leaders(producer: Producer) -> dict[int, int]:
    partitions = producer.list_topics("orders", timeout=10).topics["orders"].partitions
    return {number: partition.leader for number, partition in partitions.items()}


def _elected(tables: Tables, led_by: dict[int, int]) -> dict[int, list[int]]:
    """The leaders of each partition in order: every epoch, none twice and none missing."""
    led = {}
    for number, first in led_by.items():
        rows = sorted(
            (row for row in tables["elections"] if row["partition"] == number),
            key=lambda row: row["leader_epoch"],
        )
        assert {row["topic"] for row in rows} <= {"orders"}
        assert [row["leader_epoch"] for row in rows] == list(range(1, len(rows) + 1))
        led[number] = [first, *(row["leader_after"] for row in rows)]
        assert [row["leader_before"] for row in rows] == led[number][:-1]
    return led


def _ends_whole(tables: Tables) -> bool:
    """The last recorded ISR of each partition has every replica."""
    last = {(row["partition"], row["version"]): row["isr_after"] for row in tables["isr"]
            if row["topic"] == "orders"}  # fmt: skip
    return len({partition for partition, _ in last}) == 3 and all(
        last[max(key for key in last if key[0] == partition)] == [1, 2, 3] for partition, _ in last
    )


def _has_stalls(tables: Tables, broker: int) -> bool:
    return any(row["broker"] == broker and row["stall_ms"] > LAG_MS for row in tables["stalls"])


def test_a_cluster_without_telemetry_is_refused_in_one_line(tmp_path: Path) -> None:
    with Cluster(brokers=1, settings={"telemetry.enable": "false"}) as cluster:
        done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap,
                      "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"no {TELEMETRY_TOPIC}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_unreachable_cluster_and_an_unwritable_folder_are_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=2000\n")
    done = insync("telemetry", "export", "--bootstrap-server", f"127.0.0.1:{free_ports(1)[0]}",
                  "--out", tmp_path / "out", "--command-config", config)  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    write(Producer({"bootstrap.servers": cluster.bootstrap}), 0.2)
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap,
                      "--out", "/dev/null/out")  # fmt: skip
        if f"no {TELEMETRY_TOPIC}" not in done.stderr or time.monotonic() > deadline_s:
            break
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "cannot use /dev/null/out" in done.stderr
    kept = tmp_path / "full" / "isr"
    kept.mkdir(parents=True)
    (kept / "mine.parquet").write_text("mine")
    done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap,
                  "--out", tmp_path / "full")  # fmt: skip
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert (kept / "mine.parquet").read_text() == "mine"


def test_an_export_needs_pyarrow_and_nothing_of_spark(cluster: Cluster, tmp_path: Path) -> None:
    """Of the 1.2 GB that the analysis needs, a host that only exports installs 150 MB."""
    write(Producer({"bootstrap.servers": cluster.bootstrap}), 0.5)
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap, "--out",
                      tmp_path / "out", program=["-c", WITHOUT_SPARK])  # fmt: skip
        if f"no {TELEMETRY_TOPIC}" not in done.stderr or time.monotonic() > deadline_s:
            break
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out")["configs"]


def test_records_of_other_producers_in_the_topic_are_skipped(
    cluster: Cluster, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    write(producer, 0.5)
    deadline_s = time.monotonic() + WITHIN_S
    while TELEMETRY_TOPIC not in producer.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    producer.produce(TELEMETRY_TOPIC, b"\xff\xff", key=b"{}", partition=1)
    assert producer.flush(10) == 0
    done = insync("telemetry", "export", "--bootstrap-server", cluster.bootstrap,
                  "--out", tmp_path / "out", "--json")  # fmt: skip
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["complete"], summary["corrupt_blocks"]) == (False, 1)
    (corrupt,) = summary["corrupt"]
    assert corrupt["partition"] == 1
    assert f"offset {corrupt['offset']}" in done.stderr
    assert read(tmp_path / "out")["configs"]
