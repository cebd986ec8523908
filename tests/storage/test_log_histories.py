"""Any history of a log agrees with a plain list of batches, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from insync.rules.values import Offset
from insync.storage.log import Log, LogConfig, WouldBlock
from insync.storage.memory_disk import MemoryDisk
from insync.wire.batches import whole_batches
from support.storage.log_model import (
    CONFIG,
    PlainLog,
    Written,
    batch,
    known_producers,
    open_log,
    read,
    read_all,
)

PATH = "/data/t-0"
RETENTION_BYTES = 4000
RETENTION_CONFIG = LogConfig(
    segment_bytes=CONFIG.segment_bytes,
    index_interval_bytes=CONFIG.index_interval_bytes,
    retention_bytes=RETENTION_BYTES,
    retention_ms=-1,
    producer_id_expiration_ms=1 << 60,
)

counts = st.integers(1, 4)
sizes = st.integers(0, 300)
times = st.integers(0, 40)
fractions = st.floats(0, 1)
parts = st.lists(st.tuples(counts, sizes, times, st.integers(0, 2)), min_size=1, max_size=6)


class LogHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.plain = PlainLog()
        self.epoch = 0
        self.sequences: dict[int, tuple[int, int]] = {}
        self.reader = 0
        self.last_append = 0  # bytes of the last step, if that was an append
        self.log = self.reopened(clean=False)

    def reopened(self, *, clean: bool) -> Log:
        return open_log(self.disk, PATH, RETENTION_CONFIG, clean=clean)

    def made(self, count: int, size: int, time_ms: int, producer_id: int) -> bytes:
        """A batch; those of a producer go on in its sequence (all the log's tests need)."""
        if producer_id == 0:
            return batch(count, size=size, timestamp_ms=time_ms)
        epoch, sequence = self.sequences.get(producer_id, (0, 2**31 - 5))
        self.sequences[producer_id] = (epoch, (sequence + count) % 2**31)
        return batch(
            count, size=size, timestamp_ms=time_ms, producer=(producer_id, epoch, sequence)
        )

    @rule(parts=parts, cut_off=st.integers(0, 90))
    def follow(self, parts: list[tuple[int, int, int, int]], cut_off: int) -> None:
        whole = self.plain.append(self.joined(parts), epoch=self.epoch)
        cut_off = min(cut_off, len(whole) - 1, 60)  # of a batch the fetch had no room for
        assert self.log.append_follower(whole + whole[:cut_off], now_ms=0) == self.plain.end
        self.last_append = len(whole)

    @rule(parts=parts)
    def lead(self, parts: list[tuple[int, int, int, int]]) -> None:
        data, base = bytearray(self.joined(parts)), self.plain.end
        whole = self.plain.append(bytes(data), epoch=self.epoch)
        headers = list(whole_batches(data))
        result = self.log.append_leader(data, headers, epoch=self.epoch, now_ms=0)
        assert data == whole
        assert (result.base_offset, result.end) == (base, self.plain.end)
        assert result.bytes == len(whole)
        self.last_append = len(whole)

    def joined(self, parts: list[tuple[int, int, int, int]]) -> bytes:
        return b"".join(self.made(*part) for part in parts)

    @rule(by=st.integers(1, 3))
    def next_epoch(self, by: int) -> None:
        self.epoch += by

    @rule(producer_id=st.integers(1, 2))
    def producer_restarts_with_a_new_epoch(self, producer_id: int) -> None:
        epoch, _ = self.sequences.get(producer_id, (0, 0))
        self.sequences[producer_id] = (epoch + 1, 0)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self.last_append = 0

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(0, self.plain.end + 1 - back)
        self.plain.truncate(offset)
        assert self.log.truncate_to(offset) == self.plain.end
        self.last_append = 0

    @rule(how=st.sampled_from(["start later", "truncate far", "truncate all"]), where=fractions)
    def lose_much(self, how: str, where: float) -> None:
        plain, log = self.plain, self.log
        if how == "start later":
            plain.start += round(where * (plain.end - plain.start))
            log.delete_records_before(plain.start)
        elif how == "truncate far":
            offset = round(where * plain.end)
            plain.truncate(offset)
            log.truncate_to(offset)
        elif where > 0.9:
            plain.restart(plain.end + 17)
            log.truncate_fully(plain.end)
        self.last_append = 0

    @rule(where=fractions)
    def retention(self, where: float) -> None:
        watermark = self.plain.start + round(where * (self.plain.end - self.plain.start))
        segments, size_bytes = self.log.segment_bases, self.log.size_bytes
        gone = self.log.apply_retention(0, up_to=watermark)
        assert [one.base for one in gone] == segments[: len(gone)]
        assert all(one.end <= watermark for one in gone)
        assert self.log.size_bytes == size_bytes - sum(one.size_bytes for one in gone)
        assert not gone or self.log.size_bytes >= RETENTION_BYTES
        if gone:
            self.plain.start = max(self.plain.start, gone[-1].end)
        self.last_append = 0

    @rule(where=fractions)
    def crash(self, where: float) -> None:
        """The process dies in the middle of its last append, at any byte of it."""
        if self.last_append:
            torn_at = round(where * self.last_append)
            self.disk.crash(torn_at=torn_at)
            self.tear(torn_at)
        else:
            self.disk.crash()
        self.log = self.reopened(clean=False)
        self.last_append = 0

    def tear(self, torn_at: int) -> None:
        """Remove from the plain log what the last append did not write whole."""
        size, appended = 0, 0
        while size < self.last_append:
            appended += 1
            size += len(self.plain.batches[-appended].data)
        for one in self.plain.batches[len(self.plain.batches) - appended :]:
            torn_at -= len(one.data)
            if torn_at < 0:
                if self.plain.batches[0] is one:
                    self.plain.empty_end = one.base
                self.plain.batches = self.plain.batches[: self.plain.batches.index(one)]
                break

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.log.write_inventory()
        self.last_append = 0  # no crash tears what is flushed

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.disk.crash()
        self.log = self.reopened(clean=True)
        self.last_append = 0

    @rule(
        clean=st.booleans(),
        which=st.sampled_from([".index", ".timeindex", "-checkpoint"]),
        how=st.sampled_from(["remove", "flip", "replace"]),
        garbage=st.binary(max_size=100),
        flip=fractions,
    )
    def lose_derived_files(
        self, *, clean: bool, which: str, how: str, garbage: bytes, flip: float
    ) -> None:
        """Indexes and epochs follow from the batches: without them the log is the same."""
        if clean:
            self.log.close()
        self.disk.crash()
        for name in self.disk.list(PATH):
            path = f"{PATH}/{name}"
            if not name.endswith(which) or name.startswith("log-start"):
                continue
            data = bytearray(self.disk.read_all(path))
            # A flipped digit of the epoch checkpoint may be as plausible as the truth.
            if how == "remove" or (how == "flip" and (which == "-checkpoint" or not data)):
                self.disk.remove(path)
            elif how == "replace":
                self.disk.write_atomic(path, garbage)
            else:
                data[round(flip * (len(data) - 1))] ^= 0x01
                self.disk.write_atomic(path, bytes(data))
        self.log = self.reopened(clean=clean)
        self.last_append = 0

    @invariant()
    def bounds_and_bytes(self) -> None:
        assert (self.log.start, self.log.end) == (self.plain.start, self.plain.end)
        assert read_all(self.log) == b"".join(one.data for one in self.plain.live())

    @invariant()
    def is_not_damaged(self) -> None:
        assert self.log.damage is None

    @invariant()
    def epochs(self) -> None:
        epochs, end = self.log.epochs, Offset(self.log.end)
        if self.log.start == end:
            # The last epoch of an emptied log is remembered, or not.
            epochs = epochs.truncate_end(end)
        assert epochs == self.plain.epochs()

    @invariant()
    def producers(self) -> None:
        assert known_producers(self.log.producers) == self.plain.producers()

    @invariant()
    def times(self) -> None:
        for time_ms in range(-1, 44, 4):
            assert self.log.offset_for_time(time_ms) == self.plain.first_from(time_ms)
        assert self.log.max_timestamp() == self.plain.largest()

    @invariant()
    def a_consumer_reads_on(self) -> None:
        """A reader resumes where it stopped, as followers do, or starts over if out of range."""
        if not self.plain.start <= self.reader <= self.plain.end:
            self.reader = self.plain.start
        self.reader = self.check_read(self.reader, 400, self.plain.end, nowait=True)

    @rule(reads=st.lists(st.tuples(fractions, st.integers(0, 1500), fractions), min_size=6))
    def read(self, reads: list[tuple[float, int, float]]) -> None:
        start, size = self.plain.start, self.plain.end - self.plain.start
        for number, (where, max_bytes, below) in enumerate(reads):
            offset, up_to = start + round(where * size), start + round(below * size)
            self.check_read(offset, max_bytes, up_to, nowait=number % 2 == 0)

    def check_read(self, offset: int, max_bytes: int, up_to: int, *, nowait: bool) -> int:
        result = self.log.read(offset, max_bytes, up_to=up_to, min_one_batch=True, nowait=nowait)
        if isinstance(result, WouldBlock):  # the index of a sealed segment is not in memory
            assert nowait
            result = read(self.log, offset, max_bytes=max_bytes, up_to=up_to)
        expected = self.expected(offset, max_bytes, up_to)
        assert bytes(result.data) == b"".join(one.data for one in expected)
        assert result.next_offset == (expected[-1].end if expected else offset)
        assert result.first_offset == (expected[0].base if expected else offset)
        return result.next_offset

    def expected(self, offset: int, max_bytes: int, up_to: int) -> list[Written]:
        taken: list[Written] = []
        for one in self.plain.live():
            if one.end <= offset or offset >= up_to:
                continue
            ends_segment = taken and one.base in self.log.segment_bases
            if one.end > up_to or ends_segment or (taken and len(one.data) > max_bytes):
                break
            taken.append(one)
            max_bytes -= len(one.data)
        return taken


LogHistory.TestCase.settings = settings(stateful_step_count=30)
TestLogHistory = pytest.mark.property(LogHistory.TestCase)
