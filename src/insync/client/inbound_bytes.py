"""What producers appended to each partition lately, as Insync's leaders report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from insync.client.admin_connections import Connections
from insync.client.each_broker import ask_each_broker
from insync.rules.move_plan import TopicPartition
from insync.rules.values import PartitionId
from insync.wire import describe_replicas as wire
from insync.wire.apis import Api
from insync.wire.describe_replicas import NONE, PartitionSeen

BROKER_WITHIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundBytes:
    """The bytes appended to one partition, and in how many milliseconds."""

    bytes: int
    over_ms: int


async def read_inbound_bytes(
    connections: Connections,
) -> Mapping[TopicPartition, InboundBytes] | None:
    """Of all partitions that a live broker leads; None unless every broker reports it.

    Brokers of Apache Kafka do not, nor do Insync's before version 2 of DescribeReplicas. Metadata
    was read before.
    """
    body = wire.write_request(None)

    async def ask(broker: int) -> wire.ReplicasSeen | None:
        if not await connections.broker_offers(broker, Api.DESCRIBE_REPLICAS):
            return None
        frame, at = await connections.ask_broker_bytes(broker, Api.DESCRIBE_REPLICAS, body)
        return wire.read_response(frame, at)

    problems: dict[int, str] = {}
    responses = await ask_each_broker(
        connections.brokers, ask, problems, within_ms=lambda _: BROKER_WITHIN_MS
    )
    latest: dict[TopicPartition, PartitionSeen] = {}
    for response in responses.values():
        if response is None:
            return None
        for led in response.partitions:
            key = led.topic, PartitionId(led.partition)
            if led.bytes_in == NONE:
                return None
            if key not in latest or latest[key].leader_epoch < led.leader_epoch:
                latest[key] = led
    if problems:
        return None
    return {
        key: InboundBytes(bytes=led.bytes_in, over_ms=led.bytes_in_over_ms)
        for key, led in latest.items()
    }
