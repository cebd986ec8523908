"""The partitions of a Metadata response, written directly.

A client that looks for a leader asks for whole topics, again and again until there is one, and a
topic may have thousands of partitions. kio's entities take some ten microseconds per partition,
this takes one; tests compare the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from insync.wire.entity_writers import EncodedArray, int32_array_writer
from insync.wire.primitives import NO_TAGS, length_bytes

OFFLINE_FROM_VERSION: Final = 5
EPOCH_FROM_VERSION: Final = 7
FLEXIBLE_FROM_VERSION: Final = 9

_NUMBERS: Final = Struct(">hii").pack
_NUMBERS_WITH_EPOCH: Final = Struct(">hiii").pack


class MetadataPartition(NamedTuple):
    """What a Metadata response says of a partition."""

    error_code: ErrorCode
    number: int
    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


def write_metadata_partitions(
    partitions: Iterable[MetadataPartition], version: int
) -> EncodedArray:
    """The field `partitions` of a topic in a Metadata response of this version."""
    is_flexible = version >= FLEXIBLE_FROM_VERSION
    has_epoch, has_offline = version >= EPOCH_FROM_VERSION, version >= OFFLINE_FROM_VERSION
    tags = NO_TAGS if is_flexible else b""
    write_brokers = int32_array_writer(flexible=is_flexible)
    written: dict[tuple[int, ...], bytes] = {}  # there are few lists of brokers

    def brokers(ids: tuple[int, ...]) -> bytes:
        data = written.get(ids)
        if data is None:
            data = written[ids] = write_brokers(ids)
        return data

    out = [b""]  # for the length
    for code, number, leader, epoch, replicas, isr, offline in partitions:
        if has_epoch:
            out.append(_NUMBERS_WITH_EPOCH(code, number, leader, epoch))
        else:
            out.append(_NUMBERS(code, number, leader))
        out.append(brokers(replicas))
        out.append(brokers(isr))
        if has_offline:
            out.append(brokers(offline))
        out.append(tags)
    pieces_each = 4 + has_offline
    out[0] = length_bytes(len(out) // pieces_each, flexible=is_flexible)
    return EncodedArray(b"".join(out))
