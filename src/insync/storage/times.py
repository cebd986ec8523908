"""Which record of a batch has a timestamp: the one place that looks inside a batch."""

from __future__ import annotations

from insync.storage.disk import Buffer
from insync.wire.batches import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    CorruptBatch,
)


def first_record_from(
    batch: Buffer, header: BatchHeader, timestamp_ms: int, *, start: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at least as new, not below `start`.

    A compressed batch is not opened: its first record stands for all. A consumer that begins
    there reads a few older records, and misses none.
    """
    if header.attributes & (COMPRESSION_MASK | LOG_APPEND_TIME):
        return max(header.base_offset, start), header.max_timestamp_ms
    data, position = memoryview(batch), HEADER_BYTES
    for _ in range(header.record_count):
        size, position = _varint(data, position)
        if size < 0:
            raise CorruptBatch(f"a record of {size} bytes at offset {header.base_offset}")
        time_delta, after = _varint(data, position + 1)  # past the attributes
        offset_delta, _ = _varint(data, after)
        offset, time_ms = header.base_offset + offset_delta, header.first_timestamp_ms + time_delta
        if time_ms >= timestamp_ms and offset >= start:
            return offset, time_ms
        position += size
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 (the varint ends)
            return (value >> 1) ^ -(value & 1), position
    raise CorruptBatch("a number reaches beyond its batch")
