"""The times of a batch's records: only here does a broker read the records of a batch.

Records that cannot be read, or that are too many to read, count as one: the first of them stands
for all. A consumer that begins there reads a few older ones, and misses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from insync.storage.disk import Buffer
from insync.wire.batches import LOG_APPEND_TIME, BatchHeader, CorruptBatch, plain_records, varint

RECORDS_MAX: Final = 1 << 20
"""Looked at in one batch: about a second. A megabyte has no more than 150 000."""

TIMESTAMP_MS_MAX: Final = (1 << 63) - 1


def first_record_from(
    batch: Buffer, header: BatchHeader, timestamp_ms: int, *, start: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at least as new, not below `start`."""
    as_a_whole = max(header.base_offset, start), header.max_timestamp_ms
    if header.attributes & LOG_APPEND_TIME:
        return as_a_whole
    try:
        for offset, time_ms in _times(batch, header):
            if time_ms >= timestamp_ms and offset >= start:
                return offset, time_ms
    except CorruptBatch:  # a producer may send any bytes under a true CRC
        return as_a_whole
    return None


def largest_time_from(batch: Buffer, header: BatchHeader, *, start: int) -> int:
    """The largest timestamp of the records that are not below `start`."""
    as_a_whole = header.max_timestamp_ms
    if header.attributes & LOG_APPEND_TIME:
        return as_a_whole
    times = (time_ms for offset, time_ms in _times(batch, header) if offset >= start)
    try:
        return max(times, default=as_a_whole)
    except CorruptBatch:
        return as_a_whole


def _times(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record, as its producer wrote them."""
    if header.record_count > RECORDS_MAX:
        raise CorruptBatch(f"{header.record_count} records in one batch")
    data, position = plain_records(batch, header.attributes), 0
    for _ in range(header.record_count):
        size, position = varint(data, position)
        time_delta, after = varint(data, position + 1)  # past the attributes
        offset_delta, _ = varint(data, after)
        time_ms = header.first_timestamp_ms + time_delta
        if (
            size < 0
            or not 0 <= offset_delta <= header.last_offset_delta
            or time_ms > TIMESTAMP_MS_MAX
        ):
            raise CorruptBatch(f"a record that cannot be, in the batch at {header.base_offset}")
        yield header.base_offset + offset_delta, time_ms
        position += size
    if position != len(data):
        raise CorruptBatch(f"not all of the batch at {header.base_offset} is its records")
