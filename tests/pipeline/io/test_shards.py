"""What a task is given: blocks of shards, shards of nothing, and files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from insync.pipeline.io import storage
from insync.pipeline.io.columns import BadTables
from insync.pipeline.io.packing import NUMBERS, Packer, Split
from insync.pipeline.io.shards import _OfBlocks, _OfFiles, assign_files, empty, exported_files
from insync.pipeline.replay import events
from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.lag import lag, lag_exported
from insync.pipeline.tables.problems import problems, problems_exported
from insync.pipeline.tables.record import record as made_record
from insync.pipeline.tables.record import record_exported
from insync.pipeline.tables.what_if import Replay
from support.pipeline.exported_tables import record, write, write_split
from support.pipeline.sample_tables import some_partitions
from support.pipeline.table_strategies import arrow


def test_a_shard_with_nothing_in_it_has_no_partitions() -> None:
    nothing = {name: empty(name, columns) for name, columns in events.COLUMNS.items()}
    rows = Replay(WhatIfGrid(policies=["caught-up"]))(nothing).to_pylist()
    assert {(row["level"], row["shrinks"]) for row in rows} <= {("all", 0)}


def counts(tables: dict[str, pa.Table]) -> pa.Table:
    return pa.Table.from_pylist([{name: rows.num_rows for name, rows in tables.items()}])


def test_a_task_works_on_one_shard_after_the_other_with_all_stalls() -> None:
    split = Split(tasks=2, shards=6)
    folded = {
        "appends": pa.table({NUMBERS: [[each] for each in range(9)], "topic": ["t"] * 9}),
        "stalls": pa.table({NUMBERS: [[1, 5], [2, 6], [2, 6]]}),
    }
    columns = {
        "appends": ("topic", "partition"),
        "stalls": ("broker", "at_ms"),
        "isr": ("topic", "isr_before"),
    }
    packed = [
        batch
        for name, rows in folded.items()
        for batch in Packer(name, columns[name], split)(iter(rows.to_batches()))
    ]
    blocks = pa.Table.from_batches(packed).sort_by("shard")
    of_task = [
        blocks.filter([shard % 2 == task for shard in blocks["shard"].to_pylist()])
        for task in range(2)
    ]
    for each in of_task:
        work = _OfBlocks(columns, counts)
        results = [row for batch in work(iter(each.to_batches(2))) for row in batch.to_pylist()]
        assert {row["stalls"] for row in results} == {3}
        assert {row["isr"] for row in results} == {0}
        assert len(results) == 3
    assert sum(len(each) for each in of_task) == 6 + 2, "six shards, and the stalls for each task"


@pytest.mark.spark
def test_frames_and_files_make_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Beside `what_if`, which is held to the rules both ways."""
    tables = arrow(some_partitions(12))
    folder = write_split(tmp_path, tables, files=3)
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    frames.pop("configs")
    isr, without_isr = frames["isr"], {n: f for n, f in frames.items() if n != "isr"}
    of_lag = {name: frame for name, frame in frames.items() if name != "stalls"}
    of_problems = {name: frame for name, frame in without_isr.items() if name != "stalls"}
    both = {
        "lag": (lag(**of_lag, bucket_ms=1_000), lag_exported(spark, folder, bucket_ms=1_000)),
        "problems": (problems(**of_problems), problems_exported(spark, folder)),
        "record": (made_record(**frames), record_exported(spark, folder, isr)),
    }
    for name, (from_frames, from_files) in both.items():
        rows = sorted(map(str, from_frames.collect()))
        assert rows, name
        assert rows == sorted(map(str, from_files.collect())), name


def of_files(folder: Path, *numbers: int) -> list[dict[str, int]]:
    """How many rows of each table a task has for each file it is given."""

    root = storage.folder(None, folder)
    hands: list[list[int]] = [[], list(numbers)]
    read = _OfFiles(root, exported_files(root), hands, events.COLUMNS, counts)
    ids = pa.RecordBatch.from_pydict({"id": [1]})
    return [row for batch in read(iter([ids])) for row in batch.to_pylist()]


def test_a_task_reads_its_files_and_all_stalls_and_settings(tmp_path: Path) -> None:
    tables = record()
    stall = {"at_ms": 1_000_000, "broker": 1, "stall_ms": 300}
    folder = write(tmp_path, tables | {"stalls": [stall]})
    for table in folder.iterdir():
        (table / "part-00001.parquet").write_bytes((table / "part-00000.parquet").read_bytes())
    expected = {name: len(tables[name]) for name in ("fetches", "appends", "isr", "assignments")}
    settings = 2 * len(tables["configs"])
    assert of_files(folder, 0, 1) == [expected | {"stalls": 2, "configs": settings}] * 2


def test_a_table_that_was_not_exported_is_empty(tmp_path: Path) -> None:
    tables = {name: rows for name, rows in record().items() if name in {"fetches", "appends"}}
    (counts,) = of_files(write(tmp_path, tables), 0)
    assert (counts["appends"], counts["isr"], counts["stalls"]) == (len(tables["appends"]), 0, 0)


@given(st.lists(st.integers(0, 10**9), min_size=1), st.data())
def test_each_file_is_dealt_once_and_no_task_has_much_more_than_its_share(
    sizes: list[int], data: st.DataObject
) -> None:
    tasks = data.draw(st.integers(1, len(sizes)))
    hands = assign_files(sizes, tasks)
    assert len(hands) == tasks
    assert sorted(number for hand in hands for number in hand) == list(range(len(sizes)))
    share = sum(sizes) / tasks
    assert max(sum(sizes[number] for number in hand) for hand in hands) <= share + max(sizes)


def test_a_large_file_is_a_task_of_its_own() -> None:
    assert [sorted(hand) for hand in assign_files([1, 1, 90, 1, 1], 2)] == [[2], [0, 1, 3, 4]]


@pytest.mark.parametrize("table", ["fetches", "appends", "isr"])
def test_a_worker_that_cannot_see_the_files_reports_it(table: str, tmp_path: Path) -> None:
    """As on another host than the driver's, which listed them."""
    folder = write(tmp_path, record())
    root = storage.folder(None, folder)
    listed = exported_files(root)
    path = folder / table / "part-00000.parquet"
    path.unlink()
    read = _OfFiles(root, listed, [[0]], events.COLUMNS, lambda tables: tables["fetches"])
    with pytest.raises(
        BadTables, match=rf"^{path} is not on \S+: every worker must see the folder"
    ):
        list(read(iter([pa.RecordBatch.from_pydict({"id": [0]})])))


def test_a_part_file_that_only_some_tables_have_is_reported_missing(tmp_path: Path) -> None:
    folder = write(tmp_path, record())
    for number in range(1, 4):
        for table in folder.iterdir():
            path = table / f"part-{number:05d}.parquet"
            path.write_bytes((table / "part-00000.parquet").read_bytes())
    (folder / "fetches" / "part-00001.parquet").unlink()
    (folder / "stalls" / "part-00003.parquet").unlink()
    with pytest.raises(BadTables) as refused:
        exported_files(storage.folder(None, folder))
    lacks = f"{folder} lacks fetches/part-00001.parquet, stalls/part-00003.parquet: "
    assert str(refused.value).startswith(lacks)
    for path in (folder / "isr").glob("part-0000[1-3].parquet"):
        path.unlink()
    (folder / "appends" / "part-00002.parquet").unlink()
    with pytest.raises(BadTables, match=r"isr/part-00003\.parquet and 1 more: "):
        exported_files(storage.folder(None, folder))


@pytest.mark.parametrize("table", ["fetches", "appends"])
def test_tables_of_every_export_are_required(table: str, tmp_path: Path) -> None:
    folder = write(tmp_path, record())
    (folder / table / "part-00000.parquet").unlink()
    with pytest.raises(BadTables, match=rf"has no {table}/\*\.parquet: it is not an export"):
        exported_files(storage.folder(None, folder))
