"""A Parquet file's columns, read only where the statistics in its footer do not suffice.

Most telemetry repeats itself: one leader, one epoch, reads that took no time. If the footer says
that all values of a column are equal, or that a column adds nothing to another, it is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from insync.pipeline.io.columns import BadTables, check_columns

BY_DICTIONARY: Final = ("topic", "outcome")
BUFFER_BYTES: Final = 1 << 16  # at a time: columns are not copied whole before they are decoded
KEPT: Final = 8  # columns of one value
KEPT_ROWS: Final = 1 << 20  # of each: 128 MB at most
SHORT: Final = 32  # bytes; writers shorten the bounds of longer texts, if any


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a footer says of a column's numbers or short texts."""

    lowest: Any
    highest: Any
    nulls: int


def count_rows(path: Path | str, files: pa.fs.FileSystem | None = None) -> int:
    with _refused_by_name(path):
        return int(pq.read_metadata(path, filesystem=files).num_rows)


def read(
    path: Path | str,
    columns: Iterable[str],
    optional: Mapping[str, pa.DataType] | None = None,
    files: pa.fs.FileSystem | None = None,
) -> pa.Table:
    """The columns; those that are optional are null, of that type, in a file without them.

    Without `files` the path is one of this machine."""
    with _refused_by_name(path):
        return _read(path, list(columns), optional or {}, files)


@contextmanager
def _refused_by_name(path: Path | str) -> Iterator[None]:
    """Arrow tells what is wrong with a file, but not with which; broken footers have bad names."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadTables(f"{path} cannot be read: {why}") from None


def _read(
    path: Path | str,
    columns: list[str],
    optional: Mapping[str, pa.DataType],
    files: pa.fs.FileSystem | None,
) -> pa.Table:
    by_dictionary = [name for name in BY_DICTIONARY if name in columns]
    is_local = files is None or isinstance(files, pa.fs.LocalFileSystem)
    # Elsewhere a request costs more than some bytes: few requests, for several columns each.
    buffering = {"buffer_size": BUFFER_BYTES} if is_local else {}
    with pq.ParquetFile(
        path,
        read_dictionary=by_dictionary,
        pre_buffer=not is_local,
        filesystem=files,
        **buffering,
    ) as file:
        metadata, schema = file.metadata, file.schema_arrow
        check_columns(str(path), schema.names, columns, optional=optional)
        names = [name for name in columns if name in schema.names]
        positions = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
        statistics = {
            name: column
            for name in names
            if (kind := _type_in_footer(schema.field(name).type))
            and (column := _statistics(metadata, positions[name], kind))
        }
        known: dict[str, Any] = {
            name: column.lowest
            for name, column in statistics.items()
            if column.lowest == column.highest and not column.nulls
        }
        known |= dict.fromkeys(needless(statistics, names))
        rest = [name for name in names if name not in known]
        read = file.read(columns=rest, use_threads=False)
    arrays = {
        name: repeated(known[name], schema.field(name).type, metadata.num_rows)
        if name in known
        else read[name]
        for name in names
    }
    for name in columns:
        if name not in arrays:
            arrays[name] = pa.nulls(metadata.num_rows, optional[name])
    return pa.Table.from_arrays([arrays[name] for name in columns], names=columns)


def repeated(value: int | str | None, kind: pa.DataType, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(_same(0, pa.int32(), count), pa.array([value]))
    return _same(value, kind, count)


def _same(value: int, kind: pa.DataType, count: int) -> pa.Array:
    """As `pa.repeat` has it, which takes a second to import pandas first."""
    if count > KEPT_ROWS:
        return _many_of(value, kind, count)
    return _kept(value, kind, 1 << count.bit_length()).slice(0, count)


@lru_cache(KEPT)
def _kept(value: int, kind: pa.DataType, count: int) -> pa.Array:
    """From one file to the next: it is often the same epoch, and always the same nothing. Files
    differ in length, so there is room for somewhat longer ones."""
    return _many_of(value, kind, count)


def _many_of(value: int, kind: pa.DataType, count: int) -> pa.Array:
    same = np.full(count, value, np.dtype(str(kind)))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(same)])


def needless(statistics: dict[str, Statistics], names: list[str]) -> Iterable[str]:
    """A fetch's other end of the leader is asked for where the first is null; the time of its last
    repetition where there is one."""
    if (low := statistics.get("leader_end_low")) and not low.nulls and "leader_end_high" in names:
        yield "leader_end_high"
    if (repeats := statistics.get("repeats")) and repeats.highest <= 1 and "last_at_ms" in names:
        yield "last_at_ms"


def _type_in_footer(kind: pa.DataType) -> type | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return int
    return str if pa.types.is_string(kind) else None


def _statistics(metadata: Any, at: int, kind: type) -> Statistics | None:
    groups = [metadata.row_group(number).column(at) for number in range(metadata.num_row_groups)]
    in_groups = [group.statistics for group in groups if group.is_stats_set]
    if not groups or len(in_groups) < len(groups):
        return None
    if any(not each.has_min_max or not each.has_null_count for each in in_groups):
        return None
    try:
        bounds = [bound for each in in_groups for bound in (each.min, each.max)]
    except UnicodeDecodeError:
        return None
    if any(type(bound) is not kind for bound in bounds):
        return None
    if kind is str and any(len(bound.encode()) > SHORT for bound in bounds):
        return None
    return Statistics(
        min(each.min for each in in_groups),
        max(each.max for each in in_groups),
        sum(each.null_count for each in in_groups),
    )
