"""Batches that claim up to 2^31-1 records: the log keeps every one, or refuses it unwritten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage.errors import LogFailed, OffsetOverflow
from insync.storage.index import SegmentIndex
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk
from insync.storage.producers import Producers
from insync.storage.segment import Segment
from insync.wire.batches import whole_batches
from support.storage.log_model import (
    CONFIG,
    append,
    batch,
    claiming,
    known_producers,
    open_log,
    read,
    read_all,
    stamped,
)

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
MOST = INT32_MAX  # records that one header can claim
SIZE = 300  # of a value: larger than the index interval, so that each batch is indexed

spans = st.lists(
    st.sampled_from([1, 2, 2**30, MOST - 1, MOST]) | st.integers(1, MOST), min_size=1, max_size=8
)


def log_file(disk: MemoryDisk, data: bytes) -> None:
    """One segment at offset 0, as an earlier process may have left it."""
    disk.make_dirs("/t-0")
    disk.write_atomic("/t-0/00000000000000000000.log", data)


def replicate(leader: Log, follower: Log) -> None:
    """Fetch as a follower does, until it has everything."""
    while follower.end < leader.end:
        end = follower.end
        follower.append_follower(bytes(read(leader, end, max_bytes=1 << 20).data), now_ms=0)
        assert follower.end > end, "the follower makes progress"


# Appends of a leader


@pytest.mark.property
@given(counts=spans, size=st.sampled_from([1, SIZE]))
def test_a_leader_rolls_where_its_index_ends_and_a_restart_loses_nothing(
    counts: list[int], size: int
) -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=replace(CONFIG, segment_bytes=1 << 20))
    for number, count in enumerate(counts):
        append(log, claiming(count, size=size, timestamp_ms=number))
    assert log.end == sum(counts)
    for base, end in zip(log.segment_bases, [*log.segment_bases[1:], log.end], strict=True):
        assert end - base <= INT32_MAX
    expected = read_all(log)
    disk.crash()
    for clean in (False, True):
        log = open_log(disk, clean=clean)
        assert (log.end, read_all(log)) == (sum(counts), expected)
        for number in range(len(counts)):
            base = sum(counts[:number])
            assert read(log, base + counts[number] - 1, max_bytes=1).first_offset == base
            assert log.offset_for_time(number) == (base, number)
        log.close()


def test_an_append_that_no_segment_can_index_is_refused_unwritten() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(size=SIZE), epoch=1)
    whole, epochs, used = read_all(log), log.epochs, log.size_bytes
    with pytest.raises(OffsetOverflow):
        append(log, *[claiming(MOST, size=SIZE)] * 3, epoch=2)
    assert (log.end, read_all(log), log.epochs, log.size_bytes) == (1, whole, epochs, used)
    append(log, batch(size=SIZE), epoch=2)
    expected = read_all(log)
    disk.crash()
    log = open_log(disk)
    assert (log.end, read_all(log)) == (2, expected)


# Appends of a follower


@pytest.mark.property
@given(counts=spans, before=st.integers(0, 3))
def test_a_follower_takes_whatever_a_leader_has(counts: list[int], before: int) -> None:
    """Also from a leader whose one segment spans more than its index can name."""
    data = stamped(
        b"".join(claiming(count, size=SIZE) for count in [1] * before + counts), base=0, epoch=0
    )
    disk, follower_disk = MemoryDisk(), MemoryDisk()
    log_file(disk, data)
    leader, follower = open_log(disk), open_log(follower_disk)
    if before:
        follower.append_follower(
            stamped(claiming(1, size=SIZE) * before, base=0, epoch=0), now_ms=0
        )
    replicate(leader, follower)
    assert read_all(follower) == data
    follower_disk.crash()
    assert read_all(open_log(follower_disk)) == data


def test_a_follower_appends_what_fits_a_segment_and_fetches_the_rest_again() -> None:
    log = open_log(MemoryDisk())
    data = stamped(claiming(MOST, size=SIZE) * 3, base=0, epoch=0)
    for number in (1, 2, 3):
        headers = list(whole_batches(data))
        end = log.append_follower(data[headers[number - 1].position :], now_ms=0)
        assert end == log.end == number * MOST
    assert log.segment_bases == [0, MOST, 2 * MOST]
    assert read_all(log) == data


# Segments that earlier versions wrote


@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_segment_with_more_offsets_than_its_index_can_name_is_kept(
    size: int, *, is_sealed: bool
) -> None:
    one = [claiming(MOST, size=size, timestamp_ms=number) for number in range(4)]
    data = stamped(b"".join(one), base=0, epoch=3)
    disk = MemoryDisk()
    log_file(disk, data)
    log = open_log(disk)
    if is_sealed:
        log.close()
        log = open_log(disk, clean=True)
    assert (log.end, read_all(log)) == (4 * MOST, data)
    for number in range(4):
        for offset in (number * MOST, number * MOST + 5, (number + 1) * MOST - 1):
            for nowait in (False, True):
                result = read(log, offset, max_bytes=1, nowait=nowait)
                assert (result.first_offset, result.next_offset) == (
                    number * MOST,
                    (number + 1) * MOST,
                )
        assert log.offset_for_time(number) == (number * MOST, number)
        assert not read(log, number * MOST, up_to=number * MOST + 1).data
    assert log.max_timestamp() == (3, 3 * MOST)
    append(log, batch(), epoch=3)
    assert log.segment_bases == [0, 4 * MOST], "nothing more goes into that segment"
    assert log.truncate_to(3 * MOST + 7) == 3 * MOST
    assert read_all(log) == data[: len(data) * 3 // 4]
    assert log.max_timestamp() == (2, 2 * MOST)


# The largest offsets


def test_offsets_end_at_the_largest_int64() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.truncate_fully(INT64_MAX - 3)
    for refused in ([claiming(4)], [claiming(MOST)], [batch(), batch(), batch(), batch()]):
        with pytest.raises(OffsetOverflow):
            append(log, *refused)
        with pytest.raises(OffsetOverflow):
            log.append_follower(stamped(claiming(4), base=INT64_MAX - 3, epoch=0), now_ms=0)
        assert (log.end, log.size_bytes) == (INT64_MAX - 3, 0)
    append(log, batch(2, size=SIZE))
    last = stamped(batch(size=SIZE), base=INT64_MAX - 1, epoch=0)
    assert log.append_follower(last, now_ms=0) == INT64_MAX
    for _ in range(2):
        with pytest.raises(OffsetOverflow):
            append(log, batch())
        assert read(log, INT64_MAX - 1).next_offset == log.end == INT64_MAX
        assert bytes(read(log, INT64_MAX - 1).data) == last
        disk.crash()
        log = open_log(disk)


def test_a_batch_beyond_the_largest_int64_ends_a_log() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/t-0")
    base = INT64_MAX - 3
    data = stamped(batch(2) + claiming(2), base=base, epoch=0)
    disk.write_atomic(f"/t-0/{base:020d}.log", data)
    log = open_log(disk)
    assert (log.start, log.end) == (base, base + 2)


# Failures after the write


@pytest.mark.parametrize("is_follower", [False, True])
@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (SegmentIndex, "add"),
        (SegmentIndex, "add_batches"),
        (Segment, "index_written"),
        (Producers, "apply"),
    ],
)
@pytest.mark.parametrize("failure", [OverflowError, MemoryError, ValueError])
def test_a_failure_after_the_write_fails_the_log_and_claims_nothing(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    step: str,
    failure: type[Exception],
    *,
    is_follower: bool,
) -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=replace(CONFIG, segment_bytes=1 << 20))
    append(log, batch(2, size=SIZE, timestamp_ms=5, producer=(7, 0, 0)), epoch=1)
    append(log, batch(2, size=SIZE, timestamp_ms=6, producer=(8, 0, 0)), epoch=1)
    whole, epochs, used = read_all(log), log.epochs, log.size_bytes
    indexed = log._segments[-1].index.last_position
    known = known_producers(log.producers)
    new = [batch(size=SIZE, timestamp_ms=9, producer=(7, 0, 2 + number)) for number in range(3)]
    real, calls = getattr(owner, step), 0

    def fail_later(*args: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if step == "index_written":
            real(*args, **named)  # and then it fails: everything is indexed
        if calls == (2 if step == "add" else 1):
            raise failure
        real(*args, **named)

    monkeypatch.setattr(owner, step, fail_later)

    def append_three() -> None:
        if is_follower:
            log.append_follower(stamped(b"".join(new), base=4, epoch=2), now_ms=0)
        else:
            append(log, *new, epoch=2)

    with pytest.raises(LogFailed, match="t-0"):
        append_three()
    monkeypatch.undo()
    assert log.has_failed
    assert (log.end, log.size_bytes, log.epochs) == (4, used, epochs)
    assert known_producers(log.producers) == known
    assert log.offset_for_time(7) is None
    assert log.max_timestamp() == (6, 2)
    assert log._segments[-1].index.last_position == indexed == used // 2
    for operation in (append_three, lambda: append(log, batch(), epoch=2), log.roll, log.close):
        with pytest.raises(LogFailed, match="restart"):
            operation()
    disk.crash()
    log = open_log(disk)
    assert (log.end, read_all(log)) == (4, whole), "and the file does not hold the batches either"
    append(log, *new, epoch=2)
    assert log.end == 7
