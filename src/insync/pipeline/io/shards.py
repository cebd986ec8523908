"""Telemetry split by partition, so that a task has all rows of its partitions.

A function of Arrow tables runs on each shard, from one of two sources:

- `from_tables`: any DataFrames. Their rows are shuffled by partition, in blocks of Arrow
  (`packing.py`); every shard has all stalls and settings, which belong to brokers.
- `from_export`: the folder of `insync telemetry export`, whose files are split already. Each task
  reads the needed columns of its files with pyarrow; no row passes the JVM.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from heapq import heapreplace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from socket import gethostname
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from insync.pipeline.io import parquet_reader, storage
from insync.pipeline.io.columns import BadTables, check_columns
from insync.pipeline.io.packing import (
    BLOCKS,
    BY_BROKER,
    NUMBERS,
    OUTCOME,
    OUTCOMES,
    SEPARATOR,
    Packer,
    Split,
    unpacked,
)
from insync.pipeline.local.dispatch import F
from insync.pipeline.local.session import as_local
from insync.telemetry.schemas import TABLES, Type
from insync.telemetry.tables import arrow_schema

Tables = dict[str, pa.Table]
Columns = Mapping[str, tuple[str, ...]]
Work = Callable[[Tables], pa.Table]

NEEDED: Final = ("fetches", "appends")
NAMED_MAX: Final = 5  # missing files that a message names
SHARDS_MIN: Final = 64  # one after the other in a task: the rows of one are in memory
REQUESTS_AT_ONCE: Final = 16
TASKS_PER_CORE: Final = 2  # a task costs about 40 ms, and the cores are not all equally fast
_TYPES: Final = {
    Type.INT32: "int",
    Type.INT64: "bigint",
    Type.STRING: "string",
    Type.BOOL: "boolean",
    Type.INT32_LIST: "array<int>",
}


def empty(table: str, columns: Iterable[str]) -> pa.Table:
    schema = arrow_schema(TABLES[table])
    return pa.schema([schema.field(name) for name in columns]).empty_table()


def from_tables(
    tables: Mapping[str, DataFrame], columns: Columns, work: Work, schema: StructType
) -> DataFrame:
    """`work` over all rows of each shard; missing tables are empty."""
    for name, frame in tables.items():
        check_columns(name, frame.columns, columns[name], optional=TABLES[name].optional)
    spark = next(iter(tables.values())).sparkSession
    local = as_local(spark)
    if local is not None:
        shard = {name: _arrow_rows(tables.get(name), name, columns[name]) for name in columns}
        return cast("DataFrame", local.of_arrow(work(shard), schema))
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    tasks = min(partitions, TASKS_PER_CORE * _cores(spark))
    split = Split(tasks, shards=tasks * -(-SHARDS_MIN // tasks))
    packed = [
        _folded(frame, name, columns[name]).mapInArrow(Packer(name, columns[name], split), BLOCKS)
        for name, frame in tables.items()
    ]
    blocks = reduce(DataFrame.union, packed).repartitionById(tasks, "shard")
    in_order = blocks.sortWithinPartitions("shard")  # by the JVM: it can spill
    return in_order.mapInArrow(_OfBlocks(columns, work), schema)


def _arrow_rows(frame: Any, name: str, columns: Iterable[str]) -> pa.Table:
    """All rows of a frame of the local engine, with the columns that it lacks as nulls."""
    schema = empty(name, columns).schema
    if frame is None:
        return schema.empty_table()
    rows = frame.select(*(each for each in columns if each in frame.columns)).to_arrow()
    arrays = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _folded(frame: DataFrame, name: str, columns: Iterable[str]) -> DataFrame:
    """In few columns: for each row Spark computes the size of every column of the batch again. All
    numbers are one list, which is never null; lists, which may be, are texts: with each null Spark
    visits all that follow the last list."""
    types = {column.name: column.type for column in TABLES[name].columns}
    typed = {
        column: (F.col(column) if column in frame.columns else F.lit(None)).cast(
            _TYPES[types[column]]
        )
        for column in columns
    }
    numbers, others = [], []
    for column, value in typed.items():
        if column == OUTCOME:
            numbers.append(_outcome_code(value))
        elif types[column] in {Type.INT32, Type.INT64}:
            numbers.append(value.cast("bigint"))
        elif types[column] == Type.INT32_LIST:
            text = F.array_join(value.cast("array<string>"), SEPARATOR)
            others.append(text.alias(column))
        else:
            others.append(value.alias(column))
    return frame.select(F.array(*numbers).alias(NUMBERS), *others)


def _outcome_code(outcome: Column) -> Column:
    code = F.when(outcome.isNull(), F.lit(None).cast("bigint"))
    for number, known in enumerate(OUTCOMES):
        code = code.when(outcome == known, F.lit(number).cast("bigint"))
    return code.otherwise(F.lit(len(OUTCOMES)).cast("bigint"))


def from_export(
    spark: SparkSession, folder: str | Path, columns: Columns, work: Work, schema: StructType
) -> DataFrame:
    """`work` over the files of each partition of the telemetry topic."""
    root = storage.folder(spark, folder)
    files = exported_files(root)
    sizes = list(root.listed("fetches").values())
    tasks = assign_files(sizes, min(len(sizes), TASKS_PER_CORE * _cores(spark)))
    for table in BY_BROKER:
        # Every task reads all of these; most are empty, and skipped here.
        if table in columns:
            files[table] = with_rows(root, table, files[table])
    read = _OfFiles(root, files, tasks, columns, work)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def assign_files(sizes: Sequence[int], tasks: int) -> list[list[int]]:
    """The numbers of the files that each task reads: from the largest on, each goes to the task
    that has the fewest bytes."""
    loads = [(0, task) for task in range(tasks)]
    files: list[list[int]] = [[] for _ in range(tasks)]
    for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, task = loads[0]
        files[task].append(number)
        heapreplace(loads, (load + sizes[number], task))
    return files


def with_rows(root: storage.Folder, table: str, names: list[str]) -> list[str]:
    """The files that have rows. In an object store, several footers are read at once."""

    def count(name: str) -> int:
        return parquet_reader.count_rows(root.file(table, name), root.files)

    with ThreadPoolExecutor(1 if root.is_local else REQUESTS_AT_ONCE) as pool:
        return [name for name, rows in zip(names, pool.map(count, names), strict=True) if rows]


def exported_files(root: storage.Folder) -> dict[str, list[str]]:
    """The files of every table. An export writes a file per table and partition of the topic, with
    rows or without. So a missing file means lost rows, unless the whole table is missing."""
    files = {name: list(root.listed(name)) for name in TABLES}
    for table in NEEDED:
        if not files[table]:
            raise BadTables(
                f"{root.url} has no {table}/*.parquet: it is not an export of telemetry"
            )
    all_names = sorted({name for names in files.values() for name in names})
    missing = [
        f"{table}/{name}"
        for table, names in files.items()
        for name in all_names
        if names and name not in names
    ]
    if missing:
        named = ", ".join(missing[:NAMED_MAX])
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise BadTables(
            f"{root.url} lacks {named}{more}: other tables have those files, so rows are lost"
        )
    return files


def _cores(spark: SparkSession) -> int:
    # Spark Connect has no sparkContext.
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return 8


@cache
def _freeze_imports() -> None:
    """Exempt imported modules from the garbage collection that a worker runs after every task."""
    gc.freeze()


class _OfBlocks:
    """`work` over the blocks of each shard that come in, one shard after the other."""

    def __init__(self, columns: Columns, work: Work) -> None:
        self._columns = dict(columns)
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = {name: empty(name, columns) for name, columns in self._columns.items()}
        for shard, of_shard in groupby(_blocks(batches), key=itemgetter(0)):
            parts: dict[str, list[pa.Buffer]] = {}
            for _, name, block in of_shard:
                parts.setdefault(name, []).append(block)
            rows = {name: unpacked(blocks, name) for name, blocks in parts.items()}
            if shard < 0:
                tables |= rows  # of brokers
            else:
                yield from self._work(tables | rows).to_batches()
                _freeze_imports()


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, str, pa.Buffer]]:
    for batch in batches:
        shards, tables, blocks = batch.columns
        for shard, table, block in zip(shards.to_pylist(), tables.to_pylist(), blocks, strict=True):
            yield shard, table, block.as_buffer()


class _OfFiles:
    """`work` over the files of the tasks whose numbers come in."""

    def __init__(
        self,
        root: storage.Folder,
        files: Mapping[str, list[str]],
        tasks: list[list[int]],
        columns: Columns,
        work: Work,
    ) -> None:
        self._root = root
        self._tasks = tasks
        self._files = {table: files[table] for table in columns}
        self._columns = dict(columns)
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        of_brokers: Tables = {}
        for batch in batches:
            for number in chain.from_iterable(
                self._tasks[task] for task in batch.column("id").to_pylist()
            ):
                tables = {}
                for table, columns in self._columns.items():
                    if table in BY_BROKER:
                        if table not in of_brokers:
                            of_brokers[table] = self._read_all(table, columns)
                        tables[table] = of_brokers[table]
                    elif self._files[table]:
                        tables[table] = self._read(table, self._files[table][number], columns)
                    else:
                        tables[table] = empty(table, columns)
                yield from self._work(tables).to_batches()
                _freeze_imports()

    def _read_all(self, table: str, columns: tuple[str, ...]) -> pa.Table:
        nothing = empty(table, columns)
        names = self._files[table]
        parts = [self._read(table, name, columns).cast(nothing.schema) for name in names]
        return pa.concat_tables([nothing, *parts])

    def _read(self, table: str, name: str, columns: tuple[str, ...]) -> pa.Table:
        path = self._root.file(table, name)
        if self._root.is_local and not Path(path).exists():
            raise BadTables(
                f"{path} is not on {gethostname()}: every worker must see the folder of an export"
            )
        schema = arrow_schema(TABLES[table])
        optional = {each: schema.field(each).type for each in TABLES[table].optional}
        return parquet_reader.read(path, columns, optional, self._root.files)
