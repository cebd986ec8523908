"""Records as Spark's Kafka connector gives them become tables, and bad ones are reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructType

from insync.pipeline import tables_from_kafka
from insync.pipeline.io.block_tables import findings
from insync.pipeline.io.output import in_a_line
from insync.pipeline.io.source import BadOption
from insync.pipeline.io.telemetry_schemas import SOURCE_TABLES
from insync.telemetry.schemas import TELEMETRY_TOPIC
from support.pipeline.telemetry_topic import append_row, block_of

pytestmark = pytest.mark.spark

# The columns that the connector's guide lists, but for the timestamp's type.
GIVEN = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
)
ROWS = [append_row(seq) for seq in range(5)]


def label(block: int, **others: Any) -> bytes:
    values = {"table": "appends", "broker": 1, "started_at_ms": 7, "block": block}
    return json.dumps(values | {"rows": 5, "dropped": {}} | others).encode()


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    """A good block, the same again, one of another table, and four that are none."""
    value = block_of("appends", ROWS)
    stall = block_of("stalls", [{"at_ms": 5, "broker": 3, "stall_ms": 40}])
    blocks = [
        (label(0), value),
        (label(0), value),
        (label(1, table="stalls", rows=1), stall),
        (label(2), value[:-150]),
        (label(3, rows=4), value),
        (None, value),
        (label(4), None),
    ]
    rows = [
        (key, value, TELEMETRY_TOPIC, 3, offset, None, 0)
        for offset, (key, value) in enumerate(blocks)
    ]
    return spark.createDataFrame(rows, GIVEN).coalesce(1)


def test_valid_blocks_are_rows_and_bad_blocks_are_skipped(records: DataFrame) -> None:
    appends = tables_from_kafka(records, "appends")
    assert appends.schema == SOURCE_TABLES["appends"]
    assert [row.asDict() for row in appends.collect()] == ROWS
    assert [tuple(row) for row in tables_from_kafka(records, "stalls").collect()] == [
        (5, 3, 40, None)
    ]


def test_bad_blocks_are_counted_as_the_source_counts_them(records: DataFrame) -> None:
    counts = findings(tables_from_kafka(records, "blocks"))
    assert (counts.blocks, counts.repeated_blocks, counts.bad_blocks) == (3, 1, 4)
    assert [line.split(": ")[0] for line in counts.bad] == [
        f"partition 3, offset {offset}" for offset in range(3, 7)
    ]


def test_failfast_ends_with_the_first_bad_block(records: DataFrame) -> None:
    with pytest.raises(PySparkException) as refused:
        tables_from_kafka(records, "appends", mode="FAILFAST").collect()
    assert in_a_line(refused.value).startswith(f"{TELEMETRY_TOPIC}-3 offset 3: no Arrow stream")


def test_an_unknown_topic_or_table_is_refused(records: DataFrame) -> None:
    with pytest.raises(BadOption, match="they have no offset, value"):
        tables_from_kafka(records.drop("offset", "value"), "appends")
    with pytest.raises(BadOption, match="there is no table 'nothing'"):
        tables_from_kafka(records, "nothing")
    with pytest.raises(BadOption, match="mode is 'LENIENT'"):
        tables_from_kafka(records, "appends", mode="lenient")
