"""Any history of a log on a disk that fails keeps every record that it must keep.

Each step may meet a fault at any change that it makes on the disk: the process dies, the machine
loses power, the disk is full, or a change fails. After each step, and after each start, the log is
compared with a plain list of batches:

- After a kill every record is there that was appended, after a loss of power every one that was
  flushed, unless it was deleted or truncated. The same holds after a step that the disk refused.
- A log does not count as damaged while the disk has kept what it claimed to have flushed.
- The log has only records that were appended to it. After a kill, none that were truncated.
- The log start offset goes back only if the disk refused to write it, or in a loss of power.
- Files of expired segments are removed, and no removed file stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from insync.storage.config import NEVER
from insync.storage.directory import LogDirectory
from insync.storage.errors import StorageRefusal
from insync.storage.inventory import INVENTORY
from insync.storage.local_log import FLUSH_AFTER_MS
from insync.storage.log import LogConfig
from insync.wire.batches import build
from support.search_effort import times
from support.storage.dying_disk import DiedError
from support.storage.faulty_disk import NO_FAULT, Fault, FaultKind, FaultyDisk
from support.storage.log_model import PlainLog, Written, append, read_all

KEY = ("orders", 0)
FOLDER = "/data/orders-0"

power_seeds = st.none() | st.integers(0, 1 << 16)
faults = st.just(NO_FAULT) | st.builds(
    Fault,
    kind=st.sampled_from([FaultKind.DIES, FaultKind.FULL, FaultKind.EIO]),
    at_change=st.integers(0, 3) | st.integers(0, 12),  # a step seldom makes many
    persists=st.booleans(),
    power_seed=power_seeds,
)
fractions = st.integers(0, 8).map(lambda eighths: eighths / 8)


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The end of a process, in the middle of a step or between two."""

    before: PlainLog
    after: PlainLog  # as the step would have left the log
    flushed_end: int  # every record below it is on the disk
    loses_power: bool = False
    leaves_unflushed: bool  # by its settings
    has_lost_bytes: bool = False
    """A flush failed, which is reported once. If the process then stops, the next one reads the
    bytes, flushes them without an error, and a loss of power takes them all the same."""
    is_known_corner: bool = False
    """A loss of power tore expired segments that were not flushed, and the disk has since refused
    the inventory without them. The next start takes them for the beginning of the log."""

    @property
    def may_tear(self) -> bool:
        """Whether records that were never flushed may be there in part, also truncated ones."""
        return self.loses_power and self.leaves_unflushed

    @property
    def may_damage(self) -> bool:
        return self.may_tear or self.has_lost_bytes or self.is_known_corner

    @property
    def start_min(self) -> int:
        return min(self.before.start, self.after.start)

    def promised(self) -> list[Written]:
        """What the next process has to find: what is neither appended nor removed by the step."""
        after = {one.data for one in self.after.live()}
        both = [one for one in self.before.live() if one.data in after]
        return [one for one in both if not self.loses_power or one.end <= self.flushed_end]

    def known(self) -> set[bytes]:
        return {one.data for one in (*self.before.batches, *self.after.batches)}


class FaultyHistory(RuleBasedStateMachine):
    @initialize(
        flush_messages=st.sampled_from([1, 3, NEVER]),
        segment_bytes=st.sampled_from([250, 600]),
        batches=st.integers(0, 8),
    )
    def begin(self, flush_messages: int, segment_bytes: int, batches: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=200, flush_messages=flush_messages
        )
        self.disk = FaultyDisk()
        self.topic_id = UUID(int=1)
        self.plain = PlainLog()
        self.flushed_end = 0  # every record below it survives a loss of power
        self.written: set[tuple[UUID, bytes]] = set()
        self.has_torn_files = False  # perhaps, among those of expired segments
        self.names_aside: list[str] = []  # that the log has had as a stray
        self.epoch = 0
        self.batch_count = 0
        self.now_ms = 0
        self.open_directory()
        self.create_log()
        self.fill(batches=batches, size=40)

    # Steps that change the records

    @rule(batches=st.integers(1, 8), size=st.integers(0, 60))
    def fill(self, batches: int, size: int) -> None:
        for _ in range(batches):
            self.append(count=2, size=size, new_epoch=False, fault=NO_FAULT)

    @rule(count=st.integers(1, 3), size=st.integers(0, 60), new_epoch=st.booleans(), fault=faults)
    def append(self, *, count: int, size: int, new_epoch: bool, fault: Fault) -> None:
        self.batch_count += 1
        self.epoch += new_epoch
        data = build([(None, f"{self.batch_count}".encode() + b"x" * size)] * count)
        after = self.copy_plain()
        self.written.add((self.topic_id, after.append(data, epoch=self.epoch)))
        self.perform(fault, lambda: append(self.log, data, epoch=self.epoch), after)

    @rule(where=fractions, fault=faults)
    def truncate_to(self, where: float, fault: Fault) -> None:
        lowest = max(0, self.plain.start - 1)
        offset = lowest + round(where * (self.plain.end - lowest))
        after = self.copy_plain()
        after.truncate(offset)
        self.perform(fault, lambda: self.log.truncate_to(offset), after)

    @rule(by=st.sampled_from([0, -3, 3, 40]), from_end=st.booleans(), fault=faults)
    def truncate_fully(self, *, by: int, from_end: bool, fault: Fault) -> None:
        offset = max(0, (self.plain.end if from_end else self.plain.start) + by)
        after = PlainLog(start=offset, empty_end=offset)
        self.perform(fault, lambda: self.log.truncate_fully(offset), after)

    @rule(where=fractions, fault=faults)
    def delete_records_before(self, where: float, fault: Fault) -> None:
        after = self.copy_plain()
        after.start = self.offset_at(where)
        self.perform(fault, lambda: self.log.delete_records_before(after.start), after)

    @rule(where=fractions, retention_bytes=st.sampled_from([0, 300, 800]), fault=faults)
    def apply_retention(self, where: float, retention_bytes: int, fault: Fault) -> None:
        up_to, after = self.offset_at(where), self.copy_plain()

        def expire_segments() -> None:
            self.log.config = replace(self.config, retention_bytes=retention_bytes)
            try:
                self.log.apply_retention(0, up_to=up_to)
            finally:
                self.log.config = self.config
                after.start = self.log.start

        self.perform(fault, expire_segments, after)
        assert after.start <= up_to

    def offset_at(self, where: float) -> int:
        return self.plain.start + round(where * (self.plain.end - self.plain.start))

    def copy_plain(self) -> PlainLog:
        return replace(self.plain, batches=list(self.plain.batches))

    # Steps that leave the records as they are

    @rule(fault=faults)
    def roll(self, fault: Fault) -> None:
        self.perform(fault, self.log.roll)

    @rule(fault=faults)
    def remove_expired_segments(self, fault: Fault) -> None:
        self.perform(fault, self.directory.remove_expired_segments)

    @rule(is_late=st.booleans(), fault=faults)
    def flush_due(self, *, is_late: bool, fault: Fault) -> None:
        self.now_ms += FLUSH_AFTER_MS * is_late
        self.perform(fault, lambda: self.directory.flush_due(now_ms=self.now_ms))

    @rule()
    def flush_due_twice(self) -> None:
        self.flush_due(is_late=True, fault=NO_FAULT)
        self.flush_due(is_late=True, fault=NO_FAULT)
        names = self.disk.list(FOLDER)
        files = [name for name in names if name.endswith(".log")]
        assert files == [f"{base:020d}.log" for base in self.log.segment_bases]
        assert INVENTORY in names
        assert self.log.recovery_point == self.plain.end

    @rule(fault=faults)
    def write_replica_checkpoint(self, fault: Fault) -> None:
        mark = self.flushed_end  # committed, as far as this replica can tell
        self.perform(fault, lambda: self.directory.write_replica_checkpoint(lambda _: mark))

    # Steps that stop the process, or take the log out of use

    @rule(power_seed=power_seeds, fault=faults)
    def stop_and_start(self, power_seed: int | None, fault: Fault) -> None:
        self.restart(self.stop_now(), power_seed, fault)

    @rule(power_seed=power_seeds, fault=faults)
    def stop_cleanly_and_start(self, power_seed: int | None, fault: Fault) -> None:
        if self.attempt(fault, self.directory.close) is Outcome.DIED:
            power_seed = fault.power_seed
        self.restart(self.stop_now(), power_seed)

    @rule(fault=faults)
    def set_aside_and_bring_back(self, fault: Fault) -> None:
        if self.attempt(fault, self.move_aside_and_back) is Outcome.DIED:
            self.restart(self.stop_now(), fault.power_seed)
        else:
            self.find_log()
            self.check_start(self.stop_now())

    def move_aside_and_back(self) -> None:
        stray = self.directory.set_aside(*KEY, now_ms=self.now_ms)
        self.names_aside.append(stray)
        self.directory.bring_back(stray, KEY, topic_id=self.topic_id, now_ms=self.now_ms)

    @rule(fault=faults)
    def delete_and_create_again(self, fault: Fault) -> None:
        old_id, stop = self.topic_id, self.stop_now()
        self.topic_id = UUID(int=old_id.int + 1)
        outcome = self.attempt(fault, self.delete_and_create)
        if outcome is Outcome.DIED:
            stop = self.stop(stop, fault.power_seed)
            self.open_directory()
        if self.directory.topic_ids.get(KEY) == old_id:  # it is not deleted
            self.topic_id, self.log = old_id, self.directory.logs[KEY]
            self.check_start(stop)
            return
        self.names_aside = []  # of the old topic id
        if outcome is not Outcome.DONE:
            self.find_log()
            self.accept_damage()  # the checkpoint has the old log
            self.directory.write_replica_checkpoint()
        self.epoch = self.flushed_end = 0
        self.settle(PlainLog())

    def delete_and_create(self) -> None:
        self.directory.delete(*KEY)
        self.create_log()
        self.directory.remove_deleted()

    # What is always true

    @invariant()
    def is_not_damaged(self) -> None:
        assert (self.directory.damaged, self.log.damage) == ({}, None)

    @invariant()
    def holds_no_removed_file_open(self) -> None:
        open_files = self.directory._files._files.items()
        assert [path for path, file in open_files if self.disk.is_of_removed_file(path, file)] == []

    # How a step is made

    def perform(
        self, fault: Fault, action: Callable[[], object], after: PlainLog | None = None
    ) -> None:
        """Make a step that leaves the log as `after` (default: as it is), and compare."""
        after = self.plain if after is None else after
        outcome = self.attempt(fault, action)
        if outcome is Outcome.DIED or self.log.has_failed:
            stop = replace(self.stop_now(), after=after)
            self.restart(stop, fault.power_seed)
        elif outcome is Outcome.REFUSED and not self.is_log_as(after):
            self.settle(self.plain)  # nothing has changed
        else:
            self.settle(after)

    def attempt(self, fault: Fault, action: Callable[[], object]) -> Outcome:
        self.disk.begin_step(fault)
        try:
            action()
        except DiedError:
            return Outcome.DIED
        except StorageRefusal:
            assert self.disk.refused_changes
            return Outcome.REFUSED
        finally:
            self.disk.end_step()
        return Outcome.DONE

    def settle(self, plain: PlainLog) -> None:
        """The log has to be as this now."""
        assert (self.log.start, self.log.end) == (plain.start, plain.end)
        assert read_all(self.log) == b"".join(one.data for one in plain.live())
        self.plain = plain
        claimed = plain.end if self.config.flushes_every_append else self.log.recovery_point
        self.flushed_end = max(min(self.flushed_end, plain.end), claimed)
        self.has_torn_files &= self.log.has_expired_files

    def is_log_as(self, plain: PlainLog) -> bool:
        live = b"".join(one.data for one in plain.live())
        bounds = (self.log.start, self.log.end)
        return bounds == (plain.start, plain.end) and read_all(self.log) == live

    # How a process stops, and the next one starts

    def stop_now(self) -> Stop:
        return Stop(
            before=self.plain,
            after=self.plain,
            flushed_end=self.flushed_end,
            leaves_unflushed=not self.config.flushes_every_append,
            is_known_corner=self.has_torn_files and self.was_inventory_refused(),
        )

    def restart(self, stop: Stop, power_seed: int | None, fault: Fault = NO_FAULT) -> None:
        """Stop, start, and compare. If the start does not get to its end, the next one does."""
        stop = self.stop(stop, power_seed)
        if self.attempt(fault, self.open_directory) is not Outcome.DONE:
            stop = self.stop(stop, fault.power_seed)
            self.open_directory()
        self.find_log()
        self.check_start(stop)

    def stop(self, stop: Stop, power_seed: int | None) -> Stop:
        if power_seed is None:
            self.disk.crash()
            return stop
        self.disk.lose_power(Random(power_seed))  # noqa: S311 - chance, not secrecy
        has_lost_bytes = stop.has_lost_bytes or self.disk.has_lost_bytes
        return replace(stop, loses_power=True, has_lost_bytes=has_lost_bytes)

    def open_directory(self) -> None:
        self.directory = LogDirectory.open(
            self.disk,
            "/data",
            cluster_id="c",
            broker_id=1,
            lock=True,
            now_ms=self.now_ms,
            config_of=lambda _: self.config,
        )

    def find_log(self) -> None:
        """The log in the partition's place, which may be aside, not opened yet, or not there."""
        directory, names = self.directory, self.disk.list("/data")
        stray = next((name for name in self.names_aside if name in names), None)
        if stray is not None and FOLDER.removeprefix("/data/") not in names:
            directory.bring_back(stray, KEY, topic_id=self.topic_id, now_ms=self.now_ms)
        if directory.topic_ids.get(KEY) == self.topic_id:
            self.log = directory.logs[KEY]
        else:
            self.create_log()

    def create_log(self) -> None:
        self.log = self.directory.create(*KEY, topic_id=self.topic_id, now_ms=self.now_ms)
        # As a broker does before anything in a new log is committed.
        self.directory.write_replica_checkpoint()

    def check_start(self, stop: Stop) -> None:
        """Compare the log with what the last process left, and go on with what is there."""
        is_damaged = bool(self.directory.damaged)
        assert stop.may_damage or not is_damaged, self.directory.damaged
        found = PlainLog(start=self.log.start, empty_end=self.log.end)
        found.take(read_all(self.log))
        found_data = {one.data for one in found.batches}
        missing = [one for one in stop.promised() if one.data not in found_data]
        may_lack_records = stop.has_lost_bytes or (is_damaged and stop.is_known_corner)
        assert may_lack_records or not missing, missing
        assert {(self.topic_id, data) for data in found_data} <= self.written
        if not (stop.loses_power or is_damaged):
            self.check_bounds(stop)
            assert found_data <= stop.known() or self.log.start < stop.start_min
        self.accept_damage()
        self.has_torn_files |= stop.may_tear
        self.flushed_end = self.log.end if stop.loses_power else min(stop.flushed_end, self.log.end)
        self.settle(found)

    def check_bounds(self, stop: Stop) -> None:
        """The log starts and ends as before the step, as after it, or in between."""
        start, end = self.log.start, self.log.end
        assert start <= max(stop.before.start, stop.after.start)
        is_cut_short = start == end and stop.after is not stop.before
        assert start >= stop.start_min or is_cut_short or self.was_inventory_refused()
        if stop.after.batches or not stop.before.batches:
            assert (
                min(stop.before.end, stop.after.end) <= end <= max(stop.before.end, stop.after.end)
            )

    def was_inventory_refused(self) -> bool:
        return f"{FOLDER}/{INVENTORY}" in self.disk.refused_files

    def accept_damage(self) -> None:
        """As an operator does: what is left counts as the log, also after a loss of power."""
        if self.directory.damaged:
            self.directory.end_damage(KEY)
            self.log.flush_inventory()


FaultyHistory.TestCase.settings = settings(
    max_examples=times(quick=90, thorough=1_500, exhaustive=8_000),
    stateful_step_count=30,
    report_multiple_bugs=False,
    # The same histories for the same code: the model allows for rare corners, and a run of it
    # should say something about the code, not about the day.
    derandomize=True,
)
TestFaultyHistory = pytest.mark.property(FaultyHistory.TestCase)
