"""A log that promises flushed records shows no others, whatever becomes of the flush."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread, Timer, current_thread
from uuid import UUID

import pytest
from test_flushing import WatchedDisk

from insync.storage.config import LogConfig
from insync.storage.directory import LogDirectory
from insync.storage.errors import DiskError, LogFailed, OffsetOutOfRange
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk
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

FLUSHED = replace(CONFIG, flush_messages=1)
TOPIC_ID = UUID(int=1)
FIRST = "/t-0/00000000000000000000.log"


def visible(log: Log) -> dict[str, object]:
    """Everything of a log that another broker or a client can see."""
    return {
        "end": log.end,
        "size": log.size_bytes,
        "epochs": log.epochs,
        "producers": known_producers(log.producers),
        "max timestamp": log.max_timestamp(),
        "first from 900": log.offset_for_time(900),
        "bytes from 0": log.bytes_from(0),
    }


def append_as_leader(log: Log) -> None:
    append(log, batch(2, timestamp_ms=1_000, producer=(9, 0, 0)), epoch=3)


def append_as_follower(log: Log) -> None:
    batches = batch(2, timestamp_ms=1_000, producer=(9, 0, 0)) + batch(3) + batch(1, size=300)
    log.append_follower(stamped(batches, base=log.end, epoch=3), now_ms=0)


def append_to_new_segment(log: Log) -> None:
    append(log, batch(2, size=1_400, timestamp_ms=1_000, producer=(9, 0, 0)), epoch=3)


APPENDS = [append_as_leader, append_as_follower, append_to_new_segment]


def filled(disk: MemoryDisk, config: LogConfig = FLUSHED) -> Log:
    log = open_log(disk, config=config)
    for number in range(3):
        append(log, batch(2, timestamp_ms=number, producer=(7, 0, 2 * number)))
    return log


@pytest.mark.parametrize("append_more", APPENDS)
def test_records_whose_flush_failed_are_not_visible(append_more: Callable[[Log], None]) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    before = visible(log)
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        append_more(log)
    assert visible(log) == before
    assert log.has_failed


@pytest.mark.parametrize("append_more", APPENDS)
def test_records_are_not_visible_before_their_flush_is_done(
    append_more: Callable[[Log], None],
) -> None:
    disk = WatchedDisk()
    log = filled(disk)
    before, records = visible(log), read_all(log)
    seen: list[dict[str, object]] = []

    def check_nothing_new_is_visible() -> None:
        seen.append(visible(log))
        assert read_all(log) == records
        assert not read(log, log.end, up_to=1_000).data
        with pytest.raises(OffsetOutOfRange):
            read(log, log.end + 1, up_to=1_000)

    disk.before_flush = check_nothing_new_is_visible
    append_more(log)
    assert seen == [before]
    assert log.end > 6
    assert visible(log) != before


@pytest.mark.parametrize("append_more", APPENDS)
def test_nothing_changes_a_log_after_a_failed_flush(append_more: Callable[[Log], None]) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        append_more(log)
    disk.fails_flushes = False
    before = visible(log)
    operations: list[Callable[[], object]] = [
        lambda: append(log, batch()),
        lambda: log.append_follower(stamped(batch(), base=log.end, epoch=3), now_ms=0),
        lambda: log.truncate_to(2),
        lambda: log.truncate_fully(2),
        lambda: log.delete_records_before(2),
        lambda: read(log, 0),
        log.roll,
        log.flush,
        log.close,
    ]
    for operation in operations:
        with pytest.raises(LogFailed, match="restart"):
            operation()
    assert visible(log) == before


@pytest.mark.parametrize("append_more", APPENDS)
@pytest.mark.parametrize("broken", [False, True])
def test_a_restart_after_a_failed_flush_shows_only_what_is_on_disk(
    append_more: Callable[[Log], None], *, broken: bool
) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    records = read_all(log)
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        append_more(log)
    if not broken:
        disk.fails_flushes = False
    disk.crash()
    if broken:
        with pytest.raises(DiskError):  # nothing can be promised
            open_log(disk, config=FLUSHED)
        disk.fails_flushes = False
    log = open_log(disk, config=FLUSHED)
    assert read_all(log) == records
    append(log, batch(1, size=7), epoch=5)
    records = read_all(log)
    disk.lose_power()
    assert read_all(open_log(disk)) == records


def test_a_restart_flushes_what_a_killed_process_had_appended() -> None:
    disk = WatchedDisk()
    log = filled(disk)

    def die() -> None:
        disk.before_flush = lambda: None
        disk.crash()
        raise KeyboardInterrupt

    disk.before_flush = die
    with pytest.raises(KeyboardInterrupt):
        append_as_leader(log)
    # The checkpointed recovery point is of a longer log that was truncated since.
    log = Log.open(disk, "/t-0", FLUSHED, now_ms=0, clean=False, recovery_point=50)
    assert log.end == 8, "the process died, not the machine"
    records = read_all(log)
    disk.lose_power()
    assert read_all(open_log(disk)) == records


def test_a_flush_of_another_thread_takes_the_error_of_an_append() -> None:
    """The kernel reports a failed write to one of the flushes that wait for it, not to all."""
    disk = WatchedDisk()
    log = filled(disk, CONFIG)
    is_flushing, may_fail = Event(), Event()

    def fail_in_background() -> None:
        if current_thread() is background:
            is_flushing.set()
            may_fail.wait(10)
            raise DiskError(errno.EIO, "disk")

    def flush() -> None:
        with pytest.raises(DiskError):
            log.flush()

    disk.before_flush = fail_in_background
    background = Thread(target=flush)
    background.start()
    assert is_flushing.wait(10)
    log.config = FLUSHED
    Timer(0.05, may_fail.set).start()
    with pytest.raises(LogFailed):
        append_as_leader(log)
    background.join(10)
    assert log.end == 6


def test_a_flush_after_every_few_records_shows_the_last_ones_only_when_it_is_done() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=replace(CONFIG, flush_messages=4))
    append(log, batch(3))
    assert log.end == 3, "three may wait"
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        append(log, batch(3))
    assert (log.end, log.has_failed) == (3, True)


def test_a_log_that_starts_over_is_flushed() -> None:
    disk = WatchedDisk()
    log = filled(disk)
    flushes = disk.flushes
    log.truncate_fully(100)
    # The inventory with the later start, and the new segment.
    assert (log.end, log.recovery_point, disk.flushes) == (100, 100, flushes + 2)
    log = filled(WatchedDisk(), CONFIG)
    log.truncate_fully(100)
    assert log.recovery_point == 0, "without the setting nothing waits for the disk"


class ChangingConfig:
    """A directory with one log, whose settings change at run time."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.disk = WatchedDisk()
        self.config = config
        self.directory = self.open()
        self.disk.flushes = 0
        self.log = self.directory.create("a", 0, topic_id=TOPIC_ID, now_ms=0)

    def open(self) -> LogDirectory:
        return LogDirectory.open(
            self.disk,
            "/data",
            cluster_id="c",
            broker_id=1,
            lock=True,
            now_ms=0,
            config_of=lambda _: self.config,
        )

    def promise_flushes(self) -> None:
        self.config = FLUSHED
        self.directory.apply_configs({"a"})


def test_the_topic_id_is_flushed_when_the_setting_comes() -> None:
    """A log that loses it is set aside at the next start, with all that it promised."""
    changing = ChangingConfig()
    assert changing.disk.flushes == 0
    changing.promise_flushes()
    assert changing.disk.flushes == 1
    changing.directory.apply_configs(None)
    assert changing.disk.flushes == 1, "once"


def test_the_topic_id_is_flushed_when_a_log_is_created_and_opened_under_the_setting() -> None:
    changing = ChangingConfig(replace(CONFIG, flush_messages=10))
    assert changing.disk.flushes == 1
    changing.disk.crash()
    changing.open()
    assert changing.disk.flushes == 2


def test_a_topic_id_that_cannot_be_flushed_fails_the_log() -> None:
    changing = ChangingConfig()
    changing.disk.fails_flushes = True
    changing.promise_flushes()
    assert changing.log.has_failed
    with pytest.raises(LogFailed):
        append(changing.log, batch())


def test_what_was_appended_before_the_setting_came_is_flushed_in_the_background() -> None:
    changing = ChangingConfig()
    changing.directory.flush_due(now_ms=0)
    append(changing.log, batch(3))
    changing.directory.flush_due(now_ms=1)
    assert changing.log.recovery_point == 0
    changing.promise_flushes()
    changing.directory.flush_due(now_ms=2)
    assert changing.log.recovery_point == 3


def test_a_background_flush_that_fails_changes_nothing_but_fails_the_log() -> None:
    changing = ChangingConfig()
    changing.directory.flush_due(now_ms=0)
    append(changing.log, batch(3))
    changing.disk.fails_flushes = True
    changing.config = replace(CONFIG, flush_ms=1)
    changing.directory.apply_configs({"a"})
    before = visible(changing.log)
    changing.directory.flush_due(now_ms=10)
    assert (visible(changing.log), changing.log.recovery_point) == (before, 0)
    assert changing.log.has_failed
