"""Idempotent producers, by Kafka's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage import producers as module
from insync.storage.errors import CorruptFile, OutOfOrderSequence, ProducerFenced
from insync.storage.memory_disk import MemoryDisk
from insync.storage.producers import FRESH, Duplicate, Fresh, Producers
from insync.wire.batches import BatchHeader, read_header
from support.storage.log_model import append, batch, known_producers, open_log

LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    read = read_header(batch(count, producer=(producer, epoch, sequence)))
    assert read is not None
    return read


def wrote(*batches: BatchHeader) -> Producers:
    producers = Producers()
    for offset, one in enumerate(batches):
        producers.update(one, base_offset=offset * 100, now_ms=0)
    return producers


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert Producers().check(header(41)) == FRESH


def test_a_batch_without_producer_is_always_fresh() -> None:
    producers = wrote(header(0))
    assert producers.check(header(5, producer=-1)) == FRESH
    producers.update(header(5, producer=-1), base_offset=9, now_ms=0)
    assert list(producers) == [7]


def test_the_next_sequence_is_fresh_and_a_gap_is_refused() -> None:
    producers = wrote(header(0, 3))
    assert producers.check(header(3)) == FRESH
    for wrong in (4, 2, LAST):
        with pytest.raises(OutOfOrderSequence, match=f"{wrong} where 3 is next"):
            producers.check(header(wrong))


def test_the_last_five_batches_are_recognised_as_duplicates() -> None:
    producers = wrote(*(header(sequence) for sequence in range(6)))
    for sequence in range(1, 6):
        assert producers.check(header(sequence)) == Duplicate(sequence * 100, 0)
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(0))


def test_a_duplicate_has_the_same_first_and_last_sequence() -> None:
    producers = wrote(header(0, 3))
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(0, 2))


def test_after_the_largest_sequence_comes_zero() -> None:
    assert wrote(header(LAST)).check(header(0)) == FRESH
    producers = wrote(header(LAST - 1, 4))  # LAST - 1, LAST, 0, 1
    assert producers.check(header(2)) == FRESH
    assert producers.check(header(LAST - 1, 4)) == Duplicate(0, 0)


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    producers = wrote(header(0, 3))
    with pytest.raises(OutOfOrderSequence, match="0 is next"):
        producers.check(header(3, epoch=1))
    assert producers.check(header(0, epoch=1)) == FRESH
    producers.update(header(0, epoch=1), base_offset=300, now_ms=0)
    with pytest.raises(ProducerFenced, match="epoch 1"):
        producers.check(header(3))
    assert producers.check(header(1, epoch=1)) == FRESH


def test_silent_producers_expire() -> None:
    producers = Producers()
    producers.update(header(0, producer=1), base_offset=0, now_ms=0)
    producers.update(header(0, producer=2), base_offset=1, now_ms=5)
    producers.expire(now_ms=10, expiration_ms=10)
    assert list(producers) == [2]


def test_beyond_the_limit_the_producer_silent_for_longest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    producers = wrote(*(header(0, producer=number) for number in (1, 2, 3)))
    producers.update(header(1, producer=1), base_offset=9, now_ms=0)
    producers.update(header(0, producer=4), base_offset=10, now_ms=0)
    assert list(producers) == [3, 1, 4]


sent = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, LAST), st.integers(1, 3))
)


@pytest.mark.property
@given(batches=sent)
def test_a_snapshot_has_every_producer(batches: list[tuple[int, int, int, int]]) -> None:
    producers = wrote(
        *(header(sequence, count, producer=p, epoch=e) for p, e, sequence, count in batches)
    )
    again = Producers.from_bytes(producers.to_bytes())
    assert [(key, again.get(key)) for key in again] == [
        (key, producers.get(key)) for key in producers
    ]


@pytest.mark.property
@given(data=st.binary(max_size=80))
def test_a_snapshot_that_is_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        Producers.from_bytes(data)


@pytest.mark.property
@given(batches=sent, cut=st.integers(1, 60))
def test_a_snapshot_cut_short_or_changed_is_refused(
    batches: list[tuple[int, int, int, int]], cut: int
) -> None:
    data = wrote(
        *(header(sequence, count, producer=p, epoch=e) for p, e, sequence, count in batches)
    ).to_bytes()
    with pytest.raises(CorruptFile):
        Producers.from_bytes(data[:-cut])
    changed = bytearray(data)
    changed[cut % len(data)] ^= 0x10
    with pytest.raises(CorruptFile):
        Producers.from_bytes(bytes(changed))


def test_a_log_without_snapshots_rebuilds_the_producer_state() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(producer=(9, 3, 5)))  # in the first segment only
    for sequence in range(40):
        append(log, batch(size=80, producer=(sequence % 2, 0, sequence // 2)))
    expected = known_producers(log.producers)
    log.close()
    for name in disk.list("/t-0"):
        if name.endswith(".snapshot"):
            disk.write_atomic(f"/t-0/{name}", b"garbage")
    for clean in (True, False):
        assert known_producers(open_log(disk, clean=clean).producers) == expected


def test_a_snapshot_from_before_a_truncation_is_not_used() -> None:
    """The log end before a truncation may become the base offset of a new segment."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(4))
    append(log, batch(3, producer=(7, 0, 0)))
    log.close()
    log = open_log(disk, clean=True)
    log.truncate_to(4)
    assert len(log.producers) == 0
    append(log, batch(3))
    log.roll()
    append(log, batch())
    disk.crash()
    assert len(open_log(disk).producers) == 0


def test_a_batch_that_was_checked_and_appended_is_a_duplicate_when_repeated() -> None:
    log = open_log(MemoryDisk())
    one = header(0, 2)
    assert isinstance(log.producers.check(one), Fresh)
    append(log, batch(5))
    append(log, batch(2, producer=(7, 0, 0)))
    assert log.producers.check(one) == Duplicate(5, 0)
