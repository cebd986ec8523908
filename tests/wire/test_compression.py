"""What other libraries compress is decompressed; invalid data is refused."""

from __future__ import annotations

import gzip
import resource
import struct
import subprocess
import sys
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.codec import snappy_encode

from insync.wire import compression
from insync.wire.compression import GZIP, LZ4, SNAPPY, ZSTD, CorruptCompression, decompressed

Compress = Callable[[bytes], bytes]


def zstd_stream(plain: bytes) -> bytes:
    """As producers write it: the frame does not have the decompressed size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(plain) + stream.flush()


def lz4_of_librdkafka(plain: bytes) -> bytes:
    return bytes(lz4.frame.compress(plain, block_linked=False, store_size=False))


MAKERS: dict[str, tuple[int, Compress]] = {
    "gzip": (GZIP, gzip.compress),
    "gzip, not smaller": (GZIP, lambda plain: gzip.compress(plain, compresslevel=0)),
    "snappy as Java frames it": (SNAPPY, snappy_encode),
    "snappy in small blocks": (SNAPPY, lambda plain: snappy_encode(plain, xerial_blocksize=64)),
    "snappy as librdkafka sends it": (
        SNAPPY,
        lambda plain: pa.compress(plain, codec="snappy", asbytes=True),
    ),
    "lz4": (LZ4, lz4_of_librdkafka),
    "lz4, linked blocks": (LZ4, lambda plain: lz4.frame.compress(plain, content_checksum=True)),
    "zstd": (ZSTD, zstandard.ZstdCompressor().compress),
    "zstd, size unknown": (ZSTD, zstd_stream),
}
each_maker = pytest.mark.parametrize("maker", MAKERS)
plains = st.binary(max_size=400) | st.builds(
    lambda piece, times: piece * times, st.binary(min_size=1, max_size=20), st.integers(1, 20_000)
)


@each_maker
@pytest.mark.property
@given(plain=plains)
@example(plain=bytes(range(256)) * 1_000)
def test_decompressing_restores_the_data(maker: str, plain: bytes) -> None:
    codec, compress = MAKERS[maker]
    data = compress(plain)
    assert decompressed(data, codec) == plain
    assert decompressed(memoryview(data), codec) == plain


def refused_or_plain(data: bytes, codec: int) -> bytes | None:
    try:
        return decompressed(data, codec)
    except CorruptCompression:
        return None


@each_maker
@pytest.mark.property
@given(plain=plains, share=st.floats(0, 1, exclude_max=True))
def test_truncated_data(maker: str, plain: bytes, share: float) -> None:
    """Refused, or, where a frame may end after any block, the beginning of the data."""
    codec, compress = MAKERS[maker]
    data = compress(plain)
    decompressed = refused_or_plain(data[: int(share * len(data))], codec)
    assert decompressed is None or plain.startswith(decompressed)


@each_maker
@pytest.mark.property
@given(plain=plains, where=st.floats(0, 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_only_the_output(
    maker: str, plain: bytes, where: float, bit: int
) -> None:
    codec, compress = MAKERS[maker]
    data = bytearray(compress(plain))
    data[round(where * (len(data) - 1))] ^= 1 << bit
    refused_or_plain(bytes(data), codec)


@pytest.mark.property
@given(codec=st.integers(1, 4), data=st.binary(max_size=200))
@example(codec=SNAPPY, data=b"")
@example(codec=LZ4, data=b"")
@example(codec=ZSTD, data=b"")
def test_garbage_is_refused(codec: int, data: bytes) -> None:
    """Unless it happens to be valid: a few bytes may be a valid block of snappy."""
    decompressed = refused_or_plain(data, codec)
    assert decompressed is None or codec == SNAPPY or not decompressed


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(CorruptCompression, match=f"codec {codec}"):
        decompressed(zstd_stream(b"plain"), codec)


SIGN = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


@pytest.mark.parametrize(
    "tail",
    [b"\0\0\0", struct.pack(">i", -1), struct.pack(">i", 9) + b"12345678", b"\x7f\xff\xff\xff"],
)
def test_blocks_that_reach_beyond_their_batch_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptCompression, match="a block"):
        decompressed(SIGN + tail, SNAPPY)


def test_a_frame_of_no_blocks_is_empty() -> None:
    assert decompressed(SIGN, SNAPPY) == b""


@each_maker
def test_the_limit_is_exact(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, compress = MAKERS[maker]
    monkeypatch.setattr(compression, "PLAIN_BYTES_MAX", 50_000)
    assert len(decompressed(compress(bytes(50_000)), codec)) == 50_000
    with pytest.raises(CorruptCompression):
        decompressed(compress(bytes(50_001)), codec)


OPEN_ONE = """
import resource, sys
from insync.wire.compression import CorruptCompression, decompressed
decompressed(bytes.fromhex("28b52ffd0000010000"), 4)  # nothing, so that the library is in memory
data, before = sys.stdin.buffer.read(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompressed(data, int(sys.argv[1]))
    print("taken")
except CorruptCompression:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("maker", ["gzip", "zstd", "snappy as librdkafka sends it", "lz4"])
def test_a_decompression_bomb_uses_no_more_than_the_limit(maker: str) -> None:
    """In a separate process, to measure its peak memory."""
    codec, compress = MAKERS[maker]
    bomb = compress(bytes(100 << 20))
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ONE, str(codec)], input=bomb, capture_output=True, check=True
    )
    grown_kb = int(done.stdout)
    assert grown_kb < (compression.PLAIN_BYTES_MAX >> 10) * 5 // 4


def test_a_small_batch_uses_little_memory() -> None:
    data = zstd_stream(b"few")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    decompressed(data, ZSTD)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 2_000, "64 MiB are 16384 pages"
