"""Positions of offsets and times in a segment: sparse, compact, and never the truth.

A batch that begins at least `index.interval.bytes` after the last indexed one gets an entry
(offset, position); the first batch of a segment needs none. At the same moment the largest
timestamp of all batches before it becomes a time entry, if it grew. Both are arrays of integers
in memory and files once the segment is sealed (offsets relative to the segment's base):

    .index      relative offset int32, position int32      ... seal
    .timeindex  timestamp int64, relative offset int32     ... seal

The seal says which log bytes the file speaks of, with a checksum. A file without a fitting seal
is thrown away and built again from the batch headers.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple

from crc32c import crc32c

from insync.storage.errors import CorruptFile
from insync.storage.scan import ScannedBatch
from insync.wire.batches import BatchHeader

INT32_MAX: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1
NO_TIME: Final = (NO_TIMESTAMP, 0)
UNKNOWN: Final = -1

_SEAL = Struct(">qqqqqqi")
_CHECKSUMS = Struct(">II")  # of the entries, then of the seal up to here
SEAL_BYTES: Final = _SEAL.size + _CHECKSUMS.size


class SegmentSummary(NamedTuple):
    """What look-ups by time, retention and recovery need to know of a segment's records."""

    max_timestamp_ms: int  # NO_TIMESTAMP: no record has one
    max_timestamp_offset: int  # base offset of the first batch that has it
    created_ms: int  # when the first batch was appended, or its largest timestamp after a recovery
    producers: int  # how many were known at its end; 0: no snapshot is needed; UNKNOWN before


class Seal(NamedTuple):
    """The end of an index file: of which log bytes it is, and their summary."""

    base: int
    end: int
    log_bytes: int
    summary: SegmentSummary


class SegmentIndex:
    """Both indexes of one segment, in memory."""

    __slots__ = ("_offsets", "_positions", "_time_offsets", "_times")

    def __init__(self) -> None:
        self._offsets = array("i")
        self._positions = array("i")
        self._times = array("q")
        self._time_offsets = array("i")

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def add_batches(
        self,
        headers: Iterable[BatchHeader],
        offset: int,
        position: int,
        largest: tuple[int, int],
        interval_bytes: int,
    ) -> tuple[int, int]:
        """Index batches that follow each other, and return the largest timestamp with theirs.

        The first has the relative offset `offset`. A header's own position counts from `position`.
        `largest` is the largest timestamp before them and the relative offset of its batch.

        Beyond 2^31-1 offsets or bytes, as only earlier versions wrote, a segment has no entries:
        a batch there is located by reading on from the last one.
        """
        positions = self._positions
        for header in headers:
            at = position + header.position
            if (
                at - (positions[-1] if positions else 0) >= interval_bytes
                and offset <= INT32_MAX
                and at <= INT32_MAX
            ):
                self.add(offset, at, max_ms=largest[0], max_offset=largest[1])
            if header.max_timestamp_ms > largest[0]:
                largest = header.max_timestamp_ms, offset
            offset += header.last_offset_delta + 1
        return largest

    def add(self, offset: int, position: int, *, max_ms: int, max_offset: int) -> None:
        """Index the batch at `position`; the timestamp is the largest of those before it."""
        # What is searched grows last: a reader in another thread finds its counterpart there.
        self._positions.append(position)
        self._offsets.append(offset)
        if max_ms > self.last_time[0]:
            self._time_offsets.append(max_offset)
            self._times.append(max_ms)

    @property
    def last_time(self) -> tuple[int, int]:
        """The largest indexed timestamp and the batch that has it."""
        if not self._times:
            return NO_TIME
        return self._times[-1], self._time_offsets[len(self._times) - 1]

    def at_or_before(self, offset: int) -> int:
        """A position at or before that of the batch with `offset`."""
        entry = bisect_right(self._offsets, offset)
        return self._positions[entry - 1] if entry else 0

    def at_or_before_position(self, position: int) -> int:
        """The last known beginning of a batch that is not after `position`."""
        entry = bisect_right(self._positions, position)
        return self._positions[entry - 1] if entry else 0

    def at_or_after(self, offset: int) -> int | None:
        """The first known beginning of a batch that has no record below `offset`."""
        entry = bisect_left(self._offsets, offset)
        return self._positions[entry] if entry < len(self._positions) else None

    def before_time(self, timestamp_ms: int) -> int:
        """A relative offset before which every batch is older than `timestamp_ms`."""
        entry = bisect_left(self._times, timestamp_ms)
        return self._time_offsets[entry - 1] if entry else 0

    def before(self, end: int) -> tuple[int, tuple[int, int]]:
        """`last_position` and `last_time` as they will be once it is truncated to `end`."""
        kept, timed = bisect_left(self._offsets, end), bisect_left(self._time_offsets, end)
        last_time = (self._times[timed - 1], self._time_offsets[timed - 1]) if timed else NO_TIME
        return self._positions[kept - 1] if kept else 0, last_time

    def truncate(self, end: int) -> None:
        """Forget everything from the relative offset `end` on."""
        kept = bisect_left(self._offsets, end)
        del self._offsets[kept:], self._positions[kept:]
        # Timestamps grow with their offsets: each is the first batch that has the new largest.
        kept = bisect_left(self._time_offsets, end)
        del self._times[kept:], self._time_offsets[kept:]

    def offsets_file(self, seal: Seal) -> bytes:
        lanes = array("i", bytes(8 * len(self._offsets)))
        lanes[0::2] = self._offsets
        lanes[1::2] = self._positions
        return _sealed(_big_endian(lanes), seal)

    def times_file(self, seal: Seal) -> bytes:
        times = array("i", _big_endian(self._times))
        lanes = array("i", bytes(12 * len(self._times)))
        lanes[0::3] = times[0::2]
        lanes[1::3] = times[1::2]
        lanes[2::3] = array("i", _big_endian(self._time_offsets))
        return _sealed(lanes.tobytes(), seal)

    @classmethod
    def from_files(cls, offsets: bytes, times: bytes, *, base: int, log_bytes: int) -> SegmentIndex:
        """Both files' entries, or `CorruptFile` if either does not speak of just this log."""
        index = cls()
        lanes = array("i", _big_endian(array("i", _opened(offsets, base, log_bytes, entry=8))))
        index._offsets = lanes[0::2]
        index._positions = lanes[1::2]
        words = array("i", _opened(times, base, log_bytes, entry=12))
        stamps = array("i", bytes(8 * (len(words) // 3)))
        stamps[0::2] = words[0::3]
        stamps[1::2] = words[1::3]
        index._times = array("q", _big_endian(array("q", stamps.tobytes())))
        index._time_offsets = array("i", _big_endian(words[2::3]))
        return index


class IndexBuilder:
    """Index and summary of a segment, made from its batches from the first one on."""

    def __init__(self, base: int, interval_bytes: int) -> None:
        self._base = base
        self._interval_bytes = interval_bytes
        self._largest = NO_TIME  # the largest timestamp, and the relative offset of its batch
        self._created_ms = 0
        self.index = SegmentIndex()
        self.first_crc = UNKNOWN

    def add(self, batch: ScannedBatch) -> None:
        header = batch.header
        if batch.position == 0:
            self.first_crc, self._created_ms = header.crc, header.max_timestamp_ms
        self._largest = self.index.add_batches(
            (header,),
            header.base_offset - self._base,
            batch.position - header.position,
            self._largest,
            self._interval_bytes,
        )

    def summary(self) -> SegmentSummary:
        max_timestamp_ms, offset = self._largest
        return SegmentSummary(max_timestamp_ms, self._base + offset, self._created_ms, UNKNOWN)


def read_seal(tail: bytes, *, base: int, log_bytes: int) -> Seal:
    """The seal at the end of an index file, or `CorruptFile` if it is of another log."""
    try:
        fields = _SEAL.unpack_from(tail, len(tail) - SEAL_BYTES)
        _, checksum = _CHECKSUMS.unpack_from(tail, len(tail) - _CHECKSUMS.size)
    except struct.error as error:
        raise CorruptFile("an index without a seal") from error
    base_offset, end, size, *summary = fields
    seal = Seal(base_offset, end, size, SegmentSummary(*summary))
    if crc32c(memoryview(tail)[len(tail) - SEAL_BYTES : -4]) != checksum:
        raise CorruptFile("an index whose seal is broken")
    if seal.base != base or seal.log_bytes != log_bytes:
        raise CorruptFile("an index of other log bytes than these")
    return seal


def _sealed(entries: bytes, seal: Seal) -> bytes:
    fields = _SEAL.pack(*seal[:3], *seal.summary) + crc32c(entries).to_bytes(4, "big")
    return entries + fields + crc32c(fields).to_bytes(4, "big")


def _opened(data: bytes, base: int, log_bytes: int, *, entry: int) -> bytes:
    read_seal(data, base=base, log_bytes=log_bytes)
    entries = data[:-SEAL_BYTES]
    expected, _ = _CHECKSUMS.unpack_from(data, len(data) - _CHECKSUMS.size)
    if len(entries) % entry or crc32c(entries) != expected:
        raise CorruptFile("an index whose entries are broken")
    return entries


def _big_endian(values: array[int]) -> bytes:
    if byteorder == "little":
        values = values[:]
        values.byteswap()
    return values.tobytes()
