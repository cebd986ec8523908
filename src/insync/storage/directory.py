"""A data directory: the logs of one broker of one cluster, and whose they are.

    .lock                             locked by the process that uses the directory
    meta.properties                   cluster and broker it belongs to, and its own id
    metadata-checkpoint               how far the broker had read the metadata store
    .clean-shutdown                   there only between a clean stop and the next start
    replication-offset-checkpoint     high watermarks
    recovery-point-offset-checkpoint  how far each log is flushed
    held-replicas-checkpoint          topic ids and high watermarks that show what a log lost
    TOPIC-PARTITION/                  one log, with the topic's id in partition.metadata and what is
                                      flushed in segment-inventory
    NAME.NUMBER.delete/               a deleted log that is still to be removed
    NAME.TIME-stray/                  a log that the store does not assign to this broker, or whose
                                      topic id was lost (`strays.py`)

Anything else is left alone.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID, uuid4

from insync.storage.checkpoints import Partition
from insync.storage.config import LogConfig
from insync.storage.disk import Disk, DiskLock
from insync.storage.errors import (
    CorruptFile,
    DirectoryInUse,
    DirectoryNotWritable,
    DiskError,
    StorageRefusal,
)
from insync.storage.files import FILES_OPEN_MAX
from insync.storage.inventory import Damage
from insync.storage.log import Log
from insync.storage.log_names import LOG_NAME, log_name
from insync.storage.open_logs import OpenLogs
from insync.storage.owner import Admit, admit_every_directory, claim
from insync.storage.partition_metadata import TOPIC_ID, read_topic_id, write_topic_id
from insync.storage.renamed_logs import RenamedLogs
from insync.storage.upkeep import Upkeep

LOCK: Final = ".lock"
CLEAN: Final = ".clean-shutdown"

NOT_A_LOG_FILE: Final = frozenset({errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""Errors that say that something else is in the place of a file, not that the disk fails."""

logger = logging.getLogger(__name__)


class LogDirectory(OpenLogs):
    """The logs of one broker, opened once per process and locked against other processes.

    - A log of another topic id is never used as the partition's log, nor deleted: it is set aside.
    - `was_clean`: the last process that used the directory stopped cleanly.
    - Logs are opened and removed in one thread. Another one flushes (`_upkeep`).
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DiskLock | None,
        config_of: Callable[[str], LogConfig],
        files_max: int,
        *,
        directory_id: UUID,
    ) -> None:
        super().__init__(disk, path, config_of, files_max)
        self._lock = lock
        self._renamed = RenamedLogs(disk, path)
        self._upkeep = Upkeep(self.logs, self._checkpoints)
        self.directory_id = directory_id
        self.was_clean = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        cluster_id: str,
        broker_id: int,
        lock: bool,
        now_ms: int,
        config_of: Callable[[str], LogConfig] = lambda _: LogConfig(),
        files_max: int = FILES_OPEN_MAX,
        new_id: Callable[[], UUID] = uuid4,
        admit: Admit = admit_every_directory,
    ) -> LogDirectory:
        """Take the directory, made if it is not there, and open every log in it.

        `admit` is called before anything in it is changed, and may refuse it.
        """
        directory_lock = _lock_directory(disk, path) if lock else None
        try:
            directory_id = claim(
                disk,
                path,
                cluster_id=cluster_id,
                broker_id=broker_id,
                new_id=new_id,
                admit=admit,
            )
            directory = cls(
                disk, path, directory_lock, config_of, files_max, directory_id=directory_id
            )
            directory._open_logs(now_ms)
        except BaseException:
            if directory_lock is not None:
                directory_lock.release()
            raise
        return directory

    def create(self, topic: str, partition: int, *, topic_id: UUID, now_ms: int) -> Log:
        """The log of a partition of just this topic; data of an earlier namesake is set aside."""
        key, name = (topic, partition), log_name(topic, partition)
        replica = self.replica_checkpoint.get(key)
        if replica is not None and replica.topic_id != topic_id:
            self.damaged.pop(key, None)  # of an earlier topic of that name
        self._identify_unopened(key, name)
        if key in self.logs:
            if self.topic_ids[key] == topic_id:
                return self.logs[key]
            self._set_aside(key, now_ms)
            self._detach(key)
        elif name in self.strays:
            self.strays.remove(name)
            self._set_aside(key, now_ms)
        self._refuse_link(f"{self.path}/{name}")
        unopened = self._unopened.get(key)
        if unopened is not None:
            if unopened.topic_id == topic_id:
                return self._open_again(key, topic_id, unopened.recovery_point, now_ms)
            self._set_aside(key, now_ms)
            self._forget_unopened(key)
        return self._create_log(key, topic_id, now_ms)

    def _open_again(self, key: Partition, topic_id: UUID, recovery_point: int, now_ms: int) -> Log:
        """Try again to open a log that the disk refused: perhaps it can be read now."""
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=recovery_point)
        self._forget_unopened(key)
        self._check_watermark(key, log)
        if (replica := self.replica_checkpoint.get(key)) is not None:
            self._check_against_checkpoint(key, replica)
        return log

    def _create_log(self, key: Partition, topic_id: UUID, now_ms: int) -> Log:
        path = f"{self.path}/{log_name(*key)}"
        if self._has_segments(path):
            self._set_aside(key, now_ms)  # of a topic id that nothing here knows
        watermark = self._checkpoints.forget_watermark(key)
        self._disk.make_dirs(path)
        self._disk.write_atomic(f"{path}/{TOPIC_ID}", write_topic_id(topic_id))
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=0)
        if key in self.damaged:  # its earlier files were set aside
            self.mark(key, Damage(reason=self.damaged[key], up_to=watermark))
        elif log.damage is not None:
            self.damaged[key] = log.damage.reason
        return log

    def _identify_unopened(self, key: Partition, name: str) -> None:
        """Read the topic id of a log that was not opened, if that is what the disk refused."""
        unopened = self._unopened.get(key)
        if unopened is not None and unopened.topic_id is None:
            topic_id = self._read_topic_id(key, name)
            if topic_id is None:  # it is a stray
                self._unopened.remove(key)
            else:
                self._unopened.put(key, topic_id, recovery_point=unopened.recovery_point)

    def _forget_unopened(self, key: Partition) -> None:
        self._unopened.remove(key)
        self.damaged.pop(key, None)

    def delete(self, topic: str, partition: int) -> None:
        """Take a log out of use at once; `remove_deleted` frees its space."""
        key = (topic, partition)
        # First: if the disk refuses, the log is still known, and nothing takes its place.
        self._renamed.rename_to_deleted(key)
        self._detach(key)
        self.damaged.pop(key, None)

    def remove_deleted(self) -> int:
        """Remove the deleted logs from the disk; return how many there were. Blocks."""
        return self._renamed.remove_deleted()

    def set_aside(self, topic: str, partition: int, *, now_ms: int) -> str:
        """Take a log out of use and keep it as a stray; return its name, for the caller to log.

        What is known of damage stays: the log may not be the one that was checkpointed.
        """
        stray = self._renamed.rename_to_stray((topic, partition), now_ms)
        self._detach((topic, partition))
        return stray

    def _set_aside(self, key: Partition, now_ms: int) -> None:
        """Rename what is in the place of a partition's log, and log it."""
        stray = self._renamed.rename_to_stray(key, now_ms)
        logger.info("%s/%s: set aside as %s", self.path, log_name(*key), stray)

    def bring_back(self, stray: str, key: Partition, *, topic_id: UUID, now_ms: int) -> Log:
        """Use a stray as the log of a partition again. What is in its place is set aside."""
        path = f"{self.path}/{log_name(*key)}"
        self._refuse_link(path)
        if key in self.logs:
            self._set_aside(key, now_ms)
            self._detach(key)
        elif self._is_folder(path):
            self._set_aside(key, now_ms)
            self._unopened.remove(key)
            if log_name(*key) in self.strays:
                self.strays.remove(log_name(*key))
        self._checkpoints.forget_watermark(key)  # perhaps of an earlier namesake
        self._disk.rename(f"{self.path}/{stray}", path)
        self._unopened.put(key, topic_id, recovery_point=0)
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=0)
        self._forget_unopened(key)
        self._check_watermark(key, log)
        replica = self.replica_checkpoint.get(key)
        if replica is not None and replica.topic_id == topic_id:
            self._check_against_checkpoint(key, replica)
        return log

    def _has_segments(self, path: str) -> bool:
        try:
            return any(name.endswith(".log") for name in self._disk.list(path))
        except DiskError as error:
            if error.errno not in NOT_A_LOG_FILE:
                raise
            return False

    def _is_folder(self, path: str) -> bool:
        try:
            self._disk.list(path)
        except DiskError:
            return False
        return True

    def mark_untrusted(self, key: Partition, reason: str, *, topic_id: UUID, now_ms: int) -> None:
        """Write durably that the log of a replica is not the one that its state speaks of.

        It is made if it is not there: else the next start would know nothing of it.
        """
        log = self.create(*key, topic_id=topic_id, now_ms=now_ms)
        if log.damage is None:
            self.damaged[key] = reason
            log.mark_damaged(Damage(reason=reason, up_to=0))
        self._flush_topic_id(log.path)
        log.flush_inventory()

    # Checkpoints, upkeep and closing.

    def read_watermarks(self) -> dict[Partition, int]:
        """The high watermarks last written; none of a file that cannot be read.

        A leader raises a watermark that is too low again; `limit_watermark` lowers others.
        """
        return self._checkpoints.read_watermarks()

    def limit_watermark(self, key: Partition, topic_id: UUID, watermark: int) -> int:
        """At most what the replica checkpoint has for this topic."""
        limit = self.replica_checkpoint.high_watermark_of(key, topic_id, default=watermark)
        return min(watermark, limit)

    def write_watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        """Write them if they changed. May run in another thread."""
        self._upkeep.write_watermarks(watermarks)

    def flush_due(self, *, now_ms: int) -> None:
        """Flush what waited long enough, and write how far logs need not be checked. Blocks.

        Runs in another thread.
        """
        self._upkeep.flush_due(now_ms)

    def remove_expired_segments(self) -> None:
        """Remove the files of segments that retention took out of use. Blocks.

        Runs in another thread.
        """
        self._upkeep.remove_expired_segments()

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self.path)

    @property
    def files_open(self) -> int:
        return self._files.open_count

    def close(self) -> None:
        """Stop cleanly: the next start believes what is on disk without reading the logs.

        If the disk refuses, the next start recovers all of them.
        """
        with self._upkeep.closing():
            # What is past the recovery point of a log that was not opened is not verified yet.
            failures = [f"{log_name(*key)} was not opened" for key in self._unopened]
            try:
                self._upkeep.close_logs(self._write_clean_stop, failures)
            finally:
                if self._lock is not None:
                    self._lock.release()
            if failures:
                logger.warning(
                    "%s: the next start will recover the logs: %s", self.path, failures[0]
                )

    def _write_clean_stop(self) -> None:
        self._disk.write_atomic(f"{self.path}/{CLEAN}", b"")

    # Opening.

    def _open_logs(self, now_ms: int) -> None:
        names = self._disk.list(self.path)
        self.was_clean = CLEAN in names
        # Before anything else is touched: if we die from here on, the stop was not clean.
        self._disk.remove(f"{self.path}/{CLEAN}")
        points = self._checkpoints.read_at_start()
        self.replica_checkpoint.read()
        self._renamed.learn(names)
        for name in names:
            if (match := LOG_NAME.fullmatch(name)) is not None:
                key = (match[1], int(match[2]))
                self._try_open(key, name, now_ms=now_ms, recovery_point=points.get(key, 0))
        self._find_damage()

    def _try_open(self, key: Partition, name: str, *, now_ms: int, recovery_point: int) -> None:
        """Open a log that is there. If it cannot be opened, the others are opened all the same."""
        try:
            self._open_found(key, name, now_ms=now_ms, recovery_point=recovery_point)
        except StorageRefusal as refusal:
            logger.error("%s: not opened: %s", name, refusal)
            is_refused_by_disk = (
                isinstance(refusal, DiskError) and refusal.errno not in NOT_A_LOG_FILE
            )
            if is_refused_by_disk and key in self._unopened:
                self._unopened.refuse(key, str(refusal))
            else:
                self.damaged[key] = str(refusal)

    def _open_found(self, key: Partition, name: str, *, now_ms: int, recovery_point: int) -> None:
        self._refuse_link(f"{self.path}/{name}")
        self._unopened.put(key, None, recovery_point=recovery_point)
        topic_id = self._read_topic_id(key, name)
        if topic_id is None:
            self._unopened.remove(key)
            return
        self._unopened.put(key, topic_id, recovery_point=recovery_point)
        log = self._open_log(
            key, topic_id, now_ms=now_ms, recovery_point=recovery_point, clean=self.was_clean
        )
        self._unopened.remove(key)
        self._check_watermark(key, log)

    def _refuse_link(self, path: str) -> None:
        if self._disk.is_link(path):
            raise DiskError(errno.ELOOP, path)

    def _read_topic_id(self, key: Partition, name: str) -> UUID | None:
        """None if there is no log, or one whose topic id is lost: then it is a stray."""
        try:
            names = self._disk.list(f"{self.path}/{name}")
        except DiskError as error:
            if error.errno not in NOT_A_LOG_FILE:
                raise
            return None  # a file with a log's name: not ours
        try:
            return read_topic_id(self._disk.read_all(f"{self.path}/{name}/{TOPIC_ID}"))
        except (CorruptFile, DiskError) as error:
            if isinstance(error, DiskError) and error.errno not in NOT_A_LOG_FILE:
                raise
            # Made and never written to: the next `create` may have it.
            if any(file.endswith(".log") for file in names):
                logger.warning(
                    "%s/%s: not opened: %s cannot be read; it is set aside if the partition is "
                    "still assigned to this broker; restore that file and restart the broker",
                    self.path,
                    name,
                    TOPIC_ID,
                )
                self.strays.append(name)
                self.damaged[key] = "its topic id cannot be read"
            return None


def _lock_directory(disk: Disk, path: str) -> DiskLock:
    try:
        disk.make_dirs(path)
        directory_lock = disk.lock(f"{path}/{LOCK}")
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
    if directory_lock is None:
        raise DirectoryInUse(f"{path} is used by another broker; stop it or give another log.dirs")
    return directory_lock
