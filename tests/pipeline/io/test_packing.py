"""Blocks of a shuffle have the same rows as the tables they were made of, of whole partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from insync.pipeline.io import packing
from insync.pipeline.io.packing import (
    NUMBERS,
    OUTCOME,
    OUTCOMES,
    SEPARATOR,
    Packer,
    Split,
    lists_of,
    unpacked,
)
from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema

SPLIT = Split(tasks=3, shards=9)
LONG, INT = (1 << 63) - 1, (1 << 31) - 1
NAMES = {
    "fetches": ("topic", "partition", "leader_end_low", "leader_end_high", "repeats", "last_at_ms",
                "outcome", "follower"),
    "isr": ("topic", "partition", "isr_before", "cause"),
}  # fmt: skip

Row = dict[str, Any]

longs = st.none() | st.sampled_from([0, 1, 255, 256, 65_536, 1 << 32, LONG, -LONG - 1, -1])
ints = st.sampled_from([0, 1, 300, INT, -INT - 1, -1])
topics = st.sampled_from(["a", "b", "ü"]) | st.integers(0, 999).map(str)
KINDS = {
    "topic": topics,
    "partition": st.integers(0, 20) | st.just(INT),
    "outcome": st.sampled_from(["ok", "ok", "ok", "error", None]),
    "follower": ints,
    "isr_before": st.none() | st.lists(ints, max_size=3),
    "cause": st.none() | st.text(max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[Row]]:
    """Columns with one value, with two, and with any."""
    name = draw(st.sampled_from([*NAMES]))
    values = {
        column: st.sampled_from(draw(st.lists(KINDS.get(column, longs), min_size=1, max_size=3)))
        for column in NAMES[name]
    }
    return name, draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=20))


def folded(name: str, rows: list[Row], size: int) -> Iterator[pa.RecordBatch]:
    """As they come from Spark: numbers in one list, other lists as texts."""
    schema, columns = arrow_schema(TABLES[name]), NAMES.get(name, tuple(rows[0]))
    is_number = {
        column: column == OUTCOME or pa.types.is_integer(schema.field(column).type)
        for column in columns
        if column in rows[0]
    }
    texts = {
        column: pa.array([_text(row[column]) for row in rows], pa.string())
        for column in is_number
        if not is_number[column]
    }
    numbers = [[_number(row[each]) for each in is_number if is_number[each]] for row in rows]
    table = pa.table({NUMBERS: pa.array(numbers, pa.list_(pa.int64()))} | texts)
    return iter(table.to_batches(size))


def _text(value: Any) -> str | None:
    return SEPARATOR.join(map(str, value)) if isinstance(value, list) else value


def _number(value: int | str | None) -> int | None:
    if isinstance(value, str):
        return OUTCOMES.index(value) if value in OUTCOMES else len(OUTCOMES)
    return value


def needed(row: Row) -> Row:
    """Without what no table needs: another end, and the time of a last repetition."""
    row = dict(row)
    if row.get("leader_end_low") is not None:
        row.pop("leader_end_high", None)
    if row.get("repeats") is None or row["repeats"] <= 1:
        row.pop("last_at_ms", None)
    return row


def in_order(rows: list[Row]) -> list[str]:
    return sorted(str(sorted(needed(row).items())) for row in rows)


def many_topics(count: int) -> list[Row]:
    row = {"isr_before": [1], "cause": None}
    return [{"topic": f"topic-{each}", "partition": each % 2} | row for each in range(count)]


@given(tables(), st.integers(1, 7), st.integers(1, 9))
@example(("isr", many_topics(packing.FEW_NAMES + 5)), 50, 400)
def test_blocks_have_all_rows_of_their_partitions(
    monkeypatch_at_once: pytest.MonkeyPatch, table: tuple[str, list[Row]], size: int, at_once: int
) -> None:
    name, rows = table
    monkeypatch_at_once.setattr(packing, "ROWS_AT_ONCE", at_once)
    blocks = pa.Table.from_batches(Packer(name, NAMES[name], SPLIT)(folded(name, rows, size)))
    assert blocks["table"].unique().to_pylist() == [name]
    of_shard: dict[int, list[pa.Buffer]] = {}
    for shard, block in zip(blocks["shard"].to_pylist(), blocks["rows"], strict=True):
        assert 0 <= shard < SPLIT.shards
        of_shard.setdefault(shard, []).append(block.as_buffer())
    everything: list[Row] = []
    shard_of: dict[tuple[str, int], int] = {}
    for shard, own in of_shard.items():
        table_of_shard = unpacked(own, name)
        for column in NAMES[name]:
            kind, expected = table_of_shard[column].type, arrow_schema(TABLES[name]).field(column)
            assert (kind.value_type if pa.types.is_dictionary(kind) else kind) == expected.type
        for row in table_of_shard.to_pylist():
            assert shard_of.setdefault((row["topic"], row["partition"]), shard) == shard
            everything.append(row)
    assert in_order(everything) == in_order(rows)


@pytest.fixture(scope="module")
def monkeypatch_at_once() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_partitions_of_a_topic_go_to_all_shards() -> None:
    rows = pa.table({"topic": ["t"] * 90, "partition": pa.array([*range(90)], pa.int32())})
    assert sorted(packing.shards_of(rows, 9).tolist()) == sorted([*range(9)] * 10)


def test_rows_of_brokers_are_in_a_block_for_each_task() -> None:
    rows = [{"at_ms": 5 + each, "broker": each, "stall_ms": 7} for each in range(2)]
    (blocks,) = Packer("stalls", tuple(rows[0]), SPLIT)(folded("stalls", rows, 9))
    assert blocks["shard"].to_pylist() == [-3, -2, -1]
    assert sorted(shard % SPLIT.tasks for shard in blocks["shard"].to_pylist()) == [0, 1, 2]
    for block in blocks["rows"]:
        assert unpacked([block.as_buffer()], "stalls").to_pylist() == rows


def test_lists_are_read_back_as_written() -> None:
    kind = pa.list_(pa.int32())
    lists = lists_of(pa.array(["1,2,30", "7", "", None, "-5"]), kind)
    assert lists.type == kind
    assert lists.to_pylist() == [[1, 2, 30], [7], [], None, [-5]]


def test_what_one_value_says_takes_no_room() -> None:
    """As most telemetry is: one leader, one epoch, reads that took no time."""
    count = 10_000
    row = {"topic": "orders", "partition": 3, "repeats": 1, "outcome": "ok"}
    rows = [
        row | {"leader_end_low": 1_700_000_000_000 + each, "follower": 2} for each in range(count)
    ]
    columns = tuple(each for each in NAMES["fetches"] if each in rows[0])
    (blocks,) = Packer("fetches", columns, SPLIT)(folded("fetches", rows, count))
    assert len(blocks["rows"][0].as_py()) < 2 * count + 2_000, "16 bits for an end, and a header"
    assert unpacked([blocks["rows"][0].as_buffer()], "fetches").to_pylist() == rows


def test_an_outcome_that_no_version_records_is_another() -> None:
    outcomes = [*OUTCOMES, None, "later"]
    rows = [{"topic": "t", "partition": 0, "outcome": outcome} for outcome in outcomes]
    (blocks,) = Packer("fetches", tuple(rows[0]), SPLIT)(folded("fetches", rows, 9))
    table = unpacked([blocks["rows"][0].as_buffer()], "fetches")
    assert table["outcome"].to_pylist() == [*OUTCOMES, None, "other"]
