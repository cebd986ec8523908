"""Values that a footer's statistics determine are not read, and are returned all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from insync.pipeline.io import parquet_reader
from insync.pipeline.io.columns import BadTables
from insync.pipeline.replay.events import FETCH_COLUMNS
from insync.telemetry.schemas import TABLES
from insync.telemetry.tables import arrow_schema, write_parquet

SCHEMA = arrow_schema(TABLES["fetches"])
USUAL = {
    "topic": "t", "partition": 3, "leader": 1, "leader_epoch": 7, "outcome": "ok", "read_ms": 0,
    "repeats": 1, "leader_end_low": 10, "leader_end_high": 10,
}  # fmt: skip


def rows(**columns: list[Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    whole = {
        field.name: columns.get(field.name, [USUAL.get(field.name)] * count) for field in SCHEMA
    }
    return pa.Table.from_pydict(whole, schema=SCHEMA)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(rows(at_ms=[5, 6, 9], seq=[1, 2, 3]), id="hardly anything changes"),
        pytest.param(rows(at_ms=[5, 6], leader_epoch=[7, 8]), id="two epochs"),
        pytest.param(rows(at_ms=[5, 6], leader_end_low=[None, 3]), id="one end unknown"),
        pytest.param(rows(at_ms=[5, 6], leader_end_low=[None, None]), id="no end known"),
        pytest.param(rows(at_ms=[5, 6], repeats=[1, 4], last_at_ms=[5, 90]), id="repeated"),
        pytest.param(rows(at_ms=[5, 6], repeats=[None, 1], last_at_ms=[5, 6]), id="one null"),
        pytest.param(rows(at_ms=[5, 6], topic=["a", "b"], outcome=["ok", None]), id="texts"),
        pytest.param(rows(at_ms=[5] * 4), id="nothing changes"),
        pytest.param(rows(at_ms=[]), id="no rows"),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 100])
def test_an_optimised_read_returns_what_a_full_read_would(
    table: pa.Table, group: int, tmp_path: Path
) -> None:
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=group)
    rows_read = parquet_reader.read(path, FETCH_COLUMNS).to_pylist()
    expected = table.select(list(FETCH_COLUMNS)).to_pylist()
    assert len(rows_read) == len(expected)
    for ours, theirs in zip(rows_read, expected, strict=True):
        if theirs["leader_end_low"] is not None:
            ours["leader_end_high"] = theirs["leader_end_high"]  # not read
        if theirs["repeats"] in {None, 1}:
            ours["last_at_ms"] = theirs["last_at_ms"]
        assert ours == theirs


def test_values_known_from_statistics_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(rows(at_ms=[5, 6, 9], seq=[1, 2, 3]), tmp_path / "one.parquet")
    read_columns: list[str] = []
    read = pq.ParquetFile.read

    def spied(self: Any, *args: Any, **options: Any) -> Any:
        read_columns.extend(options["columns"])
        return read(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read", spied)
    parquet_reader.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert {"at_ms", "seq"} <= set(read_columns)
    not_read = {
        "leader",
        "leader_epoch",
        "leader_end_high",
        "last_at_ms",
        "read_ms",
        "topic",
        "outcome",
    }
    assert not not_read & set(read_columns)


def test_long_texts_may_have_been_shortened(tmp_path: Path) -> None:
    """In a footer, that is: bounds that are alike in their beginnings are not one name."""
    names = ["n" * parquet_reader.SHORT + ending for ending in "ab"]
    pq.write_table(rows(at_ms=[5, 6], topic=names), tmp_path / "one.parquet")
    shortened = SimpleNamespace(min=names[0][:-1] + "*", max=names[0][:-1] + "*", null_count=0)
    shortened.has_min_max = shortened.has_null_count = True
    group = SimpleNamespace(
        column=lambda _: SimpleNamespace(is_stats_set=True, statistics=shortened)
    )
    metadata = SimpleNamespace(num_row_groups=1, row_group=lambda _: group)
    assert parquet_reader._statistics(metadata, 0, str) is None
    assert parquet_reader.read(tmp_path / "one.parquet", ("topic",))["topic"].to_pylist() == names


def test_columns_with_invalid_utf8_are_read(tmp_path: Path) -> None:
    table = pa.table({"topic": pa.array([b"\xff", b"\xff"]).cast(pa.binary()), "at_ms": [5, 6]})
    bad = table.set_column(0, "topic", table["topic"].combine_chunks().view(pa.string()))
    pq.write_table(bad, tmp_path / "one.parquet")
    read_back = parquet_reader.read(tmp_path / "one.parquet", ("topic", "at_ms"))
    assert read_back["at_ms"].to_pylist() == [5, 6]


def test_without_statistics_every_row_is_read(tmp_path: Path) -> None:
    table = rows(at_ms=[5, 6], repeats=[1, 4], last_at_ms=[5, 90])
    pq.write_table(table, tmp_path / "one.parquet", write_statistics=False)
    read_back = parquet_reader.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert read_back.to_pylist() == table.select(list(FETCH_COLUMNS)).to_pylist()


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    pq.write_table(rows(at_ms=[5]).drop_columns(["seq"]), tmp_path / "one.parquet")
    with pytest.raises(BadTables, match=r"one\.parquet has no column seq"):
        parquet_reader.read(tmp_path / "one.parquet", FETCH_COLUMNS)


def test_a_nested_field_of_the_same_name_is_not_the_column(tmp_path: Path) -> None:
    table = rows(at_ms=[5, 6], leader=[1, 2])
    inner = pa.array([{"leader": 9}, {"leader": 9}])
    pq.write_table(table.add_column(0, "more", inner), tmp_path / "one.parquet")
    read_back = parquet_reader.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert read_back["leader"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda data: data[:-100], "magic bytes"),
        (lambda data: data[:6], "6 bytes"),
        (lambda _: b"", "0 bytes"),
        (lambda data: data[:4] + bytes(200) + data[204:], ""),
    ],
    ids=["cut", "hardly begun", "empty", "overwritten within"],
)
def test_the_error_of_a_damaged_file_names_it(
    harm: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.parquet"
    write_parquet(rows(at_ms=list(range(0, 999, 7)), seq=list(range(143))), path)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(BadTables, match=rf"^{path} cannot be read: .*{says}"):
        parquet_reader.read(path, FETCH_COLUMNS)


def test_the_error_of_a_file_without_a_row_count_names_it(tmp_path: Path) -> None:
    (tmp_path / "one.parquet").write_text("not a table")
    with pytest.raises(BadTables, match=r"one\.parquet cannot be read: "):
        parquet_reader.count_rows(tmp_path / "one.parquet")


def test_an_optional_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"replica": [2, 3], "cause": ["elected", None]}), path)
    optional = {"cause": pa.string(), "late_ms": pa.int64()}
    table = parquet_reader.read(path, ("late_ms", "replica", "cause"), optional)
    assert table.schema.field("late_ms").type == pa.int64()
    assert table.to_pylist() == [
        {"late_ms": None, "replica": 2, "cause": "elected"},
        {"late_ms": None, "replica": 3, "cause": None},
    ]
    with pytest.raises(BadTables, match=r"one.parquet has no column late_ms"):
        parquet_reader.read(path, ("late_ms", "replica", "cause"))
    with pytest.raises(BadTables, match=r"one.parquet has no column version"):
        parquet_reader.read(path, ("version", "cause"), optional)
