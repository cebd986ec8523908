"""Telemetry tables as Parquet: what `insync telemetry export`, `insync pipeline raw`, `insync
pipeline stream` and `insync import` write, on any storage Spark can read.

Columns that nobody knows are ignored, and told of; missing ones are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StructType

from insync.pipeline.telemetry_schemas import TELEMETRY
from insync.rules.refusals import Refusal

_NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
_LAYOUT = "batch"  # the folders of `stream`, not a column of anybody's


class BadSource(Refusal):
    """Tables that are not there, or not what the pipeline reads."""


@dataclass(slots=True)
class Tables:
    """The telemetry tables of one source, and what is worth saying about them."""

    frames: dict[str, DataFrame]
    notes: list[str] = field(default_factory=list)


def read_tables(spark: SparkSession, folder: str, *, needed: Iterable[str]) -> Tables:
    """Every table of a folder; one that is missing and not needed is empty, and told of."""
    tables = Tables({})
    for name, schema in TELEMETRY.items():
        found = read_if_there(spark, f"{folder.rstrip('/')}/{name}")
        if found is None:
            if name in needed:
                raise BadSource(f"{folder} has no table {name}: no Parquet in {folder}/{name}")
            tables.notes.append(f"{folder} has no table {name}: taken as one without rows")
            tables.frames[name] = spark.createDataFrame([], schema)
            continue
        tables.frames[name] = _checked(f"{folder}/{name}", found, schema, tables.notes)
    for name in needed:
        if name not in tables.frames:
            raise BadSource(f"{folder} has no table {name}: this version records none")
        if tables.frames[name].isEmpty():
            raise BadSource(f"table {name} of {folder} is empty: nothing was recorded")
    return tables


def read_if_there(spark: SparkSession, path: str) -> DataFrame | None:
    """None: there is no such folder, or nothing in it."""
    try:
        return spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() in _NOTHING_THERE:
            return None
        raise


def _checked(path: str, found: DataFrame, schema: StructType, notes: list[str]) -> DataFrame:
    missing = [name for name in schema.names if name not in found.columns]
    if missing:
        raise BadSource(f"{path} lacks the column {', '.join(missing)}")
    for column in schema:
        is_wider = column.dataType == LongType() and found.schema[column.name].dataType == (
            IntegerType()
        )
        kind = found.schema[column.name].dataType
        if kind != column.dataType and not is_wider:
            raise BadSource(
                f"{path}: column {column.name} is {kind.simpleString()}; "
                f"it must be {column.dataType.simpleString()}"
            )
    extra = [name for name in found.columns if name not in schema.names and name != _LAYOUT]
    if extra:
        notes.append(f"{path}: ignored the unknown column {', '.join(extra)}")
    return found.select(
        *(found[column.name].cast(column.dataType).alias(column.name) for column in schema)
    )
