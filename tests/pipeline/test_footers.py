"""What a footer tells need not be read, and comes out as if it had been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from insync.pipeline import footers
from insync.pipeline.events import FETCH_COLUMNS, BadTables
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
def test_as_if_all_had_been_read(table: pa.Table, group: int, tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=group)
    found = footers.read(path, FETCH_COLUMNS).to_pylist()
    expected = table.select(list(FETCH_COLUMNS)).to_pylist()
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if theirs["leader_end_low"] is not None:
            ours["leader_end_high"] = theirs["leader_end_high"]  # asked for by nobody
        if theirs["repeats"] in {None, 1}:
            ours["last_at_ms"] = theirs["last_at_ms"]
        assert ours == theirs


def test_what_is_told_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(rows(at_ms=[5, 6, 9], seq=[1, 2, 3]), tmp_path / "one.parquet")
    asked: list[str] = []
    read = pq.ParquetFile.read

    def spied(self: Any, *args: Any, **options: Any) -> Any:
        asked.extend(options["columns"])
        return read(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read", spied)
    footers.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert {"at_ms", "seq"} <= set(asked)
    told = {
        "leader",
        "leader_epoch",
        "leader_end_high",
        "last_at_ms",
        "read_ms",
        "topic",
        "outcome",
    }
    assert not told & set(asked)


def test_long_texts_may_have_been_shortened(tmp_path: Path) -> None:
    """In a footer, that is: bounds that are alike in their beginnings are not one name."""
    names = ["n" * footers.SHORT + ending for ending in "ab"]
    pq.write_table(rows(at_ms=[5, 6], topic=names), tmp_path / "one.parquet")
    shortened = SimpleNamespace(min=names[0][:-1] + "*", max=names[0][:-1] + "*", null_count=0)
    shortened.has_min_max = shortened.has_null_count = True
    group = SimpleNamespace(
        column=lambda _: SimpleNamespace(is_stats_set=True, statistics=shortened)
    )
    metadata = SimpleNamespace(num_row_groups=1, row_group=lambda _: group)
    assert footers._told(metadata, 0, str) is None
    assert footers.read(tmp_path / "one.parquet", ("topic",))["topic"].to_pylist() == names


def test_texts_that_are_none_are_read(tmp_path: Path) -> None:
    table = pa.table({"topic": pa.array([b"\xff", b"\xff"]).cast(pa.binary()), "at_ms": [5, 6]})
    bad = table.set_column(0, "topic", table["topic"].combine_chunks().view(pa.string()))
    pq.write_table(bad, tmp_path / "one.parquet")
    found = footers.read(tmp_path / "one.parquet", ("topic", "at_ms"))
    assert found["at_ms"].to_pylist() == [5, 6]


def test_without_statistics_all_is_read(tmp_path: Path) -> None:
    table = rows(at_ms=[5, 6], repeats=[1, 4], last_at_ms=[5, 90])
    pq.write_table(table, tmp_path / "one.parquet", write_statistics=False)
    found = footers.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert found.to_pylist() == table.select(list(FETCH_COLUMNS)).to_pylist()


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    pq.write_table(rows(at_ms=[5]).drop_columns(["seq"]), tmp_path / "one.parquet")
    with pytest.raises(BadTables, match=r"one\.parquet has no column seq"):
        footers.read(tmp_path / "one.parquet", FETCH_COLUMNS)


def test_another_columns_field_of_that_name_is_another(tmp_path: Path) -> None:
    table = rows(at_ms=[5, 6], leader=[1, 2])
    inner = pa.array([{"leader": 9}, {"leader": 9}])
    pq.write_table(table.add_column(0, "more", inner), tmp_path / "one.parquet")
    found = footers.read(tmp_path / "one.parquet", FETCH_COLUMNS)
    assert found["leader"].to_pylist() == [1, 2]


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
def test_a_file_that_came_to_harm_is_named(
    harm: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.parquet"
    write_parquet(rows(at_ms=list(range(0, 999, 7)), seq=list(range(143))), path)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(BadTables, match=rf"^{path} cannot be read: .*{says}"):
        footers.read(path, FETCH_COLUMNS)


def test_a_file_whose_rows_cannot_be_counted_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.parquet").write_text("not a table")
    with pytest.raises(BadTables, match=r"one\.parquet cannot be read: "):
        footers.count_rows(tmp_path / "one.parquet")
