"""The inventory of a data directory, and what counts as damage at the next start."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from insync.storage.directory import LogDirectory
from insync.storage.errors import CorruptFile, DiskError
from insync.storage.memory_disk import MemoryDisk
from insync.storage.replica_checkpoint import (
    REPLICA_CHECKPOINT,
    CheckpointedReplica,
    read_replicas,
    write_replicas,
)
from insync.wire import batches

KEY = ("t", 0)
OURS, OTHER = UUID(int=1, version=4), UUID(int=2, version=4)
CHECKPOINT = f"/logs/{REPLICA_CHECKPOINT}"


def opened(disk: MemoryDisk) -> LogDirectory:
    return LogDirectory.open(disk, "/logs", cluster_id="c", broker_id=1, lock=False, now_ms=0)


def directory_with(records: int, *, high_watermark: int) -> tuple[MemoryDisk, LogDirectory]:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=OURS, now_ms=0)
    for _ in range(records):
        data = bytearray(batches.build([(None, b"x")], timestamp_ms=1))
        log.append_leader(data, list(batches.whole_batches(data)), epoch=0, now_ms=0)
    directory.write_replica_checkpoint(lambda _: high_watermark)
    return disk, directory


def test_the_inventory_is_read_back_as_written() -> None:
    replicas = {
        ("b", 10): CheckpointedReplica(OURS, 7),
        ("a.b_c-d", 0): CheckpointedReplica(OTHER, 2**63 - 1),
    }
    assert read_replicas(write_replicas(replicas)) == replicas
    assert read_replicas(write_replicas({})) == {}


@pytest.mark.parametrize(
    "garble",
    [
        lambda _: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b"0 ", b"1 "),
        lambda data: b"1" + data[1:],
        lambda _: b"\xff" * 40,
    ],
)
def test_a_garbled_inventory_is_not_used(garble: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CorruptFile):
        read_replicas(garble(write_replicas({KEY: CheckpointedReplica(OURS, 7)})))
    disk, _ = directory_with(3, high_watermark=3)
    disk.write_atomic(CHECKPOINT, garble(disk.read_all(CHECKPOINT)))
    disk.remove_tree("/logs/t-0")
    assert opened(disk).damaged == {}


def test_a_log_that_matches_its_inventory_is_intact() -> None:
    disk, _ = directory_with(3, high_watermark=3)
    again = opened(disk)
    assert again.damaged == {}
    assert again.replica_checkpoint.replicas == {KEY: CheckpointedReplica(OURS, 3)}


def test_a_log_that_is_missing_or_short_is_damaged_until_that_is_ended() -> None:
    disk, _ = directory_with(3, high_watermark=3)
    disk.remove_tree("/logs/t-0")
    again = directory_with(0, high_watermark=0)[1]
    for _ in range(2):
        again = opened(disk)
        assert list(again.damaged) == [KEY]
        again.create(*KEY, topic_id=OURS, now_ms=0)
        again.write_replica_checkpoint(lambda _: 0)
        assert again.replica_checkpoint.replicas[KEY].high_watermark == 3, (
            "the watermark of a damaged log stays"
        )
    again.end_damage(KEY)
    assert opened(disk).damaged == {}


def test_damage_stays_marked_if_its_end_cannot_be_written() -> None:
    disk, _ = directory_with(3, high_watermark=3)
    disk.remove_tree("/logs/t-0")
    again = opened(disk)
    again.create(*KEY, topic_id=OURS, now_ms=0)
    disk.is_full = True
    with pytest.raises(DiskError):
        again.end_damage(KEY)
    assert KEY in again.damaged


def test_another_topic_of_that_name_is_not_damaged() -> None:
    disk, _ = directory_with(3, high_watermark=3)
    disk.remove_tree("/logs/t-0")
    again = opened(disk)
    again.create(*KEY, topic_id=OTHER, now_ms=0)
    assert again.damaged == {}
    again.write_replica_checkpoint()
    assert again.replica_checkpoint.replicas == {KEY: CheckpointedReplica(OTHER, 0)}


def test_a_deleted_log_is_forgotten() -> None:
    disk, directory = directory_with(3, high_watermark=3)
    directory.delete(*KEY)
    directory.write_replica_checkpoint()
    assert opened(disk).replica_checkpoint.replicas == {}


def test_the_watermark_is_lowered_durably_before_a_truncation() -> None:
    disk, directory = directory_with(3, high_watermark=3)
    seen = []
    log = directory.logs[KEY]
    removing = disk.remove

    def remove(path: str) -> None:
        seen.append(read_replicas(disk.read_all(CHECKPOINT))[KEY].high_watermark)
        removing(path)

    disk.remove = remove  # type: ignore[method-assign]
    log.truncate_fully(1)
    # Below what the old segments begin with, too: a crash may leave those.
    assert set(seen) == {0}
    directory.write_replica_checkpoint(lambda _: 3)
    assert directory.replica_checkpoint.replicas[KEY].high_watermark == 1, "never beyond the log"


def test_a_truncation_waits_until_the_watermark_is_lowered() -> None:
    disk, directory = directory_with(3, high_watermark=3)
    log = directory.logs[KEY]
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        log.truncate_to(1)
    assert (log.end, log.has_failed) == (3, False)
    disk.fails_flushes = False
    assert log.truncate_to(1) == 1


def test_damage_found_while_the_log_is_used_fails_it() -> None:
    _, directory = directory_with(3, high_watermark=3)
    failures: list[tuple[str, int]] = []
    directory.on_failure = failures.append
    directory.mark_damaged(KEY, "a batch is garbled")
    directory.mark_damaged(KEY, "another is too")
    assert directory.damaged == {KEY: "a batch is garbled"}
    assert directory.logs[KEY].failure == "a batch is garbled"
    assert failures == [KEY]
