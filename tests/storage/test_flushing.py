"""Flushing: what a loss of power leaves, and what a killed broker need not read again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from insync.storage.config import LogConfig
from insync.storage.directory import LogDirectory
from insync.storage.disk import Buffer, DiskFile
from insync.storage.errors import DiskError, LogFailed
from insync.storage.local_log import FLUSH_AFTER_MS
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk
from support.storage.log_model import CONFIG, append, batch, open_log, read_all

TOPIC_ID = UUID(int=1)
POINTS = "/data/recovery-point-offset-checkpoint"


class WatchedFile:
    def __init__(self, file: DiskFile, disk: WatchedDisk) -> None:
        self._file = file
        self._disk = disk

    def read(self, position: int, size: int) -> Buffer:
        data = self._file.read(position, size)
        self._disk.read_bytes += len(data)
        return data

    def flush(self) -> None:
        self._disk.before_flush()
        self._disk.flushes += 1
        self._file.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class WatchedDisk(MemoryDisk):
    """Counts what is read and flushed, and lets a test act just before a flush."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = self.flushes = self.writes = 0
        self.before_flush: Callable[[], None] = lambda: None

    def open(self, path: str) -> DiskFile:
        return WatchedFile(super().open(path), self)  # type: ignore[return-value]

    def create(self, path: str) -> DiskFile:
        return WatchedFile(super().create(path), self)  # type: ignore[return-value]

    def write_atomic(self, path: str, data: bytes) -> None:
        self.writes += 1
        super().write_atomic(path, data)


def opened(disk: MemoryDisk, config: LogConfig = CONFIG) -> LogDirectory:
    return LogDirectory.open(
        disk,
        "/data",
        cluster_id="c",
        broker_id=1,
        lock=True,
        now_ms=0,
        config_of=lambda _: config,
    )


def test_an_append_returns_only_when_its_records_would_survive() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=replace(CONFIG, flush_messages=1))
    for _ in range(40):  # several segments
        append(log, batch(2, size=50))
    expected = read_all(log)
    disk.lose_power()
    assert read_all(open_log(disk)) == expected


def test_a_flush_is_due_after_so_many_records() -> None:
    disk = WatchedDisk()
    log = open_log(disk, config=replace(CONFIG, flush_messages=10))
    flushes = []
    for _ in range(9):
        append(log, batch(3))
        flushes.append(disk.flushes)
    assert flushes == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_without_the_setting_an_append_never_flushes() -> None:
    disk = WatchedDisk()
    log = open_log(disk)
    for _ in range(100):
        append(log, batch(3))
    assert disk.flushes == 0


def test_a_flush_that_fails_fails_the_log() -> None:
    disk = WatchedDisk()
    log = open_log(disk, config=replace(CONFIG, flush_messages=1))

    def refuse() -> None:
        raise DiskError(errno.EIO, "disk")

    disk.before_flush = refuse
    with pytest.raises(DiskError):
        append(log, batch())
    disk.before_flush = lambda: None
    with pytest.raises(LogFailed, match="needs a restart"):
        append(log, batch())


def test_a_truncation_during_a_flush_keeps_the_recovery_point() -> None:
    disk = WatchedDisk()
    log = open_log(disk)
    append(log, batch(5))
    append(log, batch(5))

    def truncate() -> None:
        disk.before_flush = lambda: None
        log.truncate_to(5)
        append(log, batch(5), epoch=1)  # as long as before, and not flushed

    disk.before_flush = truncate
    log.flush()
    assert (log.end, log.recovery_point) == (10, 0)
    log.flush()
    assert log.recovery_point == 10


def test_a_segment_deleted_during_a_flush_is_no_failure() -> None:
    disk = WatchedDisk()
    log = open_log(disk)
    for _ in range(40):
        append(log, batch(2, size=50))
    first = log.segment_bases[0]

    def delete() -> None:
        disk.before_flush = lambda: None
        log.delete_records_before(log.end)
        raise DiskError(errno.ENOENT, str(first))

    disk.before_flush = delete
    log.flush()
    assert not log.has_failed
    append(log, batch())


def test_logs_are_flushed_when_a_segment_is_complete_or_after_a_while() -> None:
    disk = WatchedDisk()
    directory = opened(disk)
    rolled = directory.create("rolled", 0, topic_id=TOPIC_ID, now_ms=0)
    quiet = directory.create("quiet", 0, topic_id=TOPIC_ID, now_ms=0)
    directory.flush_due(now_ms=1_000)
    for _ in range(20):
        append(rolled, batch(2, size=50))
    append(quiet, batch(2))
    directory.flush_due(now_ms=2_000)
    assert (rolled.recovery_point, quiet.recovery_point) == (40, 0)
    assert disk.read_all(POINTS) == b"0\n2\nquiet 0 0\nrolled 0 40\n"
    directory.flush_due(now_ms=999 + FLUSH_AFTER_MS)
    assert quiet.recovery_point == 0
    directory.flush_due(now_ms=1_000 + FLUSH_AFTER_MS)
    assert quiet.recovery_point == 2
    assert disk.read_all(POINTS) == b"0\n2\nquiet 0 2\nrolled 0 40\n"


def test_a_topics_own_flush_time_comes_sooner() -> None:
    disk = WatchedDisk()
    directory = opened(disk, replace(CONFIG, flush_ms=50))
    log = directory.create("a", 0, topic_id=TOPIC_ID, now_ms=0)
    directory.flush_due(now_ms=1_000)
    append(log, batch())
    directory.flush_due(now_ms=1_049)
    assert log.recovery_point == 0
    directory.flush_due(now_ms=1_050)
    assert log.recovery_point == 1


def test_nothing_is_written_when_nothing_changed() -> None:
    disk = WatchedDisk()
    directory = opened(disk)
    append(directory.create("a", 0, topic_id=TOPIC_ID, now_ms=0), batch())
    for now_ms in (0, FLUSH_AFTER_MS):
        directory.flush_due(now_ms=now_ms)
        directory.write_watermarks({("a", 0): 1})
    writes, flushes = disk.writes, disk.flushes
    for now_ms in range(0, 100 * FLUSH_AFTER_MS, FLUSH_AFTER_MS):
        directory.flush_due(now_ms=now_ms)
        directory.write_watermarks({("a", 0): 1})
    assert (disk.writes, disk.flushes) == (writes, flushes)


def test_after_a_crash_only_what_was_not_flushed_is_read_whole() -> None:
    disk = WatchedDisk()
    directory = opened(disk, LogConfig())
    log = directory.create("a", 0, topic_id=TOPIC_ID, now_ms=0)
    for _ in range(40):
        append(log, batch(size=1 << 20))
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    append(log, batch(size=1 << 20))
    expected, end = read_all(log), log.end
    disk.crash()
    disk.read_bytes = 0
    log = opened(disk, LogConfig()).logs["a", 0]
    assert disk.read_bytes < 6 << 20  # of 41: the headers, and the last batch
    assert (log.end, log.recovery_point) == (end, 40)
    assert read_all(log) == expected


def test_a_directory_that_was_closed_is_left_alone() -> None:
    disk = WatchedDisk()
    directory = opened(disk)
    log: Log = directory.create("a", 0, topic_id=TOPIC_ID, now_ms=0)
    append(log, batch())
    directory.close()
    writes = disk.writes
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    assert disk.writes == writes


def test_flushing_many_logs_does_not_close_the_files_in_use() -> None:
    disk = WatchedDisk()
    directory = opened(disk)
    logs = [directory.create("a", number, topic_id=TOPIC_ID, now_ms=0) for number in range(20)]
    for log in logs:
        append(log, batch())
    files_open = directory.files_open
    for log in logs:
        log.release()
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    assert all(log.recovery_point == 1 for log in logs)
    assert (files_open, directory.files_open) == (20, 0)
