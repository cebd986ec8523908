"""Record batches: built, checked, stamped and walked, beside a parse written from the format."""

import struct
from io import BytesIO

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from insync.wire import batches, compression
from insync.wire.batches import CorruptBatch, build, check, read_header, stamp, whole_batches

pairs = st.lists(
    st.tuples(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=200)),
    min_size=1,
    max_size=6,
)
offsets = st.integers(0, 2**62)
ONE = build([(b"key", b"value"), (None, None)], base_offset=5, leader_epoch=3, timestamp_ms=9)


def parsed(batch: bytes) -> dict[str, object]:
    """A simple reader of one batch, written from the format's description."""
    stream = BytesIO(batch)

    def number(layout: str) -> int:
        (value,) = struct.unpack(f">{layout}", stream.read(struct.calcsize(layout)))
        return int(value)

    def varint() -> int:
        bits = shift = 0
        while True:
            byte = stream.read(1)[0]
            bits |= (byte & 127) << shift
            if byte < 128:
                return -(bits + 1) // 2 if bits % 2 else bits // 2
            shift += 7

    def sized() -> bytes | None:
        size = varint()
        return None if size < 0 else stream.read(size)

    names = [
        *(("base_offset", "q"), ("length", "i"), ("epoch", "i"), ("magic", "b"), ("crc", "I")),
        *(("attributes", "h"), ("last_delta", "i"), ("first_ms", "q"), ("max_ms", "q")),
        *(("producer", "q"), ("producer_epoch", "h"), ("sequence", "i"), ("count", "i")),
    ]
    fields: dict[str, object] = {name: number(layout) for name, layout in names}
    records = []
    for delta in range(len(batch)):
        if stream.tell() == len(batch):
            break
        size = varint()
        start = stream.tell()
        assert number("b") == 0
        assert (varint(), varint()) == (0, delta)
        records.append((sized(), sized()))
        assert varint() == 0
        assert stream.tell() == start + size
    return fields | {"records": records}


@pytest.mark.property
@given(pairs, offsets, st.integers(-1, 2**31 - 1), st.integers(0, 2**60), st.integers(-1, 2**60))
def test_a_built_batch_is_what_the_format_says(
    records: list[tuple[bytes | None, bytes | None]],
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    producer_id: int,
) -> None:
    batch = build(
        records,
        base_offset=base_offset,
        leader_epoch=epoch,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=4,
        base_sequence=5,
    )
    assert parsed(batch) == {
        "base_offset": base_offset,
        "length": len(batch) - 12,
        "epoch": epoch,
        "magic": 2,
        "crc": crc32c(batch[21:]),
        "attributes": 0,
        "last_delta": len(records) - 1,
        "first_ms": timestamp_ms,
        "max_ms": timestamp_ms,
        "producer": producer_id,
        "producer_epoch": 4,
        "sequence": 5,
        "count": len(records),
        "records": records,
    }
    header = read_header(batch)
    assert header is not None
    check(batch, header)
    assert list(batches.records(batch)) == records
    assert header.next_offset == base_offset + len(records)
    assert header.last_offset == header.next_offset - 1


@pytest.mark.property
@given(pairs, offsets, st.integers(0, 2**31 - 1))
def test_a_stamp_changes_offset_and_epoch_and_nothing_else(
    records: list[tuple[bytes | None, bytes | None]], base_offset: int, epoch: int
) -> None:
    log = bytearray(ONE + build(records))
    _, header = whole_batches(log)
    stamp(log, header, base_offset=base_offset, epoch=epoch)
    assert log == ONE + build(records, base_offset=base_offset, leader_epoch=epoch)
    _, stamped = whole_batches(log)
    check(log, stamped)


@pytest.mark.property
@given(st.lists(pairs, min_size=1, max_size=4), st.data())
def test_a_truncated_last_batch_is_left_out(
    contents: list[list[tuple[bytes | None, bytes | None]]], data: st.DataObject
) -> None:
    whole = [build(records) for records in contents]
    log = b"".join(whole)
    size = data.draw(st.integers(0, len(log)))
    ends = [sum(map(len, whole[: n + 1])) for n in range(len(whole))]
    end_positions = [header.end_position for header in whole_batches(log[:size])]
    assert end_positions == [end for end in ends if end <= size]


@pytest.mark.parametrize("at", range(16, len(ONE)))
def test_a_changed_byte_from_the_magic_on_is_noticed(at: int) -> None:
    damaged = bytearray(ONE)
    damaged[at] ^= 0x55
    header = read_header(damaged)
    assert header is not None
    with pytest.raises(CorruptBatch):
        check(damaged, header)


def with_true_crc(batch: bytearray) -> bytearray:
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (16, ">b", 1, "magic is 1"),
        (16, ">b", 0, "magic is 0"),
        (57, ">i", 3, "3 records"),
        (57, ">i", 0, "0 records"),
        (57, ">i", -1, "-1 records"),
        (23, ">i", 7, "delta of 7"),
        (21, ">h", 5, "no known compression"),
        (17, ">I", 1, "CRC"),
    ],
)
def test_invalid_numbers_are_refused_even_with_a_valid_crc(
    at: int, layout: str, value: int, message: str
) -> None:
    damaged = bytearray(ONE)
    struct.pack_into(layout, damaged, at, value)
    if message != "CRC":
        with_true_crc(damaged)
    header = read_header(damaged)
    assert header is not None
    with pytest.raises(CorruptBatch, match=message):
        check(damaged, header)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_too_small_for_a_batch_is_refused(length: int) -> None:
    damaged = bytearray(ONE)
    struct.pack_into(">i", damaged, 8, length)
    with pytest.raises(CorruptBatch, match=f"a length of {length}"):
        list(whole_batches(damaged))


def test_a_length_beyond_the_bytes_is_a_cut_off_batch() -> None:
    damaged = bytearray(ONE)
    struct.pack_into(">i", damaged, 8, 2**31 - 1)
    assert list(whole_batches(damaged)) == []


def test_batch_attributes_are_read() -> None:
    for bit, transactional, control in (
        (0, False, False),
        (0x10, True, False),
        (0x20, False, True),
    ):
        batch = bytearray(ONE)
        struct.pack_into(">h", batch, 21, bit)
        header = read_header(batch)
        assert header is not None
        assert (header.is_transactional, header.is_control) == (transactional, control)


def test_only_whole_batches_are_read_record_by_record() -> None:
    for data in (b"", ONE[:60]):
        with pytest.raises(CorruptBatch, match="whole batch"):
            list(batches.records(data))
    for size in range(61, len(ONE)):
        with pytest.raises(CorruptBatch, match="beyond its batch"):
            list(batches.records(ONE[:size]))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_are_read_whatever_they_are_compressed_with(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    pairs = [(b"%d" % number, b"v" * 1_000) for number in range(100)]
    for number, (key, value) in enumerate(pairs):
        builder.append(number, 0, key, value, [])
    whole = bytes(builder.build())
    header = read_header(whole)
    assert header is not None
    assert header.attributes == codec
    assert list(batches.records(whole)) == pairs
    plain = bytearray(ONE)
    struct.pack_into(">h", plain, 21, codec)
    with pytest.raises(CorruptBatch, match="cannot be decompressed"):
        list(batches.records(bytes(plain)))


def test_a_gzipped_batch_has_the_same_records_in_fewer_bytes() -> None:
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"k", b"v" * 10_000), (None, None)]
    zipped = build(pairs, is_zipped=True)
    assert len(zipped) < 300
    header = batches.read_header(zipped)
    assert header is not None
    batches.check(zipped, header)
    assert list(batches.records(zipped)) == pairs


@pytest.mark.parametrize("cut", [61, 70, -1])
def test_truncated_or_invalid_gzip_is_refused(cut: int) -> None:
    zipped = build([(b"k", b"v" * 1_000)], is_zipped=True)
    with pytest.raises(CorruptBatch):
        list(batches.records(zipped[:cut]))
    mangled = zipped[:61] + b"no" + zipped[63:]
    with pytest.raises(CorruptBatch, match="cannot be decompressed"):
        list(batches.records(mangled))


def test_a_small_batch_cannot_claim_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    zipped = build([(None, bytes(100_000))], is_zipped=True)
    monkeypatch.setattr(compression, "PLAIN_BYTES_MAX", 50_000)
    with pytest.raises(CorruptBatch, match="more than 50000"):
        list(batches.records(zipped))


def test_record_headers_are_skipped() -> None:
    record = bytes([0, 0, 0, 2]) + b"k" + bytes([4]) + b"vv" + bytes([2, 2]) + b"h" + bytes([1])
    body = bytes([2 * len(record)]) + record  # one header, "h", with a null value
    batch = bytearray(build([(None, None)])[:61] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    assert list(batches.records(bytes(with_true_crc(batch)))) == [(b"k", b"vv")]


def test_a_varint_that_does_not_end_is_refused() -> None:
    batch = build([(b"k", b"v")])[:61] + b"\xff" * 40
    with pytest.raises(CorruptBatch, match="a number reaches"):
        list(batches.records(batch))
