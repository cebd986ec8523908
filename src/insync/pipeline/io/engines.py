"""Which engine makes the tables: this process, or Spark.

Spark takes seconds to start, and needs Java. On one machine a record of some millions of rows is
done sooner in this process; beyond that, and on clusters, Spark does it. The tables are the same
code, and the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from insync.pipeline.io import parquet_reader
from insync.pipeline.io.files import parquet_files
from insync.pipeline.io.output import PARQUET
from insync.pipeline.io.session import NoSpark, check_java, is_submitted
from insync.pipeline.io.storage import is_url
from insync.rules.refusals import Refusal
from insync.telemetry.schemas import TABLES

AUTO, LOCAL, SPARK = "auto", "local", "spark"
ENGINES: Final = (AUTO, LOCAL, SPARK)
LOCAL_ROWS_MAX: Final = 10_000_000


class NoLocalEngine(Refusal):
    """The local engine cannot do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def choose_engine(
    engine: str,
    *,
    source: str,
    out: str,
    form: str = PARQUET,
    is_from_brokers: bool = False,
    spark_flags: Sequence[str] = (),
) -> Engine:
    """`spark_flags` are the options of the command that only Spark understands."""
    if engine == SPARK:
        return Engine(name=SPARK, reason="--engine spark")
    obstacle = _obstacle(source, out, form, spark_flags, is_from_brokers=is_from_brokers)
    if engine == LOCAL:
        if obstacle is not None:
            raise NoLocalEngine(f"--engine local: {obstacle}")
        return Engine(name=LOCAL, reason="--engine local")
    if obstacle is not None:
        return Engine(name=SPARK, reason=obstacle)
    rows = count_rows(Path(source))
    if rows <= LOCAL_ROWS_MAX:
        return Engine(
            name=LOCAL, reason=f"{rows:,} rows; Spark takes records of more than {LOCAL_ROWS_MAX:,}"
        )
    try:
        check_java()
    except NoSpark as refusal:
        return Engine(name=LOCAL, reason=f"{rows:,} rows are much for one process, but {refusal}")
    return Engine(name=SPARK, reason=f"{rows:,} rows are more than {LOCAL_ROWS_MAX:,}")


def _obstacle(
    source: str, out: str, form: str, spark_flags: Sequence[str], *, is_from_brokers: bool
) -> str | None:
    """Why this is for Spark alone."""
    elsewhere = [path for path in (source, out) if is_url(path)]
    obstacles = {
        "the local engine needs duckdb: install it with pip install 'insync[spark]'": (
            find_spec("duckdb") is None
        ),
        "spark-submit started this": is_submitted(),
        f"{', '.join(spark_flags)} is for Spark": bool(spark_flags),
        f"--format {form} is written by Spark": form != PARQUET,
        "Spark reads from brokers. Without it, run insync telemetry export, and take its folder "
        "for --source": is_from_brokers,
        f"{', '.join(elsewhere)} is not a folder of this machine": bool(elsewhere),
    }
    return next((words for words, holds in obstacles.items() if holds), None)


def count_rows(folder: Path) -> int:
    """Of all telemetry tables, from the footers of their files."""
    return sum(
        parquet_reader.count_rows(path)
        for table in TABLES
        for path in parquet_files(folder / table)
    )
