"""Telemetry split by partition, so that each task sees all of the partitions it sees.

Two ways in, one way on: whatever comes from a shard is what a function makes of its Arrow tables.

- `from_tables`: any DataFrames. They are shuffled by partition; the stalls, which are a broker's
  and not a partition's, go everywhere.
- `from_export`: the folder of `insync telemetry export`, whose files are split already. Each task
  reads its own files with pyarrow, only the columns that are needed, and nothing passes the JVM.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from heapq import heapreplace
from itertools import chain
from pathlib import Path
from socket import gethostname
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from insync.pipeline import footers
from insync.pipeline.events import BadTables, check_columns
from insync.telemetry.schemas import TABLES, Type
from insync.telemetry.tables import arrow_schema

Tables = dict[str, pa.Table]
Columns = Mapping[str, tuple[str, ...]]
Work = Callable[[Tables], pa.Table]

BY_BROKER: Final = "stalls"
NEEDED: Final = ("fetches", "appends")
NAMED_MAX: Final = 5  # missing files, of those that a message names
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
    """`work` over all rows of each shard; tables that are not given are empty."""
    for name, frame in tables.items():
        check_columns(name, frame.columns, columns[name])
    spark = next(iter(tables.values())).sparkSession
    count = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    wide = list(dict.fromkeys(name for table in columns.values() for name in table))
    types = {c.name: _TYPES[c.type] for table in TABLES.values() for c in table.columns}
    parts = []
    for name, frame in tables.items():
        own = [
            _plain(F.col(column) if column in columns[name] else F.lit(None), types[column]).alias(
                column
            )
            for column in wide
        ]
        if name == BY_BROKER:
            everywhere = spark.range(count).select(F.col("id").cast("int").alias("shard"))
            placed = frame.crossJoin(everywhere).select(F.lit(name).alias("table"), *own, "shard")
        else:
            shard = F.pmod(F.hash("topic", "partition"), F.lit(count)).alias("shard")
            placed = frame.select(F.lit(name).alias("table"), *own, shard)
        parts.append(placed)
    together = reduce(DataFrame.unionByName, parts).repartition(count, "shard")
    return together.mapInArrow(_OfRows(columns, work), schema)


def _plain(column: Column, kind: str) -> Column:
    """As text, if it is a list: Spark looks at all lists of a batch again for each row it adds."""
    cast = column.cast(kind)
    if not kind.startswith("array"):
        return cast
    return F.array_join(cast.cast("array<string>"), SEPARATOR)


def from_export(
    spark: SparkSession, folder: str | Path, columns: Columns, work: Work, schema: StructType
) -> DataFrame:
    """`work` over the files of each partition of the telemetry topic."""
    root = Path(folder).absolute()  # workers may have another folder of their own
    files = exported_files(root)
    sizes = [(root / "fetches" / name).stat().st_size for name in files["fetches"]]
    hands = dealt(sizes, min(len(sizes), TASKS_PER_CORE * _cores(spark)))
    if BY_BROKER in columns:
        # Everybody reads all of these: not those with nothing in them, as most of them are.
        files[BY_BROKER] = [
            name for name in files[BY_BROKER] if footers.count_rows(root / BY_BROKER / name)
        ]
    read = _OfFiles(root, files, hands, columns, work)
    return spark.range(0, len(hands), 1, len(hands)).mapInArrow(read, schema)


def dealt(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """The numbers of the files that each task reads: from the largest on, each file goes to whoever
    has the least yet."""
    loads = [(0, hand) for hand in range(hands)]
    files: list[list[int]] = [[] for _ in range(hands)]
    for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, hand = loads[0]
        files[hand].append(number)
        heapreplace(loads, (load + sizes[number], hand))
    return files


def exported_files(root: Path) -> dict[str, list[str]]:
    """Of every table. An export writes each table's file for each partition of the topic, with
    rows or without: where some are missing, so are rows. Only a whole table may never have been."""
    files = {name: sorted(path.name for path in (root / name).glob("*.parquet")) for name in TABLES}
    for table in NEEDED:
        if not files[table]:
            raise BadTables(f"{root} has no {table}/*.parquet: it is no export of telemetry")
    known = sorted({name for names in files.values() for name in names})
    missing = [
        f"{table}/{name}"
        for table, names in files.items()
        for name in known
        if names and name not in names
    ]
    if missing:
        some = ", ".join(missing[:NAMED_MAX])
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise BadTables(
            f"{root} lacks {some}{more}: other tables have those files, so rows are lost"
        )
    return files


def _cores(spark: SparkSession) -> int:
    # Spark Connect has no sparkContext to ask.
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return 8


@cache
def _keep_what_is_loaded() -> None:
    """Spark's worker collects garbage after every task: not among all that was ever imported."""
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
                    some = mine.filter(pa.compute.equal(mine["table"], name))
                    parts.setdefault((shard, name), []).append(
                        _with_lists(some.select(list(self._columns[name])), name)
                    )
        for shard in sorted({key[0] for key in parts}):
            tables = {
                name: pa.concat_tables(parts.pop((shard, name), None) or [empty(name, columns)])
                for name, columns in self._columns.items()
            }
            yield from self._work(tables).to_batches()
            _keep_what_is_loaded()


def _with_lists(rows: pa.Table, name: str) -> pa.Table:
    wanted = empty(name, rows.column_names).schema
    for at, field in enumerate(wanted):
        if pa.types.is_list(field.type):
            texts = rows[field.name].to_pylist()
            lists = [None if text is None else _numbers(text) for text in texts]
            rows = rows.set_column(at, field, pa.array(lists, field.type))
    return rows


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(SEPARATOR)] if text else []


class _OfFiles:
    """`work` over the files of the hands with the numbers that come in."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, list[str]],
        hands: list[list[int]],
        columns: Columns,
        work: Work,
    ) -> None:
        self._root = root
        self._hands = hands
        self._files = {table: files[table] for table in columns}
        self._columns = dict(columns)
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stalls = None
        for batch in batches:
            for number in chain.from_iterable(
                self._hands[hand] for hand in batch.column("id").to_pylist()
            ):
                tables = {}
                for table, columns in self._columns.items():
                    if table == BY_BROKER:
                        if stalls is None:
                            stalls = self._read_all(table, columns)
                        tables[table] = stalls
                    elif self._files[table]:
                        tables[table] = self._read(table, self._files[table][number], columns)
                    else:
                        tables[table] = empty(table, columns)
                yield from self._work(tables).to_batches()
                _keep_what_is_loaded()

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
        return footers.read(path, columns)
