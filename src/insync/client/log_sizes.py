"""The log end offset and size of every replica, from requests that any broker answers.

Followers also answer ListOffsets of replica -2 too. DescribeLogDirs has bytes, which differ between
replicas: each applies retention and compaction by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.client.admin_connections import Connections
from insync.client.each_broker import ask_each_broker
from insync.client.partition_client import LATEST
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId
from insync.wire.apis import Api

DEBUG_REPLICA: Final = -2
BROKER_WITHIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """One replica's log; None: its broker does not report it."""

    end: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSizes:
    """The logs of the brokers that responded, and why others did not."""

    of: Mapping[BrokerId, Mapping[TopicPartition, LogSize]]
    problems: Mapping[BrokerId, str]

    def bytes_on(self, broker: BrokerId, partition: TopicPartition) -> int | None:
        log = self.of.get(broker, {}).get(partition)
        return None if log is None else log.size_bytes

    def end_on(self, broker: BrokerId, partition: TopicPartition) -> int | None:
        log = self.of.get(broker, {}).get(partition)
        return None if log is None else log.end


async def read_sizes(
    connections: Connections, partitions: Mapping[BrokerId, Sequence[TopicPartition]]
) -> LogSizes:
    """Read the sizes of each broker's replicas of these partitions; Metadata was read before."""

    async def ask(broker: BrokerId) -> dict[TopicPartition, LogSize]:
        if broker not in connections.brokers:
            raise Refusal("is down")
        return await of_broker(connections, broker, partitions[broker])

    problems: dict[BrokerId, str] = {}
    sizes = await ask_each_broker(partitions, ask, problems, within_ms=lambda _: BROKER_WITHIN_MS)
    return LogSizes(of=sizes, problems=problems)


async def of_broker(
    connections: Connections, broker: BrokerId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogSize]:
    """The broker's logs of these partitions; partitions without a replica there are left out."""
    ends = await read_log_ends(connections, broker, partitions)
    sizes = await read_log_bytes(connections, broker, partitions)
    return {key: LogSize(end=ends.get(key), size_bytes=sizes.get(key)) for key in {**ends, **sizes}}


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return by_topic


async def read_log_ends(
    connections: Connections, broker: BrokerId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The log end offset of each replica of these partitions on this broker."""
    if not partitions:
        return {}
    latest = {"timestamp": LATEST, "current_leader_epoch": -1}
    topics = [
        {"name": name, "partitions": [{"partition_index": n, **latest} for n in numbers]}
        for name, numbers in _by_topic(partitions).items()
    ]
    response: Any = await connections.ask_broker(
        broker, Api.LIST_OFFSETS, {"replica_id": DEBUG_REPLICA, "topics": topics}
    )
    return {
        (topic.name, each.partition_index): each.offset
        for topic in response.topics
        for each in topic.partitions
        if each.error_code is ErrorCode.none
    }


async def read_log_bytes(
    connections: Connections, broker: BrokerId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The bytes of each replica of these partitions on this broker, if it reports them."""
    if not partitions or not await connections.broker_offers(broker, Api.DESCRIBE_LOG_DIRS):
        return {}
    topics = [
        {"topic": name, "partitions": tuple(numbers)}
        for name, numbers in _by_topic(partitions).items()
    ]
    response: Any = await connections.ask_broker(broker, Api.DESCRIBE_LOG_DIRS, {"topics": topics})
    return {
        (topic.name, each.partition_index): each.partition_size
        for folder in response.results
        for topic in folder.topics
        for each in topic.partitions
        if not each.is_future_key
    }
