"""One segment: a log file and its indexes.

Only the last segment of a log is written to. The others are sealed: their indexes are files, read
when first needed and forgotten when others need the room.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from insync.storage.damaged_files import copy_aside, name_aside
from insync.storage.disk import Buffer, DiskFile
from insync.storage.errors import CorruptFile, DiskError, LogFailed
from insync.storage.files import FilePool
from insync.storage.index import (
    INT32_MAX,
    NO_TIMESTAMP,
    SEAL_BYTES,
    UNKNOWN,
    IndexBuilder,
    Seal,
    SegmentIndex,
    SegmentSummary,
    read_seal,
)
from insync.storage.scan import LENGTH_MIN, PEEK, ScannedBatch, sound_batches, walk
from insync.wire.batches import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)

LOG: Final = ".log"
OFFSETS: Final = ".index"
TIMES: Final = ".timeindex"

NOT_SUMMARISED: Final = SegmentSummary(NO_TIMESTAMP, 0, 0, UNKNOWN)
"""Of a sealed segment whose seal was not read yet."""


def file_stem(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}"


@dataclass(frozen=True, slots=True)
class SegmentTruncation:
    """A segment as a truncation leaves it."""

    index: SegmentIndex  # of the whole; it may have left memory meanwhile
    position: int
    end: int
    max_timestamp_ms: int
    max_timestamp_offset: int


class Segment:
    """One log file and what is known of it. Its fields change only here.

    - `base` is the offset of its first record, `end` that of the next segment's first.
    - `size`: the file's bytes up to `end`. A write may have left more behind them.
    - An append moves `size` first and `end` last: a thread that reads `end` finds its bytes.
    - `summary` is replaced as a whole: a thread sees that of one moment. `NOT_SUMMARISED` until
      the seal is read or the batches are.
    - `has_news`: since its seal was written or read.
    - `first_crc`: the CRC of its first batch; UNKNOWN if it has none, or none was read.
    - `_index` is None while a sealed segment's index is not in memory.
    """

    __slots__ = (
        "_files",
        "_index",
        "_interval_bytes",
        "base",
        "end",
        "first_crc",
        "has_news",
        "size",
        "stem",
        "summary",
    )

    def __init__(
        self, files: FilePool, stem: str, base: int, *, end: int, size: int, interval_bytes: int
    ) -> None:
        self._files = files
        self._index: SegmentIndex | None = None
        self._interval_bytes = interval_bytes
        self.stem = stem
        self.base = base
        self.end = end
        self.size = size
        self.has_news = True
        self.first_crc = UNKNOWN
        self.summary = NOT_SUMMARISED

    @classmethod
    def create(
        cls, files: FilePool, directory: str, base: int, *, interval_bytes: int, now_ms: int
    ) -> Segment:
        """An empty segment, on disk at once: its name is how the log remembers its end."""
        stem = file_stem(directory, base)
        segment = cls(files, stem, base, end=base, size=0, interval_bytes=interval_bytes)
        files.create(stem + LOG)
        segment.start_anew(now_ms)
        return segment

    def create_again(self) -> None:
        """Begin again with an empty file, after the old one was set aside."""
        self._files.create(self.stem + LOG)
        self.size, self.end = 0, self.base
        self.start_anew(0)

    def start_anew(self, now_ms: int) -> None:
        """Know this segment to be empty."""
        self._index = SegmentIndex()
        self.first_crc = UNKNOWN
        self.summary = SegmentSummary(NO_TIMESTAMP, self.base, now_ms, UNKNOWN)

    def set_created(self, now_ms: int) -> None:
        """Let its records age from now on, as far as they have no timestamps."""
        self.summary = self.summary._replace(created_ms=now_ms)

    @property
    def file(self) -> DiskFile:
        return self._files.get(self.stem + LOG)

    def open_apart(self) -> DiskFile:
        """The log file for one long reading, which takes no place among the open files."""
        return self._files.disk.open(self.stem + LOG)

    # Writing

    def write(self, data: Buffer) -> None:
        """Write batches after the end. No reader sees them before `publish`.

        A `DiskError` leaves the file as it was, `LogFailed` torn.
        """
        file = self.file
        if file.size != self.size:
            # A reader in another thread reopened the file while we were writing to it.
            self._files.forget(self.stem + LOG)
            file = self.file
            assert file.size == self.size, "another process writes to this log"
        try:
            file.append((data,))
        except DiskError:
            self.remove_written()
            raise

    def remove_written(self) -> None:
        """Remove what was written after the end, or raise `LogFailed`."""
        try:
            self.file.truncate(self.size)
        except DiskError as error:
            raise LogFailed(f"a torn append could not be removed: {error}") from error

    def index_written(self, data_bytes: int, headers: Sequence[BatchHeader]) -> None:
        """Index batches that were written after the end, and count their bytes."""
        base, index, summary = self.base, self._index or self.index, self.summary
        position, self.size = self.size - headers[0].position, self.size + data_bytes
        self.has_news = True
        before = summary.max_timestamp_ms, summary.max_timestamp_offset - base
        largest = index.add_batches(
            headers, self.end - base, position, before, self._interval_bytes
        )
        if largest is not before:
            self.summary = SegmentSummary(
                largest[0], base + largest[1], summary.created_ms, summary.producers
            )

    def publish(self, end: int, first_crc: int) -> None:
        """Let readers see what was written and indexed, up to the offset `end`."""
        if self.end == self.base:
            self.first_crc = first_crc
        self.end = end

    def roll_back(self, size: int, summary: SegmentSummary) -> None:
        """Remove what was written and indexed since it had this size; `end` does not have it."""
        self.size, self.summary = size, summary
        self.index.truncate(self.end - self.base)
        self.remove_written()

    def has_room(self, *, size: int, end: int, segment_bytes: int) -> bool:
        """Whether an append may still go here: an empty segment takes any."""
        if self.size == 0:
            return True
        return self.size + size <= min(segment_bytes, INT32_MAX) and end - self.base <= INT32_MAX

    def seal(self, *, producers: int) -> None:
        """Write the indexes, so that the next opening need not read the log."""
        index = self.index
        self.summary = self.summary._replace(producers=producers)
        seal = Seal(self.base, self.end, self.size, self.summary)
        disk = self._files.disk
        disk.write_atomic(self.stem + TIMES, index.times_file(seal))
        disk.write_atomic(self.stem + OFFSETS, index.offsets_file(seal))
        self.has_news = False

    def prepare_truncation(self, offset: int) -> SegmentTruncation:
        """What is left without every batch with `offset` or a later one. May block."""
        index = self.index
        position, end = self.locate_now(offset)
        known_position, (largest_ms, largest_offset) = index.before(end - self.base)
        largest_offset += self.base
        expected = self.base
        for batch in walk(self.file, known_position, position):
            expected = batch.header.next_offset
            if batch.header.max_timestamp_ms > largest_ms:
                largest_ms = batch.header.max_timestamp_ms
                largest_offset = batch.header.base_offset
        if end != expected:  # no CRC covers a base offset: the log must not end at a wrong one
            raise self._broken()
        return SegmentTruncation(index, position, end, largest_ms, largest_offset)

    def truncate(self, truncation: SegmentTruncation) -> None:
        """Apply a truncation that was computed before, reading nothing."""
        self._files.forget_loaded(self)
        self._index = truncation.index
        for suffix in (OFFSETS, TIMES):
            self._files.disk.remove(self.stem + suffix)
        self.file.truncate(truncation.position)
        self.size, self.end, self.has_news = truncation.position, truncation.end, True
        if self.size == 0:
            self.first_crc = UNKNOWN
        truncation.index.truncate(truncation.end - self.base)
        self.summary = self.summary._replace(
            max_timestamp_ms=truncation.max_timestamp_ms,
            max_timestamp_offset=truncation.max_timestamp_offset,
        )

    def flush(self) -> None:
        self._files.flush(self.stem + LOG)

    def remove(self) -> None:
        self.release()
        # The log goes first: indexes without one are swept up when the log is next opened.
        for suffix in (LOG, OFFSETS, TIMES):
            self._files.disk.remove(self.stem + suffix)

    def set_aside(self) -> None:
        """Take the files out of use; the log file stays, under another name, for the operator."""
        self.release()
        if self.size:
            self._files.disk.rename(self.stem + LOG, name_aside(self._files.disk, self.stem))
        else:
            self._files.disk.remove(self.stem + LOG)
        for suffix in (OFFSETS, TIMES):
            self._files.disk.remove(self.stem + suffix)

    def release(self) -> None:
        self._files.forget(self.stem + LOG)
        self._files.forget_loaded(self)

    # Indexes

    @property
    def is_loaded(self) -> bool:
        return self._index is not None

    @property
    def index(self) -> SegmentIndex:
        index = self._index
        if index is None:
            with self._files.loading:
                index = self._index
                if index is None:
                    index = self._index = self._read_index()
        return index

    def keep_loaded(self) -> None:
        """Let the pool decide when this sealed segment's index leaves memory."""
        self._files.keep_loaded(self)

    def unload(self) -> None:
        self._index = None

    @property
    def is_summarised(self) -> bool:
        return self.summary is not NOT_SUMMARISED

    def summarise(self) -> SegmentSummary:
        """The summary: from the seal if there is a good one, else from the batches. May block."""
        if self.summary is NOT_SUMMARISED and not self.read_seal():
            _ = self.index
        return self.summary

    def read_seal(self) -> bool:
        """Take what the seal says; False if there is none for just these log bytes."""
        try:
            tail = self._files.disk.read_tail(self.stem + OFFSETS, SEAL_BYTES)
            seal = read_seal(tail, base=self.base, log_bytes=self.size)
        except (CorruptFile, DiskError):
            return False
        self.end, self.summary, self.has_news = seal.end, seal.summary, False
        return True

    def _read_index(self) -> SegmentIndex:
        disk = self._files.disk
        try:
            offsets, times = disk.read_all(self.stem + OFFSETS), disk.read_all(self.stem + TIMES)
            index = SegmentIndex.from_files(offsets, times, base=self.base, log_bytes=self.size)
            if self.is_summarised or self.read_seal():
                return index
        except (CorruptFile, DiskError):
            pass
        built = IndexBuilder(self.base, self._interval_bytes)
        for batch in self.sound_batches():
            built.add(batch)
        if not self.is_summarised:
            self.first_crc = built.first_crc
            self.summary = built.summary()
        return built.index

    def read_head(self) -> BatchHeader | None:
        """The header of the first batch; None if there is none with this segment's base offset.

        The file does not stay open: a start reads one header of every segment.
        """
        data = self.open_apart().read(0, HEADER_BYTES)
        header = read_header(data)
        if header is None or header.base_offset != self.base or header.magic != MAGIC:
            return None
        self.first_crc = header.crc
        return header

    def recover(
        self,
        new_accept: Callable[[], Callable[[BatchHeader], bool]],
        *,
        check_from: int,
        expected_end: int,
        before_truncation: Callable[[], None],
    ) -> None:
        """Rebuild everything from the log, up to the first batch that is corrupt or refused.

        CRCs are checked from `check_from` on. If the segment then ends before `expected_end` it is
        damaged, and damage seldom keeps to one batch: it is read again, with every CRC checked and
        a new `accept`. Before a damaged segment is truncated, `before_truncation` is called, with
        `end` as it will be, and what is removed is copied aside.
        """
        size = self._scan(new_accept(), check_from=check_from)
        if self.end < expected_end and check_from > self.base:
            size = self._scan(new_accept(), check_from=self.base)
        if size != self.size:
            if self.end < expected_end:
                before_truncation()
                copy_aside(self._files.disk, self.stem, self.file, size)
            self.file.truncate(size)
            self.size = size

    def _scan(self, accept: Callable[[BatchHeader], bool], *, check_from: int) -> int:
        """Rebuild everything from the log; return the size of the batches that were accepted."""
        built = IndexBuilder(self.base, self._interval_bytes)
        self.end, size = self.base, 0
        for batch in self.sound_batches(check_from=check_from):
            if not accept(batch.header):
                break
            built.add(batch)
            self.end = batch.header.next_offset
            size = batch.position + batch.header.size
        self._index, self.first_crc, self.summary = built.index, built.first_crc, built.summary()
        self.has_news = True
        return size

    def sound_batches(
        self, *, check_from: int | None = None, until: int | None = None
    ) -> Iterator[ScannedBatch]:
        """The batches up to the first that cannot be right, or to a position; CRCs only from an
        offset on.
        """
        stop = self.size if until is None else until
        return sound_batches(self.file, self.base, stop, check_from=check_from)

    # Reading

    def locate(self, offset: int, *, nowait: bool) -> tuple[int, int] | None:
        """Position and base offset of the batch with `offset`; None: would block."""
        if offset == self.base:
            return 0, offset
        file = self.file
        position = self.index.at_or_before(offset - self.base)
        while True:
            size = min(self._interval_bytes + HEADER_BYTES, self.size - position)
            chunk = file.read_nowait(position, size) if nowait else file.read(position, size)
            if chunk is None:
                return None
            within = 0
            while within + PEEK.size <= len(chunk):
                base, length, last_delta = PEEK.unpack_from(chunk, within)
                if offset <= base + last_delta:
                    if base > offset:
                        raise self._broken()
                    return position + within, base
                if length < LENGTH_MIN:
                    raise self._broken()
                within += length + LENGTH_PREFIX_BYTES
            if within == 0:  # not even one header came
                if nowait:
                    return None
                raise self._broken()
            position += within

    def locate_now(self, offset: int) -> tuple[int, int]:
        location = self.locate(offset, nowait=False)
        assert location is not None, "a blocking read cannot answer that it would block"
        return location

    def read(
        self, position: int, max_bytes: int, *, up_to: int, min_one_batch: bool, nowait: bool
    ) -> tuple[Buffer, int] | None:
        """Whole batches from one that begins at `position`, and the offset after the last.

        None: would block. (b"", -1): not even one fits, or lies wholly below `up_to`.
        """
        file = self.file
        available = self.size - position
        if up_to < self.end:
            stop = self.index.at_or_after(up_to - self.base)
            available = min(available, stop - position) if stop is not None else available
        wanted = min(max(max_bytes, HEADER_BYTES), available)
        data = file.read_nowait(position, wanted) if nowait else file.read(position, wanted)
        if data is None:
            return None
        if nowait and up_to >= self.end and len(data) == self.size - position:
            return data, self.end  # all there is: no need to look inside (no append runs meanwhile)
        size, next_offset = self._whole_batches(data, position, up_to)
        if size:
            return (data if size == len(data) else memoryview(data)[:size]), next_offset
        if len(data) < PEEK.size:
            self._too_little(nowait=nowait)
            return None
        base, length, last_delta = PEEK.unpack_from(data)
        fits = length + LENGTH_PREFIX_BYTES <= max_bytes
        if base + last_delta >= up_to or not (fits or min_one_batch):
            return b"", -1
        return self._read_one(
            file, position, nowait=nowait, length=length, end=base + last_delta + 1
        )

    def _read_one(
        self, file: DiskFile, position: int, *, nowait: bool, length: int, end: int
    ) -> tuple[Buffer, int] | None:
        size = length + LENGTH_PREFIX_BYTES
        if length < LENGTH_MIN or size > self.size - position:
            raise self._broken()
        data = file.read_nowait(position, size) if nowait else file.read(position, size)
        if data is None or len(data) < size:
            self._too_little(nowait=nowait)
            return None
        return data, end

    def _too_little(self, *, nowait: bool) -> None:
        """Less came than there is: without waiting that only means that it is not in memory."""
        if not nowait:
            raise self._broken()

    def _whole_batches(self, data: Buffer, position: int, up_to: int) -> tuple[int, int]:
        """How much of `data` is whole batches below `up_to`, and the offset after them.

        The index says where to begin looking, so the cost does not grow with the batches read.
        """
        index = self.index
        known = min(
            index.at_or_before_position(position + len(data) - PEEK.size),
            index.at_or_before(up_to - self.base),
        )
        size, next_offset = max(0, known - position), -1
        while size + PEEK.size <= len(data):
            base, length, last_delta = PEEK.unpack_from(data, size)
            if length < LENGTH_MIN:
                raise self._broken()
            stop = size + length + LENGTH_PREFIX_BYTES
            if stop > len(data) or base + last_delta >= up_to:
                return size, base
            size, next_offset = stop, base + last_delta + 1
        return size, next_offset

    def _broken(self) -> DiskError:
        return DiskError(errno.EIO, self.stem + LOG)
