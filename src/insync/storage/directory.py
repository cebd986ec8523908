"""A data directory: the logs of one broker of one cluster, and whose they are.

    .lock                             held by the process that uses the directory
    meta.properties                   cluster and broker it belongs to
    .clean-shutdown                   there only between a clean stop and the next start
    replication-offset-checkpoint     high watermarks
    recovery-point-offset-checkpoint  how far each log is flushed
    TOPIC-PARTITION/                  one log, with the topic's id in partition.metadata
    NAME.NUMBER.delete/               a deleted log that is still to be removed
    NAME.NUMBER.stray/                a log whose topic id was lost, moved out of the way

Anything else is left alone.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Final
from uuid import UUID

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
    WrongDirectory,
)
from insync.storage.files import FILES_OPEN_MAX, FilePool
from insync.storage.log import Log

LOCK: Final = ".lock"
META: Final = "meta.properties"
CLEAN: Final = ".clean-shutdown"
TOPIC_ID: Final = "partition.metadata"
DELETED: Final = ".delete"
STRAY: Final = ".stray"

NAME_KEPT_CHARACTERS: Final = 200
"""Of a log's name when it is moved aside: with number and suffix it stays a legal file name."""

FLUSH_AFTER_MS: Final = 60_000
"""Records older than this are read through when a killed broker starts again, younger ones too."""

_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})")

logger = logging.getLogger(__name__)


def log_name(topic: str, partition: int) -> str:
    """The directory of one log, or `BadLogName`: a topic's name never leads out of its place."""
    name = f"{topic}-{partition}"
    found = _LOG_NAME.fullmatch(name)
    if found is None or found[1] != topic or topic in (".", ".."):
        raise BadLogName(
            f"{topic!r} partition {partition} cannot be a directory; "
            "topic names are 1 to 249 of a-z A-Z 0-9 . _ -"
        )
    return name


class LogDirectory:
    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DiskLock | None,
        config_of: Callable[[str], LogConfig],
        files_max: int,
    ) -> None:
        self._disk = disk
        self._lock = lock
        self._config_of = config_of
        self._files = FilePool(disk, files_max=files_max)
        self.path = path
        self.was_clean = False
        self.logs: dict[Partition, Log] = {}
        self.topic_ids: dict[Partition, UUID] = {}
        self.strays: list[str] = []  # logs not opened, because nobody knows whose they are
        self._upkeep = Lock()  # held while another thread flushes or writes checkpoints
        self._is_closed = False
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
    ) -> LogDirectory:
        """Take the directory, made if it is not there, and open every log in it."""
        held = _take(disk, path) if lock else None
        try:
            _check_owner(disk, path, cluster_id=cluster_id, broker_id=broker_id)
            directory = cls(disk, path, held, config_of, files_max)
            directory._open_logs(now_ms)
        except BaseException:
            if held is not None:
                held.release()
            raise
        return directory

    def create(self, topic: str, partition: int, *, topic_id: UUID, now_ms: int) -> Log:
        """The log of a partition of just this topic; data of an earlier namesake is set aside."""
        key, name = (topic, partition), log_name(topic, partition)
        if key in self.logs:
            if self.topic_ids[key] == topic_id:
                return self.logs[key]
            self.delete(topic, partition)
        elif name in self.strays:
            self.strays.remove(name)
            self._disk.rename(f"{self.path}/{name}", self._aside(name, STRAY))
        path = f"{self.path}/{name}"
        self._disk.make_dirs(path)
        self._disk.write_atomic(f"{path}/{TOPIC_ID}", _write_topic_id(topic_id))
        if self._config_of(topic).flush_messages != NEVER:
            # A log that lost its topic's id is set aside, and with it what was acknowledged.
            self._disk.open(f"{path}/{TOPIC_ID}").flush()
        log = self._open_log(topic, name, now_ms=now_ms, recovery_point=0)
        self.logs[key], self.topic_ids[key] = log, topic_id
        return log

    def take_configs(self, topics: AbstractSet[str] | None) -> None:
        """Let the open logs of these topics, or (None) of all, go by their settings of now."""
        configs: dict[str, LogConfig] = {}
        for (topic, _), log in self.logs.items():
            if topics is None or topic in topics:
                if topic not in configs:
                    configs[topic] = self._config_of(topic)
                log.config = configs[topic]

    def delete(self, topic: str, partition: int) -> None:
        """Take a log out of use at once; `remove_deleted` frees its space."""
        key, name = (topic, partition), log_name(topic, partition)
        log = self.logs.pop(key)
        del self.topic_ids[key]
        log.detach()
        self._disk.rename(log.path, self._aside(name, DELETED))

    def remove_deleted(self) -> int:
        """Remove the deleted logs from the disk; return how many there were. Blocks."""
        deleted = [name for name in self._disk.list(self.path) if name.endswith(DELETED)]
        for name in deleted:
            self._disk.remove_tree(f"{self.path}/{name}")
        return len(deleted)

    def read_watermarks(self) -> dict[Partition, int]:
        """The high watermarks last written; none of a file that cannot be read.

        A watermark is only ever too low then, and a leader raises it again.
        """
        return self._read_offsets(WATERMARKS)

    def write_watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        """Write them if they changed. May run in another thread."""
        with self._upkeep:
            self._write_offsets(WATERMARKS, watermarks)

    def flush_due(self, *, now_ms: int) -> None:
        """Flush what waited long enough, and note how far logs need not be checked. Blocks.

        Runs in another thread. A log is due when a segment of it is complete, or some time after
        it was last flushed; a log that fails stays as it is and is heard of when it is used.
        """
        with self._upkeep:
            if self._is_closed:
                return
            for log in list(self.logs.values()):
                if log.recovery_point == log.end or log.has_failed:
                    log.flushed_at_ms = now_ms  # from here on something may wait
                    continue
                patience_ms = min(FLUSH_AFTER_MS, log.config.flush_ms)
                if log.has_rolled or now_ms - log.flushed_at_ms >= patience_ms:
                    log.flushed_at_ms = now_ms
                    try:
                        log.flush()
                    except StorageRefusal as refusal:
                        logger.warning("not flushed: %s", refusal)
            self._write_recovery_points()

    def _write_recovery_points(self) -> None:
        points = {key: log.recovery_point for key, log in list(self.logs.items())}
        self._write_offsets(RECOVERY_POINTS, points)

    def _write_offsets(self, name: str, offsets: Mapping[Partition, int]) -> None:
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
            failures = []
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
                logger.warning("the next start will recover the logs: %s", failures[0])

    def _open_logs(self, now_ms: int) -> None:
        names = self._disk.list(self.path)
        self.was_clean = CLEAN in names
        # Before anything else is touched: if we die from here on, the stop was not clean.
        self._disk.remove(f"{self.path}/{CLEAN}")
        points = self._read_offsets(RECOVERY_POINTS)
        for name in names:
            found = _LOG_NAME.fullmatch(name)
            if found is None:
                continue
            key = (found[1], int(found[2]))
            topic_id = self._read_topic_id(name)
            if topic_id is None:
                continue
            log = self._open_log(
                key[0], name, now_ms=now_ms, recovery_point=points.get(key, 0), clean=self.was_clean
            )
            self.logs[key], self.topic_ids[key] = log, topic_id

    def _open_log(
        self, topic: str, name: str, *, now_ms: int, recovery_point: int, clean: bool = False
    ) -> Log:
        return Log.open(
            self._disk,
            f"{self.path}/{name}",
            self._config_of(topic),
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            files=self._files,
        )

    def _read_topic_id(self, name: str) -> UUID | None:
        try:
            names = self._disk.list(f"{self.path}/{name}")
        except DiskError:
            return None  # a file with a log's name: not ours
        try:
            return read_topic_id(self._disk.read_all(f"{self.path}/{name}/{TOPIC_ID}"))
        except (CorruptFile, DiskError):
            # Made and never written to: the next `create` may have it.
            if any(file.endswith(".log") for file in names):
                logger.warning("%s/%s: no topic id can be read; not opened", self.path, name)
                self.strays.append(name)
            return None

    def _read_offsets(self, name: str) -> dict[Partition, int]:
        try:
            return read_offsets(self._disk.read_all(f"{self.path}/{name}"))
        except DiskError:
            return {}
        except CorruptFile as error:
            logger.warning("%s/%s is not used: %s", self.path, name, error)
            return {}

    def _aside(self, name: str, suffix: str) -> str:
        taken = set(self._disk.list(self.path))
        number = 0
        while (aside := f"{name[:NAME_KEPT_CHARACTERS]}.{number}{suffix}") in taken:
            number += 1
        return f"{self.path}/{aside}"


def _take(disk: Disk, path: str) -> DiskLock:
    try:
        disk.make_dirs(path)
        held = disk.lock(f"{path}/{LOCK}")
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
    if held is None:
        raise DirectoryInUse(f"{path} is used by another broker; stop it or give another log.dirs")
    return held


def _check_owner(disk: Disk, path: str, *, cluster_id: str, broker_id: int) -> None:
    expected = {"version": "1", "cluster.id": cluster_id, "node.id": str(broker_id)}
    try:
        disk.make_dirs(path)
        if META not in disk.list(path):
            lines = (f"{name}={value}\n" for name, value in expected.items())
            disk.write_atomic(f"{path}/{META}", "".join(lines).encode())
            disk.open(f"{path}/{META}").flush()  # without it nobody could use the directory
            return
        text = disk.read_all(f"{path}/{META}").decode(errors="replace")
    except DiskError as error:
        raise DirectoryNotWritable(f"cannot write to the data directory: {error}") from error
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    for name, value in expected.items():
        if found.get(name) != value:
            raise WrongDirectory(
                f"{path}/{META} says {name}={found.get(name)!r}, this broker is {value!r}; "
                "give the broker its own log.dirs"
            )


def _write_topic_id(topic_id: UUID) -> bytes:
    word = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {word}\n".encode()


def read_topic_id(data: bytes) -> UUID:
    """The topic id in a partition.metadata file, as Kafka writes them."""
    lines = data.decode("ascii", errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if fields.get("version") != "0":
            raise CorruptFile("partition.metadata of another version")
        return UUID(bytes=base64.urlsafe_b64decode(fields.get("topic_id", "") + "=="))
    except (ValueError, binascii.Error) as error:
        raise CorruptFile("partition.metadata without a topic id") from error
