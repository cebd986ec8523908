"""Blocks as Arrow tables: for export and the pipeline's side only, since it takes pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from insync.telemetry.blocks import BadBlock
from insync.telemetry.schemas import APPENDS, FETCHES, Table, Type

_TYPES: Final = {
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT32_LIST: pa.list_(pa.int32()),
}
_ONE_ROW_EACH: Final = ("topic", "partition", "leader", "leader_epoch", "seq", "at_ms")
_ALWAYS_TOLD: Final = frozenset(
    (*_ONE_ROW_EACH, "follower", "offset", "leader_end_low", "leader_end_high", "log_start",
     "bytes", "read_ms", "outcome", "throttled", "repeats", "last_at_ms", "base_offset",
     "end_offset")
)  # fmt: skip
"""By a broker, of its fetches and appends. Apache Kafka's logs leave some of it out in all rows."""
BLOCK_BYTES_MAX: Final = 64 << 20


def arrow_schema(table: Table) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.type]) for column in table.columns])


def write_parquet(rows: pa.Table, path: Path) -> None:
    """As an export keeps a table: one partition after the other, each in recorded order.

    Then most columns are long runs, and times, numbers and offsets go up by little: kept as
    differences, without compression, they are smaller than compressed ones were in the order in
    which blocks come, and read twice as fast. What is always told
    says that it has no nulls, and none are looked for.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - the pipeline's workers read blocks without it

    keys = [name for name in ("topic", "partition") if name in rows.column_names]
    if keys:
        rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in keys]))
    fields = [
        field.with_nullable(field.name not in _ALWAYS_TOLD or column.null_count > 0)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    rows = pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))
    differences = [field.name for field in rows.schema if field.type == pa.int64()]
    pq.write_table(
        rows,
        path,
        compression="none",
        use_dictionary=[name for name in rows.column_names if name not in differences],
        column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
    )


def read_block(table: Table, data: bytes) -> pa.Table:
    """The rows of a block: unknown columns are ignored, missing ones refused.

    A column that earlier versions did not have is null where it is missing.
    """
    if len(data) > BLOCK_BYTES_MAX:
        raise BadBlock(f"{len(data)} bytes are no block")
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise BadBlock(f"no Arrow stream: {str(error).splitlines()[0][:200]}") from None
    schema = arrow_schema(table)
    rows = with_optional_columns(table, rows)
    for field in schema:
        at = rows.schema.get_all_field_indices(field.name)
        if len(at) != 1:
            raise BadBlock(f"{len(at)} columns {field.name!r}")
        if not _is_same_type(rows.schema.field(at[0]).type, field.type):
            raise BadBlock(
                f"{field.name} is {rows.schema.field(at[0]).type}; it must be {field.type}"
            )
    return rows.select(schema.names).cast(schema)


def with_optional_columns(table: Table, rows: pa.Table) -> pa.Table:
    """Columns that earlier versions did not have are null where they are missing."""
    for name in table.optional:
        if name not in rows.column_names:
            field = arrow_schema(table).field(name)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


def _is_same_type(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        return pa.types.is_list(actual) and bool(actual.value_type == wanted.value_type)
    return bool(actual == wanted)


def join(table: Table, blocks: Iterable[pa.Table]) -> pa.Table:
    """All rows, each once, in the order of time."""
    joined = pa.concat_tables([arrow_schema(table).empty_table(), *blocks]).combine_chunks()
    if table in (FETCHES, APPENDS):
        joined = _each_once(joined)
    order = ("at_ms", "topic", "partition", "leader_epoch", "version", "seq")
    known = [(name, "ascending") for name in order if name in joined.column_names]
    return joined.sort_by(known)


def _each_once(rows: pa.Table) -> pa.Table:
    """A row that was published twice is the same to the last value; its first one stays."""
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    first = numbered.group_by(list(_ONE_ROW_EACH), use_threads=False).aggregate([("row", "min")])
    if first.num_rows == rows.num_rows:
        return rows
    return rows.take(first["row_min"])
