"""Results as files: a folder per table, Parquet unless Delta is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from insync.rules.refusals import Refusal

PARQUET: Final = "parquet"
FORMATS: Final = (PARQUET, "delta")
COMPRESSION: Final = "zstd"
LINE_MAX: Final = 300
_OUR_WORDS: Final = re.compile(r"^\s*(?:\w+: )?insync\.[\w.]+: (.+)$", re.MULTILINE)


class BadOutput(Refusal):
    """Somewhere results cannot, or must not, be written."""


class SparkFailed(Refusal):
    """A job that Spark gave up; in a line."""


def check_new(out: str, names: Iterable[str], *, may_overwrite: bool) -> None:
    """Refuse before the work what writing would refuse after it."""
    if "://" in out:
        return  # somebody's storage: Spark refuses there
    if Path(out).exists() and not Path(out).is_dir():
        raise BadOutput(f"{out} is a file; --out names a folder")
    for name in names:
        if not may_overwrite and Path(out, name).exists():
            raise BadOutput(f"{Path(out, name)} exists; choose another --out, or --overwrite")


def write(rows: DataFrame, path: str, *, form: str = PARQUET, may_overwrite: bool = False) -> None:
    try:
        writer = rows.write.format(form).option("compression", COMPRESSION)
        writer.mode("overwrite" if may_overwrite else "error").save(path)
    except (AnalysisException, Py4JError) as error:
        # Not every refusal of Spark's comes as an exception of its own.
        if _has_condition(error, "PATH_ALREADY_EXISTS"):
            raise BadOutput(f"{path} exists; choose another --out, or --overwrite") from None
        if _has_condition(error, "DATA_SOURCE_NOT_FOUND"):
            raise BadOutput(
                f"this Spark cannot write {form}: give it the package, for Delta with "
                "--conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0 --conf "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
            ) from None
        raise


def _has_condition(error: AnalysisException | Py4JError, condition: str) -> bool:
    if isinstance(error, AnalysisException):
        return error.getCondition() == condition
    return f"[{condition}]" in str(error)


def written(spark: SparkSession, path: str, *, form: str = PARQUET) -> DataFrame:
    return spark.read.format(form).load(path)


def in_a_line(error: PySparkException | Py4JError) -> str:
    """What went wrong in our own words if they are in there, else in Spark's first ones."""
    text = str(error)
    ours = _OUR_WORDS.findall(text)
    if ours:
        return str(ours[-1])[:LINE_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:LINE_MAX]
