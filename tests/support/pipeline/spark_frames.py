"""Lists of rows as Spark sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema

THROTTLE = pa.schema(
    [("at_ms", pa.int64()), ("broker", pa.int32()), ("side", pa.string())]
    + [
        (name, pa.int64())
        for name in (
            "limit_bytes_per_s", "bytes", "exempt_bytes", "held_back_partitions",
            "replica_lag_bytes", "bytes_in",
        )
    ]
)  # fmt: skip


def as_frames(
    spark: SparkSession, tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, DataFrame]:
    """All telemetry tables, those that are not given empty."""
    schemas = {name: arrow_schema(table) for name, table in TABLES.items()} | {"throttle": THROTTLE}
    return {
        name: spark.createDataFrame(pa.Table.from_pylist(list(tables.get(name, ())), schema))
        for name, schema in schemas.items()
    }
