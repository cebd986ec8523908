"""Produce, versions 3 to 13, hand-written for speed: there is one request per batch.

3 the first with record batches   5 log start   8 error message   9 flexible
10 current leader   13 topic ids instead of names
"""

from __future__ import annotations

from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.apis import PRODUCE_VERSIONS
from insync.wire.body_readers import versioned_body
from insync.wire.primitives import (
    ENTRIES_MAX,
    INT32,
    NO_TAGS,
    BadMessage,
    Topic,
    length_bytes,
    read_bytes,
    read_count,
    read_nullable_string,
    read_tags,
    read_topic,
    skip_tags,
    string_bytes,
    tagged,
    topic_bytes,
    varint,
)

LOG_START_FROM: Final = 5
ERROR_MESSAGE_FROM: Final = 8
FLEXIBLE_FROM: Final = 9
CURRENT_LEADER_FROM: Final = 10
TOPIC_ID_FROM: Final = 13

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_RESULT: Final = Struct(">ihqq")
_RESULT_WITH_LOG_START: Final = Struct(">ihqqq")
_LEADER: Final = Struct(">iix")  # leader id, leader epoch, no tags
_LEADER_TAG: Final = 0


class ProducePartition(NamedTuple):
    """Records for one partition; `records` is a view of the frame, writable if the frame is."""

    topic: Topic
    partition: int
    records: memoryview | bytes | None


class ProduceRequest(NamedTuple):
    """Batches to append, in the order of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


class ProduceResult(NamedTuple):
    """The result of one partition."""

    topic: Topic
    partition: int
    error: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start: int = -1
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None  # id and epoch, with NOT_LEADER_OR_FOLLOWER


class ProduceResponse(NamedTuple):
    """Results in the order of the request."""

    results: list[ProduceResult]
    throttle_ms: int = 0


@versioned_body("Produce", "request", PRODUCE_VERSIONS)
def read_produce(version: int, data: memoryview, at: int) -> ProduceRequest:
    """A Produce request; records are views of the frame."""
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    partitions: list[ProducePartition] = []
    transactional_id, at = read_nullable_string(data, at, flexible=flexible)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(data, at)
    topic_count, at = read_count(data, at + _ACKS_AND_TIMEOUT.size, flexible=flexible)
    for _ in range(topic_count):
        topic, at = read_topic(data, at, by_id=by_id, flexible=flexible)
        count, at = read_count(data, at, flexible=flexible)
        if len(partitions) + count > ENTRIES_MAX:
            raise BadMessage(f"more than {ENTRIES_MAX} partitions")
        for _ in range(count):
            (partition,) = INT32.unpack_from(data, at)
            records, at = read_bytes(data, at + 4, flexible=flexible)
            at = skip_tags(data, at) if flexible else at
            partitions.append(ProducePartition(topic, partition, records))
        at = skip_tags(data, at) if flexible else at
    if flexible:
        skip_tags(data, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def write_produce_request(version: int, request: ProduceRequest) -> bytes:
    """The body of a Produce request; consecutive partitions of one topic share its name."""
    assert version in PRODUCE_VERSIONS, version
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    topics: list[bytes | memoryview] = []
    topic_count = 0
    for topic, group in groupby(request.partitions, key=_topic_of):
        partitions = list(group)
        topic_count += 1
        topics += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        for _, partition, records in partitions:
            size = -1 if records is None else len(records)
            topics.append(INT32.pack(partition) + length_bytes(size, flexible=flexible))
            topics += (records or b"", NO_TAGS if flexible else b"")
        topics.append(NO_TAGS if flexible else b"")
    return b"".join(
        (
            string_bytes(request.transactional_id, flexible=flexible),
            _ACKS_AND_TIMEOUT.pack(request.acks, request.timeout_ms),
            length_bytes(topic_count, flexible=flexible),
            *topics,
            NO_TAGS if flexible else b"",
        )
    )


def write_produce_response(
    version: int, results: list[ProduceResult], throttle_ms: int = 0
) -> bytes:
    """The body of a Produce response; consecutive partitions of one topic share its name."""
    assert version in PRODUCE_VERSIONS, version
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    topics: list[bytes] = []
    topic_count = 0
    for topic, group in groupby(results, key=_topic_of):
        partitions = [_result_bytes(version, result) for result in group]
        topic_count += 1
        topics += (
            topic_bytes(topic, by_id=by_id, flexible=flexible),
            length_bytes(len(partitions), flexible=flexible),
        )
        topics += partitions
        topics.append(NO_TAGS if flexible else b"")
    return b"".join(
        (
            length_bytes(topic_count, flexible=flexible),
            *topics,
            INT32.pack(throttle_ms),
            NO_TAGS if flexible else b"",
        )
    )


@versioned_body("Produce", "response", PRODUCE_VERSIONS)
def read_produce_response(version: int, data: memoryview, at: int) -> ProduceResponse:
    """A Produce response; errors of single records and endpoints are skipped."""
    flexible, by_id = version >= FLEXIBLE_FROM, version >= TOPIC_ID_FROM
    results: list[ProduceResult] = []
    topic_count, at = read_count(data, at, flexible=flexible)
    for _ in range(topic_count):
        topic, at = read_topic(data, at, by_id=by_id, flexible=flexible)
        count, at = read_count(data, at, flexible=flexible)
        for _ in range(count):
            result, at = _read_result(version, data, at, topic)
            results.append(result)
        at = skip_tags(data, at) if flexible else at
    (throttle_ms,) = INT32.unpack_from(data, at)
    if flexible:
        skip_tags(data, at + 4)
    return ProduceResponse(results, throttle_ms)


def _result_bytes(version: int, result: ProduceResult) -> bytes:
    _, partition, error, base_offset, append_time_ms, log_start, message, leader = result
    if version < LOG_START_FROM:
        return _RESULT.pack(partition, error, base_offset, append_time_ms)
    fixed = _RESULT_WITH_LOG_START.pack(partition, error, base_offset, append_time_ms, log_start)
    if version < ERROR_MESSAGE_FROM:
        return fixed
    flexible = version >= FLEXIBLE_FROM
    no_record_errors = length_bytes(0, flexible=flexible)
    fixed += no_record_errors + string_bytes(message, flexible=flexible)
    if not flexible:
        return fixed
    if leader is None or version < CURRENT_LEADER_FROM:
        return fixed + NO_TAGS
    return fixed + varint(1) + tagged(_LEADER_TAG, _LEADER.pack(*leader))


def _read_result(
    version: int, data: memoryview, at: int, topic: Topic
) -> tuple[ProduceResult, int]:
    if version < LOG_START_FROM:
        return ProduceResult(topic, *_RESULT.unpack_from(data, at)), at + _RESULT.size
    partition, error, base_offset, append_time_ms, log_start = _RESULT_WITH_LOG_START.unpack_from(
        data, at
    )
    at += _RESULT_WITH_LOG_START.size
    result = ProduceResult(topic, partition, error, base_offset, append_time_ms, log_start)
    if version < ERROR_MESSAGE_FROM:
        return result, at
    flexible = version >= FLEXIBLE_FROM
    at = _skip_record_errors(data, at, flexible=flexible)
    message, at = read_nullable_string(data, at, flexible=flexible)
    leader: tuple[int, int] | None = None

    def on_tag(tag: int, start: int, end: int) -> None:
        nonlocal leader
        if tag == _LEADER_TAG and version >= CURRENT_LEADER_FROM:
            leader = _LEADER.unpack_from(data[start:end])

    if flexible:
        at = read_tags(data, at, on_tag)
    return result._replace(error_message=message, current_leader=leader), at


def _skip_record_errors(data: memoryview, at: int, *, flexible: bool) -> int:
    count, at = read_count(data, at, flexible=flexible)
    for _ in range(count):
        _, at = read_nullable_string(data, at + 4, flexible=flexible)
        at = skip_tags(data, at) if flexible else at
    return at


def _topic_of(partition: ProducePartition | ProduceResult) -> Topic:
    return partition.topic
