"""Rows of a telemetry table as blocks of Arrow, one per shard: what Spark shuffles instead of rows.

Spark serialises, compresses and copies every row of a shuffle, and a block costs it as much as one
row. Blocks are small without compression: a column that has one value is not in it, and numbers
are stored as their distance from the lowest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from insync.pipeline.io.parquet_reader import BY_DICTIONARY, Statistics, needless, repeated
from insync.telemetry.schemas import CANCELLED, DIVERGING, ERROR, OK, TABLES
from insync.telemetry.tables import arrow_schema

BLOCKS: Final = StructType(
    [
        StructField("shard", IntegerType(), nullable=False),
        StructField("table", StringType(), nullable=False),
        StructField("rows", BinaryType(), nullable=False),
    ]
)
BY_BROKER: Final = ("stalls", "configs")
ROWS_AT_ONCE: Final = 1 << 20  # that a task splits at once: 100 MB
SEPARATOR: Final = ","
NUMBERS: Final = "numbers"
OUTCOME: Final = "outcome"
OUTCOMES: Final = (OK, ERROR, DIVERGING, CANCELLED)
OTHER: Final = "other"  # any that no version records
FEW_NAMES: Final = 256
UNSIGNED: Final = (np.uint8, np.uint16, np.uint32)
_LOWEST, _NAME = b"lowest", b"name"  # of a field: what its values are added to, or all are

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Split:
    """The task of a shard is its number modulo `tasks`. Blocks for all shards have numbers below 0,
    one for each task."""

    tasks: int
    shards: int


class Packer:
    """The blocks of one table, whose rows come folded: all numbers in one list."""

    def __init__(self, table: str, columns: Sequence[str], split: Split) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._split = split

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(unfolded(batch, self._table, self._columns))
            rows += batch.num_rows
            if rows >= ROWS_AT_ONCE:
                yield self._packed(pa.Table.from_batches(waiting))
                waiting, rows = [], 0
        if rows:
            yield self._packed(pa.Table.from_batches(waiting))

    def _packed(self, rows: pa.Table) -> pa.RecordBatch:
        if self._table in BY_BROKER:
            shards = list(range(-self._split.tasks, 0))
            blocks = [_block(narrowed(rows, self._table))] * len(shards)
        else:
            shards, blocks = self._blocks(rows)
        columns = [
            pa.array(shards, pa.int32()),
            pa.array([self._table] * len(shards), pa.string()),
            pa.array(blocks, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, names=BLOCKS.names)

    def _blocks(self, rows: pa.Table) -> tuple[list[int], list[bytes]]:
        shard = shards_of(rows, self._split.shards)
        order = np.argsort(shard, kind="stable")
        bounds = np.searchsorted(shard[order], np.arange(self._split.shards + 1))
        in_order = _taken(narrowed(rows, self._table), order)
        used = np.flatnonzero(np.diff(bounds)).tolist()
        return used, [
            _block(in_order.slice(bounds[each], bounds[each + 1] - bounds[each])) for each in used
        ]


def unfolded(batch: pa.RecordBatch, name: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns, with all whole numbers in 64 bits, and lists as texts."""
    numbers = [
        column
        for column in columns
        if column == OUTCOME or pa.types.is_integer(arrow_schema(TABLES[name]).field(column).type)
    ]
    values = batch.column(NUMBERS).flatten()
    shape = (batch.num_rows, len(numbers))
    nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    by_column = np.ascontiguousarray(pc.fill_null(values, 0).to_numpy().reshape(shape).T)
    masks = [None] * len(numbers) if nulls is None else np.ascontiguousarray(nulls.reshape(shape).T)
    arrays = {
        column: pa.array(each, mask=mask)
        for column, each, mask in zip(numbers, by_column, masks, strict=True)
    }
    if OUTCOME in arrays:
        arrays[OUTCOME] = _outcomes().take(arrays[OUTCOME])
    return pa.RecordBatch.from_arrays(
        [arrays[each] if each in arrays else batch.column(each) for each in columns],
        names=list(columns),
    )


@cache
def _outcomes() -> pa.DictionaryArray:
    return pa.array([*OUTCOMES, OTHER]).dictionary_encode()


def shards_of(rows: pa.Table, shards: int) -> Array:
    """The shard of each row's partition: the same in every table and process."""
    topics = rows["topic"].dictionary_encode().combine_chunks()
    hashes = np.array([crc32(name.encode()) for name in topics.dictionary.to_pylist()], np.uint32)
    partition = pc.fill_null(rows["partition"], 0).to_numpy().astype(np.uint32)
    if len(hashes) == 1:
        partition += hashes
    elif len(hashes):
        partition += hashes[pc.fill_null(topics.indices, 0).to_numpy()]
    shard: Array = (partition % np.uint32(shards)).astype(np.uint16)
    return shard


def narrowed(rows: pa.Table, name: str) -> pa.Table:
    """What `widened` turns back into these rows, in one chunk. Lists come as texts."""
    schema = arrow_schema(TABLES[name])
    statistics = {
        column: Statistics(bounds["min"], bounds["max"], rows[column].null_count)
        for column in rows.column_names
        if pa.types.is_integer(rows.schema.field(column).type)
        and (bounds := pc.min_max(rows[column]).as_py())["min"] is not None
    }
    dropped = set(needless(statistics, rows.column_names))
    fields, arrays = [], []
    for column in rows.column_names:
        if column in dropped or rows[column].null_count == rows.num_rows:
            field, array = pa.field(column, pa.null()), pa.nulls(rows.num_rows)
        elif column in statistics and not statistics[column].nulls:
            field, array = _narrowed_numbers(column, rows[column], statistics[column])
        elif pa.types.is_list(kind := schema.field(column).type):
            field, array = schema.field(column), lists_of(rows[column].combine_chunks(), kind)
        elif column in BY_DICTIONARY:
            field, array = _narrowed_names(column, rows[column])
        else:
            field = schema.field(column)
            array = rows[column].combine_chunks().cast(field.type)
        fields.append(field)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _narrowed_numbers(
    name: str, column: pa.ChunkedArray, statistics: Statistics
) -> tuple[pa.Field, pa.Array]:
    lowest, span = statistics.lowest, statistics.highest - statistics.lowest
    metadata = {_LOWEST: str(lowest).encode()}
    if not span:
        return pa.field(name, pa.null(), metadata=metadata), pa.nulls(len(column))
    kind = next((each for each in UNSIGNED if span <= np.iinfo(each).max), None)
    if kind is None:
        return pa.field(name, column.type), column.combine_chunks()
    values, at = np.empty(len(column), kind), 0
    for chunk in column.chunks:
        to = values[at : at + len(chunk)]
        np.subtract(chunk.to_numpy(), lowest, out=to, casting="unsafe")
        at += len(chunk)
    array = pa.array(values)
    return pa.field(name, array.type, metadata=metadata), array


def _narrowed_names(name: str, column: pa.ChunkedArray) -> tuple[pa.Field, pa.Array]:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    code = pc.min_max(array.indices).as_py()
    if code["min"] == code["max"] and not array.null_count:
        metadata = {_NAME: array.dictionary[code["min"]].as_py().encode()}
        return pa.field(name, pa.null(), metadata=metadata), pa.nulls(len(array))
    return pa.field(name, array.type), array


def lists_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Of numbers, from texts such as 1,2,3."""
    is_empty = pc.equal(texts, "")
    lists = pc.split_pattern(pc.if_else(is_empty, "0", texts), SEPARATOR).cast(kind)
    return pc.if_else(is_empty, pa.scalar([], kind), lists)


def _taken(rows: pa.Table, order: Array) -> pa.Table:
    indices = pa.array(order)
    arrays = []
    for column in rows.columns:
        array = column.chunk(0)
        if pa.types.is_integer(array.type) and not array.null_count:
            array = pa.array(array.to_numpy()[order])
        elif not pa.types.is_null(array.type):
            array = array.take(indices)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=rows.schema)


def _block(rows: pa.Table) -> bytes:
    columns = [_with_few_names(column.chunk(0)) for column in rows.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _with_few_names(array: pa.Array) -> pa.Array:
    """Without the names of other blocks, if these are many."""
    if not pa.types.is_dictionary(array.type) or len(array.dictionary) <= FEW_NAMES:
        return array
    return array.dictionary_decode().dictionary_encode()


def unpacked(blocks: Iterable[pa.Buffer], name: str) -> pa.Table:
    """All rows of the blocks, one after the other."""
    batches = [pa.ipc.open_stream(block).read_next_batch() for block in blocks]
    schema = arrow_schema(TABLES[name])
    names = batches[0].schema.names
    arrays = [
        _widened(
            [(batch.schema.field(at), batch.column(at)) for batch in batches], schema.field(column)
        )
        for at, column in enumerate(names)
    ]
    return pa.Table.from_arrays(arrays, names=names).unify_dictionaries()


def _widened(
    parts: Sequence[tuple[pa.Field, pa.Array]], field: pa.Field
) -> pa.Array | pa.ChunkedArray:
    count = sum(len(array) for _, array in parts)
    lowest = [int(part.metadata[_LOWEST]) for part, _ in parts if _LOWEST in (part.metadata or {})]
    if len(lowest) == len(parts):
        return _widened_numbers(parts, lowest, field.type, count)
    names = {(part.metadata or {}).get(_NAME) for part, _ in parts}
    if len(names) == 1 and (one := names.pop()) is not None:
        return repeated(one.decode(), field.type, count)
    kind = pa.dictionary(pa.int32(), pa.string()) if field.name in BY_DICTIONARY else field.type
    return pa.chunked_array([_widened_part(*part, kind) for part in parts], kind)


def _widened_numbers(
    parts: Sequence[tuple[pa.Field, pa.Array]], lowest: list[int], kind: pa.DataType, count: int
) -> pa.Array:
    if len(set(lowest)) == 1 and all(pa.types.is_null(part.type) for part, _ in parts):
        return repeated(lowest[0], kind, count)
    values, at = np.empty(count, kind.to_pandas_dtype()), 0
    for (part, array), low in zip(parts, lowest, strict=True):
        to = values[at : at + len(array)]
        if pa.types.is_null(part.type):
            to[:] = low
        else:
            np.add(array.to_numpy(), np.int64(low), out=to, casting="unsafe")
        at += len(array)
    return pa.array(values)


def _widened_part(part: pa.Field, array: pa.Array, kind: pa.DataType) -> pa.Array:
    metadata = part.metadata or {}
    if _NAME in metadata:
        return repeated(metadata[_NAME].decode(), kind, len(array))
    if _LOWEST in metadata:
        return _widened_numbers([(part, array)], [int(metadata[_LOWEST])], kind, len(array))
    return pa.nulls(len(array), kind) if pa.types.is_null(part.type) else array.cast(kind)
