"""A start or a removal that does not get to its end hides no damage, and looks like none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from insync.storage.checkpoints import write_offsets
from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk, DiskFile
from insync.storage.errors import DiskError
from insync.storage.inventory import Damage, Inventory
from insync.storage.inventory_file import InventoryFile
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk, MemoryFile
from insync.wire.batches import build
from support.storage.dying_disk import DiedError, DyingDisk
from support.storage.log_model import CONFIG, append, read_all

KEY = ("orders", 0)
FOLDER = "/data/orders-0"
TOPIC_ID = UUID(int=1)
FLUSHING = replace(CONFIG, flush_messages=1)
NOW_MS = 1 << 60


def opened(disk: Disk) -> LogDirectory:
    return LogDirectory.open(
        disk,
        "/data",
        cluster_id="c",
        broker_id=1,
        lock=True,
        now_ms=0,
        config_of=lambda _: FLUSHING,
    )


def fill(log: Log, batches: range) -> None:
    for number in batches:
        append(log, build([(None, f"{number:040d}".encode())] * 2), epoch=number // 9)


def filled(disk: MemoryDisk) -> LogDirectory:
    """A log that has five segments, and an inventory of its first batches only."""
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=TOPIC_ID, now_ms=0)
    fill(log, range(2))
    directory.write_replica_checkpoint(lambda _: log.end)
    log.write_inventory()
    fill(log, range(2, 40))
    assert len(log.segment_bases) > 4
    return directory


def segments(disk: MemoryDisk) -> list[str]:
    return [f"{FOLDER}/{name}" for name in disk.list(FOLDER) if name.endswith(".log")]


def flip_a_batch(disk: MemoryDisk) -> None:
    path = segments(disk)[1]
    disk.overwrite(path, disk.file_size(path) // 2, b"\xff" * 8)


def flip_a_first_batch(disk: MemoryDisk) -> None:
    disk.overwrite(segments(disk)[2], 0, b"\xff" * 8)


def remove_a_segment(disk: MemoryDisk) -> None:
    disk.remove(segments(disk)[2])


def cut_a_segment(disk: MemoryDisk) -> None:
    path = segments(disk)[1]
    disk.cut(path, disk.file_size(path) // 2)


all_damages = pytest.mark.parametrize(
    "damage", [flip_a_batch, flip_a_first_batch, remove_a_segment, cut_a_segment]
)


@all_damages
@pytest.mark.parametrize("loses_power", [False, True])
def test_damage_is_known_after_a_start_that_was_killed(
    damage: Callable[[MemoryDisk], None], *, loses_power: bool
) -> None:
    for died_before in range(60):
        disk = DyingDisk()
        filled(disk)
        disk.crash()
        disk.write_back()
        damage(disk)
        disk.changes_left = died_before
        try:
            opened(disk)
            is_done = True
        except DiedError:
            is_done = False
        disk.changes_left = None
        if loses_power:
            disk.lose_power(Random(died_before))  # noqa: S311 - chance, not secrecy
        else:
            disk.crash()
        assert KEY in opened(disk).damaged, died_before
        if is_done:
            return
    pytest.fail("the start never ends")


@all_damages
def test_damage_is_known_when_a_log_is_opened_at_the_second_attempt(
    damage: Callable[[MemoryDisk], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    filled(disk)
    disk.crash()
    damage(disk)
    flush = Log._flush

    def fail_once(log: Log, _written_end: int | None = None) -> None:
        monkeypatch.setattr(Log, "_flush", flush)
        raise DiskError(5, log.path)

    monkeypatch.setattr(Log, "_flush", fail_once)
    directory = opened(disk)
    assert KEY in directory.unopened
    directory.create(*KEY, topic_id=TOPIC_ID, now_ms=0)
    assert KEY in directory.damaged


def test_a_log_whose_damage_cannot_be_written_stays_as_it_is() -> None:
    disk = MemoryDisk()
    filled(disk)
    disk.crash()
    flip_a_batch(disk)
    files = {path: disk.read_all(path) for path in segments(disk)}
    disk.is_full = True
    assert KEY in opened(disk).unopened
    assert {path: disk.read_all(path) for path in segments(disk)} == files


def test_each_damage_of_a_segment_is_kept_aside() -> None:
    disk = MemoryDisk()
    filled(disk)
    aside = f"{segments(disk)[1]}.damaged"
    kept: dict[str, bytes] = {}
    for name in (aside, f"{aside}.2", f"{aside}.3"):
        disk.crash()
        disk.overwrite(segments(disk)[1], 300, b"\xff" * 8)
        lost = disk.read_all(segments(disk)[1])
        log = opened(disk).logs[KEY]
        assert lost.endswith(disk.read_all(name))
        kept[name] = disk.read_all(name)
        assert all(disk.read_all(earlier) == data for earlier, data in kept.items())
        fill(log, range(log.end, log.end + 20))


# Retention


@pytest.mark.parametrize("removes_files", [True, False])
def test_a_loss_of_power_after_retention_is_no_damage(*, removes_files: bool) -> None:
    for seed in range(50):
        disk = MemoryDisk()
        directory = filled(disk)
        directory.flush_due(now_ms=0)
        disk.write_back()
        log = directory.logs[KEY]
        assert log.apply_retention(NOW_MS, up_to=log.segment_bases[2])
        if removes_files:
            directory.remove_expired_segments()
            assert len(segments(disk)) == len(log.segment_bases)
        whole = read_all(log)
        disk.lose_power(Random(seed))  # noqa: S311 - chance, not secrecy
        directory = opened(disk)
        assert directory.damaged == {}
        assert read_all(directory.logs[KEY]).endswith(whole)


class RefusingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.refused: str | None = None

    def remove(self, path: str) -> None:
        if path == self.refused:
            raise DiskError(5, path)
        super().remove(path)


def test_a_file_that_retention_cannot_remove_is_no_damage() -> None:
    disk = RefusingDisk()
    directory = filled(disk)
    directory.flush_due(now_ms=0)
    log = directory.logs[KEY]
    disk.refused = segments(disk)[0]
    for number in (2, 1):  # twice: the second time the next segment goes
        assert log.apply_retention(NOW_MS, up_to=log.segment_bases[number])
        directory.remove_expired_segments()
        directory.flush_due(now_ms=0)
    assert disk.refused in segments(disk)
    whole, start = read_all(log), log.start
    disk.crash()
    directory = opened(disk)
    log = directory.logs[KEY]
    assert (directory.damaged, log.start, read_all(log)) == ({}, start, whole)
    disk.refused = None
    directory.flush_due(now_ms=0)
    assert len(segments(disk)) == len(log.segment_bases), "removed as soon as the disk allows it"


def test_a_gap_below_the_start_is_no_damage() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    directory.flush_due(now_ms=0)
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[3])
    whole = read_all(log)
    disk.crash()
    disk.remove(segments(disk)[1])
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


def test_a_truncation_to_an_offset_whose_old_file_is_still_there() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[3])
    log.truncate_fully(0)
    fill(log, range(3))
    directory.remove_expired_segments()
    whole = read_all(log)
    disk.crash()
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


class RefusingInventoriesDisk(MemoryDisk):
    """Full for inventories, from the time when a segment is created at this path."""

    full_after: str | None = None

    def create(self, path: str) -> DiskFile:
        file = super().create(path)
        self.is_full = path == self.full_after
        return file


def test_records_after_a_truncation_whose_inventory_was_refused_do_not_follow_expired_files() -> (
    None
):
    disk = RefusingInventoriesDisk()
    directory = filled(disk)
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[-1])
    new_start = log.end + 3
    log.truncate_fully(new_start)
    disk.full_after = f"{FOLDER}/{new_start - 1:020d}.log"
    with suppress(DiskError):
        log.truncate_fully(new_start - 1)
    disk.is_full = False
    fill(log, range(3))
    whole = read_all(log)
    disk.crash()
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


def test_files_of_a_deleted_log_are_not_removed_from_its_namesake() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    old = directory.logs[KEY]
    old.apply_retention(NOW_MS, up_to=old.segment_bases[3])
    directory.delete(*KEY)
    log = directory.create(*KEY, topic_id=UUID(int=2), now_ms=0)
    fill(log, range(3))
    old.remove_expired_files()
    assert f"{FOLDER}/{0:020d}.log" in segments(disk)


def test_a_start_that_a_loss_of_power_lowered_stays_low() -> None:
    """The records up to the old start are gone: their offsets are assigned again, and served."""
    disk = MemoryDisk()
    directory = LogDirectory.open(
        disk, "/data", cluster_id="c", broker_id=1, lock=True, now_ms=0, config_of=lambda _: CONFIG
    )
    log = directory.create(*KEY, topic_id=TOPIC_ID, now_ms=0)
    fill(log, range(3))
    log.delete_records_before(5)
    disk.open(f"{FOLDER}/segment-inventory").flush()
    disk.open(f"{FOLDER}/partition.metadata").flush()
    disk.lose_power()  # the records were not flushed
    log = opened(disk).logs[KEY]
    assert (log.start, log.end) == (0, 0)
    fill(log, range(2))
    for _ in range(2):
        disk.crash()
        log = opened(disk).logs[KEY]
        assert (log.start, log.end) == (0, 4)


# Inventories that the disk refuses


class UnflushedDisk(MemoryDisk):
    """A failed flush is reported once. The bytes are never written, as Linux has it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_next_flush_of = ""
        self._lost: set[int] = set()  # contents that no later flush writes

    def open(self, path: str) -> DiskFile:
        file = super().open(path)
        assert isinstance(file, MemoryFile)
        return _UnflushedFile(self, path, file._content)

    def lose_power(self, random: Random | None = None) -> None:
        for path, content in list(self._files.items()):
            if id(content) in self._lost:
                self.cut(path, 0)
        super().lose_power(random)


class _UnflushedFile(MemoryFile):
    def flush(self) -> None:
        assert isinstance(self._disk, UnflushedDisk)
        if self._disk.fails_next_flush_of and self._path.endswith(self._disk.fails_next_flush_of):
            self._disk.fails_next_flush_of = ""
            self._disk._lost.add(id(self._content))
            raise DiskError(5, self._path)
        super().flush()


def test_an_inventory_whose_flush_failed_is_written_again() -> None:
    disk = UnflushedDisk()
    filled(disk)
    disk.crash()
    disk.write_back()
    flip_a_batch(disk)
    disk.fails_next_flush_of = "segment-inventory"
    directory = opened(disk)
    assert KEY in directory.unopened
    directory.create(*KEY, topic_id=TOPIC_ID, now_ms=0)
    disk.lose_power()
    assert KEY in opened(disk).damaged


def test_a_truncation_whose_inventory_cannot_be_flushed_has_not_been_made() -> None:
    disk = UnflushedDisk()
    directory = filled(disk)
    directory.flush_due(now_ms=0)
    log = directory.logs[KEY]
    whole = read_all(log)
    disk.fails_next_flush_of = "segment-inventory"
    with pytest.raises(DiskError):
        log.truncate_fully(log.end + 5)
    disk.crash()
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


def test_damage_found_on_a_full_disk_is_written_when_there_is_room() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    disk.is_full = True
    directory.mark_damaged(KEY, "the scrub found it")
    with suppress(DiskError):
        directory.flush_due(now_ms=0)
    disk.is_full = False
    directory.flush_due(now_ms=0)
    disk.crash()
    assert opened(disk).damaged == {KEY: "the scrub found it"}


def test_a_full_disk_refuses_to_accept_a_log_that_is_not_trusted() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    disk.is_full = True
    with pytest.raises(DiskError):
        directory.mark_untrusted(KEY, "another directory", topic_id=TOPIC_ID, now_ms=0)


def test_an_inventory_that_a_full_disk_took_is_written_when_there_is_room() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    disk.is_full = True
    with suppress(DiskError):
        directory.flush_due(now_ms=0)
    disk.is_full = False
    directory.flush_due(now_ms=0)
    disk.crash()
    disk.remove(segments(disk)[0])
    assert KEY in opened(disk).damaged


def test_an_inventory_without_segments_limits_the_recovery_point() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=TOPIC_ID, now_ms=0)
    fill(log, range(6))
    directory.flush_due(now_ms=0)
    directory.flush_due(now_ms=0)
    log.truncate_fully(0)
    disk.crash()
    disk.write_atomic("/data/recovery-point-offset-checkpoint", write_offsets({KEY: 12}))
    log = Log.open(disk, FOLDER, CONFIG, now_ms=0, clean=False, recovery_point=12)
    assert log.recovery_point == 0


@pytest.mark.parametrize("new_start", [0, 7, 60, 900])
@pytest.mark.parametrize("loses_power", [False, True])
def test_a_truncation_to_a_new_start_that_is_killed_is_no_damage(
    new_start: int, *, loses_power: bool
) -> None:
    for died_before in range(60):
        disk = DyingDisk()
        directory = filled(disk)
        log = directory.logs[KEY]
        directory.write_replica_checkpoint({KEY: log.end}.get)
        directory.flush_due(now_ms=0)
        disk.write_back()
        disk.changes_left = died_before
        try:
            log.truncate_fully(new_start)
            is_done = True
        except DiedError:
            is_done = False
        disk.changes_left = None
        if loses_power:
            disk.lose_power(Random(died_before))  # noqa: S311 - chance, not secrecy
        else:
            disk.crash()
        directory = opened(disk)
        assert directory.damaged == {}, died_before
        log = directory.logs[KEY]
        fill(log, range(100, 104))
        whole, start = read_all(log), log.start
        disk.crash()
        log = opened(disk).logs[KEY]
        assert (log.start, read_all(log)) == (start, whole), died_before
        if is_done:
            return
    pytest.fail("the truncation never ends")


def test_a_segment_whose_first_batch_was_truncated_is_intact() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    log = directory.logs[KEY]
    directory.flush_due(now_ms=0)
    log.truncate_to(log.segment_bases[1] + 1)
    fill(log, range(100, 120))
    whole = read_all(log)
    disk.crash()
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


def test_intact_segments_stay_when_the_first_is_lost_and_an_expired_file_is_there() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    directory.flush_due(now_ms=0)
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[2])
    bases, end = log.segment_bases, log.end
    disk.crash()
    disk.remove(f"{FOLDER}/{bases[0]:020d}.log")
    log = opened(disk).logs[KEY]
    assert (log.segment_bases, log.end) == (bases[1:], end)


def test_files_stay_while_the_inventory_without_them_cannot_be_written() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    directory.mark_untrusted(KEY, "accepted", topic_id=TOPIC_ID, now_ms=0)
    log, count = directory.logs[KEY], len(segments(disk))
    disk.is_full = True
    with suppress(DiskError):
        log.apply_retention(NOW_MS, up_to=log.segment_bases[2])
    directory.remove_expired_segments()
    assert len(segments(disk)) == count
    disk.is_full = False
    directory.flush_due(now_ms=0)
    assert len(segments(disk)) == len(log.segment_bases) < count
    assert log.damage is not None
    assert log.damage.keep_to is None


# Other threads


@pytest.mark.parametrize("seed", range(30))
def test_files_expired_during_the_flush_of_the_inventory_wait_for_the_next(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    directory.flush_due(now_ms=0)
    disk.write_back()
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[1])
    flush = InventoryFile.flush

    def flush_while_more_expires(file: InventoryFile) -> Inventory | None:
        monkeypatch.setattr(InventoryFile, "flush", power_fails)
        durable = flush(file)
        log.apply_retention(NOW_MS, up_to=log.segment_bases[2])
        return durable

    def power_fails(_: InventoryFile) -> Inventory | None:
        disk.lose_power(Random(seed))  # noqa: S311 - chance, not secrecy
        raise DiedError

    monkeypatch.setattr(InventoryFile, "flush", flush_while_more_expires)
    with pytest.raises(DiedError):
        log.remove_expired_files()
    monkeypatch.undo()
    assert opened(disk).damaged == {}


class ReplacingDisk(MemoryDisk):
    """Calls back in the middle of the next flush."""

    during_flush: Callable[[], None] | None = None

    def flush_names(self, path: str) -> None:
        callback, self.during_flush = self.during_flush, None
        if callback is not None:
            callback()
        super().flush_names(path)


def test_an_inventory_that_was_replaced_during_its_flush_is_flushed_again() -> None:
    disk = ReplacingDisk()
    file = InventoryFile(disk, "", None)
    first, second = (Inventory(identity="x", start=start) for start in (1, 2))
    assert file.write(first)
    disk.during_flush = lambda: file.replace(second)
    assert file.flush() is first
    flushes: list[str] = []
    disk.during_flush = lambda: flushes.append("again")
    assert file.flush() is second
    assert flushes == ["again"]


def test_a_deleted_log_writes_no_inventory_in_its_namesakes_folder() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    old = directory.logs[KEY]
    directory.delete(*KEY)
    directory.create(*KEY, topic_id=UUID(int=2), now_ms=0)
    directory.write_replica_checkpoint()
    old._listed_state = ()
    old.write_inventory()
    old.mark_damaged(Damage(reason="late", up_to=3))
    disk.crash()
    assert opened(disk).damaged == {}


def test_no_file_is_removed_after_the_directory_is_closed() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    log = directory.logs[KEY]
    log.apply_retention(NOW_MS, up_to=log.segment_bases[2])
    directory.close()
    count = len(segments(disk))
    directory.remove_expired_segments()
    assert len(segments(disk)) == count


def test_files_of_expired_segments_do_not_stay_open() -> None:
    disk = MemoryDisk()
    directory = filled(disk)
    log = directory.logs[KEY]
    for base in log.segment_bases:
        log.read(base, 100, up_to=log.end, min_one_batch=True, nowait=False)
    log.apply_retention(NOW_MS, up_to=log.segment_bases[3])
    directory.delete(*KEY)
    assert directory.files_open == 0
