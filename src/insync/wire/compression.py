"""Decompressing records, with every codec of Kafka's.

The decompressed size of a batch is limited, because a kilobyte can claim any size. The output
buffer is mapped memory, of which only written pages are used; so a codec that does not know the
size beforehand needs no second attempt.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final

from insync.rules.refusals import Refusal

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

PLAIN_BYTES_MAX: Final = 64 << 20
"""Of one batch. By default producers fill a batch up to a megabyte before they compress it."""

_GZIP_WBITS: Final = 31  # zlib with the header of a gzip file

# Java's producers split what they compress with snappy into sized blocks, after this sign and two
# version numbers; librdkafka sends a single block without them.
_XERIAL_SIGN: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_BLOCK_SIZE = Struct(">i")


class CorruptCompression(Refusal):
    """Bytes that are not valid for their codec, or too many when decompressed."""


def zipped(plain: bytes) -> bytes:
    return zlib.compress(plain, level=1, wbits=_GZIP_WBITS)


def decompressed(data: bytes | memoryview, codec: int) -> bytes:
    if codec == GZIP:
        return _unzipped(data)
    import cramjam  # noqa: PLC0415 - 2 MB that a broker needs only to find timestamps

    try:
        if codec == SNAPPY:
            return _unsnapped(bytes(data))
        if codec == LZ4:
            return _into_mapped(cramjam.lz4.decompress_into, data)
        if codec == ZSTD:
            return _into_mapped(cramjam.zstd.decompress_into, data)
    except cramjam.DecompressionError as error:
        raise CorruptCompression(str(error)) from None
    raise CorruptCompression(f"codec {codec} is unknown")


def _into_mapped(
    decompress_into: Callable[[bytes | memoryview, mmap], int], data: bytes | memoryview
) -> bytes:
    with mmap(-1, PLAIN_BYTES_MAX, flags=MAP_PRIVATE | MAP_ANONYMOUS) as plain:
        return plain[: decompress_into(data, plain)]


def _unzipped(data: bytes | memoryview) -> bytes:
    unzip = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        plain = unzip.decompress(data, PLAIN_BYTES_MAX)
    except zlib.error as error:
        raise CorruptCompression(str(error)) from None
    if not unzip.eof:
        raise CorruptCompression(f"cut off, or more than {PLAIN_BYTES_MAX} bytes once unzipped")
    return plain


def _unsnapped(data: bytes) -> bytes:
    import cramjam  # noqa: PLC0415 - as above

    blocks, total = [], 0
    for block in _snappy_blocks(data):
        total += cramjam.snappy.decompress_raw_len(block)
        if total > PLAIN_BYTES_MAX:
            raise CorruptCompression(f"{total} bytes or more once plain")
        blocks.append(bytes(cramjam.snappy.decompress_raw(block)))
    return b"".join(blocks)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_SIGN):
        yield data
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        if position + _BLOCK_SIZE.size > len(data):
            raise CorruptCompression("a block's size is cut off")
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        if not 0 <= size <= len(data) - position:
            raise CorruptCompression(f"a block of {size} bytes where {len(data) - position} are")
        yield data[position : position + size]
        position += size
