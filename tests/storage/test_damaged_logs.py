"""A stopped log whose files are damaged: it is marked damaged, or it has every record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from insync.storage.checkpoints import write_epochs
from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk, RealDisk
from insync.storage.errors import DiskError
from insync.storage.inventory import Damage
from insync.storage.local_log import FLUSH_AFTER_MS
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk
from insync.wire.batches import build, whole_batches
from support.storage.dying_disk import DiedError, DyingDisk
from support.storage.log_model import CONFIG, append, batch, read_all

KEY, OTHER = ("orders", 0), ("trades", 0)
FOLDER, OTHER_FOLDER = "/data/orders-0", "/data/trades-0"
IDS = {KEY: UUID(int=1), OTHER: UUID(int=2)}


def opened(disk: Disk, path: str = "/data") -> LogDirectory:
    return LogDirectory.open(
        disk, path, cluster_id="c", broker_id=1, lock=True, now_ms=0, config_of=lambda _: CONFIG
    )


def append_numbered(log: Log, number: int, *, epoch: int) -> None:
    """Two records of one size, with content that no other batch and no other log has."""
    name = log.path.rpartition("/")[2]
    append(log, build([(None, f"{name} {number:040d}".encode())] * 2), epoch=epoch)


def fill(directory: LogDirectory, keys: tuple[tuple[str, int], ...] = (KEY, OTHER)) -> None:
    """Several segments and leader epochs, not all of it flushed."""
    for key in keys:
        log = directory.create(*key, topic_id=IDS[key], now_ms=0)
        for number in range(34):
            append_numbered(log, number, epoch=number // 9)
    directory.flush_due(now_ms=0)
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    for key in keys:
        for number in range(34, 37):
            append_numbered(directory.logs[key], number, epoch=4)


def stop(disk: MemoryDisk, directory: LogDirectory, *, clean: bool) -> None:
    directory.write_watermarks({key: log.end for key, log in directory.logs.items()})
    if clean:
        directory.close()
    disk.crash()


def stopped(*, clean: bool) -> tuple[MemoryDisk, bytes]:
    """The disk of a stopped broker, and what the log KEY had."""
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory)
    log = directory.logs[KEY]
    assert len(log.segment_bases) > 3
    whole = read_all(log)
    stop(disk, directory, clean=clean)
    return disk, whole


def segments(disk: MemoryDisk, folder: str = FOLDER) -> list[str]:
    return [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".log")]


def halve(disk: MemoryDisk, path: str) -> None:
    data = disk.read_all(path)
    disk.write_atomic(path, data[: len(data) // 2])


def flip(disk: MemoryDisk, path: str, at: int) -> None:
    data = bytearray(disk.read_all(path))
    data[at] ^= 0xFF
    disk.write_atomic(path, bytes(data))


both_stops = pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])


@both_stops
def test_intact_logs_are_not_damaged(*, clean: bool) -> None:
    disk, whole = stopped(clean=clean)
    for _ in range(2):
        directory = opened(disk)
        assert directory.damaged == {}
        assert read_all(directory.logs[KEY]) == whole
        assert [name for name in disk.list(FOLDER) if "damaged" in name] == []
        stop(disk, directory, clean=clean)


@both_stops
@pytest.mark.parametrize("number", [0, 1, 2, -1])
def test_a_removed_segment_is_noticed(number: int, *, clean: bool) -> None:
    disk, whole = stopped(clean=clean)
    path = segments(disk)[number]
    base = int(path[-24:-4])
    disk.remove(path)
    directory = opened(disk)
    log = directory.logs[KEY]
    assert KEY in directory.damaged
    assert OTHER not in directory.damaged
    kept = read_all(log)
    if number == 0:
        assert log.start > 0
        assert whole.endswith(kept)
    else:
        assert log.end == base
        assert whole.startswith(kept)


@both_stops
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_halved_segment_is_noticed_and_its_sound_batches_are_kept(
    number: int, *, clean: bool
) -> None:
    disk, whole = stopped(clean=clean)
    path = segments(disk)[number]
    base, later = int(path[-24:-4]), segments(disk)[number:][1:]
    lost = [disk.read_all(each) for each in later]
    halve(disk, path)
    directory = opened(disk)
    log = directory.logs[KEY]
    assert KEY in directory.damaged
    assert whole.startswith(read_all(log))
    assert log.end > base
    for each, data in zip(later, lost, strict=True):
        assert disk.read_all(each + ".damaged") == data, "nothing that may be needed is deleted"


def test_after_a_kill_a_sealed_segment_past_the_recovery_point_is_verified() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)
    for number in range(30):
        append_numbered(log, number, epoch=0)
    whole = read_all(log)
    assert log.recovery_point == 0
    disk.crash()
    flip(disk, segments(disk)[1], 200)
    directory = opened(disk)
    log = directory.logs[KEY]
    assert KEY in directory.damaged
    kept = read_all(log)
    assert whole.startswith(kept)
    assert 0 < len(kept) < len(whole)


def test_the_recovery_point_is_lowered_before_a_truncation() -> None:
    """The broker is killed after it appended again, and the directory's checkpoint is older."""
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory, (KEY,))
    log = directory.logs[KEY]
    flushed = log.recovery_point
    log.truncate_to(flushed - 10)
    for number in range(10):
        append_numbered(log, 100 + number, epoch=7)
    whole = read_all(log)
    assert directory.logs[KEY].segment_bases[-2:] == [48, 64]
    disk.crash()
    flip(disk, segments(disk)[-2], disk.file_size(segments(disk)[-2]) - 30)
    log = opened(disk).logs[KEY]
    assert 48 < log.end < 64 < flushed, "not believed, although the older checkpoint says flushed"
    assert whole.startswith(read_all(log))


def test_a_flushed_record_that_is_gone_is_noticed_without_a_watermark() -> None:
    disk = MemoryDisk()
    fill(opened(disk), (KEY,))
    disk.crash()
    for _ in range(2):
        halve(disk, segments(disk)[-1])
    assert "its inventory at 68" in opened(disk).damaged[KEY]


@both_stops
def test_a_truncation_is_no_damage(*, clean: bool) -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory, (KEY,))
    log = directory.logs[KEY]
    log.truncate_to(log.segment_bases[1] + 3)
    whole = read_all(log)
    stop(disk, directory, clean=clean)
    directory = opened(disk)
    assert (directory.damaged, read_all(directory.logs[KEY])) == ({}, whole)


@both_stops
@pytest.mark.parametrize("start", [0, 50, 900])
def test_a_restarted_log_is_no_damage(start: int, *, clean: bool) -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory, (KEY,))
    directory.logs[KEY].truncate_fully(start)
    stop(disk, directory, clean=clean)
    directory = opened(disk)
    assert directory.damaged == {}
    assert directory.logs[KEY].end == start


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate_to(log.segment_bases[1] + 3),
        lambda log: log.truncate_to(log.segment_bases[2]),
        lambda log: log.truncate_fully(0),
        lambda log: log.truncate_fully(7),
        lambda log: log.truncate_fully(900),
        lambda log: log.delete_records_before(log.segment_bases[2] + 1),
        lambda log: log.apply_retention(1 << 60, up_to=log.segment_bases[2]),
        lambda log: log.roll(),
    ],
)
def test_a_kill_in_the_middle_of_a_change_is_no_damage(change: Callable[[Log], object]) -> None:
    for died_before in range(40):
        disk = DyingDisk()
        directory = opened(disk)
        fill(directory, (KEY,))
        log = directory.logs[KEY]
        whole = read_all(log)
        disk.changes_left = died_before
        try:
            change(log)
            is_done = True
        except DiedError:
            is_done = False
        disk.changes_left = None
        disk.crash()
        directory = opened(disk)
        assert directory.damaged == {}, died_before
        assert read_all(directory.logs[KEY]) in whole
        if is_done:
            return
    pytest.fail("the change never ends")


@both_stops
def test_retention_is_no_damage_and_a_segment_removed_after_it_is(*, clean: bool) -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory, (KEY,))
    log = directory.logs[KEY]
    assert log.apply_retention(1 << 60, up_to=log.segment_bases[1])
    directory.remove_expired_segments()
    stop(disk, directory, clean=clean)
    directory = opened(disk)
    assert directory.damaged == {}
    stop(disk, directory, clean=clean)
    disk.remove(segments(disk)[0])
    assert KEY in opened(disk).damaged


def test_damage_is_known_until_it_is_repaired() -> None:
    disk, _ = stopped(clean=True)
    disk.remove(segments(disk)[1])
    directory = opened(disk)
    reason = directory.damaged[KEY]
    for clean in (False, True):
        directory.logs[KEY].truncate_fully(0)
        directory.write_watermarks({})
        stop(disk, directory, clean=clean)
        directory = opened(disk)
        assert directory.damaged == {KEY: reason}
    directory.end_damage(KEY)
    disk.crash()
    assert opened(disk).damaged == {}


def test_damage_marked_by_others_is_kept() -> None:
    disk, _ = stopped(clean=True)
    directory = opened(disk)
    directory.mark_damaged(KEY, "its disk lied")
    disk.crash()
    assert opened(disk).damaged == {KEY: "its disk lied"}


def test_a_log_that_ends_below_its_checkpointed_watermark_is_damaged() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)
    for number in range(4):
        append_numbered(log, number, epoch=0)
    directory.write_watermarks({KEY: log.end})
    disk.crash()
    halve(disk, segments(disk)[0])
    assert "high watermark 8" in opened(disk).damaged[KEY]


def test_a_topic_created_again_is_not_damaged() -> None:
    disk, _ = stopped(clean=False)
    directory = opened(disk)
    directory.create(*KEY, topic_id=UUID(int=9), now_ms=0)
    disk.crash()
    directory = opened(disk)
    assert directory.damaged == {}
    assert directory.logs[KEY].end == 0


# Leader epochs


def epochs_of(data: bytes) -> list[tuple[int, int]]:
    """Slow and obvious: where each epoch begins."""
    starts: dict[int, int] = {}
    for header in whole_batches(data):
        starts.setdefault(header.leader_epoch, header.base_offset)
    return list(starts.items())


def stored_epochs(log: Log) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start) for entry in log.epochs.entries]


@both_stops
@pytest.mark.parametrize("with_inventory", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_an_epoch_checkpoint_older_than_the_log_is_rebuilt(
    kept: int, *, with_inventory: bool, clean: bool
) -> None:
    disk, whole = stopped(clean=clean)
    log = opened(disk).logs[KEY]
    old = type(log.epochs)(log.epochs.entries[:kept])
    assert stored_epochs(log) == epochs_of(whole)
    if clean:
        log.close()
        disk.write_atomic("/data/.clean-shutdown", b"")
    disk.crash()
    disk.write_atomic(f"{FOLDER}/leader-epoch-checkpoint", write_epochs(old))
    if not with_inventory:
        disk.remove(f"{FOLDER}/segment-inventory")
    assert stored_epochs(opened(disk).logs[KEY]) == epochs_of(whole)


def test_the_scrub_checks_the_epoch_of_the_batch_in_which_the_log_starts() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    fill(directory, (KEY,))
    log = directory.logs[KEY]
    log.delete_records_before(19)  # the second record of a batch of epoch 1
    assert list(log.scrub()) == []
    path = [path for path in segments(disk) if int(path[-24:-4]) <= 18][-1]
    data = disk.read_all(path)
    position = next(each.position for each in whole_batches(data) if each.base_offset == 18)
    disk.overwrite(path, position + 12, (0).to_bytes(4, "big"))
    assert [bad.offset for bad in log.scrub()] == [18]


@both_stops
def test_an_epoch_checkpoint_with_other_offsets_is_rebuilt(*, clean: bool) -> None:
    disk, whole = stopped(clean=clean)
    path = f"{FOLDER}/leader-epoch-checkpoint"
    assert b"\n1 18\n" in disk.read_all(path)
    disk.write_atomic(path, disk.read_all(path).replace(b"\n1 18\n", b"\n1 16\n"))
    assert stored_epochs(opened(disk).logs[KEY]) == epochs_of(whole)


# Symbolic links


@pytest.fixture
def real(tmp_path: Path) -> Path:
    directory = opened(RealDisk(), f"{tmp_path}/data")
    fill(directory)
    directory.close()
    return tmp_path / "data"


def move_behind_link(path: Path) -> None:
    target = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "leader-epoch-checkpoint", "."])
def test_no_log_is_opened_through_a_symbolic_link(name: str, real: Path) -> None:
    if name == "leader-epoch-checkpoint":
        (real / ".clean-shutdown").unlink()
    move_behind_link(real / "orders-0" / name if name != "." else real / "orders-0")
    directory = opened(RealDisk(), str(real))
    assert set(directory.logs) == {OTHER}, "the others are opened"
    assert "symbolic link" in directory.damaged[KEY]
    with pytest.raises(DiskError, match="symbolic link"):
        directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)


def test_the_data_directory_itself_may_be_a_symbolic_link(real: Path) -> None:
    move_behind_link(real)
    assert set(opened(RealDisk(), str(real)).logs) == {KEY, OTHER}


def test_a_log_that_could_not_be_opened_is_opened_once_it_can_be(real: Path) -> None:
    path = real / "orders-0" / "00000000000000000000.log"
    move_behind_link(path)
    directory = opened(RealDisk(), str(real))
    path.resolve().replace(path)
    log = directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)
    assert log.end == 74
    assert directory.damaged == {}


# Every file, every damage


def cut(disk: MemoryDisk, path: str) -> None:
    halve(disk, path)


def garble_begin(disk: MemoryDisk, path: str) -> None:
    flip(disk, path, 0)


def garble_middle(disk: MemoryDisk, path: str) -> None:
    flip(disk, path, disk.file_size(path) // 2)


def garble_end(disk: MemoryDisk, path: str) -> None:
    flip(disk, path, disk.file_size(path) - 1)


def zero(disk: MemoryDisk, path: str) -> None:
    disk.write_atomic(path, bytes(disk.file_size(path)))


def remove(disk: MemoryDisk, path: str) -> None:
    disk.remove(path)


def swap(disk: MemoryDisk, path: str) -> None:
    other = path.replace(FOLDER, OTHER_FOLDER)
    if other == path or not path.startswith(FOLDER):
        return
    mine, theirs = disk.read_all(path), disk.read_all(other)
    disk.write_atomic(path, theirs)
    disk.write_atomic(other, mine)


DAMAGES = [cut, garble_begin, garble_middle, garble_end, zero, remove, swap]

LAST_SEGMENT = 4  # of the first log, among the files of `logs_first`


def all_files(disk: MemoryDisk) -> list[str]:
    files = [f"/data/{name}" for name in disk.list("/data") if "-0" not in name]
    files += [f"{FOLDER}/{name}" for name in disk.list(FOLDER)]
    return [path for path in files if not path.endswith((".lock", "meta.properties"))]


def check_honesty(disk: MemoryDisk, written: dict[tuple[str, int], bytes], what: str) -> None:
    """Open the logs as a broker does, scrub them once, and compare with what was written."""
    directory = opened(disk)
    logs = {key: directory.create(*key, topic_id=IDS[key], now_ms=0) for key in written}
    for key, log in logs.items():
        for damage in log.scrub():
            directory.mark_damaged(key, damage.reason)
        if key in directory.damaged:
            continue
        assert read_all(log) == written[key], f"{key} after {what}"
        assert stored_epochs(log) == epochs_of(written[key]), f"{key} after {what}"
    for key, log in logs.items():
        if directory.damaged.get(key, "").startswith("segment"):
            continue  # found by the scrub, and not removed yet
        kept = read_all(log)
        assert kept in written[key], f"{key} after {what}: wrong bytes"


@both_stops
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_no_damage_to_a_file_of_a_stopped_log_goes_unnoticed(
    damage: Callable[[MemoryDisk, str], None], *, clean: bool
) -> None:
    disk, _ = stopped(clean=clean)
    for path in all_files(disk):
        disk, _ = stopped(clean=clean)
        directory = opened(disk)
        written = {key: read_all(log) for key, log in directory.logs.items()}
        stop(disk, directory, clean=clean)
        if not disk.file_size(path) and damage is not remove:
            continue
        damage(disk, path)
        check_honesty(disk, written, f"{damage.__name__} of {path}")


@both_stops
@pytest.mark.parametrize("records", [4, 17, 30])
def test_no_old_copy_of_a_file_goes_unnoticed(records: int, *, clean: bool) -> None:
    """A copy from an earlier time, as a careless restore leaves it."""
    disk, _ = stopped(clean=clean)
    for path in all_files(disk):
        disk = MemoryDisk()
        directory = opened(disk)
        for key, topic_id in IDS.items():
            log = directory.create(*key, topic_id=topic_id, now_ms=0)
            for number in range(records):
                append_numbered(log, number, epoch=number // 9)
        stop(disk, directory, clean=True)
        old = disk.read_all(path) if path in all_files(disk) else None
        directory = opened(disk)
        for log in directory.logs.values():
            for number in range(records, 37):
                append_numbered(log, number, epoch=4)
        written = {key: read_all(log) for key, log in directory.logs.items()}
        directory.flush_due(now_ms=0)
        directory.flush_due(now_ms=FLUSH_AFTER_MS)
        stop(disk, directory, clean=clean)
        if old is not None:
            disk.write_atomic(path, old)
            check_honesty(disk, written, f"an old copy of {path}")


@pytest.mark.parametrize("seed", range(10))  # of what the loss of power takes
@pytest.mark.parametrize("keep", [0, 20])
def test_truncated_records_are_not_missed_after_a_loss_of_power(keep: int, seed: int) -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)
    for number in range(37):
        append_numbered(log, number, epoch=0)
    directory.flush_due(now_ms=0)
    directory.flush_due(now_ms=FLUSH_AFTER_MS)
    directory.write_replica_checkpoint()
    disk.open(f"{FOLDER}/segment-inventory").flush()
    log.truncate_to(keep)
    disk.lose_power(Random(seed))  # noqa: S311 - chance, not secrecy
    directory = opened(disk)
    assert directory.logs[KEY].end == keep
    assert directory.damaged == {}


@pytest.mark.parametrize("bit", [0, 1, 2, 20, 62])
@pytest.mark.parametrize("offset", [18, 20, 21])
def test_a_log_never_ends_at_the_garbled_base_offset_of_a_batch(offset: int, bit: int) -> None:
    """No CRC covers it. Here the second batch of the second segment begins at offset 18."""
    disk, whole = stopped(clean=True)
    log = opened(disk).logs[KEY]
    path = segments(disk)[1]
    headers = list(whole_batches(disk.read_all(path)))
    assert headers[1].base_offset == 18
    garbled = (18 ^ 1 << bit).to_bytes(8, "big")
    disk.overwrite(path, headers[1].position, garbled)
    try:
        end = log.truncate_to(offset)
    except DiskError:
        assert log.end == 2 * 37
        log.truncate_to(16)
        end = log.end
    assert end <= offset
    assert read_all(log) == whole[: len(read_all(log))]
    assert end == 16 or [each.next_offset for each in whole_batches(read_all(log))][-1] == end


def test_what_is_to_be_repaired_stays_known_when_more_is_damaged() -> None:
    disk, _ = stopped(clean=True)
    directory = opened(disk)
    directory.mark(KEY, Damage(reason="segment 16: a bad batch", up_to=74, keep_to=18))
    stop(disk, directory, clean=True)
    disk.remove(segments(disk)[-1])
    damage = opened(disk).logs[KEY].damage
    assert damage is not None
    assert (damage.keep_to, damage.up_to) == (18, 74)


def test_a_removed_oldest_segment_is_noticed_before_anything_was_flushed() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(*KEY, topic_id=IDS[KEY], now_ms=0)
    for number in range(37):
        append_numbered(log, number, epoch=0)
    assert log.recovery_point == 0
    disk.crash()
    disk.remove(segments(disk)[0])
    directory = opened(disk)
    assert directory.damaged == {KEY: "it begins at offset 16, its inventory at 0"}
    damage = directory.logs[KEY].damage
    assert damage is not None
    assert damage.keep_to == 0


def logs_first(path: str) -> tuple[bool, str]:
    return not path.endswith(".log"), path


@pytest.mark.property
@given(
    which=st.integers(0, 1000),
    at=st.integers(0, 100_000),
    flipped=st.integers(1, 255),
    how=st.sampled_from(["flip", "cut", "zero from", "double", "repeat the beginning"]),
    clean=st.booleans(),
)
# A batch below the recovery point keeps its header and loses its records, with all after it: the
# log ends below what was flushed, or (200) only below its watermark.
@example(which=LAST_SEGMENT, at=21, flipped=1, how="zero from", clean=False)
@example(which=LAST_SEGMENT, at=200, flipped=1, how="zero from", clean=False)
# The leader epoch of a batch, which no CRC covers: in a complete segment, and in the last one.
@example(which=LAST_SEGMENT - 1, at=185, flipped=1, how="flip", clean=False)
@example(which=LAST_SEGMENT, at=185, flipped=1, how="flip", clean=False)
def test_damage_anywhere_is_noticed(
    which: int, at: int, flipped: int, how: str, *, clean: bool
) -> None:
    disk, _ = stopped(clean=clean)
    directory = opened(disk)
    written = {key: read_all(log) for key, log in directory.logs.items()}
    stop(disk, directory, clean=clean)
    files = [path for path in all_files(disk) if disk.file_size(path)]
    path = sorted(files, key=logs_first)[which % len(files)]
    data = bytearray(disk.read_all(path))
    at %= len(data)
    match how:
        case "flip":
            data[at] ^= flipped
        case "cut":
            del data[at:]
        case "zero from":
            data[at:] = bytes(len(data) - at)
        case "double":
            data = data * 2
        case _:
            data[at:] = data[: len(data) - at]
    disk.write_atomic(path, bytes(data))
    check_honesty(disk, written, f"{how} of {path} at {at}")


def test_batches_have_one_size() -> None:
    """Only so a swap with another partition's file is as hard to notice as it can be."""
    disk, _ = stopped(clean=True)
    for mine, theirs in zip(segments(disk), segments(disk, OTHER_FOLDER), strict=True):
        assert disk.file_size(mine) == disk.file_size(theirs)
        assert disk.read_all(mine) != disk.read_all(theirs)
    assert batch() == batch()
