"""Telemetry tables out of what Spark's own Kafka connector gives of the topic.

    records = spark.read.format("kafka").option("subscribe", TOPIC)...load()
    fetches = tables_from_kafka(records, "fetches")

For users of the connector, with its security and its offsets; for batches and streams alike. The
connector skips internal topics, so TOPIC is a copy of `__insync_telemetry` under another name, with
the same keys and values. Tables and modes are those of `source.py`. The connector fails on a
damaged batch; that source reports it and reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline.io.blocks import block_of
from insync.pipeline.io.source import (
    MODES,
    BadOption,
    Placed,
    checked_table,
    fails_fast,
    tables_of,
)
from insync.pipeline.io.telemetry_schemas import SOURCE_TABLES
from insync.telemetry.collection import Record

COLUMNS: Final = ("partition", "offset", "key", "value")


def tables_from_kafka(records: DataFrame, table: str, *, mode: str = MODES[0]) -> DataFrame:
    """The rows of one table, in its schema."""
    missing = [name for name in COLUMNS if name not in records.columns]
    if missing:
        raise BadOption(f"these are not records of a topic: they have no {', '.join(missing)}")
    schema = SOURCE_TABLES[checked_table(table)]
    work = partial(_decode, table, is_strict=fails_fast(mode))
    return records.select(*COLUMNS).mapInArrow(work, schema)


def _decode(
    table: str, batches: Iterable[pa.RecordBatch], *, is_strict: bool
) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(SOURCE_TABLES[table])
    for rows in tables_of(table, _placed(batches), is_strict=is_strict):
        yield from rows.cast(schema).to_batches()


def _placed(batches: Iterable[pa.RecordBatch]) -> Iterator[Placed]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for partition, offset, key, value in zip(*columns, strict=True):
            yield partition, block_of(Record(offset, key, value))
