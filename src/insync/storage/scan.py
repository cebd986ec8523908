"""Walking a log file batch by batch, by header alone or with the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from insync.storage.checkpoints import INT64_MAX
from insync.storage.disk import Buffer, DiskFile
from insync.wire.batches import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    check,
    read_header,
)

HEADERS_WINDOW_BYTES: Final = 64 << 10
"""Read at a time where only headers matter: small batches share a read, large ones are skipped."""

WHOLE_WINDOW_BYTES: Final = 1 << 20
"""Read at a time where every byte is checked."""

PEEK = Struct(">qi11xi")  # base offset, length, last offset delta
LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES


class ScannedBatch(NamedTuple):
    position: int  # in the file
    header: BatchHeader  # whose own position is that in `buffer`
    buffer: Buffer


def walk(
    file: DiskFile, start: int, end: int, *, whole_from: int | None = None
) -> Iterator[ScannedBatch]:
    """Every batch that lies wholly between two positions; stops where none can be.

    From the offset `whole_from` on the buffer has the whole batch, below it only the header.
    """
    window = HEADERS_WINDOW_BYTES
    position = buffer_at = start
    buffer: Buffer = b""
    while position + HEADER_BYTES <= end:
        header = read_header(buffer, position - buffer_at)
        if header is None:
            buffer, buffer_at = file.read(position, min(window, end - position)), position
            header = read_header(buffer)
            if header is None:
                return  # the file is shorter than it was
        size = header.length + LENGTH_PREFIX_BYTES
        if header.length < LENGTH_MIN or position + size > end:
            return
        is_whole = whole_from is not None and header.base_offset >= whole_from
        if is_whole and position - buffer_at + size > len(buffer):
            window = WHOLE_WINDOW_BYTES
            wanted = min(max(window, size), end - position)
            buffer, buffer_at = file.read(position, wanted), position
            header = read_header(buffer)
            if header is None or header.end_position > len(buffer):
                return
            size = header.length + LENGTH_PREFIX_BYTES
        yield ScannedBatch(position, header, buffer)
        position += size


def sound_batches(
    file: DiskFile, base: int, end: int, *, check_from: int | None
) -> Iterator[ScannedBatch]:
    """The batches of a segment up to a position, before the first that cannot be right.

    CRCs are checked from the offset `check_from` on (None: none).
    """
    expected = base
    for batch in walk(file, 0, end, whole_from=check_from):
        header = batch.header
        # Neither offset nor epoch is under the CRC. Until logs are compacted, offsets leave
        # no gaps, so one that does is damage as surely as one that goes back.
        if header.base_offset != expected or header.magic != MAGIC:
            return
        if header.last_offset_delta < 0 or header.next_offset > INT64_MAX:
            return
        if check_from is not None and header.base_offset >= check_from:
            try:
                check(batch.buffer, header)
            except CorruptBatch:
                return
        yield batch
        expected = header.next_offset
