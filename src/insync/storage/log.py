"""One partition's log: opened, appended to by a leader or as a follower, closed.

`LocalLog` has its segments and reads them, `TruncatableLog` removes records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from insync.rules.epochs import EpochHistory
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.checkpoints import EPOCHS, INT64_MAX, LOG_START, write_epochs
from insync.storage.config import LogConfig
from insync.storage.disk import Buffer, Disk
from insync.storage.errors import (
    EpochWentBack,
    LogFailed,
    OffsetOutOfOrder,
    OffsetOverflow,
    StorageRefusal,
)
from insync.storage.files import FilePool
from insync.storage.index import INT32_MAX, SegmentSummary
from insync.storage.local_log import WAS_DELETED, WOULD_BLOCK, ReadResult, WouldBlock
from insync.storage.recovery import open_log, with_epoch
from insync.storage.segment import Segment
from insync.storage.truncatable_log import TruncatableLog
from insync.wire.batches import BatchHeader, CorruptBatch, check, stamp, whole_batches

__all__ = ["WOULD_BLOCK", "AppendResult", "Log", "LogConfig", "ReadResult", "WouldBlock"]


@dataclass(frozen=True, slots=True)
class AppendResult:
    base_offset: int
    last_offset: int
    end: int
    bytes: int


class Log(TruncatableLog):
    __slots__ = ()

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
        is the checkpointed one: the caller decides what it means if the log ends below it.
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
        log._write_opened(has_start_file=opened.has_start_file)
        return log

    def _write_opened(self, *, has_start_file: bool) -> None:
        """Write at once to the inventory what the next start would not find any more.

        That is damage; that a new log begins here; and a start that is lower than the listed one,
        after a loss of power: what is appended from here on would lie below it.
        """
        written = self._inventory.written
        is_new = written is None and self.end == 0
        starts_earlier = written is not None and written.start > self.start
        if self.damage is not None or is_new or has_start_file:
            self.write_inventory()
        if starts_earlier:
            with self._files.changing:
                self._inventory.write_durably(self._take_inventory(self._segments, self.start))
        if has_start_file and self._inventory.written is not None:
            self._files.disk.remove(f"{self.path}/{LOG_START}")

    def attach(
        self,
        *,
        on_failure: Callable[[], None],
        around_truncation: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """Set what is called when the log fails, in the thread of the failure, and what a
        truncation is made in: entered with the end that it leaves, and left after it.
        """
        self._on_failure = on_failure
        self._around_truncation = around_truncation

    def apply_config(self, config: LogConfig) -> None:
        self.config = config

    # Appending

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
        base = end = self._segments[-1].end
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

        Ignores an incomplete batch at the end, and batches whose offsets do not fit the index of
        one segment with the first: the follower fetches them again, from the new end.
        """
        base = end = self._segments[-1].end
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
        """Let `epoch` begin at the end, before its leader has written anything."""
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
        if history is not self._stored_epochs and history != self._stored_epochs:
            # Before the records: an epoch that has none is dropped when the log is opened, but
            # records of an epoch that is not in the file would be taken for the previous leader's.
            self._files.disk.write_atomic(f"{self.path}/{EPOCHS}", write_epochs(history))
            self._stored_epochs = None
        size, summary = segment.size, segment.summary
        producers = self.producers.plan(headers, base_offset=segment.end, now_ms=now_ms)
        try:
            segment.write(data)
        except LogFailed as error:
            self.fail(str(error))
            raise
        if end - self.recovery_point >= self.config.flush_messages:
            self._flush_written(segment, end)
        # From here on the records are visible, to other threads when `size` and `end` move.
        try:
            segment.index_written(len(data), headers)
            self.producers.apply(producers)
        except Exception as error:
            raise self._fail_append(segment, size, summary, error) from error
        self._stored_epochs = self.epochs = history
        segment.publish(end, headers[0].crc)
        return len(data)

    def _fail_append(
        self, segment: Segment, size: int, summary: SegmentSummary, error: Exception
    ) -> LogFailed:
        """Fail the log, and remove the write that is not published yet."""
        reason = f"an append failed after its write: {error!r}"
        try:
            segment.roll_back(size, summary)
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
        if self._failure is not None:
            self._check_usable()
        segment = self._segments[-1]
        if not segment.has_room(size=size, end=end, segment_bytes=self.config.segment_bytes) or (
            segment.size and now_ms - segment.summary.created_ms > self.config.segment_ms
        ):
            self.roll()
            segment = self._segments[-1]
        if end - 1 - segment.base > INT32_MAX:
            raise OffsetOverflow(
                f"{self.path}: one append of {end - segment.base} offsets, more than the 2^31 "
                "that a segment's index can have; append fewer batches at a time"
            )
        if segment.size == 0:
            segment.set_created(now_ms)
        return segment

    # Closing

    def close(self) -> None:
        """Write what the next opening needs to believe a clean stop; flushes what is not yet."""
        self._check_usable()
        self._store_epochs(self.epochs)
        last = self._segments[-1]
        if last.size and last.has_news:
            self._seal(last)
        self.flush()
        with self._files.changing:
            self._write_inventory(self._segments, self.start, closing=True)
        self.release()

    def release(self) -> None:
        """Release files and memory, writing nothing."""
        for segment in self._segments:
            segment.release()
            segment.unload()
        self._expired.release()

    def detach(self) -> None:
        """Refuse everything from now on: the directory is about to be moved or removed."""
        with self._files.changing:  # a thread that removes files of this log sees that it failed
            self.fail(WAS_DELETED)
        self._changes += 2
        self.release()

    def delete(self) -> None:
        """Remove the log and its directory."""
        self.detach()
        self._files.disk.remove_tree(self.path)
