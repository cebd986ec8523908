"""Fetch responses: the result of each partition, without copying records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.apis import FETCH_VERSIONS
from insync.wire.body_readers import versioned_body
from insync.wire.fetch_versions import (
    FLEXIBLE_FROM,
    LOG_START_FROM,
    RACK_FROM,
    SESSION_FROM,
    TOPIC_ID_FROM,
)
from insync.wire.primitives import (
    INT32,
    NO_TAGS,
    Topic,
    end_of,
    length_bytes,
    read_bytes,
    read_count,
    read_length,
    read_tags,
    read_topic,
    read_varint,
    skip_tags,
    tagged,
    topic_bytes,
    varint,
)

# Up to this size copying records into one buffer costs less than sending one more buffer.
JOIN_BYTES_MAX: Final = 4096
_RESPONSE_4: Final = Struct(">i")  # throttle
_RESPONSE_7: Final = Struct(">ihi")  # throttle, error, session
_FETCHED_4: Final = Struct(">ihqq")
_FETCHED_5: Final = Struct(">ihqqq")
_FETCHED_12: Final = Struct(">ihqqqBi")  # with a null or empty list of aborted, preferred replica
_ABORTED: Final = Struct(">qq")
_ABORTED_12: Final = Struct(">qqx")
_DIVERGING: Final = Struct(">iqx")  # epoch, end offset, no tags
_LEADER: Final = Struct(">iix")  # id, epoch, no tags
_DIVERGING_TAG: Final = 0
_LEADER_TAG: Final = 1


class FetchedPartition(NamedTuple):
    """The result of one partition. `diverging` is (epoch, end offset), a leader (id, epoch)."""

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
    """The response to a Fetch request."""

    throttle_ms: int = 0
    error: int = 0
    session_id: int = 0
    topics: Sequence[tuple[Topic, list[FetchedPartition]]] = ()


def buffers_size(buffers: Iterable[bytes | memoryview]) -> int:
    """The total size of a list of buffers, as in a frame's length."""
    return sum(map(len, buffers))


_as_fetched: Final[Callable[[tuple[object, ...]], FetchedPartition]] = partial(
    tuple.__new__, FetchedPartition
)


def write_fetch_response(version: int, response: FetchResponse) -> list[bytes | memoryview]:
    """The body of a Fetch response as buffers to send in turn: large records are not copied."""
    assert version in FETCH_VERSIONS, version
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    before, after = (_before_12, _after_12) if flexible else (_before_4, _no_tags)
    out: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = [_response_head(version, response)]
    for topic, partitions in response.topics:
        small += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        for fetched in partitions:
            # Kafka writes "no records" as empty, never as null; some clients require it.
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


def _response_head(version: int, response: FetchResponse) -> bytes:
    if version >= SESSION_FROM:
        head = _RESPONSE_7.pack(response.throttle_ms, response.error, response.session_id)
    else:
        head = _RESPONSE_4.pack(response.throttle_ms)
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


@versioned_body("Fetch", "response", FETCH_VERSIONS)
def read_fetch_response(version: int, data: memoryview, at: int) -> FetchResponse:
    """A Fetch response; records are views of the frame; endpoints and snapshots are skipped."""
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    read_fetched = _read_fetched_12 if flexible else _read_fetched_4
    error = session_id = 0
    if version >= SESSION_FROM:
        throttle_ms, error, session_id = _RESPONSE_7.unpack_from(data, at)
        at += _RESPONSE_7.size
    else:
        (throttle_ms,) = _RESPONSE_4.unpack_from(data, at)
        at += _RESPONSE_4.size
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
    if marker <= 1:  # the common case: nothing aborted, and the struct has all fields
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
