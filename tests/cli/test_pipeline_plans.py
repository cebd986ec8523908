"""`insync pipeline plans`: the files it writes are plans that `insync reassign` executes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from insync.cli.main import main
from insync.moves.plan_file import parse_plan, read_text
from insync.pipeline.io import session
from insync.testing.cluster import Cluster
from support.pipeline.exported_tables import write
from support.pipeline.planned_tables import PARTITIONS, uneven_day


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(**_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "session", shared)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.insync_cluster(brokers=3)
@pytest.mark.usefixtures("shared_spark")
def test_a_plan_of_a_record_is_executed_and_taken_back(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(tmp_path / "telemetry", uneven_day()), tmp_path / "analysis"
    words = ("pipeline", "plans", "--source", source, "--out", out)
    code, text, error = run(capsys, *words, "--network", "1Gbit")
    assert code == 0, error
    assert "Best begun at 04:00 UTC." in text
    assert "MoveRatio 0.5714 (4 of 7 partitions" in text
    assert f"insync reassign -b HOST:PORT --plan {out}/plan.json" in text

    code, _, error = run(capsys, *words)
    assert code == 1
    assert "exists; choose another --out, or --overwrite" in error
    code, text, _ = run(capsys, *words, "--overwrite", "--json", "--max-moves", 3)
    (row,) = json.loads(text)["summary"]["plans"]
    assert json.loads(text)["plan_files"] == [f"{out}/plan.json", f"{out}/rollback.json"]
    plan = parse_plan(read_text(out / "plan.json"))
    assert len(plan) == 3
    assert json.loads(row["plan"]) == json.loads((out / "plan.json").read_text())

    brokers = ("--bootstrap-server", cluster.bootstrap)
    create = ("topics", *brokers, "--create", "--topic")
    assert main([*create, "orders", "--replica-assignment", ",".join(["1:2"] * PARTITIONS)]) == 0
    assert main([*create, "idle", "--replica-assignment", "3:2"]) == 0
    capsys.readouterr()
    reassign = ("reassign", *brokers)
    code, text, error = run(capsys, *reassign, "--plan", out / "plan.json", "--json")
    assert code == 0, error
    moved = [replicas for replicas in plan.values() if 3 in replicas]
    assert json.loads(text)["partitions_to_move"] == len(moved)
    for file in ("plan.json", "rollback.json"):
        flags = ("--execute", "--reassignment-json-file", out / file, "--throttle", "10MB")
        code, text, error = run(capsys, *reassign, *flags, "--watch", "--force")
        assert code == 0, error
    assert _replicas(capsys, brokers) == {number: [1, 2] for number in range(PARTITIONS)}


def _replicas(capsys: pytest.CaptureFixture[str], brokers: tuple[str, ...]) -> dict[int, list[int]]:
    _, text, _ = run(capsys, "topics", *brokers, "--describe", "--topic", "orders", "--json")
    described: Any = json.loads(text)
    topics = described["topics"] if isinstance(described, dict) else described
    return {each["partition"]: each["replicas"] for each in topics[0]["partitions"]}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-impact", "30%"], "--max-impact is a fraction of the network; give --network too"),
        (["--network", "fast"], "--network: 'fast' is no network; write it as 1Gbit"),
        (["--network", "1Gbit", "--max-impact", "0%"], "--max-impact: '0%' is no fraction"),
        (["--finish-in", "soon"], "--finish-in: 'soon' is no span of time"),
        (["--max-moves", "0"], "'--max-moves': Input should be greater than or equal to 1"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pipeline", "plans", "--source", tmp_path, "--out", tmp_path / "out", *flags)
    code, _, error = run(capsys, *words)
    assert code == 2
    assert says in " ".join(error.replace("│", " ").split())


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_record_without_assignments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = uneven_day() | {"assignments": []}
    source = write(tmp_path / "telemetry", tables)
    code, _, error = run(capsys, "pipeline", "plans", "--source", source, "--out", tmp_path / "a")
    assert code == 1
    assert "table assignments of" in error
    assert "is empty: nothing was recorded" in error
