"""A data directory: the logs of one broker of one cluster, and whose they are.

    .lock                             held by the process that uses the directory
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
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from threading import Lock
from typing import Final
from uuid import UUID, uuid4

from insync.storage.checkpoints import (
    RECOVERY_POINTS,
    WATERMARKS,
    Partition,
    read_offsets,
    write_offsets,
)
from insync.storage.config import NEVER, LogConfig
from insync.storage.disk import Disk, DiskLock
from insync.storage.errors import (
    BadLogName,
    CorruptFile,
    DirectoryInUse,
    DirectoryNotWritable,
    DiskError,
    LogFailed,
    StorageRefusal,
)
from insync.storage.files import FILES_OPEN_MAX, FilePool
from insync.storage.held_replicas import HeldReplica, HeldReplicas
from insync.storage.inventory import Damage
from insync.storage.log import Log
from insync.storage.owner import Admit, admit_every_directory, claim
from insync.storage.partition_metadata import TOPIC_ID, read_topic_id, write_topic_id

LOCK: Final = ".lock"
CLEAN: Final = ".clean-shutdown"
DELETED: Final = ".delete"
STRAY: Final = "-stray"

NAME_KEPT_CHARACTERS: Final = 200
"""Of a log's name when it is moved aside: with number and suffix it stays a legal file name."""

FLUSH_AFTER_MS: Final = 60_000
"""A log is flushed at the latest so long after its last flush. A killed broker that starts again
reads through what came later, and the last segment of each log."""

_DELETED_NAME = re.compile(rf".*\.(\d+){re.escape(DELETED)}")
_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
STRAY_NAME: Final = re.compile(rf"{_LOG_NAME.pattern}\.(0|[1-9]\d{{0,14}}){STRAY}")

NOT_A_LOG_FILE: Final = frozenset({errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""Errors that say that something else is in the place of a file, not that the disk fails."""

logger = logging.getLogger(__name__)


def log_name(topic: str, partition: int) -> str:
    """The directory of one log, or `BadLogName`: a topic name never leads out of `log.dirs`."""
    name = f"{topic}-{partition}"
    match = _LOG_NAME.fullmatch(name)
    if match is None or match[1] != topic or topic in (".", ".."):
        raise BadLogName(
            f"{topic!r} partition {partition} cannot be a directory; "
            "topic names are 1 to 249 of a-z A-Z 0-9 . _ -"
        )
    return name


class LogDirectory:
    """The logs of one broker, opened once per process and locked against other processes.

    - `logs` and `topic_ids` have the same keys: the logs that are open.
    - A log of another topic id is never used as the partition's log, nor deleted: it is set aside.
    - `damaged` has the replicas that must not lead. It outlives a restart, because the damage is
      noted with the log, or the note in `held` still shows what the log lacks.
    - Logs are opened and removed in one thread. Other threads flush, write checkpoints and mark
      damage.
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
        self._disk = disk
        self._lock = lock
        self._config_of = config_of
        self._files = FilePool(disk, files_max=files_max)
        self.path = path
        self.directory_id = directory_id
        self.was_clean = False
        self.logs: dict[Partition, Log] = {}
        self.topic_ids: dict[Partition, UUID] = {}
        self.strays: list[str] = []  # logs that were not opened, because their topic is unknown
        self.damaged: dict[Partition, str] = {}
        """Replicas that may lack records they had, and why: what is left of them must not lead."""
        self.unopened: dict[Partition, str] = {}
        """Replicas whose log the disk refused to open, and why. `create` tries again: what they
        lack, if anything, is known then."""
        self.held = HeldReplicas(
            disk, path, is_kept=lambda key: key in self.damaged or key in self.unopened
        )
        """Notes that show what a log lost. That of a damaged log stays until the damage ends."""
        self.on_failure: Callable[[Partition], None] = lambda _: None
        """Called when a log has failed or is found damaged, in the thread that noticed it."""
        self.has_new_logs = False
        """Whether a log is not noted yet: it should be before anything in it is committed."""
        self._refused: dict[Partition, tuple[UUID | None, int]] = {}
        """Logs that could not be opened: topic id, if it could be read, and recovery point."""
        self._watermarks_at_start: dict[Partition, int] = {}
        self._upkeep = Lock()  # held while another thread flushes or writes checkpoints
        self._writing = Lock()  # held for one small file
        self._is_closed = False
        self._deleted_number = 0  # of the next log that is deleted
        self._stray_names: set[str] = set()
        self._written: dict[str, Mapping[Partition, int]] = {}

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
        held = _lock_directory(disk, path) if lock else None
        try:
            directory_id = claim(
                disk,
                path,
                cluster_id=cluster_id,
                broker_id=broker_id,
                new_id=new_id,
                admit=admit,
            )
            directory = cls(disk, path, held, config_of, files_max, directory_id=directory_id)
            directory._open_logs(now_ms)
        except BaseException:
            if held is not None:
                held.release()
            raise
        return directory

    def create(self, topic: str, partition: int, *, topic_id: UUID, now_ms: int) -> Log:
        """The log of a partition of just this topic; data of an earlier namesake is set aside."""
        key, name = (topic, partition), log_name(topic, partition)
        if (held := self.held.get(key)) is not None and held.topic_id != topic_id:
            self.damaged.pop(key, None)  # of an earlier topic of that name
        if key in self._refused:
            self._identify_refused(key, name)
        if key in self.logs:
            if self.topic_ids[key] == topic_id:
                return self.logs[key]
            self._set_aside(key, now_ms)
            self._detach(key)
        elif name in self.strays:
            self.strays.remove(name)
            self._set_aside(key, now_ms)
        path = f"{self.path}/{name}"
        self._refuse_link(path)
        if key in self._refused:
            if self._refused[key][0] == topic_id:
                return self._open_refused(key, topic_id, now_ms)
            self._set_aside(key, now_ms)
            self._forget_refused(key)
        return self._create_log(key, topic_id, now_ms)

    def _open_refused(self, key: Partition, topic_id: UUID, now_ms: int) -> Log:
        """Try again to open a log that the disk refused: perhaps it can be read now."""
        recovery_point = self._refused[key][1]
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=recovery_point)
        self._forget_refused(key)
        self._check_watermark(key, log)
        if (held := self.held.get(key)) is not None:
            self._check_against_checkpoint(key, held)
        return log

    def _create_log(self, key: Partition, topic_id: UUID, now_ms: int) -> Log:
        path = f"{self.path}/{log_name(*key)}"
        if self._has_segments(path):
            self._set_aside(key, now_ms)  # of a topic id that nothing here knows
        watermark = self._forget_watermark(key)
        self._disk.make_dirs(path)
        self._disk.write_atomic(f"{path}/{TOPIC_ID}", write_topic_id(topic_id))
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=0)
        if key in self.damaged:  # its earlier files were set aside
            self.mark(key, Damage(reason=self.damaged[key], up_to=watermark))
        elif log.damage is not None:
            self.damaged[key] = log.damage.reason
        return log

    def _identify_refused(self, key: Partition, name: str) -> None:
        """Read the topic id of a log that was not opened, if that is what the disk refused."""
        topic_id, recovery_point = self._refused[key]
        if topic_id is None:
            topic_id = self._read_topic_id(key, name)
            if topic_id is None:  # it is a stray
                del self._refused[key], self.unopened[key]
            else:
                self._refused[key] = topic_id, recovery_point

    def _forget_refused(self, key: Partition) -> None:
        self._refused.pop(key, None)
        self.unopened.pop(key, None)
        self.damaged.pop(key, None)

    def mark(self, key: Partition, damage: Damage) -> None:
        """Let the replica count as damaged, and note it with the log if that is open.

        The log itself goes on, unlike after `mark_damaged`.
        """
        self.damaged[key] = damage.reason
        if key in self.logs:
            try:
                self.logs[key].mark_damaged(damage)
            except DiskError as error:
                logger.warning("%s-%d: damage is not noted: %s", *key, error)

    def apply_configs(self, topics: AbstractSet[str] | None) -> None:
        """Apply the current settings to the open logs of these topics, or (None) of all."""
        configs: dict[str, LogConfig] = {}
        for (topic, _), log in self.logs.items():
            if topics is None or topic in topics:
                if topic not in configs:
                    configs[topic] = self._config_of(topic)
                before, log.config = log.config, configs[topic]
                if before.flush_messages == NEVER != log.config.flush_messages:
                    try:
                        self._flush_topic_id(log.path)
                    except DiskError as error:
                        log.fail(str(error))
                        logger.warning(
                            "%s: failed, cannot flush as log.flush.interval.messages requires: %s",
                            log.path,
                            error,
                        )

    def delete(self, topic: str, partition: int) -> None:
        """Take a log out of use at once; `remove_deleted` frees its space."""
        self._delete(topic, partition)
        self.damaged.pop((topic, partition), None)

    def _delete(self, topic: str, partition: int) -> None:
        key, name = (topic, partition), log_name(topic, partition)
        # A new number each time, so that thousands of logs are moved without listing the directory.
        number, self._deleted_number = self._deleted_number, self._deleted_number + 1
        deleted = f"{self.path}/{name[:NAME_KEPT_CHARACTERS]}.{number}{DELETED}"
        # First: if the disk refuses, the log is still known, and nothing takes its place.
        self._disk.rename(self.logs[key].path, deleted)
        self._detach(key)

    def _detach(self, key: Partition) -> Log:
        log = self.logs.pop(key)
        del self.topic_ids[key]
        log.detach()
        return log

    def set_aside(self, topic: str, partition: int, *, now_ms: int) -> str:
        """Take a log out of use and keep it as a stray; return its name, for the caller to log.

        What is known of damage stays: the log may not be the one that was noted.
        """
        stray = self._rename_to_stray((topic, partition), now_ms)
        self._detach((topic, partition))
        return stray

    def _set_aside(self, key: Partition, now_ms: int) -> None:
        """Rename what is in the place of a partition's log, and log it."""
        stray = self._rename_to_stray(key, now_ms)
        logger.info("%s/%s: set aside as %s", self.path, log_name(*key), stray)

    def _rename_to_stray(self, key: Partition, now_ms: int) -> str:
        name, kept = log_name(*key), f"{key[0][:NAME_KEPT_CHARACTERS]}-{key[1]}"
        while (stray := f"{kept}.{now_ms}{STRAY}") in self._stray_names:
            now_ms += 1
        self._disk.rename(f"{self.path}/{name}", f"{self.path}/{stray}")
        self._stray_names.add(stray)
        return stray

    def topic_id_of(self, key: Partition) -> UUID | None:
        """Of the log in the partition's place, also of one that could not be opened."""
        refused = self._refused.get(key)
        return self.topic_ids.get(key) if refused is None else refused[0]

    def bring_back(self, stray: str, key: Partition, *, topic_id: UUID, now_ms: int) -> Log:
        """Use a stray as the log of a partition again. What is in its place is set aside."""
        path = f"{self.path}/{log_name(*key)}"
        self._refuse_link(path)
        if key in self.logs:
            self._set_aside(key, now_ms)
            self._detach(key)
        elif self._is_folder(path):
            self._set_aside(key, now_ms)
            self._refused.pop(key, None)
            self.unopened.pop(key, None)
            if log_name(*key) in self.strays:
                self.strays.remove(log_name(*key))
        self._forget_watermark(key)  # perhaps of an earlier namesake
        self._disk.rename(f"{self.path}/{stray}", path)
        self._refused[key] = topic_id, 0
        log = self._open_log(key, topic_id, now_ms=now_ms, recovery_point=0)
        self._forget_refused(key)
        self._check_watermark(key, log)
        if (held := self.held.get(key)) is not None and held.topic_id == topic_id:
            self._check_against_checkpoint(key, held)
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

    def remove_deleted(self) -> int:
        """Remove the deleted logs from the disk; return how many there were. Blocks."""
        deleted = [name for name in self._disk.list(self.path) if name.endswith(DELETED)]
        for name in deleted:
            self._disk.remove_tree(f"{self.path}/{name}")
        return len(deleted)

    def read_watermarks(self) -> dict[Partition, int]:
        """The high watermarks last written; none of a file that cannot be read.

        A leader raises a watermark that is too low again; `limit_watermark` lowers others.
        """
        return self._read_offsets(WATERMARKS)

    def limit_watermark(self, key: Partition, topic_id: UUID, watermark: int) -> int:
        """At most what was noted of this topic.

        The file of watermarks has no checksum, and names where ids are needed. Without a note,
        which directories of earlier versions lack, as the file says.
        """
        noted = self.held.high_watermark_of(key, topic_id)
        return watermark if noted is None else min(watermark, noted)

    def write_watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        """Write them if they changed. May run in another thread."""
        with self._upkeep:
            self._write_offsets(WATERMARKS, watermarks)

    # Damage.

    def mark_damaged(self, key: Partition, reason: str) -> None:
        """A log that is open has lost records: it fails, and the next start decides again.

        May run in another thread.
        """
        log = self.logs.get(key)
        if key not in self.damaged:
            self.mark(key, Damage(reason=reason, up_to=0 if log is None else log.end))
        if log is not None and not log.has_failed:
            log.fail(reason)

    def mark_untrusted(self, key: Partition, reason: str, *, topic_id: UUID, now_ms: int) -> None:
        """Note durably that the log of a replica is not the one that its state speaks of.

        It is made if it is not there: else the next start would know nothing of it.
        """
        log = self.create(*key, topic_id=topic_id, now_ms=now_ms)
        if log.damage is None:
            self.damaged[key] = reason
            log.mark_damaged(Damage(reason=reason, up_to=0))
        self._flush_topic_id(log.path)
        log.flush_note()

    def end_damage(self, key: Partition) -> None:
        """The log counts as whole from here on: its leader, or an operator, has accepted it."""
        log = self.logs[key]
        log.mark_damaged(None)
        self.held.lower(key, log.end)
        self.damaged.pop(key, None)

    def forget_damage(self, key: Partition) -> None:
        """This broker has no replica of that partition any more."""
        self.damaged.pop(key, None)

    def write_held_replicas(
        self,
        high_watermark_of: Callable[[Partition], int | None] = lambda _: None,
        *,
        flush: bool = True,
    ) -> None:
        """Note which replicas there are and how far they are committed. May run in a thread."""
        logs = [
            (key, topic_id, log)
            for key, log in list(self.logs.items())
            if (topic_id := self.topic_ids.get(key)) is not None
        ]
        self.held.write(logs, high_watermark_of, flush=flush)
        self.has_new_logs = False

    def _find_damage(self) -> None:
        """Compare the logs with what was noted of them."""
        for key, held in self.held.noted.items():
            self._check_against_checkpoint(key, held)

    def _check_against_checkpoint(self, key: Partition, held: HeldReplica) -> None:
        log = self.logs.get(key)
        if key in self.unopened and self._refused[key][0] in (None, held.topic_id):
            return
        if log is None:
            is_aside = log_name(*key) in self.strays
            self.damaged.setdefault(key, "it was set aside" if is_aside else "it is missing")
        elif self.topic_ids[key] != held.topic_id:
            self.damaged[key] = "its folder is of another topic id"
        elif log.end < held.high_watermark:
            self.damaged[key] = (
                f"it ends at offset {log.end}, below its high watermark {held.high_watermark}"
            )

    def flush_due(self, *, now_ms: int) -> None:
        """Flush what waited long enough, and note how far logs need not be checked. Blocks.

        Runs in another thread. A log is due when a segment of it is complete, some time after it
        was last flushed, or when it was appended to under settings that allowed more unflushed
        records; a log that fails stays as it is, and is reported when it is used.
        """
        try:
            self._flush_due(now_ms)
        finally:  # above all on a full disk
            self.remove_expired_segments()

    def _flush_due(self, now_ms: int) -> None:
        with self._upkeep:
            if self._is_closed:
                return
            for log in list(self.logs.values()):
                if log.recovery_point == log.end or log.has_failed:
                    log.flushed_at_ms = now_ms  # from here on something may wait
                    self._note(log)
                    continue
                patience_ms = min(FLUSH_AFTER_MS, log.config.flush_ms)
                is_old = now_ms - log.flushed_at_ms >= patience_ms
                if is_old or log.has_unflushed_segment or log.is_flush_due:
                    log.flushed_at_ms = now_ms
                    try:
                        log.flush()
                    except StorageRefusal as refusal:
                        logger.warning("%s: not flushed: %s", log.path, refusal)
                    self._note(log)
            self._write_recovery_points()

    def _note(self, log: Log) -> None:
        """Note what is flushed; of a log that has failed, only damage."""
        try:
            if log.has_failed:
                log.note_damage()
            else:
                log.note()
        except DiskError as error:
            if not log.has_failed:
                logger.warning("%s: segment-inventory is not written: %s", log.path, error)

    def remove_expired_segments(self) -> None:
        """Remove the files of segments that retention took out of use. Blocks.

        Runs in another thread. What the disk refuses is tried again the next time.
        """
        for log in list(self.logs.values()):
            if not log.has_expired_files:
                continue
            with self._upkeep:  # for one log at a time: a clean stop may wait for it
                if self._is_closed:
                    return  # the directory may be another process's now
                try:
                    log.remove_expired_files()
                except DiskError as error:
                    if not log.has_failed:
                        logger.warning(
                            "%s: expired segments are not deleted: %s; trying again",
                            log.path,
                            error,
                        )

    def _write_recovery_points(self) -> None:
        points = {key: log.recovery_point for key, log in list(self.logs.items())}
        self._write_offsets(RECOVERY_POINTS, points)

    def _write_offsets(self, name: str, offsets: Mapping[Partition, int]) -> None:
        with self._writing:
            if self._written.get(name) != offsets:
                self._disk.write_atomic(f"{self.path}/{name}", write_offsets(offsets))
                self._written[name] = offsets

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self.path)

    @property
    def files_open(self) -> int:
        return self._files.open_count

    def close(self) -> None:
        """Stop cleanly: the next start believes what is on disk without reading the logs.

        If the disk refuses, the next start recovers all of them.
        """
        with self._upkeep:
            self._is_closed = True
            # What is past the recovery point of a log that was not opened is not verified yet.
            failures = [f"{log_name(*key)} was not opened" for key in self._refused]
            for log in self.logs.values():
                try:
                    log.close()
                except (DiskError, LogFailed) as error:
                    failures.append(str(error))
            try:
                if not failures:
                    self._write_recovery_points()
                    self._disk.write_atomic(f"{self.path}/{CLEAN}", b"")
            except DiskError as error:
                failures.append(str(error))
            finally:
                if self._lock is not None:
                    self._lock.release()
            if failures:
                logger.warning(
                    "%s: the next start will recover the logs: %s", self.path, failures[0]
                )

    def _open_logs(self, now_ms: int) -> None:
        names = self._disk.list(self.path)
        self.was_clean = CLEAN in names
        # Before anything else is touched: if we die from here on, the stop was not clean.
        self._disk.remove(f"{self.path}/{CLEAN}")
        points = self._read_offsets(RECOVERY_POINTS)
        self._watermarks_at_start = self.read_watermarks()
        self.held.read()
        for name in names:
            if (deleted := _DELETED_NAME.fullmatch(name)) is not None:
                self._deleted_number = max(self._deleted_number, int(deleted[1]) + 1)
                continue
            if name.endswith(STRAY):
                self._stray_names.add(name)
                continue
            match = _LOG_NAME.fullmatch(name)
            if match is None:
                continue
            key = (match[1], int(match[2]))
            try:
                self._open_found(key, name, now_ms=now_ms, recovery_point=points.get(key, 0))
            except StorageRefusal as refusal:  # the other logs are opened
                logger.error("%s: not opened: %s", name, refusal)
                is_refused_by_disk = (
                    isinstance(refusal, DiskError) and refusal.errno not in NOT_A_LOG_FILE
                )
                if is_refused_by_disk and key in self._refused:
                    self.unopened[key] = str(refusal)
                else:
                    self.damaged[key] = str(refusal)
        self._find_damage()

    def _open_found(self, key: Partition, name: str, *, now_ms: int, recovery_point: int) -> None:
        self._refuse_link(f"{self.path}/{name}")
        self._refused[key] = None, recovery_point
        topic_id = self._read_topic_id(key, name)
        if topic_id is None:
            del self._refused[key]
            return
        self._refused[key] = topic_id, recovery_point
        log = self._open_log(
            key, topic_id, now_ms=now_ms, recovery_point=recovery_point, clean=self.was_clean
        )
        del self._refused[key]
        self._check_watermark(key, log)

    def _check_watermark(self, key: Partition, log: Log) -> None:
        watermark = self._watermarks_at_start.get(key, 0)
        if log.damage is not None:
            self.damaged[key] = log.damage.reason
        elif (
            self.held.get(key) is None and log.end < watermark
        ):  # a directory of an earlier version
            logger.error(
                "%s: damaged: it ends at offset %d, below its high watermark %d",
                log_name(*key),
                log.end,
                watermark,
            )
            reason = f"it ends at {log.end}, below its high watermark {watermark}"
            self.mark(key, Damage(reason=reason, up_to=watermark))

    def _refuse_link(self, path: str) -> None:
        if self._disk.is_link(path):
            raise DiskError(errno.ELOOP, path)

    def _forget_watermark(self, key: Partition) -> int:
        """A new log has no watermark: that of an earlier namesake would make it look damaged."""
        known = dict(self._written.get(WATERMARKS, self._watermarks_at_start))
        self._watermarks_at_start.pop(key, None)
        watermark = known.pop(key, None)
        if watermark is not None:
            self._write_offsets(WATERMARKS, known)
        return watermark or 0

    def _add(self, key: Partition, log: Log, topic_id: UUID) -> None:
        log.on_failure = lambda: self._on_failure(key, log)
        log.truncating = partial(self.held.lowered_before_truncation, key)
        self.logs[key], self.topic_ids[key] = log, topic_id
        self.has_new_logs = True

    def _on_failure(self, key: Partition, log: Log) -> None:
        if self.logs.get(key) is log:  # else it was deleted
            self.on_failure(key)

    def _open_log(
        self,
        key: Partition,
        topic_id: UUID,
        *,
        now_ms: int,
        recovery_point: int,
        clean: bool = False,
    ) -> Log:
        path, config = f"{self.path}/{log_name(*key)}", self._config_of(key[0])
        if config.flush_messages != NEVER:
            self._flush_topic_id(path)
        log = Log.open(
            self._disk,
            path,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            high_watermark=self._noted_watermark(key, topic_id),
            files=self._files,
            identity=f"{log_name(*key)} {topic_id}",
        )
        self._add(key, log, topic_id)
        return log

    def _noted_watermark(self, key: Partition, topic_id: UUID) -> int:
        noted = self.held.high_watermark_of(key, topic_id)
        # Without a note it is a directory of an earlier version.
        return self._watermarks_at_start.get(key, 0) if noted is None else noted

    def _flush_topic_id(self, path: str) -> None:
        """A log that loses it is set aside at the next start, with what was acknowledged."""
        self._disk.open(f"{path}/{TOPIC_ID}").flush()

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
                    "%s/%s: not opened: %s cannot be read; restore that file, or delete the folder",
                    self.path,
                    name,
                    TOPIC_ID,
                )
                self.strays.append(name)
                self.damaged[key] = "its topic id cannot be read"
            return None

    def _read_offsets(self, name: str) -> dict[Partition, int]:
        try:
            return read_offsets(self._disk.read_all(f"{self.path}/{name}"))
        except DiskError:
            return {}
        except CorruptFile as error:
            logger.warning("%s/%s: ignored: %s", self.path, name, error)
            return {}


def _lock_directory(disk: Disk, path: str) -> DiskLock:
    try:
        disk.make_dirs(path)
        held = disk.lock(f"{path}/{LOCK}")
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
    if held is None:
        raise DirectoryInUse(f"{path} is used by another broker; stop it or give another log.dirs")
    return held
