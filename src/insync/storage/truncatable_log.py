"""A log whose records can be removed: its end by truncation, its beginning by retention.

What a log has is written to its inventory before records are removed, so that a start does not take
them for lost. If the disk refuses that, nothing is removed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from insync.rules.epochs import EpochHistory
from insync.rules.values import Offset
from insync.storage import retention, truncation
from insync.storage.checkpoints import LOG_START
from insync.storage.config import LogConfig
from insync.storage.errors import DiskError, OffsetOutOfRange
from insync.storage.expired_segments import ExpiredSegments
from insync.storage.files import FilePool
from insync.storage.inventory import INVENTORY, Damage, Inventory, take_inventory
from insync.storage.local_log import WAS_DELETED, LocalLog
from insync.storage.producer_snapshots import snapshot_path
from insync.storage.producers import Producers
from insync.storage.recovery import Opened
from insync.storage.retention import DeletedSegment
from insync.storage.segment import Segment
from insync.storage.truncation import PreparedTruncation


class TruncatableLog(LocalLog):
    """Truncates, deletes old records, and keeps the inventory. Fields, besides `LocalLog`'s:

    - `_inventory` lists no record that the log lacks. It is written with the lock `files.changing`,
      so that no thread lists what another is about to remove.
    - `_identity` says in the inventory whose it is.
    - `_listed_state`: `_state` when the inventory was written; empty if it has to be written.
    - `_expired`: segments below `start` whose files are still to be removed.
    - `damage` is not None if the log may lack acknowledged records. It is in the inventory too,
      unless the disk refused it; then `write_damage` tries again.
    """

    __slots__ = (
        "_around_truncation",
        "_expired",
        "_identity",
        "_inventory",
        "_listed_state",
        "damage",
    )

    def __init__(
        self, files: FilePool, path: str, config: LogConfig, opened: Opened, identity: str
    ) -> None:
        super().__init__(files, path, config, opened)
        self._identity = identity
        self._inventory = opened.inventory
        self._listed_state: tuple[int, ...] = ()
        self._expired = ExpiredSegments(files.disk, path, opened.expired)
        self._around_truncation: Callable[[int], AbstractContextManager[None]] = _do_nothing_around
        self.damage = opened.damage

    # Truncation

    def truncate_to(self, offset: int) -> int:
        """Remove every batch with `offset` or a later one; return the new end. May block."""
        is_truncated = self.truncate(self.prepare_truncation(offset))
        assert is_truncated, "only one thread truncates this log or appends to it"
        return self.end

    def prepare_truncation(self, offset: int) -> PreparedTruncation:
        """What it takes to remove every batch with `offset` or a later one. May block."""
        while True:
            changes = self._changes
            try:
                return self._prepare_truncation(offset, changes)
            except Exception:
                # While the log changes in the other thread, anything here may go wrong.
                if not self._has_changed_since(changes):
                    raise

    def _prepare_truncation(self, offset: int, changes: int) -> PreparedTruncation:
        self._check_usable()
        segments, known = self._segments, list(self.producers.values())
        of = (changes, self.start, segments[-1].end)
        if offset >= segments[-1].end:
            return PreparedTruncation(offset=offset, kept=segments, of=of)
        prepared, end = truncation.prepare(segments, offset, start=self.start, of=of)
        if not prepared.kept or all(entry.batches[-1].base_offset < end for entry in known):
            return prepared
        seen_at_ms = max(entry.seen_at_ms for entry in known)
        disk = self._files.disk
        producers = truncation.producers_after(disk, self.path, prepared, seen_at_ms=seen_at_ms)
        return replace(prepared, producers=producers)

    def truncate(self, truncation: PreparedTruncation) -> bool:
        """Apply a truncation computed before, reading nothing; False if the log changed since."""
        self._check_usable()
        if truncation.of != (self._changes, self.start, self.end):
            return False
        if truncation.offset >= self.end:
            # An epoch that began at the end, as a leader that wrote nothing leaves it, goes all
            # the same: a follower would name it as its latest for ever, and have to truncate to it.
            self._store_epochs(self.epochs.truncate_end(Offset(self.end)))
            return True
        if not truncation.kept:
            self.truncate_fully(truncation.offset)
            return True
        kept, last = truncation.kept, truncation.last
        end = kept[-1].end if last is None else last.end
        with self._around_truncation(end), self._listed_durably(kept, start=self.start, end=end):
            # The newest first: whatever a crash leaves is a prefix of the log.
            for segment in reversed(self._segments[len(kept) :]):
                segment.remove()
            kept[-1].release()
            if last is not None:
                kept[-1].truncate(last)
            self._replace_segments(list(kept))
            if truncation.producers is not None:
                self.producers = truncation.producers
            self._store_epochs(self.epochs.truncate_end(Offset(self.end)))
        return True

    def truncate_fully(self, new_start: int) -> None:
        """Remove everything; the next record will get offset `new_start`."""
        self._check_usable()
        # A crash leaves the old segments or the new one. Both begin at or below this start, and
        # neither ends below that watermark, so that neither looks damaged.
        start, watermark = max(self.start, new_start), min(self.start, new_start)
        with self._around_truncation(watermark), self._listed_durably((), start=start, end=0):
            # A new segment may get the name of an expired one. And if the disk refuses to list the
            # new start, the next start would take the new segment for what follows those.
            self._expired.remove_all()
            for segment in reversed(self._segments):
                segment.remove()
            self._files.disk.remove(f"{self.path}/{LOG_START}")
            self._files.disk.remove(snapshot_path(self.path, new_start))
            self.producers = Producers()
            self._replace_segments([self._new_segment(new_start)])
            self.start = new_start
            self._store_epochs(EpochHistory())
            self._write_inventory(self._segments, new_start)
        if self.config.flushes_every_append:
            self._flush()

    def _replace_segments(self, segments: list[Segment]) -> None:
        for segment in self._segments:
            if segment.base > segments[-1].end:
                self._files.disk.remove(snapshot_path(self.path, segment.base))
        self._segments = segments
        self._hints.clear()
        self.recovery_point = min(self.recovery_point, self.end)

    @contextmanager
    def _listed_durably(self, kept: Sequence[Segment], *, start: int, end: int) -> Iterator[None]:
        """List what a truncation leaves, and make it. If the disk refuses half-way, the log fails.

        The inventory is durable if it takes back what an earlier one has. Else that one could
        outlive the records in a loss of power, and they would be taken for lost. If the inventory
        is refused, nothing has changed.
        """
        with self._files.changing:
            inventory, before = self._take_inventory(kept, start, end=end), self._inventory.written
            try:
                if before is not None and (end < before.end or start > before.start):
                    self._inventory.write_durably(inventory)
                else:
                    self._inventory.replace(inventory)
            except DiskError as error:
                self._restore_inventory(str(error))
                raise
            self._changes += 1
            try:
                yield
            except DiskError as error:
                self.fail(str(error))
                raise
            finally:
                self._changes += 1

    def _restore_inventory(self, reason: str) -> None:
        """List what the log has, after the inventory of a truncation that is not made was refused.

        If that is refused too, the log has failed: the next start would believe the truncation.
        """
        try:
            self._inventory.replace(self._take_inventory(self._segments, self.start))
        except DiskError:
            self.fail(reason)

    # Retention

    def delete_records_before(self, offset: int) -> list[DeletedSegment]:
        """Let the log start at `offset`, and remove the segments that lie wholly below it."""
        self._check_usable()
        if offset > self.end:
            raise OffsetOutOfRange(f"{self.path} ends at {self.end}: nothing to delete at {offset}")
        if offset <= self.start:
            return []
        below = [segment for segment in self._segments[:-1] if segment.end <= offset]
        with self._files.changing:
            self._write_inventory(self._segments[len(below) :], offset)
            self.start = offset
        self._store_epochs(self.epochs.truncate_start(Offset(offset)))
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
        with self._files.changing:
            self._write_inventory(kept, start)
            self._segments, self.start = kept, start
            self._expired.add(gone)
            self._changes += 2
        for segment in gone:
            segment.release()
        self._hints.clear()
        self._store_epochs(self.epochs.truncate_start(Offset(self.start)))
        return [DeletedSegment(segment.base, segment.end, segment.size) for segment in gone]

    @property
    def has_expired_files(self) -> bool:
        return bool(self._expired)

    def remove_expired_files(self) -> None:
        """Remove the files of segments that are out of use. Blocks; may run in another thread.

        First the later start of the log is made durable: after a loss of power, what is gone would
        else count as lost.
        """
        while self._expired and not self.has_failed:
            durable = self._inventory.flush()
            if not self._remove_expired_below(None if durable is None else durable.start):
                return  # the durable start lies below what is left

    def _remove_expired_below(self, start: int | None) -> bool:
        """Whether a file was removed."""
        count = 0
        while True:
            # For one file only: the loop may wait for this lock.
            with self._files.changing:
                # The folder of a log that was deleted may be another log's now.
                if self.has_failed or not self._expired.remove_oldest(below=start):
                    return count > 0
                count += 1

    # Inventory and damage

    def write_inventory(self) -> None:
        """List what is flushed, if that has changed. May run in another thread."""
        with self._files.changing:
            # The folder of a deleted log may be another log's now.
            if self._failure is not WAS_DELETED and self._listed_state != self._state():
                self._write_inventory(self._segments, self.start)

    def mark_damaged(self, damage: Damage | None) -> None:
        """Write that the log may lack acknowledged records, or (None) that it no longer does.

        `DiskError` if damage cannot be written.
        """
        self.damage = damage
        with self._files.changing:
            if self._failure is WAS_DELETED:
                return
            is_written = self._write_inventory(self._segments, self.start)
        if damage is not None and not is_written:
            raise DiskError(errno.EIO, f"{self.path}/{INVENTORY}")

    def write_damage(self) -> None:
        """Write damage that could not be written before; also of a log that has failed since."""
        with self._files.changing:
            written = self._inventory.written
            inventory = written or Inventory(identity=self._identity, start=self.start)
            if self._failure is not WAS_DELETED and inventory.damage != self.damage is not None:
                self._inventory.write(replace(inventory, damage=self.damage))

    def flush_inventory(self) -> None:
        """Return once the inventory would survive a loss of power. Blocks."""
        self._inventory.flush()

    def _state(self) -> tuple[int, ...]:
        return self._changes, self.start, self.recovery_point

    def _write_inventory(
        self, segments: Sequence[Segment], start: int, *, closing: bool = False
    ) -> bool:
        """Whether these segments are listed now. If not, the next `write_inventory` tries again."""
        is_written = self._inventory.write(self._take_inventory(segments, start, closing=closing))
        self._listed_state = self._state() if is_written else ()
        return is_written

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


def _do_nothing_around(_end: int) -> AbstractContextManager[None]:
    return nullcontext()
