"""Every table of one record, made by Spark and in this process: the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from insync.pipeline.io.output import written
from insync.pipeline.job import Done, Job, draw, run
from insync.pipeline.local.session import local_session
from insync.pipeline.tables.registry import STEPS
from support.pipeline.exported_tables import Row, write
from support.pipeline.sample_tables import some_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

HOSTILE = "o'rders\"{0} %d\n;--\\"
OPTIONS = {"what_if": {"policies": ("caught-up", "messages"), "lag_time_max_ms": (2_000, 30_000)}}


def tables() -> dict[str, list[Row]]:
    """Of every fault that columns can show; names that could be taken for a part of a query."""
    return {name: [row | _renamed(row) for row in rows] for name, rows in some_partitions().items()}


def _renamed(row: Row) -> Row:
    texts = {name: row[name] for name in ("topic", "scope") if name in row}
    return {name: text.replace("topic 3", HOSTILE) for name, text in texts.items()}


@contextmanager
def engine(name: str, spark: SparkSession) -> Iterator[SparkSession]:
    if name == "spark":
        yield spark
        return
    with local_session() as session:
        yield cast("SparkSession", session)


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("engines")
    source = write(folder / "record", tables())
    for name in ("spark", "local"):
        with engine(name, spark) as session:
            _make(session, source, folder / name)
    return {name: folder / name for name in ("spark", "local")}


def _make(session: SparkSession, source: Path, out: Path) -> Done:
    job = Job(source=str(source), out=str(out))
    done = run(session, job, {name: OPTIONS.get(name, {}) for name in STEPS})
    draw(session, job, done)
    return done


def rows_of(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


def types_of(table: pa.Table) -> list[tuple[str, str]]:
    return [(each.name, str(each.type).replace(" not null", "")) for each in table.schema]


@pytest.mark.parametrize("name", STEPS)
def test_the_engines_make_the_same_rows(results: dict[str, Path], name: str) -> None:
    by_spark, here = (pq.read_table(results[engine] / name) for engine in ("spark", "local"))
    assert by_spark.num_rows > 0
    assert rows_of(here) == rows_of(by_spark)
    assert types_of(here) == types_of(by_spark)


def test_the_engines_draw_the_same_page(results: dict[str, Path]) -> None:
    by_spark, here = (
        (results[engine] / "report.html").read_text() for engine in ("spark", "local")
    )
    assert here == by_spark


def test_summaries_are_in_the_same_order(spark: SparkSession, results: dict[str, Path]) -> None:
    summaries: dict[str, dict[str, Any]] = {}
    for name in ("spark", "local"):
        with engine(name, spark) as session:
            path = str(results["local"])
            summaries[name] = {
                table: step.summary.rows(written(session, f"{path}/{table}"))
                for table, step in STEPS.items()
                if step.summary is not None
            }
    assert summaries["local"] == summaries["spark"]


def test_files_that_are_split_in_no_order_give_the_same_rows(
    results: dict[str, Path], tmp_path: Path
) -> None:
    """Then the tables are put together from rows, and not from files."""
    for name, rows in tables().items():
        table = pq.read_table(results["spark"].parent / "record" / name)
        (tmp_path / "record" / name).mkdir(parents=True)
        pq.write_table(table.slice(0, len(rows) // 2), tmp_path / "record" / name / "a.parquet")
        pq.write_table(table.slice(len(rows) // 2), tmp_path / "record" / name / "b.parquet")
    with local_session() as session:
        _make(cast("SparkSession", session), tmp_path / "record", tmp_path / "out")
    for name in STEPS:
        expected = pq.read_table(results["local"] / name)
        assert rows_of(pq.read_table(tmp_path / "out" / name)) == rows_of(expected), name
