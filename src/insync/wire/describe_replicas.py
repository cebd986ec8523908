"""DescribeReplicas, a private API (key 32001): what a leader knows of its followers.

Any client may send it to any broker, which responds with the partitions it leads; so a tool sends
it to all. The response has only numbers: a tool describes them in words, from successive ones.
Times are durations in milliseconds up to the response, never times of a clock.

    request   topics array of string (null: all)
    response  error int16, partitions array of
                topic string, partition int32, leader_epoch int32, end int64, high_watermark int64,
                policy string, lag_time_max_ms int64, fetch_wait_max_ms int64, followers array of
                  broker int32, flags uint8, obstacles uint8, end int64, lag_ms int64,
                  lag_bytes int64, silent_ms int64, leaves_in_ms int64, reads int32,
                  oldest_read_ms int64
              from version 1 on: offline array of the broker's own replicas that cannot lead:
                topic string, partition int32, end int64, high_watermark int64, damaged uint8,
                reason string
              from version 2 on: for each of the partitions, in their order (without a count):
                bytes_in int64, bytes_in_over_ms int64

-1 is "not known" or "none". Bits in `flags` and `obstacles` never change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from struct import Struct
from typing import Final, NamedTuple

from insync.wire.body_readers import private_body
from insync.wire.primitives import (
    INT16,
    INT32,
    NULL,
    BadMessage,
    read_count,
    read_length,
    read_string,
    string_bytes,
)

NONE: Final = -1
OFFLINE_FROM: Final = 1  # the version
BYTES_IN_FROM: Final = 2  # the version
TOPICS_MAX: Final = 100_000

_HEAD: Final = Struct(">iiqq")
_LIMITS: Final = Struct(">qq")
_BYTES_IN: Final = Struct(">qq")
_OFFLINE: Final = Struct(">iqqB")
_FOLLOWER: Final = Struct(">iBBqqqqqiq")


class Flag(IntFlag):
    MEMBER = 1  # in the last ISR that the leader knows the store to have
    REGISTERED = 2  # its broker is live, in any incarnation
    HELD = 4  # a pending read keeps it in the ISR (KIP-501)
    CHANGING = 8  # a pending ISR change adds or removes it
    THROTTLED = 16  # a throttled replica, held back while outside the ISR


class Obstacles(IntFlag):
    """Why a replica outside the ISR may not join: `rules.membership.Obstacle` as bits."""

    LAGGING = 1
    BELOW_WATERMARK = 2
    BELOW_EPOCH_START = 4
    STALE_INCARNATION = 8
    CHANGE_PENDING = 16


NO_OBSTACLES: Final = Obstacles(0)


class FollowerSeen(NamedTuple):
    """One follower as its leader sees it now."""

    broker: int
    flags: Flag
    obstacles: Obstacles  # none for members
    end: int  # -1: it has not fetched in this leader epoch
    lag_ms: int  # KAFKA-4485's; -1: never caught up in this epoch
    lag_bytes: int  # approximate, where an exact value needs a read from the disk
    silent_ms: int  # since its latest fetch; -1: none in this epoch
    leaves_in_ms: int  # without further fetches; -1: it will not leave
    reads: int  # pending reads of its fetches
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
    bytes_in: int = NONE  # what producers appended lately
    bytes_in_over_ms: int = NONE  # in how long


class OfflineSeen(NamedTuple):
    """A replica of the responding broker whose log failed or is damaged."""

    topic: str
    partition: int
    end: int  # of its log
    high_watermark: int  # the highest it knows; what is missing up to there is lost to it
    is_damaged: bool
    reason: str


class ReplicasSeen(NamedTuple):
    error: int
    partitions: tuple[PartitionSeen, ...] = ()
    offline: tuple[OfflineSeen, ...] = ()


def write_request(topics: Iterable[str] | None) -> bytes:
    if topics is None:
        return INT32.pack(NULL)
    names = [string_bytes(topic, flexible=False) for topic in topics]
    return INT32.pack(len(names)) + b"".join(names)


@private_body("DescribeReplicas request")
def read_request(data: memoryview, at: int) -> tuple[list[str] | None, int]:
    count, at = read_length(data, at)
    if count == NULL:
        return None, at
    if count > min(TOPICS_MAX, len(data) - at):
        raise BadMessage(f"{count} topics claimed")
    topics = []
    for _ in range(count):
        topic, at = read_string(data, at, flexible=False)
        topics.append(topic)
    return topics, at


def write_response(seen: ReplicasSeen, version: int = 0) -> bytes:
    out = [INT16.pack(seen.error), INT32.pack(len(seen.partitions))]
    for partition_seen in seen.partitions:
        out += [
            string_bytes(partition_seen.topic, flexible=False),
            _HEAD.pack(
                partition_seen.partition,
                partition_seen.leader_epoch,
                partition_seen.end,
                partition_seen.high_watermark,
            ),
            string_bytes(partition_seen.policy, flexible=False),
            _LIMITS.pack(partition_seen.lag_time_max_ms, partition_seen.fetch_wait_max_ms),
            INT32.pack(len(partition_seen.followers)),
        ]
        out += [_FOLLOWER.pack(*follower) for follower in partition_seen.followers]
    if version >= OFFLINE_FROM:
        out.append(INT32.pack(len(seen.offline)))
        for offline in seen.offline:
            out += [
                string_bytes(offline.topic, flexible=False),
                _OFFLINE.pack(*offline[1:5]),
                string_bytes(offline.reason, flexible=False),
            ]
    if version >= BYTES_IN_FROM:
        out += [_BYTES_IN.pack(each.bytes_in, each.bytes_in_over_ms) for each in seen.partitions]
    return b"".join(out)


@private_body("DescribeReplicas response")
def read_response(data: memoryview, at: int) -> tuple[ReplicasSeen, int]:
    partitions = []
    (error_code,) = INT16.unpack_from(data, at)
    count, at = read_count(data, at + INT16.size, flexible=False)
    for _ in range(count):
        partition_seen, at = _read_partition(data, at)
        partitions.append(partition_seen)
    offline = []
    if at < len(data):  # from version 1 on
        count, at = read_count(data, at, flexible=False)
        for _ in range(count):
            offline_seen, at = _read_offline(data, at)
            offline.append(offline_seen)
    if at < len(data):  # from version 2 on
        for index, partition_seen in enumerate(partitions):
            bytes_in, over_ms = _BYTES_IN.unpack_from(data, at)
            partitions[index] = partition_seen._replace(bytes_in=bytes_in, bytes_in_over_ms=over_ms)
            at += _BYTES_IN.size
    return ReplicasSeen(error_code, tuple(partitions), tuple(offline)), at


def _read_offline(data: memoryview, at: int) -> tuple[OfflineSeen, int]:
    topic, at = read_string(data, at, flexible=False)
    partition, end, high_watermark, damaged = _OFFLINE.unpack_from(data, at)
    reason, at = read_string(data, at + _OFFLINE.size, flexible=False)
    return OfflineSeen(topic, partition, end, high_watermark, bool(damaged), reason), at


def _read_partition(data: memoryview, at: int) -> tuple[PartitionSeen, int]:
    topic, at = read_string(data, at, flexible=False)
    partition, leader_epoch, end, high_watermark = _HEAD.unpack_from(data, at)
    policy, at = read_string(data, at + _HEAD.size, flexible=False)
    lag_time_max_ms, fetch_wait_max_ms = _LIMITS.unpack_from(data, at)
    count, at = read_count(data, at + _LIMITS.size, flexible=False)
    followers = []
    for _ in range(count):
        broker, flags, obstacles, *numbers = _FOLLOWER.unpack_from(data, at)
        followers.append(FollowerSeen(broker, Flag(flags), Obstacles(obstacles), *numbers))
        at += _FOLLOWER.size
    partition_seen = PartitionSeen(
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
    return partition_seen, at
