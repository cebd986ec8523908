"""One partition's log: the segments in order, and what follows from their batches.

Appends, cuts and retention run in one thread, the event loop's. A read that would block, finding
out what a cut takes, and `flush` may run in another: it sees the list of segments as it was, and
starts again if the log was cut meanwhile. `_cuts` counts the beginnings and ends of cuts, so it is
odd during one.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from threading import Lock
from typing import Final

from insync.rules.epochs import EpochHistory
from insync.rules.values import LeaderEpoch, Offset
from insync.storage import cutting, lookup, retention, scrub
from insync.storage.checkpoints import EPOCHS, INT64_MAX, LOG_START, write_epochs
from insync.storage.config import LogConfig
from insync.storage.cutting import Cut
from insync.storage.disk import Buffer, Disk
from insync.storage.errors import (
    DiskError,
    EpochWentBack,
    LogFailed,
    OffsetOutOfOrder,
    OffsetOutOfRange,
    OffsetOverflow,
    StorageRefusal,
)
from insync.storage.files import FilePool
from insync.storage.index import INT32_MAX
from insync.storage.inventory import INVENTORY, Damage, Inventory, take_inventory
from insync.storage.producer_snapshots import snapshot_path
from insync.storage.producers import Producers
from insync.storage.recovery import Opened, open_log, with_epoch
from insync.storage.retention import DeletedSegment
from insync.storage.scrub import BadBatch, Part, ScrubPosition
from insync.storage.segment import Segment, SegmentMark
from insync.wire.batches import BatchHeader, CorruptBatch, check, stamp, whole_batches

__all__ = ["WOULD_BLOCK", "AppendResult", "Log", "LogConfig", "ReadResult", "WouldBlock"]

WAS_DELETED: Final = "was deleted"  # why a log refuses everything that is out of use, not failed

HINTS_MAX: Final = 16
"""Readers of one log whose position in the file is kept: its followers and a few consumers."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    base_offset: int
    last_offset: int
    end: int
    bytes: int


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


class Log:
    __slots__ = (
        "_cuts",
        "_expired",
        "_failure",
        "_files",
        "_flushing",
        "_hints",
        "_identity",
        "_inventory",
        "_noted_state",
        "_segments",
        "_stored_epochs",
        "config",
        "damage",
        "epochs",
        "flushed_at_ms",
        "on_failure",
        "path",
        "producers",
        "recovery_point",
        "start",
        "truncating",
    )

    def __init__(
        self, files: FilePool, path: str, config: LogConfig, opened: Opened, identity: str
    ) -> None:
        self._files = files
        self._segments = opened.segments
        self._hints: dict[int, int] = {}
        self._cuts = 0
        self._failure: str | None = None
        self._flushing = Lock()  # held while a thread flushes this log
        self._stored_epochs: EpochHistory | None = opened.stored_epochs
        self._identity = identity
        self._inventory = opened.inventory
        self._noted_state: tuple[int, ...] = ()  # of the log when it was noted
        self._expired = opened.expired  # segments out of use, the oldest first, still on disk
        self.damage = opened.damage
        self.path = path
        self.config = config
        self.start = opened.start
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.recovery_point = min(opened.recovery_point, self.end)
        self.flushed_at_ms = 0  # by the clock of the caller of `LogDirectory.flush_due`
        self.on_failure: Callable[[], None] = _nothing  # called in the thread of the failure
        self.truncating: Callable[[int], AbstractContextManager[None]] = _no_preparation
        """Entered before a truncation, with the end that it leaves, and left after it."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        high_watermark: int = 0,
        files: FilePool | None = None,
        identity: str | None = None,
    ) -> Log:
        """The log in a directory, made if it is not there; recovered unless stopped cleanly.

        An inventory that names another `identity` (default: the path) is not used. `high_watermark`
        is what was noted of this log: the caller decides what it means if the log ends below.
        """
        files = files or FilePool(disk)
        identity = path if identity is None else identity
        opened = open_log(
            files,
            path,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            identity=identity,
        )
        log = cls(files, path, config, opened, identity)
        if clean:
            log.recovery_point = log.end
        elif config.flushes_every_append:
            # A killed process may have written its last records and not flushed them, and the
            # recovery point may be of records that were truncated since.
            log._flush()
        log._note_opened(start_file=opened.has_start_file)
        return log

    def _note_opened(self, *, start_file: bool) -> None:
        """Note at once what the next start would not find any more.

        That is damage; that a new log begins here; and a start that is lower than the noted one,
        after a loss of power: what is appended from here on would lie below it.
        """
        noted = self._inventory.noted
        is_new = noted is None and self.end == 0
        starts_earlier = noted is not None and noted.start > self.start
        if self.damage is not None or is_new or start_file:
            self.note()
        if starts_earlier:
            with self._files.cutting:
                self._inventory.write_durably(self._take_inventory(self._segments, self.start))
        if start_file and self._inventory.noted is not None:
            self._files.disk.remove(f"{self.path}/{LOG_START}")

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

    # Writing

    def append_leader(
        self,
        data: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        *,
        epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Give a producer's batches their offsets and this leader's epoch, and write them."""
        assert headers, "nothing to append"
        base = end = self.end
        for header in headers:
            stamp(data, header, base_offset=end, epoch=epoch)
            end += header.last_offset_delta + 1
            self._check_offset(end)
        history = self.epochs
        if epoch != history.latest:
            history = history.assign(LeaderEpoch(epoch), Offset(base))
        size = self._append(data, headers, history, end=end, now_ms=now_ms)
        return AppendResult(base, end - 1, end, size)

    def append_follower(
        self, data: bytes | memoryview, *, now_ms: int, check_crc: bool = True
    ) -> int:
        """Write batches as their leader stamped them, and return the new end.

        Ignores a batch cut off at the end, and batches whose offsets do not fit the index of one
        segment with the first: the follower fetches them again, from the new end.
        """
        base = end = self.end
        history, headers = self.epochs, list[BatchHeader]()
        for header in whole_batches(data):
            if header.base_offset != end:
                raise OffsetOutOfOrder(
                    f"{self.path} ends at {end} and was sent a batch at {header.base_offset}; "
                    "fetch from the end"
                )
            if check_crc:
                check(data, header)
            elif header.last_offset_delta < 0:
                raise CorruptBatch(f"a last offset delta of {header.last_offset_delta}")
            self._check_offset(header.next_offset)
            if headers and header.next_offset - base > INT32_MAX:
                break
            longer = with_epoch(history, header.leader_epoch, end)
            if longer is None:
                raise EpochWentBack(
                    f"{self.path} has records of epoch {history.latest} and was sent some of "
                    f"{header.leader_epoch} after them; truncate before fetching"
                )
            history = longer
            end = header.next_offset
            headers.append(header)
        if headers:
            self._append(data, headers, history, end=end, now_ms=now_ms)
        return end

    def begin_epoch(self, epoch: int) -> None:
        """Note that a leader of `epoch` writes from the end on, before it has written anything."""
        if self.epochs.latest is None or epoch > self.epochs.latest:
            self._store_epochs(self.epochs.assign(LeaderEpoch(epoch), Offset(self.end)))

    def _append(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        history: EpochHistory,
        *,
        end: int,
        now_ms: int,
    ) -> int:
        first = headers[0].position
        if first or headers[-1].end_position != len(data):
            data = memoryview(data)[first : headers[-1].end_position]
        segment = self._segment_for(len(data), end, now_ms)
        index, position = segment.index, segment.size - first
        if history is not self._stored_epochs and history != self._stored_epochs:
            # Before the records: an epoch that has none is dropped when the log is opened, but
            # records of an epoch that is not in the file would be taken for the previous leader's.
            self._files.disk.write_atomic(f"{self.path}/{EPOCHS}", write_epochs(history))
            self._stored_epochs = None
        offset, mark = segment.end, segment.mark()
        producers = self.producers.plan(headers, base_offset=offset, now_ms=now_ms)
        try:
            segment.write(data)
        except LogFailed as error:
            self.fail(str(error))
            raise
        if end - self.recovery_point >= self.config.flush_messages:
            self._flush_written(segment, end)
        # From here on the records are visible: to other threads when `size` and `end` move.
        try:
            segment.size += len(data)
            segment.has_news = True
            for header in headers:
                segment.note(index, offset, position + header.position, header.max_timestamp_ms)
                offset += header.last_offset_delta + 1
            self.producers.apply(producers)
        except Exception as error:
            raise self._fail_append(segment, mark, error) from error
        self._stored_epochs = self.epochs = history
        if mark.size == 0:
            segment.first_crc = headers[0].crc
        segment.end = end
        return len(data)

    def _fail_append(self, segment: Segment, mark: SegmentMark, error: Exception) -> LogFailed:
        """Fail the log, and remove the write that nothing has claimed yet."""
        reason = f"an append failed after its write: {error!r}"
        try:
            segment.roll_back(mark)
        except StorageRefusal as torn:
            reason = str(torn)
        self.fail(reason)
        return LogFailed(f"{self.path}: {reason}")

    def _check_offset(self, end: int) -> None:
        if end > INT64_MAX:
            raise OffsetOverflow(
                f"{self.path}: the log end offset would be {end}, larger than 2^63-1; "
                "produce to another partition"
            )

    def _flush_written(self, segment: Segment, end: int) -> None:
        """Flush an append before its records are visible; remove them if that fails."""
        try:
            self._flush(end)
        except StorageRefusal:
            # The page cache still has the bytes and takes them for written. The next process to
            # open the log would read them, and its flush would succeed without writing them.
            with suppress(LogFailed):
                segment.remove_written()
            raise

    def _segment_for(self, size: int, end: int, now_ms: int) -> Segment:
        """The segment that takes an append: a new one if the last is full or old."""
        self._check_usable()
        segment = self._segments[-1]
        if not segment.has_room(size=size, end=end, segment_bytes=self.config.segment_bytes) or (
            segment.size and now_ms - segment.created_ms > self.config.segment_ms
        ):
            self.roll()
            segment = self._segments[-1]
        if end - 1 - segment.base > INT32_MAX:
            raise OffsetOverflow(
                f"{self.path}: one append of {end - segment.base} offsets, more than the 2^31 "
                "that a segment's index can hold; append fewer batches at a time"
            )
        if segment.size == 0:
            segment.created_ms = now_ms
        return segment

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
        """Whole batches from the one that holds `offset`, none with a record at `up_to` or later.

        At most `max_bytes`, but with `min_one_batch` never none because the first is larger. Ends
        at the end of a segment.
        """
        while True:
            cuts = self._cuts
            try:
                result = self._read(
                    offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch, nowait=nowait
                )
            except Exception:
                # While the log is cut in the other thread, anything here may go wrong.
                if self._was_cut_since(cuts):
                    continue
                raise
            if not self._was_cut_since(cuts):
                return result

    def _was_cut_since(self, cuts: int) -> bool:
        if cuts == self._cuts and cuts % 2 == 0:
            return False
        with self._files.cutting:  # until it is done
            return True

    def _read(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool, nowait: bool
    ) -> ReadResult | WouldBlock:
        self._check_usable()
        segments = self._segments
        end = segments[-1].end
        if not self.start <= offset <= end:
            raise OffsetOutOfRange(f"{self.path} holds {self.start} to {end}, not {offset}")
        up_to = min(up_to, end)
        if offset >= up_to:
            return ReadResult(b"", offset, offset)
        segment = _holding(segments, offset)
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
        segment = _holding(segments, offset)
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

    # Cutting

    def truncate_to(self, offset: int) -> int:
        """Remove every batch with `offset` or a later one; return the new end. May block."""
        is_cut = self.cut(self.find_cut(offset))
        assert is_cut, "only one thread cuts this log or appends to it"
        return self.end

    def find_cut(self, offset: int) -> Cut:
        """What it takes to remove every batch with `offset` or a later one. May block."""
        while True:
            cuts = self._cuts
            try:
                return self._find_cut(offset, cuts)
            except Exception:
                # While the log is cut in the other thread, anything here may go wrong.
                if not self._was_cut_since(cuts):
                    raise

    def _find_cut(self, offset: int, cuts: int) -> Cut:
        self._check_usable()
        segments, known = self._segments, list(self.producers.values())
        of = (cuts, self.start, segments[-1].end)
        if offset >= segments[-1].end:
            return Cut(offset=offset, kept=segments, of=of)
        cut, end = cutting.find(segments, offset, start=self.start, of=of)
        if not cut.kept or all(entry.batches[-1].base_offset < end for entry in known):
            return cut
        seen_at_ms = max(entry.seen_at_ms for entry in known)
        disk = self._files.disk
        producers = cutting.producers_after(disk, self.path, cut, seen_at_ms=seen_at_ms)
        return replace(cut, producers=producers)

    def cut(self, cut: Cut) -> bool:
        """Apply a cut computed before, reading nothing; False if the log has changed since."""
        self._check_usable()
        if cut.of != (self._cuts, self.start, self.end):
            return False
        if cut.offset >= self.end:
            # An epoch that began at the end, as a leader that wrote nothing leaves it, goes all
            # the same: a follower would name it as its latest for ever, and have to truncate to it.
            self._store_epochs(self.epochs.cut_end(Offset(self.end)))
            return True
        if not cut.kept:
            self.truncate_fully(cut.offset)
            return True
        end = cut.kept[-1].end if cut.last is None else cut.last.end
        with self.truncating(end), self._cut_durably_noted(cut.kept, start=self.start, end=end):
            # The newest first: whatever a crash leaves is a prefix of the log.
            for segment in reversed(self._segments[len(cut.kept) :]):
                segment.remove()
            cut.kept[-1].release()
            if cut.last is not None:
                cut.kept[-1].cut(cut.last)
            self._after_cut(list(cut.kept))
            if cut.producers is not None:
                self.producers = cut.producers
            self._store_epochs(self.epochs.cut_end(Offset(self.end)))
        return True

    def truncate_fully(self, new_start: int) -> None:
        """Remove everything; the next record will get offset `new_start`."""
        self._check_usable()
        # A crash leaves the old segments or the new one. Both begin at or below this start, and
        # neither ends below that watermark, so that neither looks damaged.
        start, watermark = max(self.start, new_start), min(self.start, new_start)
        with self.truncating(watermark), self._cut_durably_noted((), start=start, end=0):
            for segment in self._expired:
                # A new segment may get its name. And if the disk refuses the note of the new start,
                # the next start would take the new segment for what follows this one.
                self._remove_expired(segment)
            for segment in reversed(self._segments):
                segment.remove()
            self._files.disk.remove(f"{self.path}/{LOG_START}")
            self._files.disk.remove(snapshot_path(self.path, new_start))
            self.producers = Producers()
            self._after_cut([self._new_segment(new_start)])
            self.start = new_start
            self._store_epochs(EpochHistory())
            self._note(self._segments, new_start)
        if self.config.flushes_every_append:
            self._flush()

    def delete_records_before(self, offset: int) -> list[DeletedSegment]:
        """Let the log start at `offset`, and remove the segments that lie wholly below it."""
        self._check_usable()
        if offset > self.end:
            raise OffsetOutOfRange(f"{self.path} ends at {self.end}: nothing to delete at {offset}")
        if offset <= self.start:
            return []
        below = [segment for segment in self._segments[:-1] if segment.end <= offset]
        with self._files.cutting:
            self._note(self._segments[len(below) :], offset)
            self.start = offset
        self._store_epochs(self.epochs.cut_start(Offset(offset)))
        return self._expire_oldest(len(below))

    def apply_retention(self, now_ms: int, *, up_to: int | None = None) -> list[DeletedSegment]:
        """Expire segments past retention.ms or retention.bytes, none with a record from `up_to` on.

        The last segment is never removed; one that has expired as a whole is rolled first.
        """
        self._check_usable()
        self.producers.expire(now_ms=now_ms, expiration_ms=self.config.producer_id_expiration_ms)
        limit = self.end if up_to is None else min(up_to, self.end)
        count = retention.expired(self._segments, self.config, now_ms=now_ms, up_to=limit)
        if count == len(self._segments):
            if self._segments[-1].size:
                self.roll()
            else:
                count -= 1
        return self._expire_oldest(count)

    def _expire_oldest(self, count: int) -> list[DeletedSegment]:
        if count == 0:
            return []
        gone, kept = self._segments[:count], self._segments[count:]
        start = max(self.start, kept[0].base)
        with self._files.cutting:
            self._note(kept, start)
            self._segments, self.start = kept, start
            self._expired = [*self._expired, *gone]
            self._cuts += 2
        for segment in gone:
            segment.release()
        self._hints.clear()
        self._store_epochs(self.epochs.cut_start(Offset(self.start)))
        return [DeletedSegment(segment.base, segment.end, segment.size) for segment in gone]

    @property
    def has_expired_files(self) -> bool:
        return bool(self._expired)

    def remove_expired_files(self) -> None:
        """Remove the files of segments that are out of use. Blocks; may run in another thread.

        The oldest first, and none after one that the disk refuses, so that what a restart finds
        has no gap. First the later start of the log is made durable: after a loss of power, what
        is gone would else count as lost.
        """
        while self._expired and not self.has_failed:
            durable = self._inventory.flush()
            if not self._remove_expired_below(None if durable is None else durable.start):
                return

    def _remove_expired_below(self, start: int | None) -> bool:
        """Whether a file was removed."""
        is_removed = False
        while True:
            # For one file only: the loop may wait for this lock.
            with self._files.cutting:
                if self.has_failed or not self._expired:
                    return is_removed  # its folder may be another log's now
                segment = self._expired[0]
                if start is not None and segment.end > start:
                    return is_removed  # a later start is noted, and is to be flushed first
                self._remove_expired(segment)
                is_removed = True

    def _remove_expired(self, segment: Segment) -> None:
        segment.remove()
        self._files.disk.remove(snapshot_path(self.path, segment.base))
        self._expired = [each for each in self._expired if each is not segment]

    def _after_cut(self, segments: list[Segment]) -> None:
        for segment in self._segments:
            if segment.base > segments[-1].end:
                self._files.disk.remove(snapshot_path(self.path, segment.base))
        self._segments = segments
        self._hints.clear()
        self.recovery_point = min(self.recovery_point, self.end)

    @contextmanager
    def _cut_durably_noted(
        self, kept: Sequence[Segment], *, start: int, end: int
    ) -> Iterator[None]:
        """Note what a cut leaves, and make it. If the disk refuses half-way, the log has failed.

        The note is durable if it takes back what an earlier one has. Else that one could outlive
        the records in a loss of power, and they would be taken for lost. If the note is refused,
        nothing has changed.
        """
        with self._files.cutting:
            inventory, before = self._take_inventory(kept, start, end=end), self._inventory.noted
            try:
                if before is not None and (end < before.end or start > before.start):
                    self._inventory.write_durably(inventory)
                else:
                    self._inventory.replace(inventory)
            except DiskError as error:
                self._take_note_back(str(error))
                raise
            self._cuts += 1
            try:
                yield
            except DiskError as error:
                self.fail(str(error))
                raise
            finally:
                self._cuts += 1

    def _take_note_back(self, reason: str) -> None:
        """Note what the log has, after the note of a cut that is not made was refused.

        If that is refused too, the log has failed: the next start would believe the cut.
        """
        try:
            self._inventory.replace(self._take_inventory(self._segments, self.start))
        except DiskError:
            self.fail(reason)

    # Scrubbing

    def check_part(self, start: ScrubPosition) -> Part:
        """Check the batches from `start` on for what the disk did to them. Blocks."""
        cuts = self._cuts
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
            if self._was_cut_since(cuts) or self.has_failed:
                return gone
            raise
        return gone if self._was_cut_since(cuts) or self.has_failed else part

    def scrub(self) -> Iterator[BadBatch]:
        """Check everything, at once: what the first bad batch of each segment is. Blocks."""
        for base in self.segment_bases:
            next_position: ScrubPosition | None = ScrubPosition(base=base, position=0, offset=base)
            while next_position is not None:
                part = self.check_part(next_position)
                next_position = part.following
                if part.bad is not None:
                    yield part.bad

    # Inventory

    def note(self) -> None:
        """Note what is flushed, if that has changed. May run in another thread."""
        with self._files.cutting:
            # The folder of a deleted log may be another log's now.
            if self._failure is not WAS_DELETED and self._noted_state != self._state():
                self._note(self._segments, self.start)

    def mark_damaged(self, damage: Damage | None) -> None:
        """Note that the log may lack acknowledged records, or (None) that it no longer does.

        `DiskError` if damage cannot be noted.
        """
        self.damage = damage
        with self._files.cutting:
            if self._failure is WAS_DELETED:
                return
            is_noted = self._note(self._segments, self.start)
        if damage is not None and not is_noted:
            raise DiskError(errno.EIO, f"{self.path}/{INVENTORY}")

    def note_damage(self) -> None:
        """Note damage that could not be noted before; also of a log that has failed since."""
        with self._files.cutting:
            noted = self._inventory.noted or Inventory(identity=self._identity, start=self.start)
            if self._failure is not WAS_DELETED and noted.damage != self.damage is not None:
                self._inventory.write(replace(noted, damage=self.damage))

    def flush_note(self) -> None:
        """Return once what is noted would survive a loss of power. Blocks."""
        self._inventory.flush()

    def _state(self) -> tuple[int, ...]:
        return self._cuts, self.start, self.recovery_point

    def _note(self, segments: Sequence[Segment], start: int, *, closing: bool = False) -> bool:
        """Whether these segments are noted now. If not, the next `note` tries again.

        Holds `files.cutting`, so that no thread notes what another is about to remove.
        """
        inventory = self._take_inventory(segments, start, closing=closing)
        is_noted = self._inventory.write(inventory)
        self._noted_state = self._state() if is_noted else ()
        return is_noted

    def _take_inventory(
        self,
        segments: Sequence[Segment],
        start: int,
        *,
        end: int | None = None,
        closing: bool = False,
    ) -> Inventory:
        """Of these segments up to `end` (default: the log's), as far as they are flushed."""
        return take_inventory(
            segments,
            identity=self._identity,
            start=start,
            flushed=min(self.recovery_point, self.end if end is None else end),
            epochs=self.epochs,
            damage=self.damage,
            closing=closing,
        )

    # Flushing and closing

    @property
    def has_unflushed_segment(self) -> bool:
        """Whether a segment that is complete has yet to be flushed."""
        return self.recovery_point < self._segments[-1].base

    @property
    def is_flush_due(self) -> bool:
        """Whether more records are unflushed than the settings allow."""
        return self.end - self.recovery_point >= self.config.flush_messages

    def flush(self) -> None:
        """Return once everything appended so far would survive a loss of power. Blocks.

        If the log is cut meanwhile the recovery point stays, and the next flush sees to the rest.
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
            cuts, segments = self._cuts, self._segments
            end = segments[-1].end if written_end is None else written_end
            try:
                for segment in segments:
                    if segment.end > self.recovery_point or segment is segments[-1]:
                        segment.flush()
            except DiskError as error:
                if self._was_cut_since(cuts):
                    return  # the file was just removed
                # What a failed flush left on disk is unknown, and the next flush would not say.
                self.fail(str(error))
                raise
            with self._files.cutting:
                if cuts == self._cuts:
                    self.recovery_point = end

    def fail(self, reason: str) -> None:
        """Refuse everything from now on; what is visible stays as it is."""
        is_first = self._failure is None
        self._failure = reason
        if is_first:
            self.on_failure()

    def close(self) -> None:
        """Write what the next opening needs to believe a clean stop; flushes what is not yet."""
        self._check_usable()
        self._store_epochs(self.epochs)
        last = self._segments[-1]
        if last.size and last.has_news:
            self._seal(last)
        self.flush()
        with self._files.cutting:
            self._note(self._segments, self.start, closing=True)
        self.release()

    def release(self) -> None:
        """Release files and memory, writing nothing."""
        for segment in (*self._segments, *self._expired):
            segment.release()
            segment.unload()

    def detach(self) -> None:
        """Refuse everything from now on: the directory is about to be moved or removed."""
        with self._files.cutting:  # a thread that removes files of this log sees that it failed
            self.fail(WAS_DELETED)
        self._cuts += 2
        self.release()

    def delete(self) -> None:
        """Remove the log and its directory."""
        self.detach()
        self._files.disk.remove_tree(self.path)


def _nothing() -> None:
    pass


def _no_preparation(_end: int) -> AbstractContextManager[None]:
    return nullcontext()


def _holding(segments: list[Segment], offset: int) -> Segment:
    last = segments[-1]
    if offset >= last.base:
        return last
    return segments[bisect_right(segments, offset, key=attrgetter("base")) - 1]
