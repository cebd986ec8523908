"""The primitive types of the protocol: varints, strings and tagged fields, in both encodings.

A reader takes a buffer and a position and returns the value and the position after it. A length
is used only after a check that the buffer has so many bytes. Positions beyond the buffer raise
what Python raises (`struct.error`, `IndexError`); `body_readers` turns `MALFORMED` into
`BadMessage` once per message, because a check per field would cost more than the field.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Final
from uuid import UUID

from insync.rules.refusals import Refusal

Frame = bytes | memoryview
Topic = str | UUID

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
NO_TAGS: Final = b"\0"
NULL: Final = -1

# A broker that leads more than this in one request is beyond what one Python process serves;
# the limit keeps a frame of 100 MB from becoming gigabytes of tuples.
ENTRIES_MAX: Final = 1_000_000

MALFORMED: Final = (struct_error, IndexError, UnicodeDecodeError)

_MORE: Final = 0x80
_LOW_BITS: Final = 0x7F
_VARINT_SHIFT_MAX: Final = 28  # five bytes
_UINT32_MAX: Final = 0xFFFF_FFFF
_UUID_BYTES: Final = 16


class BadMessage(Refusal):
    """Bytes that are not the message that their header names."""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    byte = data[at]
    at += 1
    if byte < _MORE:
        return byte, at
    value, shift = byte & _LOW_BITS, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & _LOW_BITS) << shift
        if byte < _MORE:
            break
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise BadMessage(f"the varint before byte {at} does not end")
    if value > _UINT32_MAX:
        raise BadMessage(f"the varint before byte {at} has more than 32 bits")
    return value, at


def read_length(data: memoryview, at: int) -> tuple[int, int]:
    """A 4-byte length; -1 is null."""
    (length,) = INT32.unpack_from(data, at)
    if length < NULL:
        raise BadMessage(f"a length of {length} at byte {at}")
    return length, at + 4


def read_compact_length(data: memoryview, at: int) -> tuple[int, int]:
    """A varint length; -1 is null."""
    length = data[at]
    if length < _MORE:  # nearly all: not worth a call
        return length - 1, at + 1
    length, at = read_varint(data, at)
    return length - 1, at


def read_short_length(data: memoryview, at: int) -> tuple[int, int]:
    """A 2-byte length; -1 is null."""
    (length,) = INT16.unpack_from(data, at)
    if length < NULL:
        raise BadMessage(f"a length of {length} at byte {at}")
    return length, at + 2


def read_count(data: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    """The length of an array that may not be null and whose elements take at least one byte."""
    count, at = read_compact_length(data, at) if flexible else read_length(data, at)
    if count < 0:
        raise BadMessage(f"an array before byte {at} is null and may not be")
    if count > len(data) - at:
        raise BadMessage(f"{count} elements claimed where {len(data) - at} bytes are left")
    if count > ENTRIES_MAX:
        raise BadMessage(f"an array of {count} elements; the most allowed is {ENTRIES_MAX}")
    return count, at


def read_bytes(data: memoryview, at: int, *, flexible: bool) -> tuple[memoryview | None, int]:
    """A view of a byte string, never a copy; None if null."""
    length, at = read_compact_length(data, at) if flexible else read_length(data, at)
    if length < 0:
        return None, at
    return data[at : at + length], end_of(data, at, length)


def read_nullable_string(data: memoryview, at: int, *, flexible: bool) -> tuple[str | None, int]:
    """A string, or None."""
    length, at = read_compact_length(data, at) if flexible else read_short_length(data, at)
    if length < 0:
        return None, at
    end = end_of(data, at, length)
    return str(data[at:end], "utf-8"), end


def read_string(data: memoryview, at: int, *, flexible: bool) -> tuple[str, int]:
    """A string that may not be null."""
    text, at = read_nullable_string(data, at, flexible=flexible)
    if text is None:
        raise BadMessage(f"a string before byte {at} is null and may not be")
    return text, at


def read_uuid(data: memoryview, at: int) -> tuple[UUID, int]:
    """A topic id; recent ones are cached, because creating a UUID costs a microsecond."""
    end = end_of(data, at, _UUID_BYTES)
    return _uuid(bytes(data[at:end])), end


def read_topic(data: memoryview, at: int, *, by_id: bool, flexible: bool) -> tuple[Topic, int]:
    """A topic, by id or by name."""
    return read_uuid(data, at) if by_id else read_string(data, at, flexible=flexible)


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def end_of(data: memoryview, at: int, length: int) -> int:
    """Where a field of this length ends; refuses one that reaches beyond the frame."""
    end = at + length
    if end > len(data):
        raise BadMessage(f"{length} bytes claimed at byte {at} of {len(data)}")
    return end


def skip_tags(data: memoryview, at: int) -> int:
    """Skip a tag section: unknown tagged fields are of newer versions."""
    if data[at] == 0:
        return at + 1
    return read_tags(data, at, lambda tag, start, end: None)  # noqa: ARG005


def read_tags(data: memoryview, at: int, on_tag: Callable[[int, int, int], None]) -> int:
    """Call `on_tag` with (tag, start, end) of every tagged field; return the section's end."""
    count, at = read_varint(data, at)
    for _ in range(count):
        tag, at = read_varint(data, at)
        size, at = read_varint(data, at)
        end = end_of(data, at, size)
        on_tag(tag, at, end)
        at = end
    return at


def check_end(data: memoryview, at: int) -> None:
    """Refuse bytes after the last field, in messages of Insync's own APIs."""
    if at != len(data):
        raise BadMessage(f"{len(data) - at} bytes are left after the last field")


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < _MORE:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= _MORE:
        out.append(value & _LOW_BITS | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(_MORE))


def length_bytes(length: int, *, flexible: bool) -> bytes:
    """The length of an array or byte string; -1 is null."""
    if not flexible:
        return INT32.pack(length)
    return _ONE_BYTE[length + 1] if length < _LOW_BITS else varint(length + 1)


def string_bytes(text: str | None, *, flexible: bool) -> bytes:
    """A string or null."""
    if text is None:
        return varint(0) if flexible else INT16.pack(NULL)
    encoded = text.encode()
    length = len(encoded)
    if not flexible:
        return INT16.pack(length) + encoded
    return (_ONE_BYTE[length + 1] if length < _LOW_BITS else varint(length + 1)) + encoded


def topic_bytes(topic: Topic, *, by_id: bool, flexible: bool) -> bytes:
    """A topic, by id or by name."""
    if by_id:
        assert isinstance(topic, UUID), f"this version names topics by id, not {topic!r}"
        return topic.bytes
    assert isinstance(topic, str), f"this version names topics by name, not {topic!r}"
    return string_bytes(topic, flexible=flexible)


def tagged(tag: int, value: bytes) -> bytes:
    """One tagged field."""
    return varint(tag) + varint(len(value)) + value
