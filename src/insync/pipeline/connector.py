"""Telemetry tables out of what Spark's own Kafka connector gives of the topic.

    records = spark.read.format("kafka").option("subscribe", TOPIC)...load()
    fetches = tables_from_kafka(records, "fetches")

For whoever has the connector already, with its security and its offsets; batches and streams alike.
It leaves internal topics out, which ours is: TOPIC is a copy of `__insync_telemetry` under another
name, keys and values as they are. Tables and modes are those of `source.py`. A batch whose bytes
are damaged is the connector's to refuse; that source tells of it and reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline.blocks import block_of
from insync.pipeline.source import (
    MODES,
    BadOption,
    Placed,
    checked_table,
    fails_fast,
    tables_of,
)
from insync.pipeline.telemetry_schemas import SOURCE_TABLES
from insync.telemetry.collection import Record

COLUMNS: Final = ("partition", "offset", "key", "value")


def tables_from_kafka(records: DataFrame, table: str, *, mode: str = MODES[0]) -> DataFrame:
    """The rows of one table, in its schema."""
    missing = [name for name in COLUMNS if name not in records.columns]
    if missing:
        raise BadOption(f"these are no records of a topic: they have no {', '.join(missing)}")
    schema = SOURCE_TABLES[checked_table(table)]
    work = partial(_decode, table, is_strict=fails_fast(mode))
    return records.select(*COLUMNS).mapInArrow(work, schema)


def _decode(
    table: str, batches: Iterable[pa.RecordBatch], *, is_strict: bool
) -> Iterator[pa.RecordBatch]:
    wanted = to_arrow_schema(SOURCE_TABLES[table])
    for rows in tables_of(table, _placed(batches), is_strict=is_strict):
        yield from rows.cast(wanted).to_batches()


def _placed(batches: Iterable[pa.RecordBatch]) -> Iterator[Placed]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for partition, offset, key, value in zip(*columns, strict=True):
            yield partition, block_of(Record(offset, key, value))
