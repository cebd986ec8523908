"""The telemetry tables as Spark sees them, and the two that only the source `insync` has."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline.local.dispatch import F
from insync.telemetry.schemas import TABLES, Table, Type

_TYPES: Final[dict[Type, DataType]] = {
    Type.INT32: IntegerType(),
    Type.INT64: LongType(),
    Type.STRING: StringType(),
    Type.BOOL: BooleanType(),
    Type.INT32_LIST: ArrayType(IntegerType()),
}


def spark_schema(table: Table) -> StructType:
    return StructType([StructField(column.name, _TYPES[column.type]) for column in table.columns])


TELEMETRY: Final[dict[str, StructType]] = {
    name: spark_schema(table) for name, table in TABLES.items()
}


def with_optional_columns(rows: DataFrame, table: Table) -> DataFrame:
    """Columns that earlier versions did not have are null where they are missing."""
    types = TELEMETRY[table.name]
    missing = [name for name in table.optional if name not in rows.columns]
    for name in missing:
        rows = rows.withColumn(name, F.lit(None).cast(types[name].dataType))
    return rows


BLOCKS: Final = StructType(
    [
        StructField("partition", IntegerType()),  # of the telemetry topic
        StructField("offset", LongType()),
        StructField("table", StringType()),  # this and the next four: null without a label
        StructField("broker", IntegerType()),
        StructField("started_at_ms", LongType()),
        StructField("block", LongType()),
        StructField("rows", LongType()),
        StructField("dropped", MapType(StringType(), LongType())),
        StructField("error", StringType()),  # why it cannot be read; null when it can
        StructField("data", BinaryType()),  # the Arrow stream; null with an error
    ]
)
"""One row for every block of the topic, good or not: nothing that was there goes unmentioned."""

SOURCE_TABLES: Final[dict[str, StructType]] = {**TELEMETRY, "blocks": BLOCKS}
