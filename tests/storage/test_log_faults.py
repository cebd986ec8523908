"""Damaged and hostile files and full disks: the log stays well-formed, or has failed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage.disk import Buffer, DiskFile, RealDisk
from insync.storage.errors import (
    DiskError,
    EpochWentBack,
    LogFailed,
    OffsetOutOfOrder,
    OffsetOutOfRange,
)
from insync.storage.index import SEAL_BYTES
from insync.storage.log import WOULD_BLOCK, Log, LogConfig
from insync.storage.memory_disk import MemoryDisk
from insync.wire.batches import CorruptBatch
from support.storage.log_model import (
    CONFIG,
    append,
    batch,
    known_producers,
    open_log,
    read,
    read_all,
    stamped,
)

FIRST = "/t-0/00000000000000000000.log"


def filled(disk: MemoryDisk, count: int, *, size: int = 50, epoch: int = 0) -> Log:
    log = open_log(disk)
    for number in range(count):
        append(log, batch(2, size=size, timestamp_ms=number), epoch=epoch)
    return log


def overwrite(disk: MemoryDisk, path: str, position: int, data: bytes) -> None:
    content = bytearray(disk.read_all(path))
    content[position : position + len(data)] = data
    disk.write_atomic(path, bytes(content))


# Damage found when the log is opened


@pytest.mark.property
@given(at=st.integers(0, 699), flip=st.integers(1, 255))
def test_a_damaged_batch_in_the_last_segment_ends_the_log_there(at: int, flip: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    whole = read_all(log)
    size = len(whole) // 4
    at %= len(whole)
    disk.crash()
    content = bytearray(whole)
    content[at] ^= flip
    disk.write_atomic(FIRST, bytes(content))
    log = open_log(disk)
    kept = read_all(log)
    # The leader epoch (12 to 16) is under no checksum; a later one in its place is not seen.
    if not 12 <= at % size < 16:
        assert kept == whole[: at // size * size]
    assert log.end == len(kept) // size * 2
    append(log, batch(), epoch=2**31 - 1)


def test_damage_below_the_recovery_point_is_not_looked_for() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.flush()
    assert log.recovery_point == 8
    log.write_inventory()  # as the directory does before it writes recovery points
    disk.crash()
    overwrite(disk, FIRST, 100, b"\xff")
    assert Log.open(disk, "/t-0", CONFIG, now_ms=0, clean=False, recovery_point=8).end == 8
    assert Log.open(disk, "/t-0", CONFIG, now_ms=0, clean=False, recovery_point=2).end == 8
    assert Log.open(disk, "/t-0", CONFIG, now_ms=0, clean=False).end == 0


def test_a_hole_between_segments_ends_the_log() -> None:
    disk = MemoryDisk()
    log = filled(disk, 40)
    first, second, third, *_ = log.segment_bases
    disk.crash()
    disk.remove(f"/t-0/{second:020d}.log")
    log = open_log(disk)
    assert (log.segment_bases, log.end) == ([first], second)
    assert f"{third:020d}.log" not in disk.list("/t-0")


def test_a_segment_cut_short_by_a_loss_of_power_ends_the_log() -> None:
    disk = MemoryDisk()
    log = filled(disk, 12)
    log.flush()
    flushed = log.end
    for _ in range(30):
        append(log, batch(2, size=50))
    assert len(log.segment_bases) > 2
    disk.lose_power()
    log = open_log(disk)
    assert log.end == flushed
    append(log, batch())


def test_records_deleted_and_then_lost_with_the_power() -> None:
    disk = MemoryDisk()
    log = filled(disk, 4)
    log.flush()
    append(log, batch(3), epoch=1)
    log.delete_records_before(11)
    disk.lose_power()
    log = open_log(disk)
    assert (log.start, log.end) == (8, 8)
    append(log, batch(5), epoch=2)
    for _ in range(2):
        log.close()
        log = open_log(disk, clean=True)
        assert (log.start, log.end) == (8, 13)


@pytest.mark.parametrize("length", [0, 48, 2**31 - 1, -1, -(2**31)])
def test_an_absurd_length_ends_the_log(length: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    size = log.size_bytes // 3
    disk.crash()
    overwrite(disk, FIRST, size + 8, length.to_bytes(4, "big", signed=True))
    assert open_log(disk).end == 2


def test_offsets_and_epochs_that_go_back_end_the_log() -> None:
    for wrong in (stamped(batch(), base=1, epoch=5), stamped(batch(), base=2, epoch=4)):
        disk = MemoryDisk()
        append(open_log(disk), batch(2), epoch=5)
        disk.open(FIRST).append([wrong])
        disk.crash()
        assert open_log(disk).end == 2


@pytest.mark.property
@given(
    garbage=st.dictionaries(
        st.sampled_from(
            [
                "leader-epoch-checkpoint",
                "log-start-offset-checkpoint",
                "00000000000000000000.index",
                "00000000000000000000.timeindex",
                "00000000000000000000.snapshot",
                "00000000000000000099.index",
                "00000000000000000000.index.tmp",
            ]
        ),
        st.one_of(st.binary(max_size=200), st.text("0123456789 \n-", max_size=40).map(str.encode)),
    ),
    clean=st.booleans(),
)
def test_hostile_files_beside_the_log(garbage: dict[str, bytes], *, clean: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk, 6)
    whole = read_all(log)
    log.close()
    for name, data in garbage.items():
        disk.write_atomic(f"/t-0/{name}", data)
    log = open_log(disk, clean=clean)
    assert log.end == 12
    assert read_all(log) == whole[len(whole) - len(read_all(log)) :]
    assert log.offset_for_time(3) is not None or log.start > 7
    append(log, batch(), epoch=2**31 - 1)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_with_a_flipped_bit_is_not_used(suffix: str) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7, size=60)
    whole = {offset: bytes(read(log, offset).data) for offset in range(14)}
    times = [log.offset_for_time(time_ms) for time_ms in range(8)]
    log.close()
    path = f"/t-0/00000000000000000000.{suffix}"
    sound = disk.read_all(path)
    assert len(sound) > SEAL_BYTES, "some entries before the seal"
    for position in range(len(sound) * 8):
        data = bytearray(sound)
        data[position // 8] ^= 1 << position % 8
        disk.write_atomic(path, bytes(data))
        log = open_log(disk, clean=True)
        if position % 8 == 0:
            assert {offset: bytes(read(log, offset).data) for offset in range(14)} == whole
        assert [log.offset_for_time(time_ms) for time_ms in range(8)] == times


def test_files_that_are_not_ours_are_left_alone() -> None:
    disk = MemoryDisk()
    filled(disk, 2).close()
    strange = ["notes.txt", "1.log", "00000000000000000000.log.bak", "x.index", "9" * 20 + ".log"]
    for name in strange:
        disk.write_atomic(f"/t-0/{name}", b"mine")
    assert open_log(disk).end == 4
    assert set(strange) <= set(disk.list("/t-0"))


def test_an_empty_log_file_is_an_empty_log() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/t-0")
    disk.write_atomic("/t-0/00000000000000000042.log", b"")
    assert open_log(disk, clean=True).end == 42
    log = open_log(disk)
    assert (log.start, log.end) == (42, 42)
    append(log, batch())
    assert log.end == 43


# Refused appends


def test_a_follower_takes_only_what_continues_its_log() -> None:
    log = filled(MemoryDisk(), 2, epoch=3)
    for base in (3, 5, 0):
        with pytest.raises(OffsetOutOfOrder, match="ends at 4"):
            log.append_follower(stamped(batch(), base=base, epoch=3), now_ms=0)
    with pytest.raises(EpochWentBack, match="epoch 3"):
        log.append_follower(stamped(batch(), base=4, epoch=2), now_ms=0)
    broken = bytearray(stamped(batch(), base=4, epoch=3))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        log.append_follower(bytes(broken), now_ms=0)
    gap_inside = stamped(batch(), base=4, epoch=3) + stamped(batch(), base=6, epoch=3)
    with pytest.raises(OffsetOutOfOrder):
        log.append_follower(gap_inside, now_ms=0)
    assert log.end == 4
    assert log.append_follower(bytes(broken), now_ms=0, check_crc=False) == 5
    assert log.append_follower(b"", now_ms=0) == 5


def test_an_epoch_without_records_is_replaced() -> None:
    """It led for a moment and wrote nothing; the records that come are of an older epoch."""
    disk = MemoryDisk()
    log = filled(disk, 1, epoch=3)
    log.begin_epoch(7)
    assert log.epochs.latest == 7
    log.append_follower(stamped(batch(), base=2, epoch=3), now_ms=0)
    log.append_follower(stamped(batch(), base=3, epoch=5), now_ms=0)
    entries = [(entry.epoch, entry.start) for entry in log.epochs.entries]
    assert entries == [(3, 0), (5, 3)]
    log.close()
    assert open_log(disk, clean=True).epochs == log.epochs


def test_reads_outside_the_log_are_refused() -> None:
    log = filled(MemoryDisk(), 5)
    log.delete_records_before(3)
    for offset in (2, 11):
        with pytest.raises(OffsetOutOfRange, match="3 to 10"):
            read(log, offset)
    assert not read(log, 10).data
    assert read(log, 3).first_offset == 2  # the batch that holds it
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(11)


# A disk that is full, or broken


def refusal_of(operation: Callable[[], object]) -> DiskError | None:
    try:
        operation()
    except DiskError as error:
        return error
    return None


@pytest.mark.property
@given(room=st.integers(0, 400), parts=st.integers(1, 4))
def test_a_full_disk_refuses_an_append_and_harms_nothing(room: int, parts: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 12)
    whole, end = read_all(log), log.end
    used = sum(disk.file_size(f"/t-0/{name}") for name in disk.list("/t-0"))
    disk.capacity_bytes = used + room
    refused = refusal_of(lambda: append(log, *[batch(2, size=50)] * parts, epoch=1))
    if refused is not None:
        assert refused.errno == errno.ENOSPC
        assert (log.end, read_all(log)) == (end, whole)
    disk.capacity_bytes = 1 << 30
    append(log, batch(2, size=50), epoch=1)
    expected, epochs = read_all(log), log.epochs
    assert expected.startswith(whole)
    assert epochs.entries[-1].start == end
    assert log.end == end + 2 + (2 * parts if refused is None else 0)
    disk.crash()
    log = open_log(disk)
    assert (read_all(log), log.epochs) == (expected, epochs)


class BrokenFile:
    """A file of a disk that stops working: half of an append, then nothing."""

    def __init__(self, file: DiskFile, disk: BrokenDisk) -> None:
        self._file = file
        self._disk = disk

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._disk.check("append")
        return self._file.append(buffers)

    def read(self, position: int, size: int) -> Buffer:
        self._disk.check("read")
        return self._file.read(position, size)

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None if self._disk.is_cold else self._file.read_nowait(position, size)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate")
        self._file.truncate(size)

    def flush(self) -> None:
        self._disk.check("flush")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class BrokenDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.is_cold = False

    def check(self, operation: str) -> None:
        if operation in self.broken:
            raise DiskError(errno.EIO, operation)

    def open(self, path: str) -> DiskFile:
        return BrokenFile(super().open(path), self)

    def create(self, path: str) -> DiskFile:
        return BrokenFile(super().create(path), self)

    def read_all(self, path: str) -> bytes:
        self.check("read")
        return super().read_all(path)

    def read_tail(self, path: str, size: int) -> bytes:
        self.check("read")
        return super().read_tail(path, size)


def test_a_torn_append_that_cannot_be_removed_fails_the_log() -> None:
    disk = BrokenDisk()
    log = filled(disk, 2)
    disk.broken = {"append"}
    with pytest.raises(DiskError):
        append(log, batch())
    assert not log.has_failed
    disk.broken = {"append", "truncate"}
    with pytest.raises(LogFailed):
        append(log, batch())
    disk.broken = set()
    for operation in (lambda: append(log, batch()), lambda: read(log, 0), log.roll, log.close):
        with pytest.raises(LogFailed, match="restart"):
            operation()
    assert open_log(disk).end == 4


def test_an_interrupted_truncation_fails_the_log() -> None:
    disk = BrokenDisk()
    log = filled(disk, 4)
    disk.broken = {"truncate"}
    with pytest.raises(DiskError):
        log.truncate_to(3)
    with pytest.raises(LogFailed):
        append(log, batch())


def written_by_one(disk: MemoryDisk) -> Log:
    """Three segments of an idempotent producer's batches, two records each."""
    log = open_log(disk)
    for number in range(20):
        append(log, batch(2, size=50, timestamp_ms=number, producer=(7, 0, 2 * number)))
    assert len(log.segment_bases) == 3
    return log


@pytest.mark.parametrize("offset", [0, 1, 3, 14, 16, 17, 27, 32, 38, 39, 40, 50])
def test_a_truncation_offset_is_looked_up_by_reading_and_the_truncation_itself_reads_nothing(
    offset: int,
) -> None:
    disk = BrokenDisk()
    log = written_by_one(disk)
    whole, known = read_all(log), log.producers.to_bytes()
    log.close()
    log = open_log(disk)  # no index is in memory but the last one's
    truncation = log.prepare_truncation(offset)
    assert (log.end, log.producers.to_bytes()) == (40, known), "not yet"
    disk.broken = {"read"}
    assert log.truncate(truncation)
    left = min(40, offset - offset % 2)
    assert log.end == left
    append(log, batch(3, size=10, timestamp_ms=0))
    disk.broken = set()
    assert read_all(log)[: len(whole) * left // 40] == whole[: len(whole) * left // 40]
    assert log.max_timestamp() == ((0, 0) if left == 0 else (left // 2 - 1, left - 2))
    before = read_all(log), known_producers(log.producers)
    disk.crash()
    again = open_log(disk)
    assert (read_all(again), known_producers(again.producers)) == before, "as its batches have it"


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda log: append(log, batch()),
        lambda log: log.truncate_to(35),
        lambda log: log.truncate_fully(40),
        lambda log: log.delete_records_before(20),
    ],
)
def test_a_truncation_planned_for_an_earlier_log_is_refused(
    meanwhile: Callable[[Log], object],
) -> None:
    log = written_by_one(MemoryDisk())
    truncation = log.prepare_truncation(31)
    meanwhile(log)
    end, left = log.end, read_all(log)
    assert not log.truncate(truncation)
    assert (log.end, read_all(log)) == (end, left)
    assert log.truncate_to(31) == (log.end if end < 31 else min(end, max(log.start, 30)))


def test_a_disk_that_cannot_be_read_leaves_the_log_as_it_was() -> None:
    disk = BrokenDisk()
    log = written_by_one(disk)
    disk.broken = {"read"}
    with pytest.raises(DiskError):
        log.prepare_truncation(31)
    disk.broken = set()
    assert not log.has_failed
    assert log.truncate_to(31) == 30


def test_bytes_outside_the_page_cache_are_read_off_the_loop() -> None:
    disk = BrokenDisk()
    log = filled(disk, 30)
    disk.is_cold = True
    args = {"up_to": log.end, "min_one_batch": True}
    for offset in (0, 31, log.end - 1):
        assert log.read(offset, 500, nowait=True, **args) == WOULD_BLOCK  # type: ignore[arg-type]
        assert read(log, offset, max_bytes=500).data


def test_a_read_that_meets_a_truncation_starts_again() -> None:
    disk = BrokenDisk()
    log = filled(disk, 4)

    class Cutting(set[str]):
        def __contains__(self, operation: object) -> bool:
            if operation != "read":
                return False
            disk.broken = set()
            log.truncate_to(2)
            append(log, batch(2, size=50, timestamp_ms=99), epoch=9)
            return True  # and this read fails

    disk.broken = Cutting()
    result = read(log, 0)
    assert bytes(result.data) == read_all(log)
    assert log.epochs.latest == 9


# A real disk


def test_recovery_on_a_real_disk(tmp_path: Path) -> None:
    disk, path = RealDisk(), f"{tmp_path}/t-0"
    log = open_log(disk, path)
    for number in range(30):
        append(log, batch(2, size=50, timestamp_ms=number))
    whole, end, last = read_all(log), log.end, log.segment_bases[-1]
    disk.open(f"{path}/{last:020d}.log").append([b"\0" * 70])
    log = open_log(disk, path)
    assert (read_all(log), log.end) == (whole, end)
    log.truncate_to(31)
    log.close()
    again = open_log(disk, path, clean=True)
    assert (again.end, again.epochs, read_all(again)) == (30, log.epochs, whole[: len(whole) // 2])
    again.delete()
    assert disk.list(str(tmp_path)) == []
    with pytest.raises(LogFailed):
        read(again, 0)


def test_segments_roll_by_age_and_old_ones_go() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_ms=100, retention_ms=1000)
    log = Log.open(disk, "/t-0", config, now_ms=0, clean=False)
    for now_ms in (0, 50, 100, 101, 150, 250):
        append(log, batch(timestamp_ms=now_ms), now_ms=now_ms)
    assert log.segment_bases == [0, 3, 5]
    assert log.apply_retention(1100) == []
    assert [one.base for one in log.apply_retention(1101)] == [0]
    assert (log.start, log.end) == (3, 6)
    assert log.apply_retention(5000, up_to=4) == []
    log.close()
    log = Log.open(disk, "/t-0", config, now_ms=260, clean=True)
    append(log, batch(timestamp_ms=400), now_ms=400)
    assert log.segment_bases == [3, 5, 6], "its age is that of its first record, not of the process"
    assert [one.base for one in log.apply_retention(5000)] == [3, 5, 6]
    assert (log.start, log.end, log.segment_bases) == (7, 7, [7])
    assert log.apply_retention(9000) == []


def test_relative_offsets_fit_their_index() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    huge = bytearray(stamped(batch(), base=0, epoch=0))
    huge[23:27] = (2**31 - 2).to_bytes(4, "big")
    assert log.append_follower(bytes(huge), now_ms=0, check_crc=False) == 2**31 - 1
    append(log, batch())
    assert log.segment_bases == [0, 2**31 - 1]
