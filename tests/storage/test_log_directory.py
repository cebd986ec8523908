"""A data directory: its owner, its lock, and its logs after a start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage.checkpoints import (
    read_epochs,
    read_offset,
    read_offsets,
    write_epochs,
    write_offset,
    write_offsets,
)
from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk, RealDisk
from insync.storage.errors import (
    BadLogName,
    CorruptFile,
    DirectoryInUse,
    DirectoryNotWritable,
    LogFailed,
    StorageRefusal,
    WrongDirectory,
)
from insync.storage.log_names import log_name
from insync.storage.memory_disk import MemoryDisk
from insync.storage.partition_metadata import read_topic_id
from support.storage.log_model import CONFIG, append, batch, read_all

OLD, NEW = UUID(int=1), UUID(int=2)
DISKS: dict[str, Callable[[], Disk]] = {"real": RealDisk, "memory": MemoryDisk}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/data"


def opened(
    disk: Disk, path: str, *, cluster: str = "c", broker: int = 1, files_max: int = 100
) -> LogDirectory:
    return LogDirectory.open(
        disk,
        path,
        cluster_id=cluster,
        broker_id=broker,
        lock=True,
        now_ms=0,
        config_of=lambda _: CONFIG,
        files_max=files_max,
    )


def test_a_full_disk_makes_a_stop_unclean_and_loses_nothing() -> None:
    disk = MemoryDisk()
    directory = opened(disk, "/data")
    log = directory.create("orders", 0, topic_id=OLD, now_ms=0)
    append(log, batch())
    directory.close()
    directory = opened(disk, "/data")
    assert directory.was_clean
    disk.capacity_bytes = 1  # only the mark of a clean stop is left to be written
    directory.close()
    disk.capacity_bytes = 1 << 30
    again = opened(disk, "/data")  # the lock was released
    assert not again.was_clean
    assert again.logs["orders", 0].end == log.end > 0


def test_logs_are_there_again_after_a_clean_stop(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    assert (directory.logs, directory.was_clean) == ({}, False)
    for topic, partition in (("a", 0), ("a", 12), ("b-1.x_", 3)):
        log = directory.create(topic, partition, topic_id=OLD, now_ms=0)
        append(log, *[batch(2, size=100)] * (partition + 1))
    bytes_before = {key: read_all(log) for key, log in directory.logs.items()}
    directory.write_watermarks({("a", 12): 7, ("a", 0): 1})
    directory.close()
    again = opened(disk, path)
    assert again.was_clean
    assert {key: read_all(log) for key, log in again.logs.items()} == bytes_before
    assert again.topic_ids == dict.fromkeys(bytes_before, OLD)
    assert again.read_watermarks() == {("a", 12): 7, ("a", 0): 1}
    assert again.logs["a", 12].recovery_point == 26
    assert again.free_bytes() > 0


def test_a_crash_is_not_a_clean_stop_even_right_after_one(path: str) -> None:
    disk = MemoryDisk()
    directory = opened(disk, path)
    log = directory.create("a", 0, topic_id=OLD, now_ms=0)
    append(log, batch(2))
    directory.close()
    directory = opened(disk, path)
    append(directory.logs["a", 0], batch(2))
    disk.crash(torn_at=30)
    again = opened(disk, path)
    assert not again.was_clean
    assert again.logs["a", 0].end == 2


def test_a_clean_start_reads_no_log(path: str) -> None:
    disk = MemoryDisk()
    directory = opened(disk, path)
    for partition in range(20):
        log = directory.create("a", partition, topic_id=OLD, now_ms=0)
        append(log, batch(2, producer=(1, 0, 0)))
    directory.close()
    assert opened(disk, path).files_open == 0


def test_a_directory_is_used_by_one_process_at_a_time(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    with pytest.raises(DirectoryInUse, match="another broker"):
        opened(disk, path)
    directory.close()
    opened(disk, path).close()


HOLDER = """
import sys
from insync.storage.directory import LogDirectory
from insync.storage.disk import RealDisk
LogDirectory.open(RealDisk(), sys.argv[1], cluster_id="c", broker_id=1, lock=True, now_ms=0)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_another_process_is_kept_out_until_it_dies(path: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse):
            opened(RealDisk(), path)
        holder.kill()
    opened(RealDisk(), path).close()


def test_a_directory_of_another_cluster_or_broker_is_refused(disk: Disk, path: str) -> None:
    opened(disk, path).close()
    with pytest.raises(WrongDirectory, match=r"cluster\.id='c', this broker is 'other'"):
        opened(disk, path, cluster="other")
    with pytest.raises(WrongDirectory, match=r"node\.id='1', this broker is '2'"):
        opened(disk, path, broker=2)
    disk.write_atomic(f"{path}/meta.properties", b"\xff\x00garbage")
    with pytest.raises(WrongDirectory):
        opened(disk, path)
    disk.remove(f"{path}/meta.properties")
    opened(disk, path).close()  # and no refusal kept the lock


def test_a_directory_that_cannot_be_written_is_refused(
    disk: Disk, path: str, tmp_path: Path
) -> None:
    disk.make_dirs(str(tmp_path))
    disk.write_atomic(path, b"a file")
    with pytest.raises(DirectoryNotWritable, match=path):
        opened(disk, path)
    with pytest.raises(DirectoryNotWritable, match=path):
        opened(disk, f"{path}/below")


def test_a_full_disk_is_not_writable(path: str) -> None:
    with pytest.raises(DirectoryNotWritable, match="space"):
        opened(MemoryDisk(capacity_bytes=0), path)


def test_a_topic_made_again_never_finds_the_old_data(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    old = directory.create("a", 0, topic_id=OLD, now_ms=0)
    append(old, batch(5))
    assert directory.create("a", 0, topic_id=OLD, now_ms=0) is old
    new = directory.create("a", 0, topic_id=NEW, now_ms=0)
    assert new.end == 0
    with pytest.raises(LogFailed, match="deleted"):
        append(old, batch())
    append(new, batch())
    directory.delete("a", 0)
    assert ("a", 0) not in directory.logs
    directory.create("a", 0, topic_id=OLD, now_ms=0)
    directory.close()
    again = opened(disk, path)
    assert (again.logs["a", 0].end, again.topic_ids["a", 0]) == (0, OLD)
    assert again.remove_deleted() == 1
    assert again.remove_deleted() == 0
    assert "a-0.0-stray" in disk.list(path)  # the old data, which nothing uses
    assert list(again.logs) == [("a", 0)]


def test_a_log_without_topic_id_is_set_aside_not_used(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    append(directory.create("a", 0, topic_id=OLD, now_ms=0), batch())
    directory.create("b", 0, topic_id=OLD, now_ms=0)
    directory.close()
    disk.write_atomic(f"{path}/a-0/partition.metadata", b"version: 0\ntopic_id: ?\n")
    disk.make_dirs(f"{path}/made-0")  # a crash right after it was made
    again = opened(disk, path)
    assert (list(again.logs), again.strays) == ([("b", 0)], ["a-0"])
    assert again.create("a", 0, topic_id=NEW, now_ms=0).end == 0
    assert again.create("made", 0, topic_id=NEW, now_ms=0).end == 0
    assert "a-0.0-stray" in disk.list(path)


def test_unknown_files_are_left_alone(disk: Disk, path: str) -> None:
    disk.make_dirs(f"{path}/lost+found")
    disk.make_dirs(f"{path}/a-01")
    disk.write_atomic(f"{path}/a-0", b"a file with a log's name")
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        disk.write_atomic(f"{path}/{name}", b"0\n7\ngarbage")
    directory = opened(disk, path)
    assert directory.logs == {}
    assert directory.read_watermarks() == {}
    directory.close()
    assert {"lost+found", "a-01", "a-0"} <= set(disk.list(path))


def test_a_log_that_cannot_be_closed_means_recovery(path: str) -> None:
    disk = MemoryDisk()
    directory = opened(disk, path)
    append(directory.create("a", 0, topic_id=OLD, now_ms=0), batch())
    disk.capacity_bytes = 0
    directory.close()
    disk.capacity_bytes = 1 << 30
    again = opened(disk, path)
    assert (again.was_clean, again.logs["a", 0].end) == (False, 1)


def test_open_files_are_few_and_every_log_still_works(disk: Disk, path: str) -> None:
    directory = opened(disk, path, files_max=3)
    logs = [directory.create("a", number, topic_id=OLD, now_ms=0) for number in range(10)]
    for _ in range(5):
        for log in logs:
            append(log, batch(2, size=400))
    assert directory.files_open <= 3
    assert len({read_all(log) for log in logs}) == 1
    assert directory.files_open <= 3
    directory.close()


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a/b", "../x", "a\0", "a b", "ä", "x" * 250, "a\n"]
)
def test_names_that_lead_elsewhere_are_refused(topic: str) -> None:
    with pytest.raises(BadLogName) as refusal:
        log_name(topic, 0)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, StorageRefusal)


def test_the_longest_name_can_be_deleted(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    directory.create("x" * 249, 99999, topic_id=OLD, now_ms=0)
    directory.delete("x" * 249, 99999)
    assert directory.remove_deleted() == 1


def test_a_negative_partition_is_refused() -> None:
    with pytest.raises(BadLogName):
        log_name("a", -1)


# Checkpoints, in Kafka's format


def test_the_formats_are_kafkas() -> None:
    assert write_offsets({("b", 1): 5, ("a", 0): 7}) == b"0\n2\na 0 7\nb 1 5\n"
    assert write_epochs(read_epochs(b"0\n2\n0 0\n3 17\n")) == b"0\n2\n0 0\n3 17\n"
    assert write_offset(9) == b"0\n1\n9\n"
    topic_id = read_topic_id(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert topic_id == UUID(int=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\n1 2",
        b"0\n2\n1 2\n",
        b"0\n1\n1 -2\n",
        b"0\n1\n1\n",
        b"0\n1\n1 2 3 4\n",
        b"0\n1\n1 99999999999999999999\n",
        b"0\n1\n1 9999999999999999999\n",
        b"0\n2\n1 5\n1 6\n",
        b"0\n2\n1 5\n2 5\n",
        "0\n1\n1 ²\n".encode(),
        b"\xff\xfe",
    ],
)
def test_malformed_checkpoints_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        read_epochs(data)


@pytest.mark.property
@given(data=st.one_of(st.binary(), st.text("0123456789 \nax").map(str.encode)))
def test_no_checkpoint_breaks_its_reader(data: bytes) -> None:
    for reader in (read_offset, read_offsets, read_epochs, read_topic_id):
        try:
            reader(data)
        except CorruptFile:
            continue
