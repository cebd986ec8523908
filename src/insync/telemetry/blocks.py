"""Rows as blocks: one table each, an Arrow IPC stream that any Arrow library reads.

Written with `nanoarrow`, which costs a broker 3 MB of memory where pyarrow costs 60. It does not
compress what it writes; the record batch that carries the blocks does (gzip, from the standard
library), so every Kafka client hands out plain Arrow.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any, Final

import nanoarrow as na
from nanoarrow.ipc import StreamWriter

from insync.rules.refusals import Refusal
from insync.telemetry.rows import Row, read_columns
from insync.telemetry.schemas import TABLES, Table, Type

_TYPES: Final = {
    Type.INT32: na.c_schema(na.int32()),
    Type.INT64: na.c_schema(na.int64()),
    Type.STRING: na.c_schema(na.string()),
    Type.BOOL: na.c_schema(na.bool_()),
    Type.INT32_LIST: na.c_schema(na.list_(na.int32())),
}
_CODES: Final = {Type.INT32: "i", Type.INT64: "q"}
_SCHEMAS: Final = {
    name: na.c_schema(na.struct({column.name: _TYPES[column.type] for column in table.columns}))
    for name, table in TABLES.items()
}
_LABEL_BYTES_MAX: Final = 1_000
_NUMBER_MAX: Final = 2**63


class BadBlock(Refusal):
    """Something in the telemetry topic that is no block of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A block's key in the topic: whose it is, and what that broker could not keep so far."""

    table: str
    broker: int
    started_at_ms: int  # tells one life of a broker from another
    block: int  # counts this life's blocks, so that one published twice is noticed
    rows: int
    dropped: dict[str, int]  # rows lost so far in this life, by table

    @property
    def name(self) -> tuple[int, int, int]:
        """Identifies a block. Two blocks with the same name are duplicates of one block."""
        return (self.broker, self.started_at_ms, self.block)


def write_label(label: Label) -> bytes:
    return json.dumps(asdict(label), separators=(",", ":")).encode()


def read_label(key: bytes | None) -> Label:
    try:
        values: dict[str, Any] = json.loads((key or b"")[:_LABEL_BYTES_MAX])
        label = Label(**values)
    except (ValueError, TypeError, RecursionError):
        raise BadBlock("its key is no label") from None
    table, dropped = values["table"], values["dropped"]
    if not isinstance(table, str) or table not in TABLES:
        raise BadBlock(f"there is no table {str(table)[:40]!r}")
    if not isinstance(dropped, dict) or not dropped.keys() <= TABLES.keys():
        raise BadBlock("its label counts drops of no table")
    numbers = (label.broker, label.started_at_ms, label.block, label.rows, *label.dropped.values())
    if any(type(number) is not int or not 0 <= number < _NUMBER_MAX for number in numbers):
        raise BadBlock("its label has a number that cannot be")
    return label


def write_block(table: Table, rows: Sequence[Row], *, anchor_ms: int) -> bytes:
    """The rows as they were recorded, with the anchor added to every time."""
    assert rows, "a block has rows"
    columns = read_columns(table, rows)
    children = [
        _column(column.type, [v if v is None else v + anchor_ms for v in columns[column.name]])
        if column.is_time
        else _column(column.type, columns[column.name])
        for column in table.columns
    ]
    block = na.c_array_from_buffers(
        _SCHEMAS[table.name], len(rows), [None], null_count=0, children=children
    )
    out = BytesIO()
    with StreamWriter.from_writable(out) as writer:
        writer.write_array(block)
    return out.getvalue()


def _column(type_: Type, values: Sequence[Any]) -> Any:
    count = len(values)
    if type_ in _CODES:
        try:  # most columns have no null, and looking for one costs as much as this
            return na.c_array_from_buffers(
                _TYPES[type_], count, [None, array(_CODES[type_], values)]
            )
        except TypeError:
            pass
    validity = _bits(value is not None for value in values) if None in values else None
    buffers: list[Any] = []
    match type_:
        case Type.INT32 | Type.INT64:
            filled = [0 if value is None else value for value in values]
            buffers = [validity, array(_CODES[type_], filled)]
        case Type.BOOL:
            is_any = True in values
            bits = _bits(map(bool, values)) if is_any else bytes((count + 7) // 8)
            buffers = [validity, bits]
        case Type.STRING:
            texts = {value: (value or "").encode() for value in set(values)}
            sizes = {value: len(text) for value, text in texts.items()}
            if len(texts) == 1 and (size := sizes[values[0]]):  # as most outcomes are
                ends = array("i", range(0, size * count + 1, size))
            else:
                ends = array("i", accumulate(map(sizes.__getitem__, values), initial=0))
            buffers = [validity, ends, b"".join(map(texts.__getitem__, values))]
        case Type.INT32_LIST:
            lists = [[] if value is None else value for value in values]
            ends = array("i", accumulate(map(len, lists), initial=0))
            items = array("i", [item for each in lists for item in each])
            child = _column(Type.INT32, items)
            return na.c_array_from_buffers(_TYPES[type_], count, [validity, ends], children=[child])
    return na.c_array_from_buffers(_TYPES[type_], count, buffers)


def _bits(flags: Iterable[bool]) -> bytes:
    number, count = 0, 0
    for count, flag in enumerate(flags, start=1):
        number |= flag << (count - 1)
    return number.to_bytes((count + 7) // 8, "little")
