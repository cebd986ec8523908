"""Fetch, versions 4 to 18, by hand: consumers and followers wait in it, and it carries the data.

    4 the first with record batches   5 log start   7 sessions   9 leader epoch   11 rack
    12 flexible, last fetched epoch   13 topic ids instead of names   15 replica state as a tag
    16 node endpoints   17 directory id, 18 high watermark of the follower (both for KRaft: ignored)

A partition of a request has a fixed size in every version (flexible ones unless it carries tags),
so whole topics are read and written by one `struct` each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.apis import FETCH_VERSIONS
from insync.wire.primitives import (
    ENTRIES_MAX,
    INT32,
    MALFORMED,
    NO_TAGS,
    BadMessage,
    Frame,
    Topic,
    end_of,
    length_bytes,
    read_bytes,
    read_count,
    read_length,
    read_nullable_string,
    read_string,
    read_tags,
    read_topic,
    read_varint,
    skip_tags,
    string_bytes,
    tagged,
    topic_bytes,
    varint,
)

LOG_START_FROM: Final = 5
SESSION_FROM: Final = 7
LEADER_EPOCH_FROM: Final = 9
RACK_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
TOPIC_ID_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15

# Up to this size a copy beside the small parts costs less than one more buffer to send.
JOIN_BYTES_MAX: Final = 4096

_INT32_MAX: Final = 2_147_483_647
_LIMITS: Final = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = Struct(">ii")
_REPLICA_STATE: Final = Struct(">iqx")  # id, epoch, no tags
_ASKED_4: Final = Struct(">iqi")
_ASKED_5: Final = Struct(">iqqi")
_ASKED_9: Final = Struct(">iiqqi")
_ASKED_12: Final = Struct(">iiqiqix")  # the last byte: no tags
_ANSWER_4: Final = Struct(">i")  # throttle
_ANSWER_7: Final = Struct(">ihi")  # throttle, error, session
_FETCHED_4: Final = Struct(">ihqq")
_FETCHED_5: Final = Struct(">ihqqq")
_FETCHED_12: Final = Struct(">ihqqqBi")  # with a null or empty list of aborted, preferred replica
_ABORTED: Final = Struct(">qq")
_ABORTED_12: Final = Struct(">qqx")
_DIVERGING: Final = Struct(">iqx")  # epoch, end offset, no tags
_LEADER: Final = Struct(">iix")  # id, epoch, no tags

_CLUSTER_ID_TAG: Final = 0
_REPLICA_STATE_TAG: Final = 1
_DIVERGING_TAG: Final = 0
_LEADER_TAG: Final = 1


class FetchPartition(NamedTuple):
    """Where one partition is to be read from. -1 is what older versions do not say."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions asked for of one topic, in the reader's order."""

    topic: Topic
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """One poll. A `replica_id` below 0 is a consumer; it proves nothing by itself.

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


class FetchedPartition(NamedTuple):
    """What one partition gave. `diverging` is (epoch, end offset), a leader (id, epoch)."""

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start: int = -1
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    aborted: list[tuple[int, int]] | None = None  # (producer id, first offset)
    preferred_read_replica: int = -1
    records: memoryview | bytes | None = None


class FetchResponse(NamedTuple):
    """The answer to one poll."""

    throttle_ms: int = 0
    error: int = 0
    session_id: int = 0
    topics: Sequence[tuple[Topic, list[FetchedPartition]]] = ()


def buffers_size(buffers: Iterable[bytes | memoryview]) -> int:
    """The bytes in a list of buffers: what a frame's length says."""
    return sum(map(len, buffers))


# Requests


def read_fetch(version: int, frame: Frame, body_at: int) -> FetchRequest:
    """A Fetch request."""
    _check_version(version)
    data = memoryview(frame)
    try:
        return _read_request(version, data, body_at)
    except (*MALFORMED, BadMessage) as error:
        raise BadMessage(f"no Fetch v{version} request: {error}") from error


def _read_request(version: int, data: memoryview, at: int) -> FetchRequest:
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

# A tuple's own constructor, past the checks of the one NamedTuple writes: half the time per row.
_as_partition: Final[Callable[[tuple[int, ...]], FetchPartition]] = partial(
    tuple.__new__, FetchPartition
)
_as_fetched: Final[Callable[[tuple[object, ...]], FetchedPartition]] = partial(
    tuple.__new__, FetchedPartition
)


def _partitions_reader(version: int) -> _PartitionsReader:
    if version >= FLEXIBLE_FROM:
        return _read_partitions_12
    if version >= LEADER_EPOCH_FROM:
        return _read_partitions_9
    return _read_partitions_5 if version >= LOG_START_FROM else _read_partitions_4


_FEW: Final = 2  # partitions that are read in less time than it takes to look at all their tags


def _read_partitions_12(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    size = _ASKED_12.size
    end = at + count * size
    # The first partition with tags has them where we look for them, so rows after it cannot hide.
    if count <= _FEW or end > len(data) or any(data[at + size - 1 : end : size].tobytes()):
        return _read_partitions_in_turn(data, at, count)
    return list(map(_as_partition, _ASKED_12.iter_unpack(data[at:end]))), end


def _read_partitions_in_turn(
    data: memoryview, at: int, count: int
) -> tuple[list[FetchPartition], int]:
    partitions: list[FetchPartition] = []
    for _ in range(count):
        partitions.append(FetchPartition(*_ASKED_12.unpack_from(data, at)))
        at = skip_tags(data, at + _ASKED_12.size - 1)
    return partitions, at


def _read_partitions_9(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _ASKED_9.size)
    rows = _ASKED_9.iter_unpack(data[at:end])
    return [FetchPartition(p, epoch, o, -1, start, most) for p, epoch, o, start, most in rows], end


def _read_partitions_5(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _ASKED_5.size)
    rows = _ASKED_5.iter_unpack(data[at:end])
    return [FetchPartition(p, -1, o, -1, start, most) for p, o, start, most in rows], end


def _read_partitions_4(data: memoryview, at: int, count: int) -> tuple[list[FetchPartition], int]:
    end = end_of(data, at, count * _ASKED_4.size)
    rows = _ASKED_4.iter_unpack(data[at:end])
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
    """The body of a Fetch request; what the version cannot say is left out."""
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
        out += _asked(version, partitions)
        if flexible:
            out.append(NO_TAGS)
    if version >= SESSION_FROM:
        out.append(_forgotten_bytes(version, request.forgotten))
    if version >= RACK_FROM:
        out.append(string_bytes(request.rack_id, flexible=flexible))
    if flexible:
        out.append(_request_tags(version, request))
    return b"".join(out)


def _asked(version: int, partitions: list[FetchPartition]) -> list[bytes]:
    if version >= FLEXIBLE_FROM:
        pack = _ASKED_12.pack
        return [pack(*partition) for partition in partitions]
    if version >= LEADER_EPOCH_FROM:
        return [_ASKED_9.pack(p, epoch, o, start, m) for p, epoch, o, _, start, m in partitions]
    if version >= LOG_START_FROM:
        return [_ASKED_5.pack(p, o, start, m) for p, _, o, _, start, m in partitions]
    return [_ASKED_4.pack(p, o, m) for p, _, o, _, _, m in partitions]


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


# Responses


def write_fetch_response(version: int, response: FetchResponse) -> list[bytes | memoryview]:
    """The body of a Fetch response as buffers to send in turn: large records are not copied."""
    assert version in FETCH_VERSIONS, version
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    before, after = (_before_12, _after_12) if flexible else (_before_4, _no_tags)
    out: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = [_answer_head(version, response)]
    for topic, partitions in response.topics:
        small += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        for fetched in partitions:
            # Kafka writes no records as empty, never as null; some clients insist.
            records = fetched.records or b""
            small.append(before(version, fetched, len(records)))
            if len(records) > JOIN_BYTES_MAX:
                out += (b"".join(small), records)
                small.clear()
            else:
                small.append(records)
            small.append(after(fetched))
        if flexible:
            small.append(NO_TAGS)
    if flexible:
        small.append(NO_TAGS)
    out.append(b"".join(small))
    return out


def _answer_head(version: int, response: FetchResponse) -> bytes:
    if version >= SESSION_FROM:
        head = _ANSWER_7.pack(response.throttle_ms, response.error, response.session_id)
    else:
        head = _ANSWER_4.pack(response.throttle_ms)
    return head + length_bytes(len(response.topics), flexible=version >= FLEXIBLE_FROM)


def _before_12(_version: int, fetched: FetchedPartition, records_size: int) -> bytes:
    number, error, high_watermark, stable, start, _, _, aborted, preferred, _ = fetched
    if not aborted:
        marker = 0 if aborted is None else 1
        head = _FETCHED_12.pack(number, error, high_watermark, stable, start, marker, preferred)
        return head + varint(records_size + 1)
    head = _FETCHED_5.pack(number, error, high_watermark, stable, start)
    rows = b"".join([_ABORTED_12.pack(*row) for row in aborted])
    return b"".join(
        (head, varint(len(aborted) + 1), rows, INT32.pack(preferred), varint(records_size + 1))
    )


def _after_12(fetched: FetchedPartition) -> bytes:
    if fetched.diverging is None and fetched.current_leader is None:
        return NO_TAGS
    tags: list[bytes] = []
    if fetched.diverging is not None:
        tags.append(tagged(_DIVERGING_TAG, _DIVERGING.pack(*fetched.diverging)))
    if fetched.current_leader is not None:
        tags.append(tagged(_LEADER_TAG, _LEADER.pack(*fetched.current_leader)))
    return varint(len(tags)) + b"".join(tags)


def _before_4(version: int, fetched: FetchedPartition, records_size: int) -> bytes:
    number, error, high_watermark, stable, start, _, _, aborted, preferred, _ = fetched
    if version >= LOG_START_FROM:
        head = _FETCHED_5.pack(number, error, high_watermark, stable, start)
    else:
        head = _FETCHED_4.pack(number, error, high_watermark, stable)
    rows = [_ABORTED.pack(*row) for row in aborted or ()]
    head += INT32.pack(-1 if aborted is None else len(rows)) + b"".join(rows)
    if version >= RACK_FROM:
        head += INT32.pack(preferred)
    return head + INT32.pack(records_size)


def _no_tags(_fetched: FetchedPartition) -> bytes:
    return b""


def read_fetch_response(version: int, frame: Frame, body_at: int) -> FetchResponse:
    """A Fetch response; records are views of the frame, endpoints and snapshots passed over."""
    _check_version(version)
    data = memoryview(frame)
    try:
        return _read_response(version, data, body_at)
    except (*MALFORMED, BadMessage) as error:
        raise BadMessage(f"no Fetch v{version} response: {error}") from error


def _read_response(version: int, data: memoryview, at: int) -> FetchResponse:
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    read_fetched = _read_fetched_12 if flexible else _read_fetched_4
    error = session_id = 0
    if version >= SESSION_FROM:
        throttle_ms, error, session_id = _ANSWER_7.unpack_from(data, at)
        at += _ANSWER_7.size
    else:
        (throttle_ms,) = _ANSWER_4.unpack_from(data, at)
        at += _ANSWER_4.size
    topics: list[tuple[Topic, list[FetchedPartition]]] = []
    topic_count, at = read_count(data, at, flexible=flexible)
    for _ in range(topic_count):
        topic, at = read_topic(data, at, by_id=by_id, flexible=flexible)
        count, at = read_count(data, at, flexible=flexible)
        partitions: list[FetchedPartition] = []
        for _ in range(count):
            fetched, at = read_fetched(version, data, at)
            partitions.append(fetched)
        at = skip_tags(data, at) if flexible else at
        topics.append((topic, partitions))
    if flexible:
        skip_tags(data, at)
    return FetchResponse(throttle_ms, error, session_id, topics)


def _read_fetched_12(_version: int, data: memoryview, at: int) -> tuple[FetchedPartition, int]:
    number, error, watermark, stable, start, marker, preferred = _FETCHED_12.unpack_from(data, at)
    aborted: list[tuple[int, int]] | None = None
    if marker <= 1:  # the usual: nothing aborted, and the struct has read it all
        aborted = None if marker == 0 else []
        at += _FETCHED_12.size
    else:
        aborted, at = _read_aborted_12(data, at + _FETCHED_5.size)
        (preferred,) = INT32.unpack_from(data, at)
        at += 4
    records, at = read_bytes(data, at, flexible=True)
    if data[at] == 0:
        diverging = leader = None
        at += 1
    else:
        diverging, leader, at = _read_fetched_tags(data, at)
    return _as_fetched(
        (number, error, watermark, stable, start, diverging, leader, aborted, preferred, records)
    ), at


def _read_fetched_4(version: int, data: memoryview, at: int) -> tuple[FetchedPartition, int]:
    start = preferred = -1
    if version >= LOG_START_FROM:
        number, error, watermark, stable, start = _FETCHED_5.unpack_from(data, at)
        at += _FETCHED_5.size
    else:
        number, error, watermark, stable = _FETCHED_4.unpack_from(data, at)
        at += _FETCHED_4.size
    aborted, at = _read_aborted_4(data, at)
    if version >= RACK_FROM:
        (preferred,) = INT32.unpack_from(data, at)
        at += 4
    records, at = read_bytes(data, at, flexible=False)
    fetched = FetchedPartition(
        number, error, watermark, stable, start, None, None, aborted, preferred, records
    )
    return fetched, at


_Pair = tuple[int, int]


def _read_fetched_tags(data: memoryview, at: int) -> tuple[_Pair | None, _Pair | None, int]:
    diverging: _Pair | None = None
    leader: _Pair | None = None

    def on_tag(tag: int, start: int, end: int) -> None:
        nonlocal diverging, leader
        if tag == _DIVERGING_TAG:
            diverging = _DIVERGING.unpack_from(data[start:end])
        elif tag == _LEADER_TAG:
            leader = _LEADER.unpack_from(data[start:end])

    at = read_tags(data, at, on_tag)
    return diverging, leader, at


def _read_aborted_12(data: memoryview, at: int) -> tuple[list[tuple[int, int]], int]:
    count, at = read_varint(data, at)
    aborted: list[tuple[int, int]] = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(data, at))
        at = skip_tags(data, at + _ABORTED.size)
    return aborted, at


def _read_aborted_4(data: memoryview, at: int) -> tuple[list[tuple[int, int]] | None, int]:
    count, at = read_length(data, at)
    if count < 0:
        return None, at
    end = end_of(data, at, count * _ABORTED.size)
    return list(_ABORTED.iter_unpack(data[at:end])), end


def _check_version(version: int) -> None:
    if version not in FETCH_VERSIONS:
        raise BadMessage(f"Fetch v{version} is not spoken here")
