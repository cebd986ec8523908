"""DescribeReplicas: what this broker, as leader, knows of each follower."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import TopicPartition
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server.answers import BackgroundAnswers
from insync.broker.server.server import Reply
from insync.rules import isr as isr_rules
from insync.rules.follower import Follower
from insync.rules.leadership import Leadership
from insync.rules.membership import Obstacle
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, BrokerId
from insync.storage.errors import StorageRefusal
from insync.wire import describe_replicas as wire
from insync.wire.describe_replicas import (
    NONE,
    Flag,
    FollowerSeen,
    Obstacles,
    OfflineSeen,
    PartitionSeen,
)

PARTITIONS_PER_TURN: Final = 200
"""Then other tasks run: with ten thousand partitions the event loop would stall otherwise."""

BARS: Final = {
    Obstacle.LAGGING: Obstacles.LAGGING,
    Obstacle.BELOW_WATERMARK: Obstacles.BELOW_WATERMARK,
    Obstacle.BELOW_EPOCH_START: Obstacles.BELOW_EPOCH_START,
    Obstacle.STALE_INCARNATION: Obstacles.STALE_INCARNATION,
    Obstacle.CHANGE_PENDING: Obstacles.CHANGE_PENDING,
}


class DescribeReplicas:
    def __init__(self, replicas: Replicas, quotas: Quotas) -> None:
        self._replicas = replicas
        self._quotas = quotas
        self._answers = BackgroundAnswers()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        topics = wire.read_request(frame, reply.header.body_at)
        names = None if topics is None else frozenset(topics)
        keys = sorted(key for key in self._replicas.partitions if names is None or key[0] in names)
        self._answers.begin(reply, self._answer(reply, keys))

    async def _answer(self, reply: Reply, keys: Sequence[TopicPartition]) -> None:
        seen = await self._describe(keys)
        reply.send([wire.write_response(seen, reply.header.api_version)])

    async def _describe(self, keys: Sequence[TopicPartition]) -> wire.ReplicasSeen:
        partitions, offline = [], []
        for index, key in enumerate(keys, start=1):
            replica = self._replicas.leader_of(key)
            if replica is not None and replica.term is not None:
                now_ms = self._replicas.loop.clock_ms()
                partitions.append(
                    describe_partition(replica, replica.term, self._quotas, now_ms=now_ms)
                )
            offline += self._describe_offline(key)
            if index % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        return wire.ReplicasSeen(int(ErrorCode.none), tuple(partitions), tuple(offline))

    def _describe_offline(self, key: TopicPartition) -> list[OfflineSeen]:
        replica, directory = self._replicas.partitions.get(key), self._replicas.directory
        held = directory.replica_checkpoint.get(key)
        end, high_watermark = 0, 0 if held is None else held.high_watermark
        if replica is None:
            reason, is_damaged = directory.unopened.get(key), False
        else:
            is_damaged = key in directory.damaged
            reason = directory.damaged.get(key) or replica.log.failure
            end = replica.log.end
            high_watermark = max(replica.high_watermark, high_watermark)
        if reason is None:
            return []
        return [
            OfflineSeen(
                topic=key[0],
                partition=key[1],
                end=end,
                high_watermark=high_watermark,
                is_damaged=is_damaged,
                reason=reason,
            )
        ]


def describe_partition(
    replica: Replica, term: Leadership, quotas: Quotas, *, now_ms: int
) -> PartitionSeen:
    sessions = replica.session_fetched_at_ms
    deadlines = term.deadlines(sessions)
    topic, number = replica.key
    bytes_in = replica.inbound.read(now_ms)
    return PartitionSeen(
        topic=topic,
        partition=number,
        leader_epoch=term.epoch,
        end=term.end,
        high_watermark=term.high_watermark,
        policy=term.policy.name,
        lag_time_max_ms=term.policy.lag_time_max_ms,
        fetch_wait_max_ms=term.fetch_wait_max_ms,
        followers=tuple(
            FollowerSeen(
                broker=broker,
                flags=_flags(term, broker, follower)
                | _throttled(replica, term.leader, broker, quotas),
                obstacles=_obstacles(term, broker, now_ms=now_ms),
                end=follower.end,
                lag_ms=_or_none(follower.lag_ms(leader_end=term.end, now_ms=now_ms)),
                lag_bytes=lag_bytes(replica, follower),
                silent_ms=_silent_ms(follower, sessions.get(broker, NEVER_MS), now_ms=now_ms),
                leaves_in_ms=max(0, deadlines[broker] - now_ms) if broker in deadlines else NONE,
                reads=len(follower.reads.reads),
                oldest_read_ms=_age_ms(follower.reads.oldest_parsed_at_ms, now_ms=now_ms),
            )
            for broker, follower in term.followers.items()
        ),
        bytes_in=bytes_in.bytes,
        bytes_in_over_ms=bytes_in.over_ms,
    )


def lag_bytes(replica: Replica, follower: Follower) -> int:
    if follower.end == UNKNOWN_OFFSET:
        return NONE
    try:
        return replica.log.bytes_from(follower.end)
    except StorageRefusal:
        return NONE


def _flags(term: Leadership, broker: BrokerId, follower: Follower) -> Flag:
    flags = Flag(0)
    if broker in isr_rules.committed(term.isr):
        flags |= Flag.MEMBER
    if broker in term.registered:
        flags |= Flag.REGISTERED
    if term.policy.pending_reads and follower.reads.hold:
        flags |= Flag.HELD
    if broker in isr_rules.committed(term.isr) ^ isr_rules.proposed(term.isr):
        flags |= Flag.CHANGING
    return flags


def _throttled(replica: Replica, leader: BrokerId, follower: BrokerId, quotas: Quotas) -> Flag:
    is_listed = quotas.holds_back(replica.key, leader=leader, follower=follower)
    return Flag.THROTTLED if is_listed else Flag(0)


def _obstacles(term: Leadership, broker: BrokerId, *, now_ms: int) -> Obstacles:
    bars = Obstacles(0)
    if broker not in isr_rules.committed(term.isr):
        for obstacle in term.obstacles(broker, now_ms=now_ms):
            bars |= BARS[obstacle]
    return bars


def _silent_ms(follower: Follower, session_fetched_at_ms: int, *, now_ms: int) -> int:
    latest_ms = max(follower.fetched_at_ms, session_fetched_at_ms)
    return NONE if latest_ms == NEVER_MS else max(0, now_ms - latest_ms)


def _age_ms(at_ms: int | None, *, now_ms: int) -> int:
    return NONE if at_ms is None else max(0, now_ms - at_ms)


def _or_none(value: int | None) -> int:
    return NONE if value is None else value
