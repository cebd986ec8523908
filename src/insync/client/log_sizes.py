"""Where every replica's own log ends and how large it is, by what any broker tells.

ListOffsets as replica -2 is answered by followers too; DescribeLogDirs tells bytes, roughly
(retention and compaction are each replica's own affair).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.client.admin_connections import Connections
from insync.client.each_broker import of_each_broker
from insync.client.partition_client import LATEST
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId
from insync.wire.apis import Api

DEBUG_REPLICA: Final = -2
BROKER_WITHIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """One replica's log; None: its broker does not tell."""

    end: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the brokers asked told, and why the others did not."""

    of: Mapping[BrokerId, Mapping[TopicPartition, LogSize]]
    problems: Mapping[BrokerId, str]

    def bytes_on(self, broker: BrokerId, partition: TopicPartition) -> int | None:
        found = self.of.get(broker, {}).get(partition)
        return None if found is None else found.size_bytes

    def end_on(self, broker: BrokerId, partition: TopicPartition) -> int | None:
        found = self.of.get(broker, {}).get(partition)
        return None if found is None else found.end


async def look(
    connections: Connections, wanted: Mapping[BrokerId, Sequence[TopicPartition]]
) -> Sizes:
    """Ask each broker for its replicas of these partitions; `brokers` is fresh from Metadata."""

    async def ask(broker: BrokerId) -> dict[TopicPartition, LogSize]:
        if broker not in connections.brokers:
            raise Refusal("is down")
        return await of_broker(connections, broker, wanted[broker])

    problems: dict[BrokerId, str] = {}
    found = await of_each_broker(wanted, ask, problems, within_ms=lambda _: BROKER_WITHIN_MS)
    return Sizes(of=found, problems=problems)


async def of_broker(
    connections: Connections, broker: BrokerId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogSize]:
    """What this broker has of these partitions; what it does not have is left out."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    if not by_topic:
        return {}
    ends = await _ends(connections, broker, by_topic)
    sizes = await _sizes(connections, broker, by_topic)
    return {key: LogSize(end=ends.get(key), size_bytes=sizes.get(key)) for key in {**ends, **sizes}}


async def _ends(
    connections: Connections, broker: BrokerId, by_topic: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, int]:
    latest = {"timestamp": LATEST, "current_leader_epoch": -1}
    topics = [
        {"name": name, "partitions": [{"partition_index": n, **latest} for n in numbers]}
        for name, numbers in by_topic.items()
    ]
    answer: Any = await connections.ask_broker(
        broker, Api.LIST_OFFSETS, {"replica_id": DEBUG_REPLICA, "topics": topics}
    )
    return {
        (topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code is ErrorCode.none
    }


async def _sizes(
    connections: Connections, broker: BrokerId, by_topic: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    if not await connections.broker_offers(broker, Api.DESCRIBE_LOG_DIRS):
        return {}
    topics = [{"topic": name, "partitions": tuple(numbers)} for name, numbers in by_topic.items()]
    answer: Any = await connections.ask_broker(broker, Api.DESCRIBE_LOG_DIRS, {"topics": topics})
    return {
        (topic.name, each.partition_index): each.partition_size
        for folder in answer.results
        for topic in folder.topics
        for each in topic.partitions
        if not each.is_future_key
    }
