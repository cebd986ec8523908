"""Stray logs are kept, listed, deleted by age or by name, and used again for the same topic id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk, RealDisk
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk
from insync.storage.strays import (
    NoSuchStray,
    bring_back_strays,
    delete_expired_strays,
    delete_stray,
    find_strays,
)
from support.storage.log_model import CONFIG, append, batch, read_all

OLD, NEW = UUID(int=1), UUID(int=2)
DISKS: dict[str, Callable[[], Disk]] = {"real": RealDisk, "memory": MemoryDisk}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/data"


def opened(disk: Disk, path: str) -> LogDirectory:
    return LogDirectory.open(
        disk, path, cluster_id="c", broker_id=1, lock=True, now_ms=0, config_of=lambda _: CONFIG
    )


def filled(directory: LogDirectory, topic: str, partition: int, topic_id: UUID) -> bytes:
    log = directory.create(topic, partition, topic_id=topic_id, now_ms=0)
    append(log, batch(5), batch(2))
    return read_all(log)


def test_a_log_that_is_set_aside_is_not_served_and_keeps_its_files(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    filled(directory, "a", 3, OLD)
    assert directory.set_aside("a", 3, now_ms=70) == "a-3.70-stray"
    assert directory.logs == {}
    filled(directory, "a", 3, OLD)
    assert directory.set_aside("a", 3, now_ms=70) == "a-3.71-stray"  # never over another one
    directory.close()
    again = opened(disk, path)
    assert (again.logs, again.strays) == ({}, [])
    strays = find_strays(disk, path)
    assert [(each.name, each.topic, each.partition) for each in strays] == [
        ("a-3.70-stray", "a", 3),
        ("a-3.71-stray", "a", 3),
    ]
    assert [(each.topic_id, each.set_aside_ms) for each in strays] == [(OLD, 70), (OLD, 71)]
    assert all(each.size_bytes > 100 for each in strays)


def test_a_stray_is_brought_back_for_its_topic_id_alone(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    long_name = "x" * 249
    contents = {key: filled(directory, *key, OLD) for key in (("a", 0), ("a", 1), (long_name, 0))}
    for key in contents:
        directory.set_aside(*key, now_ms=70)
    directory.close()
    again = opened(disk, path)
    bring_back_strays(again, disk, {("a", 0): NEW, ("b", 1): NEW}, now_ms=90)
    assert again.logs == {}
    bring_back_strays(again, disk, {("a", 0): OLD, (long_name, 5): OLD}, now_ms=90)
    assert list(again.logs) == [("a", 0)]
    assert read_all(again.logs["a", 0]) == contents["a", 0]
    assert again.topic_ids == {("a", 0): OLD}


def test_a_very_long_name_is_brought_back(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    key = ("x" * 249, 9_999)
    content = filled(directory, *key, OLD)
    directory.set_aside(*key, now_ms=1_700_000_000_000)
    bring_back_strays(directory, disk, {key: OLD}, now_ms=1_700_000_000_001)
    assert read_all(directory.logs[key]) == content


def test_a_log_of_the_topic_comes_before_its_stray(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    filled(directory, "a", 0, OLD)
    directory.set_aside("a", 0, now_ms=70)
    log = directory.create("a", 0, topic_id=OLD, now_ms=0)
    bring_back_strays(directory, disk, {("a", 0): OLD}, now_ms=90)
    assert directory.logs["a", 0] is log
    assert [each.name for each in find_strays(disk, path)] == ["a-0.70-stray"]


def test_a_log_of_another_topic_with_the_same_name_is_set_aside_and_kept(
    disk: Disk, path: str
) -> None:
    directory = opened(disk, path)
    first = filled(directory, "a", 0, OLD)
    directory.set_aside("a", 0, now_ms=70)
    append(directory.create("a", 0, topic_id=NEW, now_ms=0), batch(1))
    bring_back_strays(directory, disk, {("a", 0): OLD}, now_ms=90)
    assert read_all(directory.logs["a", 0]) == first
    (stray,) = find_strays(disk, path)
    assert (stray.name, stray.topic_id) == ("a-0.90-stray", NEW)


def test_of_two_strays_the_later_one_is_brought_back(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    for now_ms in (70, 80):
        append(directory.create("a", 0, topic_id=OLD, now_ms=0), batch(now_ms))
        directory.set_aside("a", 0, now_ms=now_ms)
    bring_back_strays(directory, disk, {("a", 0): OLD}, now_ms=90)
    assert directory.logs["a", 0].end == 80
    assert [each.name for each in find_strays(disk, path)] == ["a-0.70-stray"]


def test_a_stray_that_cannot_be_brought_back_is_damage(
    disk: Disk, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(disk, path)
    for now_ms in (70, 80):
        filled(directory, "a", 0, OLD)
        directory.set_aside("a", 0, now_ms=now_ms)

    def refuse(name: str, to: str) -> None:
        raise DiskError(5, f"{name} {to}")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", refuse)
        bring_back_strays(directory, disk, {("a", 0): OLD}, now_ms=90)
    log = directory.create("a", 0, topic_id=OLD, now_ms=0)
    assert (log.end, len(find_strays(disk, path))) == (0, 2)
    directory.close()
    assert "a-0.80-stray cannot be brought back" in opened(disk, path).damaged["a", 0]


def test_the_inventory_of_a_log_applies_to_its_stray(disk: Disk, path: str) -> None:
    """Killed after the logs were set aside, before that was checkpointed; then one lost its end."""
    directory = opened(disk, path)
    for partition, topic_id in enumerate((OLD, OLD, NEW)):
        filled(directory, "a", partition, topic_id)
    marks = {("a", 0): 7, ("a", 1): 9, ("a", 2): 0}
    directory.write_watermarks(marks)
    directory.write_replica_checkpoint(marks.get)
    checkpoint = disk.read_all(f"{path}/held-replicas-checkpoint")
    for partition in range(3):
        directory.set_aside("a", partition, now_ms=70)
    directory.close()
    disk.write_atomic(f"{path}/held-replicas-checkpoint", checkpoint)
    log = f"{path}/a-1.70-stray/{0:020}.log"
    data = disk.read_all(log)
    disk.write_atomic(log, data[: len(data) // 2])
    again = opened(disk, path)
    assert set(again.damaged) == {("a", 0), ("a", 1), ("a", 2)}, "they are missing"
    bring_back_strays(again, disk, {("a", 0): OLD, ("a", 1): OLD, ("a", 2): NEW}, now_ms=90)
    assert set(again.damaged) == {("a", 1)}
    assert again.read_watermarks() == {}


def test_strays_are_deleted_by_age_or_by_name(disk: Disk, path: str) -> None:
    directory = opened(disk, path)
    for partition, now_ms in enumerate((100, 200, 300)):
        filled(directory, "a", partition, OLD)
        directory.set_aside("a", partition, now_ms=now_ms)
    kept = filled(directory, "a", 7, OLD)

    def names() -> list[str]:
        return [each.name for each in find_strays(disk, path)]

    delete_expired_strays(disk, path, retention_ms=-1, now_ms=10**12)
    delete_expired_strays(disk, path, retention_ms=100, now_ms=200)
    assert len(names()) == 3
    delete_expired_strays(disk, path, retention_ms=100, now_ms=201)
    assert names() == ["a-1.200-stray", "a-2.300-stray"]
    for other in ("a-7", "a-0.100-stray", "../data", ".lock"):
        with pytest.raises(NoSuchStray, match="list them"):
            delete_stray(disk, path, other)
    delete_stray(disk, path, "a-2.300-stray")
    assert names() == ["a-1.200-stray"]
    assert directory.remove_deleted() == 0
    assert read_all(directory.logs["a", 7]) == kept
