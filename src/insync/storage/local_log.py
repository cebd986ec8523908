"""The segments of one partition's log on this disk, in order, and what their batches say.

One thread, the event loop's, appends, truncates and applies retention. A read that would block, the
preparation of a truncation, a check of batches and `flush` may run in another: that thread sees the
list of segments as it was, and starts again if the log was changed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Final

from insync.rules.epochs import EpochHistory
from insync.storage import lookup, scrub
from insync.storage.checkpoints import EPOCHS, write_epochs
from insync.storage.config import LogConfig
from insync.storage.disk import Buffer
from insync.storage.errors import DiskError, LogFailed, OffsetOutOfRange, StorageRefusal
from insync.storage.files import FilePool
from insync.storage.producer_snapshots import snapshot_path
from insync.storage.recovery import Opened
from insync.storage.scrub import BadBatch, Part, ScrubPosition
from insync.storage.segment import Segment

WAS_DELETED: Final = "was deleted"  # why a log refuses everything that is out of use, not failed

HINTS_MAX: Final = 16
"""Readers of one log whose position in the file is kept: its followers and a few consumers."""

FLUSH_AFTER_MS: Final = 60_000
"""A log is flushed at the latest so long after its last flush. A killed broker that starts again
reads through what came later, and the last segment of each log."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Whole batches. `first_offset` may lie below the requested offset, inside the first batch."""

    data: Buffer
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class WouldBlock:
    """The bytes are not in memory: read again with `nowait=False`, in another thread."""


WOULD_BLOCK: Final = WouldBlock()


class LocalLog:
    """Reads, rolls, flushes and checks segments. Only this class and its subclasses change fields.

    - `_segments` is never empty. Each begins where the one before it ends; only the last one is
      written to. The list is replaced, never changed: a thread keeps the one that it saw.
    - `start`: the first offset that is kept. It lies in the first segment.
    - `_changes` counts the beginnings and ends of changes that remove records, so it is odd during
      one. The thread that makes one has the lock `files.changing`.
    - `_hints`: positions in the file by the offsets at which readers will go on. Only the loop
      writes them; a change empties them.
    - `epochs` and `producers` are those of the records up to the end. `_stored_epochs` is what
      the checkpoint of the epochs has; None if that is not known.
    - `recovery_point`: every record below it is flushed. Never above the end.
    - `_flushed_at_ms`: when the log was last flushed or had nothing to flush, by the clock of the
      caller of `flush_if_due`.
    - `_failure` is None until the log refuses everything, and then never again.
    """

    __slots__ = (
        "_changes",
        "_failure",
        "_files",
        "_flushed_at_ms",
        "_flushing",
        "_hints",
        "_on_failure",
        "_segments",
        "_stored_epochs",
        "config",
        "epochs",
        "path",
        "producers",
        "recovery_point",
        "start",
    )

    def __init__(self, files: FilePool, path: str, config: LogConfig, opened: Opened) -> None:
        self._files = files
        self._segments = opened.segments
        self._hints: dict[int, int] = {}
        self._changes = 0
        self._failure: str | None = None
        self._on_failure: Callable[[], None] = _do_nothing  # called in the thread of the failure
        self._flushing = Lock()  # one thread at a time flushes this log
        self._flushed_at_ms = 0
        self._stored_epochs: EpochHistory | None = opened.stored_epochs
        self.path = path
        self.config = config
        self.start = opened.start
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.recovery_point = min(opened.recovery_point, self.end)

    @property
    def end(self) -> int:
        return self._segments[-1].end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segment_bases(self) -> list[int]:
        return [segment.base for segment in self._segments]

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> str | None:
        """Why it failed, for operators."""
        return self._failure

    def fail(self, reason: str) -> None:
        """Refuse everything from now on; what is visible stays as it is."""
        is_first = self._failure is None
        self._failure = reason
        if is_first:
            self._on_failure()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LogFailed(
                f"{self.path} {WAS_DELETED}"
                if self._failure is WAS_DELETED
                else f"{self.path} failed and needs a restart: {self._failure}"
            )

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool, nowait: bool
    ) -> ReadResult | WouldBlock:
        """Whole batches from the one with `offset`, none with a record at `up_to` or later.

        At most `max_bytes`, but with `min_one_batch` never none because the first is larger. Ends
        at the end of a segment.
        """
        while True:
            changes = self._changes
            try:
                if self._failure is not None:
                    self._check_usable()
                result = self._read(
                    offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch, nowait=nowait
                )
            except Exception:
                # While the log changes in the other thread, anything here may go wrong.
                if self._has_changed_since(changes):
                    continue
                raise
            if not self._has_changed_since(changes):
                return result

    def _has_changed_since(self, changes: int) -> bool:
        if changes == self._changes and changes % 2 == 0:
            return False
        with self._files.changing:  # until the change is made
            return True

    def _read(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool, nowait: bool
    ) -> ReadResult | WouldBlock:
        segments = self._segments
        end = segments[-1].end
        if not self.start <= offset <= end:
            raise OffsetOutOfRange(f"{self.path} has {self.start} to {end}, not {offset}")
        up_to = min(up_to, end)
        if offset >= up_to:
            return ReadResult(b"", offset, offset)
        segment = _segment_with(segments, offset)
        if segment is not segments[-1]:
            if nowait and not segment.is_loaded:
                return WOULD_BLOCK
            segment.keep_loaded()
        hint = self._hints.get(offset)
        if hint is not None and offset != segment.base:
            location: tuple[int, int] | None = (hint, offset)
        else:
            location = segment.locate(offset, nowait=nowait)
        if location is None:
            return WOULD_BLOCK
        position, first_offset = location
        read = segment.read(
            position, max_bytes, up_to=up_to, min_one_batch=min_one_batch, nowait=nowait
        )
        if read is None:
            return WOULD_BLOCK
        data, next_offset = read
        if not len(data):
            return ReadResult(b"", offset, offset)
        if nowait:
            self._remember_position(offset, next_offset, position + len(data))
        return ReadResult(data, first_offset, next_offset)

    def _remember_position(self, offset: int, next_offset: int, position: int) -> None:
        """The next read of this reader begins here, and need not search the index."""
        hints = self._hints
        hints.pop(offset, None)
        hints[next_offset] = position
        if len(hints) > HINTS_MAX:
            del hints[next(iter(hints))]

    def bytes_from(self, offset: int) -> int:
        """Bytes from the batch at `offset` on; an estimate where an exact value would block."""
        segments = self._segments
        if offset <= self.start:
            return self.size_bytes
        if offset >= self.end:
            return 0
        segment = _segment_with(segments, offset)
        rest = sum(each.size for each in segments if each.base > segment.base)
        if not segment.is_loaded:  # its index is on disk: as if all records were of one size
            records = segment.end - segment.base
            return rest + segment.size * (segment.end - offset) // records
        location = segment.locate(offset, nowait=True)
        at = segment.index.at_or_before(offset - segment.base) if location is None else location[0]
        return rest + segment.size - at

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at least as new as `timestamp_ms`. May block."""
        return lookup.first_from(self._segments, timestamp_ms, start=self.start)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp and the offset of the first record that has it. May block."""
        return lookup.largest(self._segments, start=self.start)

    # Checking

    def check_part(self, start: ScrubPosition) -> Part:
        """Check the batches from `start` on for what the disk did to them. Blocks."""
        changes = self._changes
        gone = Part(read_bytes=0, following=None)
        segment = next((each for each in self._segments if each.base == start.base), None)
        if segment is None or self.has_failed:
            return gone
        # The end first: an append moves it last, so the file has at least what it claims.
        end = segment.end
        size = segment.size if segment is not self._segments[-1] else None
        try:
            part = scrub.check_part(
                segment, start, log_start=self.start, end=end, size=size, epochs=self.epochs
            )
        except StorageRefusal:
            if self._has_changed_since(changes) or self.has_failed:
                return gone
            raise
        return gone if self._has_changed_since(changes) or self.has_failed else part

    def scrub(self) -> Iterator[BadBatch]:
        """Check everything, at once: what the first bad batch of each segment is. Blocks."""
        for base in self.segment_bases:
            next_position: ScrubPosition | None = ScrubPosition(base=base, position=0, offset=base)
            while next_position is not None:
                part = self.check_part(next_position)
                next_position = part.following
                if part.bad is not None:
                    yield part.bad

    # Rolling and flushing

    def roll(self) -> None:
        """Seal the last segment and begin another."""
        self._check_usable()
        last = self._segments[-1]
        if last.size == 0:
            return
        self._seal(last)
        self._segments = [*self._segments, self._new_segment(last.end)]
        last.keep_loaded()

    def _seal(self, last: Segment) -> None:
        snapshot = snapshot_path(self.path, last.end)
        if len(self.producers):
            self._files.disk.write_atomic(snapshot, self.producers.to_bytes())
        else:
            self._files.disk.remove(snapshot)  # one of an earlier life may have ended here too
        last.seal(producers=len(self.producers))

    def _new_segment(self, base: int) -> Segment:
        interval_bytes = self.config.index_interval_bytes
        return Segment.create(self._files, self.path, base, interval_bytes=interval_bytes, now_ms=0)

    def _store_epochs(self, history: EpochHistory) -> None:
        self.epochs = history
        if history != self._stored_epochs:
            self._stored_epochs = None
            self._files.disk.write_atomic(f"{self.path}/{EPOCHS}", write_epochs(history))
            self._stored_epochs = history

    @property
    def has_unflushed_segment(self) -> bool:
        """Whether a segment that is complete has yet to be flushed."""
        return self.recovery_point < self._segments[-1].base

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush what waited long enough; False while unflushed records may wait longer. Blocks.

        A log is due when a segment of it is complete, some time after it was last flushed, or when
        it was appended to under settings that allowed more unflushed records.
        """
        if self.recovery_point != self.end and not self.has_failed:
            patience_ms = min(FLUSH_AFTER_MS, self.config.flush_ms)
            is_old = now_ms - self._flushed_at_ms >= patience_ms
            is_too_much = self.end - self.recovery_point >= self.config.flush_messages
            if not (is_old or is_too_much or self.has_unflushed_segment):
                return False
            self._flushed_at_ms = now_ms
            self.flush()
        self._flushed_at_ms = now_ms  # from here on something may wait
        return True

    def flush(self) -> None:
        """Return once everything appended so far would survive a loss of power. Blocks.

        If records are removed meanwhile the recovery point stays, and the next flush does the rest.
        """
        self._check_usable()
        if self.recovery_point < self.end:
            self._flush()

    def _flush(self, written_end: int | None = None) -> None:
        """Flush up to the end, or up to the end of what is written but not visible yet."""
        with self._flushing:
            # The kernel reports a failed write to one flush only. If that was another thread's,
            # ours would succeed.
            self._check_usable()
            changes, segments = self._changes, self._segments
            end = segments[-1].end if written_end is None else written_end
            try:
                for segment in segments:
                    if segment.end > self.recovery_point or segment is segments[-1]:
                        segment.flush()
            except DiskError as error:
                if self._has_changed_since(changes):
                    return  # the file was just removed
                # What a failed flush left on disk is unknown, and the next flush would not say.
                self.fail(str(error))
                raise
            with self._files.changing:
                if changes == self._changes:
                    self.recovery_point = end


def _do_nothing() -> None:
    pass


def _segment_with(segments: list[Segment], offset: int) -> Segment:
    last = segments[-1]
    if offset >= last.base:
        return last
    return segments[bisect_right(segments, offset, key=attrgetter("base")) - 1]
