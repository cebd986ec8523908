"""Each fault of a disk: which operations on which files fail, and which do not."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from threading import Thread

import pytest

from insync.storage.disk import Disk, DiskFile
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk
from insync.testing.faulty_disk import (
    DiskFaults,
    FailedReads,
    FailedWrites,
    FaultScope,
    FaultyDisk,
    SlowReads,
)

ORDERS_0 = "/broker/orders-0/0.log"


@pytest.fixture
def faults() -> DiskFaults:
    return DiskFaults()


@pytest.fixture
def disk(faults: DiskFaults) -> Disk:
    disk = FaultyDisk(MemoryDisk(), faults)
    for folder in ("orders-0", "orders-1", "my-orders-0", "orders-0-0"):
        disk.make_dirs(f"/broker/{folder}")
    return disk


@pytest.fixture
def file(disk: Disk) -> DiskFile:
    file = disk.create(ORDERS_0)
    file.append([b"abc"])
    return file


def refused_with(operation: Callable[[], object]) -> int:
    with pytest.raises(DiskError) as refusal:
        operation()
    return refusal.value.errno


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        (FaultScope(), {"orders-0", "orders-1", "my-orders-0", "orders-0-0"}),
        (FaultScope(topic="orders"), {"orders-0", "orders-1"}),
        (FaultScope(topic="orders", partition=0), {"orders-0"}),
        (FaultScope(topic="orders-0", partition=0), {"orders-0-0"}),
        (FaultScope(topic="or.ers"), set()),
    ],
)
def test_a_scope_includes_the_files_of_its_topic_or_partition(
    scope: FaultScope, held: set[str]
) -> None:
    folders = ("orders-0", "orders-1", "my-orders-0", "orders-0-0")
    assert {each for each in folders if scope.includes(f"/orders-7/broker/{each}/0.log")} == held
    assert {each for each in folders if scope.includes(f"/orders-7/broker/{each}")} == held


def test_a_slow_read_would_block_and_takes_its_time(file: DiskFile, faults: DiskFaults) -> None:
    faults.add(SlowReads(delay_ms=60))
    began_s = time.monotonic()
    assert file.read_nowait(0, 3) is None
    assert time.monotonic() - began_s < 0.05
    assert bytes(file.read(0, 3)) == b"abc"
    assert time.monotonic() - began_s >= 0.06
    faults.heal()
    assert bytes(file.read_nowait(0, 3) or b"") == b"abc"


def test_healing_ends_delayed_reads(file: DiskFile, faults: DiskFaults) -> None:
    faults.add(SlowReads(delay_ms=60_000))
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append(bytes(file.read(0, 3))))
    reader.start()
    faults.heal()
    reader.join(10)
    assert read == [b"abc"]


def test_failed_reads(disk: Disk, file: DiskFile, faults: DiskFaults) -> None:
    other = disk.create("/broker/orders-1/0.log")
    other.append([b"xyz"])
    faults.add(FailedReads(errno=errno.EIO, scope=FaultScope(topic="orders", partition=0)))
    assert refused_with(lambda: file.read(0, 3)) == errno.EIO
    assert refused_with(lambda: file.read_nowait(0, 3)) == errno.EIO
    assert refused_with(lambda: disk.read_all(ORDERS_0)) == errno.EIO
    assert refused_with(lambda: disk.read_tail(ORDERS_0, 1)) == errno.EIO
    assert bytes(other.read(0, 3)) == b"xyz"
    file.append([b"d"])
    faults.heal()
    assert bytes(file.read(0, 9)) == b"abcd"


def test_a_full_disk_accepts_writes_that_still_fit(
    disk: Disk, file: DiskFile, faults: DiskFaults
) -> None:
    faults.add(FailedWrites(errno=errno.ENOSPC, after_bytes=5))
    file.append([b"de"])
    assert refused_with(lambda: file.append([b"fg", b"hi"])) == errno.ENOSPC
    assert refused_with(lambda: disk.write_atomic("/broker/f", b"1234")) == errno.ENOSPC
    assert disk.free_bytes("/broker") == 3
    file.append([b"fgh"])
    file.truncate(4)
    file.flush()
    disk.remove(ORDERS_0)
    assert bytes(file.read(0, 9)) == b"abcd"
    faults.heal()
    file.append([b"efghi"])


def test_a_broken_disk_refuses_every_change_after_its_first_refusal(
    disk: Disk, file: DiskFile, faults: DiskFaults
) -> None:
    faults.add(FailedWrites(errno=errno.EIO, after_bytes=5, is_broken=True))
    file.truncate(2)
    assert refused_with(lambda: file.append([b"123456"])) == errno.EIO
    changes: list[Callable[[], object]] = [
        lambda: file.append([b"1"]),
        lambda: file.truncate(0),
        file.flush,
        lambda: disk.create("/broker/f"),
        lambda: disk.write_atomic("/broker/f", b"1"),
        lambda: disk.remove(ORDERS_0),
        lambda: disk.remove_tree("/broker"),
        lambda: disk.make_dirs("/other"),
        lambda: disk.rename(ORDERS_0, "/broker/f"),
    ]
    assert [refused_with(change) for change in changes] == [errno.EIO] * len(changes)
    assert bytes(file.read(0, 9)) == b"ab"
