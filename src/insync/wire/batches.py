"""Record batches: a broker reads the 61-byte header, and records only to find a timestamp.

    0 base offset   8 length        12 leader epoch     16 magic         17 CRC-32C
    21 attributes   23 last delta   27 first timestamp  35 max timestamp
    43 producer id  51 producer epoch  53 base sequence  57 record count  61 records

The CRC covers everything from the attributes on. Base offset and leader epoch are before it, so a
leader writes both into a producer's batch without changing the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from insync.rules.refusals import Refusal
from insync.wire.compression import GZIP, CorruptCompression, decompressed, zipped

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12  # base offset and length: what `length` does not count
MAGIC: Final = 2
NO_PRODUCER: Final = -1
RECORD_BYTES_MIN: Final = 7
"""Uncompressed: one byte each for length, attributes, both deltas, key, value and headers."""

COMPRESSION_MASK: Final = 0x07
COMPRESSION_MAX: Final = 4  # none, gzip, snappy, lz4, zstd
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_HEADER = Struct(">qiibIhiqqqhii")
_STAMP = Struct(">qii")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_MORE: Final = 0x80  # a varint continues
_SHIFT_MAX: Final = 63  # and never beyond 64 bits


class CorruptBatch(Refusal):
    """Bytes that are not whole, valid record batches."""


class InvalidBatch(CorruptBatch):
    """An undamaged batch whose header contradicts itself: sending it again does not help."""


class BatchHeader(NamedTuple):
    """One batch's header; `position` is where in its buffer the batch begins.

    A tuple: every batch appended or fetched needs one, and a frozen dataclass costs four times
    as much.
    """

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def end_position(self) -> int:
        return self.position + self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


_as_header: Final[Callable[[tuple[int, ...]], BatchHeader]] = partial(tuple.__new__, BatchHeader)


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader | None:
    """The batch at `position`; None if its header is incomplete."""
    if position + HEADER_BYTES > len(data):
        return None
    return _as_header((position, *_HEADER.unpack_from(data, position)))


def whole_batches(data: bytes | bytearray | memoryview) -> Iterator[BatchHeader]:
    """Every complete batch from the start; stops at an incomplete one, which may end a fetch."""
    position = 0
    while (header := read_header(data, position)) is not None:
        if header.length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            raise CorruptBatch(f"a batch at {position} claims a length of {header.length}")
        if header.end_position > len(data):
            return
        yield header
        position = header.end_position


def check(data: bytes | bytearray | memoryview, header: BatchHeader) -> None:
    """Refuse a batch with invalid bytes or numbers. Records are not checked."""
    if header.magic != MAGIC:
        raise InvalidBatch(f"magic is {header.magic}; only record batches (2) are supported")
    # Before the numbers that it covers: a damaged batch is worth sending again.
    body = memoryview(data)[header.position + _CRC_FROM : header.end_position]
    if crc32c(body) != header.crc:
        raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset} does not match")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidBatch(
            f"{header.record_count} records and a last offset delta of {header.last_offset_delta}"
        )
    if header.attributes & COMPRESSION_MASK > COMPRESSION_MAX:
        raise CorruptBatch(f"attributes {header.attributes:#x} name no known compression")


def stamp(
    data: bytearray | memoryview, header: BatchHeader, *, base_offset: int, epoch: int
) -> None:
    """Write the batch's offset and leader epoch; its CRC stays valid."""
    _STAMP.pack_into(data, header.position, base_offset, header.length, epoch)


def build(
    records: list[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    timestamp_ms: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_zipped: bool = False,
) -> bytes:
    """A batch of (key, value) records, plain or gzipped: for Insync's own topics and for tests."""
    assert records, "a batch has at least one record"
    body = b"".join(_record(delta, key, value) for delta, (key, value) in enumerate(records))
    if is_zipped:
        body = zipped(body)
    size = HEADER_BYTES + len(body)
    batch = bytearray(size)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        size - LENGTH_PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        GZIP if is_zipped else 0,
        len(records) - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch[HEADER_BYTES:] = body
    crc = crc32c(memoryview(batch)[_CRC_FROM:])
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(batch)


def plain_records(batch: bytes | bytearray | memoryview, attributes: int) -> bytes | memoryview:
    """The records of one complete batch, decompressed if it is compressed."""
    body = memoryview(batch)[HEADER_BYTES:]
    codec = attributes & COMPRESSION_MASK
    try:
        return decompressed(body, codec) if codec else body
    except CorruptCompression as error:
        raise CorruptBatch(f"its records cannot be decompressed: {error}") from None


def records(batch: bytes | memoryview) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The (key, value) pairs of one batch: for Insync's own topics, tools and tests."""
    header = read_header(batch)
    if header is None:
        raise CorruptBatch("only a whole batch can be read record by record")
    data, position = bytes(plain_records(batch, header.attributes)), 0
    for _ in range(header.record_count):
        _, position = varint(data, position)  # length
        position += 1  # attributes
        _, position = varint(data, position)  # timestamp delta
        _, position = varint(data, position)  # offset delta
        key, position = _varbytes(data, position)
        value, position = _varbytes(data, position)
        header_count, position = varint(data, position)
        for _ in range(header_count * 2):
            _, position = _varbytes(data, position)
        yield key, value


def _record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join((b"\0", _zigzag(0), _zigzag(delta), _sized(key), _sized(value), _zigzag(0)))
    return _zigzag(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _zigzag(-1) if data is None else _zigzag(len(data)) + data


def _zigzag(value: int) -> bytes:
    encoded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while encoded >= _MORE:
        out.append(encoded & 0x7F | _MORE)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The zigzag number at `position`, and where the next field begins."""
    value = shift = 0
    try:
        while (byte := data[position]) >= _MORE:
            if shift >= _SHIFT_MAX:
                raise CorruptBatch("a number reaches beyond 64 bits")
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
    except IndexError:
        raise CorruptBatch("a number reaches beyond its batch") from None
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), position + 1


def _varbytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise CorruptBatch("a field reaches beyond its batch")
    return data[position : position + size], position + size
