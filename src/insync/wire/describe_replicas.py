"""DescribeReplicas, a private API (key 32001): what a leader knows of its followers.

Any client may ask any broker; each answers for the partitions it leads, so a tool asks them all.
Numbers only: which words they deserve depends on how they move, which one answer cannot tell.
Times are lengths in milliseconds at the moment of the answer, never points of anybody's clock.

    request   topics array of string (null: all)
    response  error int16, partitions array of
                topic string, partition int32, leader_epoch int32, end int64, high_watermark int64,
                policy string, lag_time_max_ms int64, fetch_wait_max_ms int64, followers array of
                  broker int32, flags uint8, obstacles uint8, end int64, lag_ms int64,
                  lag_bytes int64, silent_ms int64, leaves_in_ms int64, reads int32,
                  oldest_read_ms int64

-1 is "not known" or "none". Numbers of bits in `flags` and `obstacles` are never given anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.primitives import (
    INT16,
    INT32,
    MALFORMED,
    NULL,
    BadMessage,
    Frame,
    check_end,
    read_count,
    read_length,
    read_string,
    string_bytes,
)

NONE: Final = -1
TOPICS_MAX: Final = 100_000

_HEAD: Final = Struct(">iiqq")
_LIMITS: Final = Struct(">qq")
_FOLLOWER: Final = Struct(">iBBqqqqqiq")


class Flag(IntFlag):
    MEMBER = 1  # in the ISR that the store is known to have held last
    REGISTERED = 2  # its broker lives, whichever incarnation
    HELD = 4  # a pending read keeps it in (KIP-501)
    CHANGING = 8  # a step that lets it in or out is on its way to the store
    THROTTLED = 16  # listed for a throttle, which holds it back while it is not a member


class Bar(IntFlag):
    """Why a replica outside the ISR is not let in: `rules.membership.Obstacle` as bits."""

    LAGGING = 1
    BELOW_WATERMARK = 2
    BELOW_EPOCH_START = 4
    STALE_INCARNATION = 8
    CHANGE_PENDING = 16


NO_BAR: Final = Bar(0)


class FollowerSeen(NamedTuple):
    """One follower as its leader sees it now."""

    broker: int
    flags: Flag
    obstacles: Bar  # of members: none
    end: int  # -1: it has not fetched in this leader epoch
    lag_ms: int  # KAFKA-4485's; -1: not caught up once in this epoch
    lag_bytes: int  # near enough where its leader would have to read for it
    silent_ms: int  # since its latest fetch; -1: none in this epoch
    leaves_in_ms: int  # if nothing more happens; -1: not while things stand so
    reads: int  # of its fetches, under way
    oldest_read_ms: int


class PartitionSeen(NamedTuple):
    """One partition as its leader sees it now."""

    topic: str
    partition: int
    leader_epoch: int
    end: int
    high_watermark: int
    policy: str
    lag_time_max_ms: int
    fetch_wait_max_ms: int
    followers: tuple[FollowerSeen, ...]


class ReplicasSeen(NamedTuple):
    error: int
    partitions: tuple[PartitionSeen, ...] = ()


def write_request(topics: Iterable[str] | None) -> bytes:
    if topics is None:
        return INT32.pack(NULL)
    names = [string_bytes(topic, flexible=False) for topic in topics]
    return INT32.pack(len(names)) + b"".join(names)


def read_request(frame: Frame, body_at: int) -> list[str] | None:
    data = memoryview(frame)
    topics: list[str] | None = None
    try:
        count, at = read_length(data, body_at)
        if count != NULL:
            if count > min(TOPICS_MAX, len(data) - at):
                raise BadMessage(f"{count} topics claimed")
            topics = []
            for _ in range(count):
                topic, at = read_string(data, at, flexible=False)
                topics.append(topic)
    except MALFORMED as error:
        raise BadMessage(f"no DescribeReplicas request: {error}") from error
    check_end(data, at)
    return topics


def write_response(seen: ReplicasSeen) -> bytes:
    out = [INT16.pack(seen.error), INT32.pack(len(seen.partitions))]
    for part in seen.partitions:
        out += [
            string_bytes(part.topic, flexible=False),
            _HEAD.pack(part.partition, part.leader_epoch, part.end, part.high_watermark),
            string_bytes(part.policy, flexible=False),
            _LIMITS.pack(part.lag_time_max_ms, part.fetch_wait_max_ms),
            INT32.pack(len(part.followers)),
        ]
        out += [_FOLLOWER.pack(*follower) for follower in part.followers]
    return b"".join(out)


def read_response(frame: Frame, body_at: int) -> ReplicasSeen:
    data = memoryview(frame)
    partitions = []
    try:
        (error_code,) = INT16.unpack_from(data, body_at)
        count, at = read_count(data, body_at + INT16.size, flexible=False)
        for _ in range(count):
            part, at = _read_partition(data, at)
            partitions.append(part)
    except MALFORMED as error:
        raise BadMessage(f"no DescribeReplicas response: {error}") from error
    check_end(data, at)
    return ReplicasSeen(error_code, tuple(partitions))


def _read_partition(data: memoryview, at: int) -> tuple[PartitionSeen, int]:
    topic, at = read_string(data, at, flexible=False)
    partition, leader_epoch, end, high_watermark = _HEAD.unpack_from(data, at)
    policy, at = read_string(data, at + _HEAD.size, flexible=False)
    lag_time_max_ms, fetch_wait_max_ms = _LIMITS.unpack_from(data, at)
    count, at = read_count(data, at + _LIMITS.size, flexible=False)
    followers = []
    for _ in range(count):
        broker, flags, obstacles, *numbers = _FOLLOWER.unpack_from(data, at)
        followers.append(FollowerSeen(broker, Flag(flags), Bar(obstacles), *numbers))
        at += _FOLLOWER.size
    part = PartitionSeen(
        topic,
        partition,
        leader_epoch,
        end,
        high_watermark,
        policy,
        lag_time_max_ms,
        fetch_wait_max_ms,
        tuple(followers),
    )
    return part, at
