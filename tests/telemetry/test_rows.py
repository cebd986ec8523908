"""Rows have the columns of their tables, by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from insync.rules.policy import Limit
from insync.telemetry.blocks import BadBlock, write_block
from insync.telemetry.rows import (
    ROW_TYPES,
    FetchRow,
    IsrRow,
    LeaderTermKey,
    PublishKey,
    Row,
    read_columns,
)
from insync.telemetry.schemas import CAUSES, FETCHES, ISR, TABLES
from insync.telemetry.tables import read_block

LED = LeaderTermKey("t", 7, leader=8, leader_epoch=9)
SHARED: dict[str, Any] = {"topic": "t", "partition": 7, "leader": 8, "leader_epoch": 9}
SHARED_COLUMNS = {  # the columns that a table's rows have in common with others of their place
    "fetches": ("topic", "partition", "leader", "leader_epoch"),
    "appends": ("topic", "partition", "leader", "leader_epoch"),
    "isr": ("topic", "partition", "leader", "leader_epoch"),
    "isr_events": ("topic", "partition", "leader", "leader_epoch"),
    "assignments": ("topic", "partition", "leader", "leader_epoch"),
    "elections": ("topic", "partition"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_row_type_has_the_columns_of_its_table_and_no_other(name: str) -> None:
    row_type = ROW_TYPES[name]
    assert row_type.table is TABLES[name]
    own = [field.name for field in fields(row_type)]
    assert sorted(own) == sorted(
        ("publish_key", *set(TABLES[name].names) - {*SHARED_COLUMNS.get(name, ())})
    )
    for column in SHARED_COLUMNS.get(name, ()):
        assert hasattr(LED, column)
    assert set(ROW_TYPES) == set(TABLES)


def row_of(name: str, values: dict[str, Any]) -> Row:
    row = object.__new__(ROW_TYPES[name])  # also those that have no `__init__`
    for column, value in values.items():
        if column not in SHARED_COLUMNS.get(name, ()):
            object.__setattr__(row, column, value)
    object.__setattr__(
        row, "publish_key", LED if "leader" in SHARED_COLUMNS.get(name, ()) else PublishKey("t", 7)
    )
    return row


@pytest.mark.parametrize("name", TABLES)
def test_each_column_is_read_by_its_name(name: str) -> None:
    """No two columns have the same value, so that none can be taken for another."""
    values = {column: f"value {at}" for at, column in enumerate(TABLES[name].names)}
    values |= {column: SHARED[column] for column in SHARED_COLUMNS.get(name, ())}
    columns = read_columns(TABLES[name], [row_of(name, values)] * 3)
    assert {column: list(read) for column, read in columns.items()} == {
        column: [value] * 3 for column, value in values.items()
    }


def test_a_row_that_lacks_a_column_is_noticed() -> None:
    """Rows of the data path are assigned, not called with arguments."""
    with pytest.raises(AttributeError):
        read_columns(FETCHES, [FetchRow()])


def test_the_causes_include_every_limit_of_the_policies() -> None:
    assert {limit.value for limit in Limit} <= CAUSES.keys()


# Tables of earlier versions, and of others.


def isr_block() -> pa.Table:
    row = IsrRow(
        publish_key=LED, at_ms=9, decided_at_ms=8, decided_by="leader", version=3,
        isr_before=[1, 2], isr_after=[1], replica=2, change="shrink", reason="silent",
        replica_end=4, leader_end=5, caught_up_at_ms=1, seq=6, cause="lag-time", late_ms=2,
    )  # fmt: skip
    return read_block(ISR, write_block(ISR, [row, row], anchor_ms=0))


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("absent", [("cause",), ("late_ms",), ("cause", "late_ms")])
def test_columns_that_earlier_versions_lack_are_unknown(absent: tuple[str, ...]) -> None:
    whole = isr_block()
    rows = read_block(ISR, stream(whole.drop_columns(list(absent))))
    assert rows.schema == whole.schema
    unknown = dict.fromkeys(absent)
    assert rows.to_pylist() == [row | unknown for row in whole.to_pylist()]


def test_only_three_columns_may_be_absent() -> None:
    optional = {name: table.optional for name, table in TABLES.items() if table.optional}
    assert optional == {"isr": ("cause", "late_ms"), "stalls": ("drained_at_ms",)}


@pytest.mark.parametrize("name", [name for name in ISR.names if name not in ("cause", "late_ms")])
def test_every_other_column_that_is_absent_is_refused(name: str) -> None:
    with pytest.raises(BadBlock, match=f"0 columns '{name}'"):
        read_block(ISR, stream(isr_block().drop_columns([name])))


def test_an_optional_column_of_another_type_or_twice_is_refused() -> None:
    whole = isr_block()
    for name, wrong in (("cause", pa.array([1, 2])), ("late_ms", pa.array(["1", "2"]))):
        at = whole.column_names.index(name)
        with pytest.raises(BadBlock, match=f"{name} is "):
            read_block(ISR, stream(whole.set_column(at, name, wrong)))
        with pytest.raises(BadBlock, match=f"2 columns '{name}'"):
            read_block(ISR, stream(whole.append_column(name, whole[name])))


def test_the_causes_are_those_that_the_documents_name() -> None:
    text = Path(__file__).parents[2].joinpath("docs/decisions/telemetry.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(CAUSES)
