"""Fetch requests: the offset to read from, for each partition.

A partition has a fixed size in every version (flexible ones unless it carries tags), so whole
topics are read and written by one `struct` each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.apis import FETCH_VERSIONS
from insync.wire.body_readers import versioned_body
from insync.wire.fetch_versions import (
    FLEXIBLE_FROM,
    LEADER_EPOCH_FROM,
    LOG_START_FROM,
    RACK_FROM,
    REPLICA_STATE_FROM,
    SESSION_FROM,
    TOPIC_ID_FROM,
)
from insync.wire.primitives import (
    ENTRIES_MAX,
    INT32,
    NO_TAGS,
    BadMessage,
    Topic,
    end_of,
    length_bytes,
    read_count,
    read_nullable_string,
    read_string,
    read_topic,
    read_varint,
    skip_tags,
    string_bytes,
    tagged,
    topic_bytes,
    varint,
)

_INT32_MAX: Final = 2_147_483_647
_LIMITS: Final = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = Struct(">ii")
_REPLICA_STATE: Final = Struct(">iqx")  # id, epoch, no tags
_PARTITION_4: Final = Struct(">iqi")
_PARTITION_5: Final = Struct(">iqqi")
_PARTITION_9: Final = Struct(">iiqqi")
_PARTITION_12: Final = Struct(">iiqiqix")  # the last byte: no tags
_CLUSTER_ID_TAG: Final = 0
_REPLICA_STATE_TAG: Final = 1
_FEW: Final = 2  # fewer partitions are read faster one by one


class FetchPartition(NamedTuple):
    """What to fetch of one partition. -1: not in older versions."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions to fetch of one topic, in the order of the client."""

    topic: Topic
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """A Fetch request. A `replica_id` below 0 is a consumer; the id alone proves nothing.

    A tuple, as everything here: making a frozen dataclass of this size costs more than reading it.
    """

    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = _INT32_MAX
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: Sequence[FetchTopic] = ()
    forgotten: Sequence[tuple[Topic, Sequence[int]]] = ()
    rack_id: str = ""
    cluster_id: str | None = None


@versioned_body("Fetch", "request", FETCH_VERSIONS)
def read_fetch(version: int, data: memoryview, at: int) -> FetchRequest:
    """A Fetch request."""
    replica_id = replica_epoch = session_epoch = -1
    session_id, rack_id, cluster_id = 0, "", None
    forgotten: list[tuple[Topic, list[int]]] = []
    if version < REPLICA_STATE_FROM:
        (replica_id,) = INT32.unpack_from(data, at)
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(data, at)
    at += _LIMITS.size
    if version >= SESSION_FROM:
        session_id, session_epoch = _SESSION.unpack_from(data, at)
        at += _SESSION.size
    topics, at = _read_topics(version, data, at)
    if version >= SESSION_FROM:
        forgotten, at = _read_forgotten(version, data, at)
    if version >= RACK_FROM:
        rack_id, at = read_string(data, at, flexible=version >= FLEXIBLE_FROM)
    if version >= FLEXIBLE_FROM:
        cluster_id, replica = _read_request_tags(version, data, at)
        if version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = replica
    return FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        cluster_id,
    )


def _read_request_tags(
    version: int, data: memoryview, at: int
) -> tuple[str | None, tuple[int, int]]:
    cluster_id, replica = None, (-1, -1)
    count, at = read_varint(data, at)
    for _ in range(count):
        tag, at = read_varint(data, at)
        size, at = read_varint(data, at)
        end = end_of(data, at, size)
        if tag == _REPLICA_STATE_TAG and version >= REPLICA_STATE_FROM:
            replica = _REPLICA_STATE.unpack_from(data[at:end])
        elif tag == _CLUSTER_ID_TAG:
            cluster_id, _ = read_nullable_string(data[:end], at, flexible=True)
        at = end
    return cluster_id, replica


def _read_topics(version: int, data: memoryview, at: int) -> tuple[list[FetchTopic], int]:
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    read_partitions = _partitions_reader(version)
    topics: list[FetchTopic] = []
    partition_count = 0
    topic_count, at = read_count(data, at, flexible=flexible)
    for _ in range(topic_count):
        topic, at = read_topic(data, at, by_id=by_id, flexible=flexible)
        count, at = read_count(data, at, flexible=flexible)
        partition_count += count
        if partition_count > ENTRIES_MAX:
            raise BadMessage(f"more than {ENTRIES_MAX} partitions")
        partitions, at = read_partitions(data, at, count)
        at = skip_tags(data, at) if flexible else at
        topics.append(FetchTopic(topic, partitions))
    return topics, at


_PartitionsReader = Callable[[memoryview, int, int], tuple[list[FetchPartition], int]]

# The constructor of tuple, without the checks of NamedTuple's: half the time per row.
_as_partition: Final[Callable[[tuple[int, ...]], FetchPartition]] = partial(
    tuple.__new__, FetchPartition
)


def _partitions_reader(version: int) -> _PartitionsReader:
    if version >= FLEXIBLE_FROM:
        return _read_partitions_12
    if version >= LEADER_EPOCH_FROM:
        return _read_partitions_9
    return _read_partitions_5 if version >= LOG_START_FROM else _read_partitions_4


def _read_partitions_12(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    size = _PARTITION_12.size
    end = at + count * size
    # The first partition with tags has them at the checked position, so none is missed.
    if count <= _FEW or end > len(data) or any(data[at + size - 1 : end : size].tobytes()):
        return _read_partitions_in_turn(data, at, count)
    return list(map(_as_partition, _PARTITION_12.iter_unpack(data[at:end]))), end


def _read_partitions_in_turn(
    data: memoryview, at: int, count: int
) -> tuple[list[FetchPartition], int]:
    partitions: list[FetchPartition] = []
    for _ in range(count):
        partitions.append(FetchPartition(*_PARTITION_12.unpack_from(data, at)))
        at = skip_tags(data, at + _PARTITION_12.size - 1)
    return partitions, at


def _read_partitions_9(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _PARTITION_9.size)
    rows = _PARTITION_9.iter_unpack(data[at:end])
    return [FetchPartition(p, epoch, o, -1, start, most) for p, epoch, o, start, most in rows], end


def _read_partitions_5(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _PARTITION_5.size)
    rows = _PARTITION_5.iter_unpack(data[at:end])
    return [FetchPartition(p, -1, o, -1, start, most) for p, o, start, most in rows], end


def _read_partitions_4(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _PARTITION_4.size)
    rows = _PARTITION_4.iter_unpack(data[at:end])
    return [FetchPartition(p, -1, o, -1, -1, most) for p, o, most in rows], end


def _read_forgotten(
    version: int, data: memoryview, at: int
) -> tuple[list[tuple[Topic, list[int]]], int]:
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    forgotten: list[tuple[Topic, list[int]]] = []
    topic_count, at = read_count(data, at, flexible=flexible)
    for _ in range(topic_count):
        topic, at = read_topic(data, at, by_id=by_id, flexible=flexible)
        count, at = read_count(data, at, flexible=flexible)
        end = end_of(data, at, count * INT32.size)
        forgotten.append((topic, [number for (number,) in INT32.iter_unpack(data[at:end])]))
        at = skip_tags(data, end) if flexible else end
    return forgotten, at


def write_fetch_request(version: int, request: FetchRequest) -> bytes:
    """The body of a Fetch request; fields that the version does not have are left out."""
    assert version in FETCH_VERSIONS, version
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    out: list[bytes] = []
    if version < REPLICA_STATE_FROM:
        out.append(INT32.pack(request.replica_id))
    out.append(
        _LIMITS.pack(
            request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
        )
    )
    if version >= SESSION_FROM:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    out.append(length_bytes(len(request.topics), flexible=flexible))
    for topic, partitions in request.topics:
        out += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        out += _partition_bytes(version, partitions)
        if flexible:
            out.append(NO_TAGS)
    if version >= SESSION_FROM:
        out.append(_forgotten_bytes(version, request.forgotten))
    if version >= RACK_FROM:
        out.append(string_bytes(request.rack_id, flexible=flexible))
    if flexible:
        out.append(_request_tags(version, request))
    return b"".join(out)


def _partition_bytes(version: int, partitions: list[FetchPartition]) -> list[bytes]:
    if version >= FLEXIBLE_FROM:
        pack = _PARTITION_12.pack
        return [pack(*partition) for partition in partitions]
    if version >= LEADER_EPOCH_FROM:
        return [_PARTITION_9.pack(p, epoch, o, start, m) for p, epoch, o, _, start, m in partitions]
    if version >= LOG_START_FROM:
        return [_PARTITION_5.pack(p, o, start, m) for p, _, o, _, start, m in partitions]
    return [_PARTITION_4.pack(p, o, m) for p, _, o, _, _, m in partitions]


def _forgotten_bytes(version: int, forgotten: Sequence[tuple[Topic, Sequence[int]]]) -> bytes:
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    out = [length_bytes(len(forgotten), flexible=flexible)]
    for topic, partitions in forgotten:
        out += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        out += map(INT32.pack, partitions)
        if flexible:
            out.append(NO_TAGS)
    return b"".join(out)


def _request_tags(version: int, request: FetchRequest) -> bytes:
    tags: list[bytes] = []
    if request.cluster_id is not None:
        tags.append(tagged(_CLUSTER_ID_TAG, string_bytes(request.cluster_id, flexible=True)))
    replica = (request.replica_id, request.replica_epoch)
    if version >= REPLICA_STATE_FROM and replica != (-1, -1):
        tags.append(tagged(_REPLICA_STATE_TAG, _REPLICA_STATE.pack(*replica)))
    return varint(len(tags)) + b"".join(tags)
