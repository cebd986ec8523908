"""Damage in small and derived files hides, deletes and commits nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from uuid import UUID

import pytest

from insync.storage import memory_disk
from insync.storage.checkpoints import LOG_START, write_offset
from insync.storage.config import LogConfig
from insync.storage.directory import LogDirectory
from insync.storage.disk import RealDisk
from insync.storage.local_log import FLUSH_AFTER_MS
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk, MemoryFile
from insync.wire.batches import build, whole_batches

KEY, FOLDER, TOPIC_ID = ("orders", 0), "/data/orders-0", UUID(int=1)
FIRST = f"{FOLDER}/{0:020}"
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200)  # retention is a week
NOW_MS, DAY_MS = 1_700_000_000_000, 86_400_000
NO_TIMESTAMP = -1


def opened(disk: MemoryDisk, *, now_ms: int = NOW_MS) -> LogDirectory:
    return LogDirectory.open(
        disk, "/data", cluster_id="c", broker_id=1, lock=True, now_ms=now_ms,
        config_of=lambda _: CONFIG,
    )  # fmt: skip


def filled(disk: MemoryDisk, *, timestamp_ms: int = NOW_MS) -> tuple[LogDirectory, Log]:
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=TOPIC_ID, now_ms=NOW_MS)
    for number in range(37):
        records: list[tuple[bytes | None, bytes | None]] = [(None, b"%040d" % number)] * 2
        data = bytearray(build(records, timestamp_ms=timestamp_ms))
        log.append_leader(data, list(whole_batches(data)), epoch=0, now_ms=NOW_MS)
    directory.flush_due(now_ms=0)
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    assert len(log.segment_bases) > 3
    return directory, log


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("start", [47, 90], ids=["later", "past the end"])
def test_a_log_start_of_an_earlier_version_hides_no_record(*, clean: bool, start: int) -> None:
    disk = MemoryDisk()
    directory, log = filled(disk)
    log.delete_records_before(40)
    directory.flush_due(now_ms=2 * FLUSH_AFTER_MS)
    if clean:
        directory.close()
    disk.crash()
    disk.write_atomic(f"{FOLDER}/{LOG_START}", write_offset(start))
    log = opened(disk).logs[KEY]
    assert (log.start, log.end) == (40, 74)
    disk.crash()
    disk.remove(f"{FOLDER}/segment-inventory")
    assert opened(disk).logs[KEY].start < 40, "the file is gone"


def test_a_changed_watermark_is_limited_by_the_replica_checkpoint() -> None:
    disk = MemoryDisk()
    directory, log = filled(disk)
    directory.write_replica_checkpoint(lambda _: 20)
    assert directory.limit_watermark(KEY, TOPIC_ID, 70) == 20
    assert directory.limit_watermark(KEY, TOPIC_ID, 10) == 10
    # The file has names only: this one is of an earlier topic of the same name.
    assert directory.limit_watermark(KEY, UUID(int=2), 10) == 0
    assert directory.limit_watermark(("other", 0), TOPIC_ID, 10) == 10
    assert log.end == 74


def test_retention_does_not_see_a_summary_that_a_reader_rebuilds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One byte of an index is damaged, and a slow consumer makes the log build it again."""
    disk = MemoryDisk()
    directory, _ = filled(disk, timestamp_ms=NOW_MS - 2 * DAY_MS)
    directory.close()
    disk.crash()
    disk.overwrite(f"{FIRST}.timeindex", 0, b"\xff")
    log = opened(disk).logs[KEY]
    assert log.apply_retention(NOW_MS, up_to=log.end) == []  # which reads the seals
    is_scanning, may_go_on, read = threading.Event(), threading.Event(), MemoryFile.read

    def read_slowly(file: MemoryFile, position: int, size: int) -> object:
        if threading.current_thread().name == "reader" and not may_go_on.is_set():
            is_scanning.set()
            assert may_go_on.wait(10)
        return read(file, position, size)

    monkeypatch.setattr(memory_disk.MemoryFile, "read", read_slowly)
    reader = threading.Thread(
        target=lambda: log.read(2, 1_000, up_to=log.end, min_one_batch=True, nowait=False),
        name="reader",
    )
    reader.start()
    assert is_scanning.wait(10)
    try:
        assert log.apply_retention(NOW_MS, up_to=log.end) == []
    finally:
        may_go_on.set()
        reader.join()
    assert log.start == 0


@pytest.mark.parametrize("damage", ["killed", "a cut index"])
def test_records_without_timestamps_do_not_become_old_in_a_recovery(damage: str) -> None:
    disk = MemoryDisk()
    directory, log = filled(disk, timestamp_ms=NO_TIMESTAMP)
    end = log.end
    if damage == "a cut index":
        directory.close()
    disk.crash()
    if damage == "a cut index":
        disk.cut(f"{FIRST}.index", 3)
    else:
        for path in [path for path in disk.paths() if path.endswith(".index")]:
            disk.cut(path, 3)
    log = opened(disk, now_ms=NOW_MS + 2_000).logs[KEY]
    assert log.apply_retention(NOW_MS + 3_000, up_to=log.end) == []
    assert (log.start, log.end) == (0, end)
    assert log.apply_retention(NOW_MS + 8 * DAY_MS, up_to=log.end) != []  # they do age


def test_a_full_disk_does_not_make_damage_forgotten() -> None:
    disk = MemoryDisk()
    directory, _ = filled(disk)
    directory.close()
    disk.crash()
    disk.remove(f"{FIRST}.log")
    disk.is_full = True
    assert KEY in opened(disk).damaged
    disk.crash()
    disk.is_full = False
    assert KEY in opened(disk).damaged


def test_a_flush_while_a_file_is_created_does_not_forget_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, synced = RealDisk(), list[str]()
    first = disk.create(str(tmp_path / "0.log"))
    first.append((b"x",))
    first.flush()
    fsync, opens = os.fsync, RealDisk._open

    def recorded_fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def open_beside_a_flush(self: RealDisk, path: str, flags: int) -> object:
        if path.endswith("1.log"):
            self.flush_names(str(tmp_path / "0.log"))  # as the thread that flushes does
        return opens(self, path, flags)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(RealDisk, "_open", open_beside_a_flush)
    second = disk.create(str(tmp_path / "1.log"))
    synced.clear()
    second.append((b"y",))
    second.flush()
    assert str(tmp_path) in synced
