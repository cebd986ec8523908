"""Readers for kio's entities, built from the schema kio keeps in their fields.

kio's own reader is not used on bytes from a network. In 0.6.5 it allocates by a claimed array
length, so that a request of five bytes aborts the whole process; it refuses tagged
fields it does not know, which KIP-482 tells it to skip; and it refuses writable buffers. The
entities and their versions are kio's; these readers handle bytes of untrusted clients.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.wire.entity_schema import FieldSchema, is_flexible, schema_of
from insync.wire.primitives import (
    BadMessage,
    read_bytes,
    read_compact_length,
    read_length,
    read_nullable_string,
    read_string,
    read_tags,
    read_uuid,
)

Reader = Callable[[memoryview, int], tuple[Any, int]]

_ZERO_UUID: Final = UUID(int=0)


@cache
def entity_reader(entity_type: type) -> Reader:
    """A reader of one entity, nested ones included."""
    flexible = is_flexible(entity_type)
    plain: list[tuple[str, Reader]] = []
    by_tag: dict[int, tuple[str, Reader]] = {}
    for field in schema_of(entity_type):
        reader = _field_reader(field, flexible=flexible)
        if field.tag is None:
            plain.append((field.name, reader))
        else:
            by_tag[field.tag] = (field.name, reader)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, read_field in plain:
            values[name], at = read_field(data, at)
        if flexible:
            at = _read_tagged(data, at, by_tag, values)
        return entity_type(**values), at

    return read


def _read_tagged(
    data: memoryview, at: int, by_tag: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> int:
    if data[at] == 0:
        return at + 1

    def on_tag(tag: int, start: int, end: int) -> None:
        field = by_tag.get(tag)
        if field is None:
            return
        name, reader = field
        values[name], stop = reader(data[:end], start)
        if stop != end:
            raise BadMessage(f"tagged field {name} ends at byte {stop}, not {end}")

    return read_tags(data, at, on_tag)


def _field_reader(field: FieldSchema, *, flexible: bool) -> Reader:
    if field.is_array:
        reader = _element_reader(field, flexible=flexible, nullable=False)
        return _array_reader(reader, flexible=flexible, nullable=field.is_nullable)
    return _element_reader(field, flexible=flexible, nullable=field.is_nullable)


def _element_reader(field: FieldSchema, *, flexible: bool, nullable: bool) -> Reader:
    if field.entity_type is not None:
        reader = entity_reader(field.entity_type)
        return _nullable_entity_reader(reader) if nullable else reader
    if field.kafka_type in _FIXED:
        return _FIXED[field.kafka_type]
    if field.kafka_type == "datetime_i64":
        return _nullable_datetime if nullable else _datetime
    if field.kafka_type == "string":
        read_text = read_nullable_string if nullable else read_string
        return lambda data, at: read_text(data, at, flexible=flexible)
    assert field.kafka_type in {"bytes", "records"}, f"kio has a new type, {field.kafka_type}"
    return _bytes_reader(flexible=flexible, nullable=nullable)


def _array_reader(element: Reader, *, flexible: bool, nullable: bool) -> Reader:
    read_count = read_compact_length if flexible else read_length

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        count, at = read_count(data, at)
        if count < 0:
            if nullable:
                return None, at
            raise BadMessage(f"an array before byte {at} is null and may not be")
        if count > len(data) - at:  # every element takes at least a byte
            raise BadMessage(f"{count} elements claimed where {len(data) - at} bytes are left")
        values = []
        for _ in range(count):
            value, at = element(data, at)
            values.append(value)
        return tuple(values), at

    return read


def _nullable_entity_reader(reader: Reader) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return (None, at + 1) if data[at] >= _NEGATIVE_BYTE else reader(data, at + 1)

    return read


_NEGATIVE_BYTE: Final = 0x80  # KIP-893: a negative byte before the entity means null


def _bytes_reader(*, flexible: bool, nullable: bool) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        view, at = read_bytes(data, at, flexible=flexible)
        if view is not None:
            return bytes(view), at
        if nullable:
            return None, at
        raise BadMessage(f"bytes before byte {at} are null and may not be")

    return read


def _number_reader(layout: str) -> Reader:
    number = Struct(layout)
    unpack_from, size = number.unpack_from, number.size

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return unpack_from(data, at)[0], at + size

    return read


def _converted(reader: Reader, convert: Callable[[Any], Any]) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        value, at = reader(data, at)
        return convert(value), at

    return read


def _error_code(value: int) -> ErrorCode:
    try:
        return ErrorCode(value)
    except ValueError:
        # An error code of a newer broker, without a name here, is still an error.
        return ErrorCode.unknown_server_error


def _timedelta(milliseconds: int) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise BadMessage(f"a duration of {milliseconds} ms") from error


def _instant(milliseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise BadMessage(f"an instant at {milliseconds} ms") from error


def _nullable_instant(milliseconds: int) -> datetime | None:
    return None if milliseconds == -1 else _instant(milliseconds)


def _nonzero_uuid(value: UUID) -> UUID | None:
    return None if value == _ZERO_UUID else value


_INT64: Final = _number_reader(">q")
_datetime: Final = _converted(_INT64, _instant)
_nullable_datetime: Final = _converted(_INT64, _nullable_instant)
_FIXED: Final[dict[str, Reader]] = {
    "int8": _number_reader(">b"),
    "int16": _number_reader(">h"),
    "int32": _number_reader(">i"),
    "int64": _INT64,
    "uint16": _number_reader(">H"),
    "float64": _number_reader(">d"),
    "bool": _number_reader(">?"),
    "uuid": _converted(read_uuid, _nonzero_uuid),
    "error_code": _converted(_number_reader(">h"), _error_code),
    "timedelta_i32": _converted(_number_reader(">i"), _timedelta),
    "timedelta_i64": _converted(_INT64, _timedelta),
}
