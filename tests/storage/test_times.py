"""Offsets by timestamp in batches that third-party libraries built."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from insync.storage import times
from insync.storage.log import Log
from insync.storage.memory_disk import MemoryDisk
from insync.wire import compression
from insync.wire.batches import LOG_APPEND_TIME
from support.storage.log_model import CONFIG, append, open_log

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMPRESSED = (GZIP, SNAPPY, LZ4, ZSTD)
NO_PRODUCER = (-1, -1, -1)


def with_header(
    batch: bytes, *, attributes: int | None = None, count: int | None = None, body: bytes = b""
) -> bytes:
    """The batch with other records or another claim, its length and CRC true again."""
    data = bytearray(batch[:61] + (body or batch[61:]))
    struct.pack_into(">i", data, 8, len(data) - 12)
    if attributes is not None:
        struct.pack_into(">h", data, 21, attributes)
    if count is not None:
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def built(builder: Callable[..., Any], codec: int, times_ms: Sequence[int], size: int = 9) -> bytes:
    batch = builder(2, codec, 0, *NO_PRODUCER, 1 << 30)
    for number, time_ms in enumerate(times_ms):
        assert batch.append(number, time_ms, b"key", b"v" * size, []) is not None
    return bytes(batch.build())


def by_kafka_python(codec: int, times_ms: Sequence[int]) -> bytes:
    return built(PyBuilder, codec, times_ms)


def by_aiokafka(codec: int, times_ms: Sequence[int]) -> bytes:
    return built(AioBuilder, codec, times_ms)


def as_librdkafka(codec: int, times_ms: Sequence[int]) -> bytes:
    """Its snappy has no frame around it; pyarrow compresses the same way."""
    if codec != SNAPPY:
        return built(PyBuilder, codec, times_ms)
    plain = built(PyBuilder, NONE, times_ms)
    body = pa.compress(plain[61:], codec="snappy", asbytes=True)
    return with_header(plain, attributes=SNAPPY, body=body)


BUILDERS = (by_kafka_python, by_aiokafka, as_librdkafka)


@dataclass
class Records:
    """The oracle: the timestamp of each offset."""

    times_ms: list[int]
    start: int = 0

    @property
    def kept(self) -> list[tuple[int, int]]:
        return list(enumerate(self.times_ms))[self.start :]

    def first_from(self, time_ms: int) -> tuple[int, int] | None:
        return next(((offset, at) for offset, at in self.kept if at >= time_ms), None)

    def largest(self) -> tuple[int, int]:
        newest = max(at for _, at in self.kept)
        return next((at, offset) for offset, at in self.kept if at == newest)


some_times = st.integers(1, 30) | st.integers(1, 2**41)
some_batches = st.lists(
    st.tuples(
        st.sampled_from(BUILDERS),
        st.integers(NONE, ZSTD),
        st.booleans(),
        st.lists(some_times, min_size=1, max_size=30),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.property
@given(batches=some_batches, where=st.floats(0, 1), queries=st.lists(some_times, max_size=5))
@example(batches=[(by_aiokafka, ZSTD, False, [5, 9, 7])], where=2 / 3, queries=[6])
@example(batches=[(as_librdkafka, SNAPPY, True, [5, 9, 7])], where=1 / 3, queries=[9])
def test_every_timestamp_is_that_of_its_record(
    batches: list[tuple[Callable[..., bytes], int, bool, list[int]]],
    where: float,
    queries: list[int],
) -> None:
    """In every codec, and where the log begins inside a batch."""
    log, records = open_log(MemoryDisk()), Records([])
    for build, codec, is_stamped_by_broker, times_ms in batches:
        batch, stored_times_ms = build(codec, times_ms), times_ms
        assert struct.unpack_from(">h", batch, 21)[0] in (codec, NONE)  # plain if not smaller
        if is_stamped_by_broker:
            (attributes,) = struct.unpack_from(">h", batch, 21)
            batch = with_header(batch, attributes=attributes | LOG_APPEND_TIME)
            stored_times_ms = [max(times_ms)] * len(times_ms)
        append(log, batch)
        records.times_ms += stored_times_ms
    records.start = round(where * (len(records.times_ms) - 1))
    log.delete_records_before(records.start)
    for time_ms in {0, *queries, *records.times_ms, *(at + 1 for at in records.times_ms)}:
        assert log.offset_for_time(time_ms) == records.first_from(time_ms)
    assert log.max_timestamp() == records.largest()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_records_of_one_batch_have_their_own_timestamps(codec: int) -> None:
    """Four records, the newest of them second: so small an example that it can be read."""
    log = open_log(MemoryDisk())
    batch = by_kafka_python(codec, [100, 130, 110, 130] + [100] * 50)
    assert struct.unpack_from(">h", batch, 21) == (codec,), "it was worth compressing"
    append(log, batch)
    assert log.offset_for_time(100) == (0, 100)
    assert log.offset_for_time(101) == (1, 130)
    assert log.offset_for_time(131) is None
    assert log.max_timestamp() == (130, 1)
    log.delete_records_before(2)
    assert log.offset_for_time(101) == (2, 110)
    assert log.max_timestamp() == (130, 3)
    log.delete_records_before(4)
    assert log.offset_for_time(101) is None
    assert log.max_timestamp() == (100, 4)


# Bytes that no honest producer sends, under a CRC that is true. The first record of the batch
# stands for all, what comes before and behind is found as ever, and nothing is raised.

BEFORE_MS, BAD_MS, BEHIND_MS = 10, 20, 30
AN_HONEST_BODY = by_kafka_python(NONE, [BAD_MS] * 3)[61:]


def surrounded(bad: bytes) -> Log:
    """Offsets 0, then those of the batch, then one more."""
    log = open_log(MemoryDisk(), config=CONFIG)
    append(log, by_kafka_python(NONE, [BEFORE_MS]), bad, by_kafka_python(NONE, [BEHIND_MS]))
    return log


def check_found_as_one_batch(bad: bytes) -> None:
    log = surrounded(bad)
    assert log.offset_for_time(BEFORE_MS) == (0, BEFORE_MS)
    assert log.offset_for_time(BEFORE_MS + 1) == (1, BAD_MS)
    assert log.offset_for_time(BEHIND_MS) == (log.end - 1, BEHIND_MS)
    assert log.max_timestamp() == (BEHIND_MS, log.end - 1)
    log.truncate_to(log.end - 1)
    assert log.max_timestamp() == (BAD_MS, 1)
    log.delete_records_before(2)
    assert log.offset_for_time(BEFORE_MS) == (2, BAD_MS)
    assert log.max_timestamp() == (BAD_MS, 2)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("body", [b"garbage", bytes(9), b"\xff" * 500, AN_HONEST_BODY])
def test_a_batch_marked_as_compressed_that_is_not(codec: int, body: bytes) -> None:
    batch = by_kafka_python(NONE, [BAD_MS] * 3)
    check_found_as_one_batch(with_header(batch, attributes=codec, body=body))


@pytest.mark.property
@given(codec=st.integers(NONE, ZSTD), body=st.binary(min_size=1, max_size=200))
def test_a_timestamp_lookup_in_any_bytes_returns_an_offset_inside_the_log(
    codec: int, body: bytes
) -> None:
    batch = by_kafka_python(NONE, [BAD_MS] * 3)
    log = surrounded(with_header(batch, attributes=codec, body=body))
    for time_ms in (0, BEFORE_MS + 1, BAD_MS, BEHIND_MS):
        offset_and_time = log.offset_for_time(time_ms)
        assert offset_and_time is not None
        assert 0 <= offset_and_time[0] < log.end
        assert time_ms <= offset_and_time[1] < 2**63


@pytest.mark.parametrize("codec", COMPRESSED)
def test_compressed_records_that_are_cut_off(codec: int) -> None:
    whole = by_kafka_python(codec, [BAD_MS] * 60)
    for size in (62, len(whole) // 2 + 30, len(whole) - 1):
        check_found_as_one_batch(with_header(whole, body=whole[61:size]))


def zstd(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


def of_old_records(batch: bytes, body: bytes, *, count: int, is_compressed: bool) -> bytes:
    """Records of the hour zero in a batch that claims a newer one: all of them are passed."""
    data = bytearray(batch)
    struct.pack_into(">qq", data, 27, 0, BAD_MS)  # first and largest timestamp
    if is_compressed:
        return with_header(bytes(data), body=zstd(body), attributes=ZSTD, count=count)
    return with_header(bytes(data), body=body, count=count)


both_ways = pytest.mark.parametrize("is_compressed", [False, True])


@both_ways
@pytest.mark.parametrize("count", [2, 4])
def test_more_or_fewer_records_than_claimed(count: int, *, is_compressed: bool) -> None:
    batch = by_kafka_python(NONE, [BAD_MS] * 3)
    check_found_as_one_batch(
        of_old_records(batch, batch[61:], count=count, is_compressed=is_compressed)
    )


@both_ways
def test_a_record_with_a_negative_size(*, is_compressed: bool) -> None:
    """Its size is negative; read from one byte earlier it is new, and the second of its batch."""
    batch = by_kafka_python(NONE, [BAD_MS] * 2)
    body = bytes([3, 2 * BAD_MS, 2, 0, 12])
    check_found_as_one_batch(of_old_records(batch, body, count=2, is_compressed=is_compressed))


ZERO_DELTAS = bytes([0, 0, 0, 1, 1, 0])  # attributes, time, offset, no key, no value, no headers


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(bytes(7), id="nothing"),
        pytest.param(bytes([1]) + ZERO_DELTAS, id="negative size"),
        pytest.param(bytes([12, 0, 0, 1, 1, 1, 0]), id="negative offset"),
        pytest.param(bytes([12, 0, 0, 2, 1, 1, 0]), id="offset beyond the batch"),
        pytest.param(b"\x1e\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\1\1\0", id="far future"),
        pytest.param(b"\x1e\0" + b"\xff" * 30, id="endless number"),
    ],
)
@both_ways
def test_malformed_records(record: bytes, *, is_compressed: bool) -> None:
    body = zstd(record) if is_compressed else record
    batch = by_kafka_python(NONE, [BAD_MS])
    log = surrounded(with_header(batch, body=body, attributes=ZSTD if is_compressed else NONE))
    assert log.offset_for_time(BEFORE_MS + 1) == (1, BAD_MS)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_too_large_to_be_opened(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "PLAIN_BYTES_MAX", 100_000)
    check_found_as_one_batch(built(PyBuilder, codec, [BAD_MS - 1] * 2 + [BAD_MS], size=50_000))


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_of_too_many_records(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "RECORDS_MAX", 2)
    check_found_as_one_batch(by_kafka_python(codec, [BAD_MS - 1] * 2 + [BAD_MS]))
