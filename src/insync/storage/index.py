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
from dataclasses import dataclass
from struct import Struct
from sys import byteorder
from typing import Final

from crc32c import crc32c

from insync.storage.errors import CorruptFile

INT32_MAX: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1
NO_TIME: Final = (NO_TIMESTAMP, 0)

_SUMMARY = Struct(">qqqqqqi")
_CHECKSUMS = Struct(">II")  # of the entries, then of the summary and that
SEAL_BYTES: Final = _SUMMARY.size + _CHECKSUMS.size


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a sealed segment without reading its log."""

    base: int
    end: int
    log_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int  # base offset of the first batch that has it
    created_ms: int
    producers: int  # how many were known at its end; 0 means that no snapshot is needed


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
        """A position at or before that of the batch that holds `offset`."""
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
        """`last_position` and `last_time` as they will be once it is cut at `end`."""
        kept, timed = bisect_left(self._offsets, end), bisect_left(self._time_offsets, end)
        last_time = (self._times[timed - 1], self._time_offsets[timed - 1]) if timed else NO_TIME
        return self._positions[kept - 1] if kept else 0, last_time

    def cut(self, end: int) -> None:
        """Forget everything from the relative offset `end` on."""
        kept = bisect_left(self._offsets, end)
        del self._offsets[kept:], self._positions[kept:]
        # Timestamps grow with their offsets: each is the first batch that has the new largest.
        kept = bisect_left(self._time_offsets, end)
        del self._times[kept:], self._time_offsets[kept:]

    def offsets_file(self, summary: Summary) -> bytes:
        lanes = array("i", bytes(8 * len(self._offsets)))
        lanes[0::2] = self._offsets
        lanes[1::2] = self._positions
        return _sealed(_big_endian(lanes), summary)

    def times_file(self, summary: Summary) -> bytes:
        times = array("i", _big_endian(self._times))
        lanes = array("i", bytes(12 * len(self._times)))
        lanes[0::3] = times[0::2]
        lanes[1::3] = times[1::2]
        lanes[2::3] = array("i", _big_endian(self._time_offsets))
        return _sealed(lanes.tobytes(), summary)

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


def read_summary(tail: bytes, *, base: int, log_bytes: int) -> Summary:
    """The seal at the end of an index file, or `CorruptFile` if it is of another log."""
    try:
        fields = _SUMMARY.unpack_from(tail, len(tail) - SEAL_BYTES)
        _, checksum = _CHECKSUMS.unpack_from(tail, len(tail) - _CHECKSUMS.size)
    except struct.error as error:
        raise CorruptFile("an index without a seal") from error
    summary = Summary(*fields)
    if crc32c(memoryview(tail)[len(tail) - SEAL_BYTES : -4]) != checksum:
        raise CorruptFile("an index whose seal is broken")
    if summary.base != base or summary.log_bytes != log_bytes:
        raise CorruptFile("an index of other log bytes than these")
    return summary


def _sealed(entries: bytes, summary: Summary) -> bytes:
    seal = _SUMMARY.pack(
        summary.base,
        summary.end,
        summary.log_bytes,
        summary.max_timestamp_ms,
        summary.max_timestamp_offset,
        summary.created_ms,
        summary.producers,
    ) + crc32c(entries).to_bytes(4, "big")
    return entries + seal + crc32c(seal).to_bytes(4, "big")


def _opened(data: bytes, base: int, log_bytes: int, *, entry: int) -> bytes:
    read_summary(data, base=base, log_bytes=log_bytes)
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
