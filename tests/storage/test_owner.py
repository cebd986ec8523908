"""A directory's own id: made once, kept, and shown to the broker before anything is written."""

from __future__ import annotations

from uuid import UUID

import pytest

from insync.rules.refusals import Refusal
from insync.storage.directory import LogDirectory
from insync.storage.errors import WrongDirectory
from insync.storage.memory_disk import MemoryDisk

META = "/data/meta.properties"
FIRST, SECOND = UUID(int=1), UUID(int=2)


def opened(disk: MemoryDisk, new_id: UUID, seen: list[object] | None = None) -> LogDirectory:
    def admit(directory_id: UUID | None, *, is_new: bool) -> None:
        if seen is not None:
            seen.append((directory_id, is_new))

    return LogDirectory.open(
        disk,
        "/data",
        cluster_id="c",
        broker_id=1,
        lock=True,
        now_ms=0,
        new_id=lambda: new_id,
        admit=admit,
    )


def test_a_new_directory_gets_an_id_and_keeps_it() -> None:
    disk, seen = MemoryDisk(), list[object]()
    directory = opened(disk, FIRST, seen)
    assert directory.directory_id == FIRST
    directory.close()
    assert disk.read_all(META).splitlines() == [  # as Kafka's, with KIP-858's last line
        b"version=1",
        b"cluster.id=c",
        b"node.id=1",
        b"directory.id=AAAAAAAAAAAAAAAAAAAAAQ",
    ]
    disk.lose_power()
    assert opened(disk, SECOND, seen).directory_id == FIRST
    assert seen == [(None, True), (FIRST, False)]


def test_an_older_directory_gets_one_at_its_next_start() -> None:
    disk, seen = MemoryDisk(), list[object]()
    opened(disk, FIRST).close()
    disk.write_atomic(META, b"version=1\ncluster.id=c\nnode.id=1\n")
    directory = opened(disk, SECOND, seen)
    assert (directory.directory_id, seen) == (SECOND, [(None, False)])
    directory.close()
    assert opened(disk, FIRST).directory_id == SECOND


def test_a_refused_directory_is_not_touched() -> None:
    def refuse(_directory_id: UUID | None, *, is_new: bool) -> None:
        raise Refusal(f"not this one, is_new={is_new}")

    disk = MemoryDisk()
    with pytest.raises(Refusal, match="is_new=True"):
        LogDirectory.open(
            disk, "/data", cluster_id="c", broker_id=1, lock=True, now_ms=0, admit=refuse
        )
    assert disk.list("/data") == [".lock"]
    assert not disk.locks


def test_a_malformed_directory_id_is_refused() -> None:
    disk = MemoryDisk()
    opened(disk, FIRST).close()
    disk.write_atomic(META, b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=?\n")
    with pytest.raises(WrongDirectory, match="restore the file"):
        opened(disk, FIRST)
