"""Small examples of what a log does, where a search would need luck."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from crc32c import crc32c

from insync.storage.disk import RealDisk
from insync.storage.errors import OffsetOutOfRange
from insync.storage.files import INDEXES_LOADED_MAX, FilePool
from insync.storage.log import WOULD_BLOCK, Log, LogConfig
from insync.storage.memory_disk import MemoryDisk
from insync.wire.batches import check, whole_batches
from support.storage.log_model import CONFIG, append, batch, open_log, read, read_all


def with_times(*deltas_ms: int, first_ms: int, attributes: int = 0) -> bytes:
    """A batch whose records have timestamps of their own (small deltas: one byte each)."""
    data = bytearray(batch(len(deltas_ms), size=1, timestamp_ms=first_ms))
    record = (len(data) - 61) // len(deltas_ms)
    for number, delta_ms in enumerate(deltas_ms):
        data[61 + number * record + 2] = delta_ms * 2
    data[21:23] = attributes.to_bytes(2, "big")
    data[35:43] = (first_ms + max(deltas_ms)).to_bytes(8, "big")
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return bytes(data)


def test_offsets_are_looked_up_by_the_timestamp_of_each_record() -> None:
    log = open_log(MemoryDisk())
    append(log, with_times(0, 5, 2, 5, first_ms=100))
    append(log, with_times(0, 9, first_ms=103))
    assert log.offset_for_time(0) == (0, 100)
    assert log.offset_for_time(101) == (1, 105)
    assert log.offset_for_time(106) == (5, 112)
    assert log.offset_for_time(113) is None
    assert log.max_timestamp() == (112, 5)
    log.delete_records_before(2)
    assert log.offset_for_time(101) == (2, 102)
    assert log.offset_for_time(105) == (3, 105)


def test_a_batch_stamped_by_a_broker_has_one_time() -> None:
    log = open_log(MemoryDisk())
    append(log, with_times(0, 5, first_ms=100, attributes=0x08))
    assert log.offset_for_time(103) == (0, 105)
    assert log.max_timestamp() == (105, 0)


def test_the_largest_time_is_that_of_what_is_left() -> None:
    log = open_log(MemoryDisk())
    assert log.max_timestamp() is None
    for time_ms in (5, 90, 7, 6):
        append(log, batch(timestamp_ms=time_ms))
    assert log.max_timestamp() == (90, 1)
    log.delete_records_before(2)
    assert log.max_timestamp() == (7, 2)
    log.truncate_to(2)
    assert log.max_timestamp() is None


def test_a_read_resumed_after_a_truncation_returns_no_old_records() -> None:
    log = open_log(MemoryDisk())
    append(log, batch(2, size=300))
    append(log, batch(2, size=10))
    assert read(log, 0, max_bytes=1, nowait=True).next_offset == 2
    log.truncate_to(0)
    append(log, batch(2, size=10))
    append(log, batch(2, size=20))
    assert read(log, 2, nowait=True).first_offset == 2
    assert bytes(read(log, 2, nowait=True).data) == read_all(log)[-len(read(log, 2).data) :]


def test_without_the_minimum_of_one_batch_a_large_one_is_not_sent() -> None:
    log = open_log(MemoryDisk())
    append(log, batch(size=500))
    for max_bytes in (0, 1, 61, 500):
        assert not read(log, 0, max_bytes=max_bytes, min_one_batch=False).data
        assert read(log, 0, max_bytes=max_bytes).data
    assert read(log, 0, max_bytes=600, min_one_batch=False).data


def test_batches_larger_than_any_window_are_recovered() -> None:
    disk, config = MemoryDisk(), LogConfig()
    log = open_log(disk, config=config)
    for size in (700_000, 10, 1_500_000, 700_000, 10):
        append(log, batch(size=size))
    whole = read_all(log)
    disk.crash(torn_at=50)
    log = open_log(disk, config=config)
    assert log.end == 4
    assert whole.startswith(read_all(log))
    assert log.epochs.entries


def test_an_index_made_with_another_interval_still_serves() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=100_000))
    for number in range(300):
        append(log, batch(size=100, timestamp_ms=number))
    log.close()
    log = open_log(disk, config=LogConfig(index_interval_bytes=100), clean=True)
    for offset in (0, 1, 150, 299):
        assert read(log, offset, max_bytes=1, nowait=True).first_offset == offset
        assert log.offset_for_time(offset) == (offset, offset)


def test_few_indexes_of_old_segments_are_kept_in_memory() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=300, index_interval_bytes=50))
    for _ in range(100):
        append(log, batch(size=80))
    loaded = [segment for segment in log._segments[:-1] if segment.is_loaded]
    assert len(loaded) == INDEXES_LOADED_MAX < len(log.segment_bases)
    assert log.read(0, 100, up_to=9, min_one_batch=True, nowait=True) == WOULD_BLOCK
    assert read(log, 0).data
    assert read(log, 0, nowait=True).data


def test_a_small_append_does_not_reopen_or_rewrite(tmp_path: Path) -> None:
    log = open_log(RealDisk(), f"{tmp_path}/t-0")
    append(log, batch())
    written = (tmp_path / "t-0" / "leader-epoch-checkpoint").stat().st_mtime_ns
    append(log, batch())
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").stat().st_mtime_ns == written


def test_reads_in_another_thread_never_see_a_mixture(tmp_path: Path) -> None:
    """While the loop appends, truncates, rolls and deletes, and files are closed meanwhile."""
    disk = RealDisk()
    log = Log.open(
        disk,
        f"{tmp_path}/t-0",
        CONFIG,
        now_ms=0,
        clean=False,
        files=FilePool(disk, files_max=1),
    )
    done, failures, reads = Event(), [], 0

    def reader() -> None:
        nonlocal reads
        while not done.is_set():
            for back in range(0, 40, 3):
                offset = max(log.start, log.end - back)
                try:
                    result = read(log, offset, up_to=log.end)
                    expected = result.first_offset
                    for header in whole_batches(result.data):
                        check(result.data, header)
                        assert header.base_offset == expected
                        expected = header.next_offset
                    assert expected == result.next_offset
                    reads += 1
                except OffsetOutOfRange:
                    continue
                except Exception as error:
                    failures.append(error)
                    return

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(reader)
        for number in range(800):
            append(log, batch(number % 4 + 1, size=number % 90), epoch=number // 50)
            if number % 7 == 0:
                log.truncate_to(log.end - number % 11)
            if number % 50 == 0:
                log.delete_records_before(log.end - 20 if log.end > 20 else 0)
        done.set()
        running.result()
    assert failures == []
    assert reads > 0


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from support.storage.log_model import CONFIG, append, batch, open_log
from insync.storage.disk import RealDisk
log = open_log(RealDisk(), sys.argv[1])
while True:
    append(log, batch(3, size=100, timestamp_ms=log.end), epoch=log.end // 50)
    print(log.end, flush=True)
"""


@pytest.mark.process
def test_records_that_a_killed_process_acknowledged_are_kept(tmp_path: Path) -> None:
    path = f"{tmp_path}/t-0"
    command = [sys.executable, "-c", WRITER, path, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(300):
            writer.stdout.readline()
        os.kill(writer.pid, 9)
        acknowledged = writer.stdout.read().split()
    log = open_log(RealDisk(), path)
    assert log.end >= int(acknowledged[-1] if acknowledged else 900)
    assert len(read_all(log)) == log.end // 3 * len(batch(3, size=100))
    assert log.epochs.entries[-1].epoch == (log.end - 3) // 50
    assert len(log.segment_bases) > 1


def test_truncating_to_the_end_forgets_an_epoch_without_records() -> None:
    """Its leader wrote nothing; a follower that kept sending it would truncate for ever."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(2))
    before = log.epochs
    log.begin_epoch(9)
    assert log.epochs.latest == 9
    assert log.truncate_to(log.end) == 2
    assert log.epochs == before
    assert open_log(disk).epochs == before


def test_the_bytes_from_an_offset_on() -> None:
    log = open_log(MemoryDisk())
    sizes = {}  # of each batch, by its first offset
    for count in (1, 3, 2, 30, 4, 1, 25, 6, 2):
        result = append(log, batch(count))
        sizes[result.base_offset] = result.bytes
    assert len(log.segment_bases) > 1
    for offset in sizes:
        assert log.bytes_from(offset) == sum(sizes[base] for base in sizes if base >= offset)
    assert log.bytes_from(log.end) == 0
    assert log.bytes_from(log.end + 5) == 0
    assert log.bytes_from(-1) == log.size_bytes
    assert log.bytes_from(2) == log.bytes_from(1), "all of its batch"


def test_the_bytes_of_a_segment_whose_index_is_on_disk_are_estimated() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(40):
        append(log, batch(5))
    log.close()
    log = open_log(disk, clean=True)
    first, second, *_ = log.segment_bases
    assert not log._segments[0].is_loaded
    middle = first + (second - first) // 2
    guessed = log.bytes_from(middle)
    assert not log._segments[0].is_loaded, "it did not read for it"
    read(log, first)  # loads it
    assert guessed == pytest.approx(log.bytes_from(middle), rel=0.1)
