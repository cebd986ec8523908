"""Telemetry tables as Parquet: what `insync telemetry export`, `insync pipeline raw`, `insync
pipeline stream` and `insync import` write, on any storage Spark can read.

Unknown columns are ignored with a note; missing ones are refused. Columns that earlier versions did
not have are null in files without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from insync.pipeline.io.telemetry_schemas import TELEMETRY
from insync.pipeline.local.dispatch import F
from insync.pipeline.local.session import as_local
from insync.rules.refusals import Refusal
from insync.telemetry.schemas import TABLES

_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
_HADOOP = {
    "S3AFileSystem not found": "this Spark has no package for {scheme}:; give it one with "
    "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0",
    "No FileSystem for scheme": "this Spark has no file system for {scheme}:",
    "UnknownStoreException": "there is no such bucket",
    "NoAuthWithAWSException": "there are no keys for it, neither in spark.hadoop.fs.s3a.access.key "
    "and secret.key nor in the environment",
    "AccessDeniedException": "the storage denies access with these keys",
}
_LAYOUT = "batch"  # the folders that `stream` writes; not a column of a table


class BadSource(Refusal):
    """Tables that do not exist, or have other columns than the pipeline reads."""


@dataclass(slots=True)
class Tables:
    """The telemetry tables of one source, and notes about them."""

    frames: dict[str, DataFrame]
    notes: list[str] = field(default_factory=list)


def read_tables(spark: SparkSession, folder: str, *, needed: Iterable[str]) -> Tables:
    """Every table of a folder; a missing one that is not needed is empty, with a note."""
    tables = Tables({})
    for name, schema in TELEMETRY.items():
        path = f"{folder.rstrip('/')}/{name}"
        rows = read_if_there(spark, path)
        if rows is None:
            if name in needed:
                raise BadSource(f"{folder} has no table {name}: no Parquet in {folder}/{name}")
            tables.notes.append(f"{folder} has no table {name}: treated as empty")
            tables.frames[name] = spark.createDataFrame([], schema)
            continue
        missing = [each for each in TABLES[name].optional if each not in rows.columns]
        if missing:
            tables.notes.append(f"{folder}/{name}: no column {', '.join(missing)}: unknown")
            rows = _read_with(spark, path, rows, [schema[each] for each in missing])
        tables.frames[name] = _checked(f"{folder}/{name}", rows, schema, tables.notes)
    for name in needed:
        if name not in tables.frames:
            raise BadSource(f"{folder} has no table {name}: this version records none")
        if tables.frames[name].isEmpty():
            raise BadSource(f"table {name} of {folder} is empty: nothing was recorded")
    return tables


def read_if_there(spark: SparkSession, path: str) -> DataFrame | None:
    """None if the folder does not exist or is empty."""
    if (session := as_local(spark)) is not None:
        files = parquet_files(Path(path))
        return cast("DataFrame", session.read_parquet(files)) if files else None
    try:
        return spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() in _NOTHING_THERE:
            return None
        raise
    except (PySparkException, Py4JError) as error:
        raise _refused(path, error) or _damaged(path) or error from None


def _refused(path: str, error: Exception) -> BadSource | None:
    """Hadoop's refusals are Java errors of some hundred lines."""
    words = next((words for each, words in _HADOOP.items() if each in str(error)), None)
    if words is None:
        return None
    scheme = path.partition(":")[0]
    return BadSource(f"{path} cannot be read: {words.format(scheme=scheme)}")


def _damaged(path: str) -> BadSource | None:
    """Names the first file of a folder on this host whose footer cannot be read."""
    import pyarrow as pa  # noqa: PLC0415 - only if Spark could not read it
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in sorted(Path(path).rglob("*.parquet")):
        try:
            pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            return BadSource(f"{file} is damaged, or no Parquet: {error}")
    return None


def parquet_files(folder: Path) -> list[Path]:
    """Those that Spark would read: names that begin with a dot or an underscore are not tables."""

    def is_hidden(path: Path) -> bool:
        return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)

    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not is_hidden(path)]


def _read_with(
    spark: SparkSession, path: str, rows: DataFrame, missing: list[StructField]
) -> DataFrame:
    """With columns that are missing."""
    if as_local(spark) is not None:
        for each in missing:
            rows = rows.withColumn(each.name, F.lit(None).cast(each.dataType))
        return rows
    # Spark looked at one file; others may be of this version and have them.
    return spark.read.schema(StructType([*rows.schema, *missing])).parquet(path)


def _checked(path: str, rows: DataFrame, schema: StructType, notes: list[str]) -> DataFrame:
    missing = [name for name in schema.names if name not in rows.columns]
    if missing:
        raise BadSource(f"{path} lacks the column {', '.join(missing)}")
    for column in schema:
        is_wider = column.dataType == LongType() and rows.schema[column.name].dataType == (
            IntegerType()
        )
        kind = rows.schema[column.name].dataType
        if kind != column.dataType and not is_wider:
            raise BadSource(
                f"{path}: column {column.name} is {kind.simpleString()}; "
                f"it must be {column.dataType.simpleString()}"
            )
    extra = [name for name in rows.columns if name not in schema.names and name != _LAYOUT]
    if extra:
        notes.append(f"{path}: ignored the unknown column {', '.join(extra)}")
    return rows.select(
        *(rows[column.name].cast(column.dataType).alias(column.name) for column in schema)
    )
