"""StartMoves, a private API (key 32002): moves, and a throttle that lasts as long as they do.

One request is one step of the store: all or nothing. The throttle ends with the moves by itself
(its *lease*), also if the tool that started it is gone.

    request   timeout_ms int32, is_additional bool, throttle_bytes_per_s int64, partitions array of
                topic string, partition int32, replicas array of int32
    response  error int16, message string or null, lease string or null, partitions array of
                topic string, partition int32, error int16, message string or null

No replicas: cancel that partition's move. A throttle of -1: none. The lease names the throttle that
covers the moves, if there is one. A throttle of -2, when cancelling or with no partitions at all:
the lease named in the response is deleted, and its throttle stays set.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.body_readers import private_body
from insync.wire.primitives import (
    INT16,
    INT32,
    BadMessage,
    read_count,
    read_nullable_string,
    read_string,
    string_bytes,
)

NO_THROTTLE: Final = -1
PRESERVE_THROTTLE: Final = -2
PARTITIONS_MAX: Final = 100_000
REPLICAS_MAX: Final = 1_000

_HEAD: Final = Struct(">i?q")


class Move(NamedTuple):
    """The target of a partition; no replicas: cancel its move."""

    topic: str
    partition: int
    replicas: tuple[int, ...] = ()


class StartMoves(NamedTuple):
    partitions: tuple[Move, ...]
    throttle_bytes_per_s: int = NO_THROTTLE
    is_additional: bool = False  # other moves may be running
    timeout_ms: int = 30_000


class MoveResult(NamedTuple):
    topic: str
    partition: int
    error: int = 0
    message: str | None = None


class MovesStarted(NamedTuple):
    """On an error, of the whole or of any partition, nothing was changed."""

    error: int
    message: str | None = None
    lease: str | None = None
    partitions: tuple[MoveResult, ...] = ()


def write_request(request: StartMoves) -> bytes:
    out = [
        _HEAD.pack(request.timeout_ms, request.is_additional, request.throttle_bytes_per_s),
        INT32.pack(len(request.partitions)),
    ]
    for move in request.partitions:
        out += [
            string_bytes(move.topic, flexible=False),
            INT32.pack(move.partition),
            _int32s(move.replicas),
        ]
    return b"".join(out)


@private_body("StartMoves request")
def read_request(data: memoryview, at: int) -> tuple[StartMoves, int]:
    partitions = []
    timeout_ms, is_additional, throttle_bytes_per_s = _HEAD.unpack_from(data, at)
    count, at = read_count(data, at + _HEAD.size, flexible=False)
    if count > PARTITIONS_MAX:
        raise BadMessage(f"{count} partitions; the most allowed is {PARTITIONS_MAX}")
    for _ in range(count):
        topic, at = read_string(data, at, flexible=False)
        (partition,) = INT32.unpack_from(data, at)
        replicas, at = _read_int32s(data, at + INT32.size)
        partitions.append(Move(topic, partition, replicas))
    return StartMoves(tuple(partitions), throttle_bytes_per_s, is_additional, timeout_ms), at


def write_response(started: MovesStarted) -> bytes:
    out = [
        INT16.pack(started.error),
        string_bytes(started.message, flexible=False),
        string_bytes(started.lease, flexible=False),
        INT32.pack(len(started.partitions)),
    ]
    for result in started.partitions:
        out += [
            string_bytes(result.topic, flexible=False),
            INT32.pack(result.partition),
            INT16.pack(result.error),
            string_bytes(result.message, flexible=False),
        ]
    return b"".join(out)


@private_body("StartMoves response")
def read_response(data: memoryview, at: int) -> tuple[MovesStarted, int]:
    results = []
    (code,) = INT16.unpack_from(data, at)
    message, at = read_nullable_string(data, at + INT16.size, flexible=False)
    lease, at = read_nullable_string(data, at, flexible=False)
    count, at = read_count(data, at, flexible=False)
    for _ in range(count):
        topic, at = read_string(data, at, flexible=False)
        (partition,) = INT32.unpack_from(data, at)
        (error_code,) = INT16.unpack_from(data, at + INT32.size)
        text, at = read_nullable_string(data, at + INT32.size + INT16.size, flexible=False)
        results.append(MoveResult(topic, partition, error_code, text))
    return MovesStarted(code, message, lease, tuple(results)), at


def _int32s(values: Sequence[int]) -> bytes:
    return INT32.pack(len(values)) + b"".join(INT32.pack(value) for value in values)


def _read_int32s(data: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    count, at = read_count(data, at, flexible=False)
    if count > REPLICAS_MAX:
        raise BadMessage(f"{count} replicas of one partition; the most allowed is {REPLICAS_MAX}")
    layout = Struct(f">{count}i")
    return layout.unpack_from(data, at), at + layout.size
