"""Which engine makes the tables, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from insync.pipeline.io import engines
from insync.pipeline.io.columns import BadTables
from insync.pipeline.io.engines import Engine, NoLocalEngine, choose_engine, count_rows
from insync.pipeline.io.session import NoSpark
from support.pipeline.exported_tables import record, write


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("exported"), record())


ROWS = sum(map(len, record().values()))


def choose(exported: Path, name: str = "auto", **options: Any) -> Engine:
    return choose_engine(name, **{"source": str(exported), "out": "out", **options})


def test_a_small_record_needs_no_spark(exported: Path) -> None:
    assert count_rows(exported) == ROWS
    assert (
        str(choose(exported)) == f"local: {ROWS} rows; Spark takes records of more than 10,000,000"
    )


def test_spark_takes_more_rows_than_the_limit(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "check_java", lambda: None)
    monkeypatch.setattr(engines, "LOCAL_ROWS_MAX", ROWS)
    assert choose(exported).name == "local"
    monkeypatch.setattr(engines, "LOCAL_ROWS_MAX", ROWS - 1)
    assert str(choose(exported)) == f"spark: {ROWS} rows are more than {ROWS - 1}"
    assert choose(exported, "local").name == "local"


def test_without_java_the_local_engine_takes_more_rows_too(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java() -> None:
        raise NoSpark("Spark needs Java")

    monkeypatch.setattr(engines, "check_java", no_java)
    assert choose(exported).name == "local"
    monkeypatch.setattr(engines, "LOCAL_ROWS_MAX", 1)
    assert choose(exported).name == "local"
    assert "Spark needs Java" in choose(exported).reason
    assert choose(exported, "spark").name == "spark"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"spark_flags": ["--master"]}, "--master is for Spark"),
        ({"form": "delta"}, "--format delta is written by Spark"),
        ({"source": "127.0.0.1:9092", "is_from_brokers": True}, "insync telemetry export"),
        ({"source": "s3a://bucket/telemetry"}, "s3a://bucket/telemetry is not a folder of this"),
        ({"source": "file:/telemetry"}, "file:/telemetry is not a folder of this"),
        ({"out": "hdfs://host/out"}, "hdfs://host/out is not a folder of this machine"),
    ],
)
def test_what_only_spark_can_do(exported: Path, options: dict[str, Any], reason: str) -> None:
    engine = choose(exported, **options)
    assert engine.name == "spark"
    assert reason in engine.reason
    with pytest.raises(NoLocalEngine, match="--engine local: ") as refusal:
        choose(exported, "local", **options)
    assert reason in str(refusal.value)


def test_spark_submit_runs_on_its_spark(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose(exported).name == "spark"


def test_spark_does_without_duckdb(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    assert choose(exported).name == "spark"
    with pytest.raises(NoLocalEngine, match="needs duckdb: install it"):
        choose(exported, "local")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, record())
    path = folder / "isr" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BadTables, match=r"isr/part-00000\.parquet cannot be read"):
        choose(folder)


def test_hidden_files_are_no_tables(tmp_path: Path) -> None:
    folder = write(tmp_path / "[a] *?'", record())
    (folder / "isr" / "_SUCCESS").write_text("")
    (folder / "isr" / ".part.crc").write_text("")
    assert count_rows(folder) == ROWS
