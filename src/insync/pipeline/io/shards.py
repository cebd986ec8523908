"""Telemetry split by partition, so that a task has all rows of its partitions.

A function of Arrow tables runs on each shard, from one of two sources:

- `from_tables`: any DataFrames. They are shuffled by partition; every shard has all stalls and
  settings, which belong to brokers.
- `from_export`: the folder of `insync telemetry export`, whose files are split already. Each task
  reads the needed columns of its files with pyarrow; no row passes the JVM.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import heapreplace
from itertools import chain
from pathlib import Path
from socket import gethostname
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from insync.pipeline.io import parquet_reader
from insync.pipeline.io.columns import BadTables, check_columns
from insync.pipeline.local.dispatch import F, union_all
from insync.telemetry.schemas import TABLES, Type
from insync.telemetry.tables import arrow_schema

Tables = dict[str, pa.Table]
Columns = Mapping[str, tuple[str, ...]]
Work = Callable[[Tables], pa.Table]

BY_BROKER: Final = ("stalls", "configs")
NEEDED: Final = ("fetches", "appends")
NAMED_MAX: Final = 5  # missing files that a message names
SEPARATOR: Final = ","
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
    count = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    wide = list(dict.fromkeys(name for table in columns.values() for name in table))
    types = {c.name: _TYPES[c.type] for table in TABLES.values() for c in table.columns}
    parts = []
    for name, frame in tables.items():
        known = [column for column in columns[name] if column in frame.columns]
        own = [
            _plain(F.col(column) if column in known else F.lit(None), types[column]).alias(column)
            for column in wide
        ]
        if name in BY_BROKER:
            everywhere = spark.range(count).select(F.col("id").cast("int").alias("shard"))
            placed = frame.crossJoin(everywhere).select(F.lit(name).alias("table"), *own, "shard")
        else:
            shard = F.pmod(F.hash("topic", "partition"), F.lit(count)).alias("shard")
            placed = frame.select(F.lit(name).alias("table"), *own, shard)
        parts.append(placed)
    together = union_all(parts).repartition(count, "shard")
    return together.mapInArrow(_OfRows(columns, work), schema)


def _plain(column: Column, kind: str) -> Column:
    """A list as text: for each row Spark would visit all lists of the batch again."""
    cast = column.cast(kind)
    if not kind.startswith("array"):
        return cast
    return F.array_join(cast.cast("array<string>"), SEPARATOR)


def from_export(
    spark: SparkSession, folder: str | Path, columns: Columns, work: Work, schema: StructType
) -> DataFrame:
    """`work` over the files of each partition of the telemetry topic."""
    root = Path(folder).absolute()  # workers may have another working directory
    files = exported_files(root)
    sizes = [(root / "fetches" / name).stat().st_size for name in files["fetches"]]
    tasks = assign_files(sizes, min(len(sizes), TASKS_PER_CORE * _cores(spark)))
    for table in BY_BROKER:
        # Every task reads all of these; most are empty, and skipped here.
        if table in columns:
            files[table] = [
                name for name in files[table] if parquet_reader.count_rows(root / table / name)
            ]
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


def exported_files(root: Path) -> dict[str, list[str]]:
    """The files of every table. An export writes a file per table and partition of the topic, with
    rows or without. So a missing file means lost rows, unless the whole table is missing."""
    files = {name: sorted(path.name for path in (root / name).glob("*.parquet")) for name in TABLES}
    for table in NEEDED:
        if not files[table]:
            raise BadTables(f"{root} has no {table}/*.parquet: it is not an export of telemetry")
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
            f"{root} lacks {named}{more}: other tables have those files, so rows are lost"
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


class _OfRows:
    def __init__(self, columns: Columns, work: Work) -> None:
        self._columns = dict(columns)
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: dict[tuple[int, str], list[pa.Table]] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for shard in rows["shard"].unique().to_pylist():
                mine = rows.filter(pa.compute.equal(rows["shard"], shard))
                for name in mine["table"].unique().to_pylist():
                    own = mine.filter(pa.compute.equal(mine["table"], name))
                    parts.setdefault((shard, name), []).append(
                        _with_lists(own.select(list(self._columns[name])), name)
                    )
        for shard in sorted({key[0] for key in parts}):
            tables = {
                name: pa.concat_tables(parts.pop((shard, name), None) or [empty(name, columns)])
                for name, columns in self._columns.items()
            }
            yield from self._work(tables).to_batches()
            _freeze_imports()


def _with_lists(rows: pa.Table, name: str) -> pa.Table:
    schema = empty(name, rows.column_names).schema
    for at, field in enumerate(schema):
        if pa.types.is_list(field.type):
            texts = rows[field.name].to_pylist()
            lists = [None if text is None else _numbers(text) for text in texts]
            rows = rows.set_column(at, field, pa.array(lists, field.type))
    return rows


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(SEPARATOR)] if text else []


class _OfFiles:
    """`work` over the files of the tasks whose numbers come in."""

    def __init__(
        self,
        root: Path,
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
        path = self._root / table / name
        if not path.exists():
            raise BadTables(
                f"{path} is not on {gethostname()}: every worker must see the folder of an export"
            )
        schema = arrow_schema(TABLES[table])
        optional = {each: schema.field(each).type for each in TABLES[table].optional}
        return parquet_reader.read(path, columns, optional)
