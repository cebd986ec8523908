"""How an export keeps a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema, write_parquet


def test_rows_are_grouped_by_partition_in_recorded_order(tmp_path: Path) -> None:
    recorded = [("b", 0, 1), ("a", 1, 2), ("a", 0, 3), ("b", 0, 0), ("a", 1, 1)]
    schema = arrow_schema(TABLES["appends"])
    rows = [
        dict.fromkeys(schema.names, 0) | {"topic": topic, "partition": partition, "seq": seq}
        for topic, partition, seq in recorded
    ]
    write_parquet(pa.Table.from_pylist(rows, schema), tmp_path / "one.parquet")
    table = pq.read_table(tmp_path / "one.parquet").select(["topic", "partition", "seq"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("a", 0, 3), ("a", 1, 2), ("a", 1, 1), ("b", 0, 1), ("b", 0, 0),
    ]  # fmt: skip
    assert table.schema.types == [pa.string(), pa.int32(), pa.int64()]


def test_tables_without_partitions_keep_their_order(tmp_path: Path) -> None:
    schema = arrow_schema(TABLES["stalls"])
    rows = [dict.fromkeys(schema.names, 0) | {"at_ms": at_ms} for at_ms in (5, 3, 4)]
    write_parquet(pa.Table.from_pylist(rows, schema), tmp_path / "one.parquet")
    assert pq.read_table(tmp_path / "one.parquet")["at_ms"].to_pylist() == [5, 3, 4]


def test_columns_are_non_nullable_unless_a_null_is_present(tmp_path: Path) -> None:
    schema = arrow_schema(TABLES["fetches"])
    row = dict.fromkeys(schema.names, 0) | {"topic": "t", "outcome": "ok", "throttled": False}
    for name, rows in {
        "ours": [row | {"high_watermark": 3}, row],
        "theirs": [row | {"seq": None}, row | {"seq": None}],
    }.items():
        write_parquet(pa.Table.from_pylist(rows, schema), tmp_path / name)
    ours, theirs = pq.read_schema(tmp_path / "ours"), pq.read_schema(tmp_path / "theirs")
    assert {field.name for field in ours if field.nullable} == {"high_watermark", "wait_ms"}
    assert {field.name for field in theirs if field.nullable} - {"seq"} == {
        "high_watermark", "wait_ms",
    }  # fmt: skip
    assert pq.read_table(tmp_path / "theirs")["seq"].to_pylist() == [None, None]
