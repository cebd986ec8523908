"""Clients of a simulated cluster, and its admin. `load` has what the clients do in a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.create_partitions.v2.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_topics.v5.request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from insync.client.connection import Disconnected
from insync.client.partition_client import (
    FETCH_VERSION,
    LATEST,
    PRODUCE_VERSION,
    RESPONSE_WITHIN_S,
    PartitionClient,
)
from insync.sim.cluster import Cluster
from insync.sim.history import Partition
from insync.sim.network import SimHost
from insync.wire import batches, holds, moves
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from insync.wire.holds import HoldThrottle
from insync.wire.moves import StartMoves
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

FIRST_HOST = 100
RETRY_AFTER_S = 0.05
FETCH_BYTES_MAX = 1 << 20
CORRUPT_RETRY_S = 0.1
TOPIC_RESOURCE = 2  # of the protocol's config resources


class ClientHost(SimHost):
    """Keeps its connections, which know when the other end sent what arrived last."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster.network, number)
        self.transports: dict[tuple[str, int], Any] = {}

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> asyncio.Transport:
        transport = await super().connect(host, port, protocol)
        self.transports[host, port] = transport
        return transport


@dataclass(frozen=True, slots=True)
class Fetched:
    records: Sequence[tuple[int, bytes]]
    log_start: int
    is_out_of_range: bool = False


def _records(data: bytes | memoryview, offset: int) -> list[tuple[int, bytes]]:
    """Records from `offset` on: the first batch may begin below it. CRCs are checked."""
    records = []
    for header in batches.whole_batches(data):
        batches.check(data, header)
        batch = memoryview(data)[header.position : header.end_position]
        for number, (_, value) in enumerate(batches.records(batch), start=header.base_offset):
            if number >= offset:
                records.append((number, value or b""))
    return records


class SimClient(PartitionClient):
    """A client that knows which broker sent the last response, and when."""

    def __init__(self, cluster: Cluster, host: int, partition: Partition, random: Random) -> None:
        self.host = host
        self._host = ClientHost(cluster, host)
        addresses = cluster.addresses
        random.shuffle(addresses)
        super().__init__(self._host, addresses, *partition)
        self.responding_broker = 0
        self.response_sent_at_ms = 0

    async def append_once(self, values: Sequence[bytes]) -> int | None:
        """Append with acks=1 and no producer id, one attempt; None if the outcome is unknown."""
        batch = batches.build([(None, value) for value in values])
        produce = ProducePartition(self._topic, self._partition, batch)
        body = write_produce_request(PRODUCE_VERSION, ProduceRequest(None, 1, 1_000, [produce]))
        answer = await self._ask_leader(Api.PRODUCE, PRODUCE_VERSION, body)
        if answer is None:
            return None
        (result,) = read_produce_response(PRODUCE_VERSION, *answer).results
        return result.base_offset if await self._is_success(ErrorCode(result.error)) else None

    async def fetch(self, offset: int) -> Fetched:
        """Records from `offset`, with their offsets."""
        fetch = FetchPartition(self._partition, -1, offset, -1, -1, FETCH_BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(self._topic, [fetch])]
        )
        body = write_fetch_request(FETCH_VERSION, request)
        while True:
            answer = await self._ask_leader(Api.FETCH, FETCH_VERSION, body)
            if answer is None:
                continue
            ((_, (fetched,)),) = read_fetch_response(FETCH_VERSION, *answer).topics
            code = ErrorCode(fetched.error)
            if code is ErrorCode.offset_out_of_range:
                return Fetched((), fetched.log_start, is_out_of_range=True)
            if not await self._is_success(code):
                continue
            try:
                return Fetched(_records(fetched.records or b"", offset), fetched.log_start)
            except batches.CorruptBatch:  # the leader's scrub will find it, too
                await asyncio.sleep(CORRUPT_RETRY_S)

    async def latest(self) -> int | None:
        return await self._ask_offset(LATEST)

    async def ask_any_broker(self, request: Any) -> Any:
        return await self._ask_any_broker(request)

    async def send_insync_request(self, api: Api, body: bytes) -> None:
        """Try brokers until one responds. One that did not respond may have executed it too."""
        for address in self._bootstrap:
            try:
                async with asyncio.timeout(RESPONSE_WITHIN_S):
                    connection = await self._connection(address)
                    await connection.ask(api, 0, [body])
            except (Disconnected, TimeoutError):
                self._drop(address)
            else:
                return

    async def _ask_leader(
        self, api: Api, version: int, body: bytes
    ) -> tuple[memoryview | bytes, int] | None:
        answer = await super()._ask_leader(api, version, body)
        if answer is not None and self._leader is not None:
            self.note_response(self._leader)
        return answer

    def note_response(self, leader: tuple[str, int], sent_at_s: float | None = None) -> None:
        """The response was sent then, or (None) is what arrived last."""
        if sent_at_s is None:
            sent_at_s = self._host.transports[leader].last_sent_at_s
        self.responding_broker = int(leader[0].rpartition("-")[2])
        self.response_sent_at_ms = int(sent_at_s * 1_000 + 1e-6)

    async def _is_success(self, code: ErrorCode) -> bool:
        # The disk may recover, or the leader change.
        if code in {ErrorCode.kafka_storage_error, ErrorCode.corrupt_message}:
            code = ErrorCode.not_leader_or_follower
        return await super()._is_success(code)


class Admin:
    """Creates, grows and deletes topics, and retries until the store shows the result."""

    def __init__(self, cluster: Cluster, client: SimClient) -> None:
        self._cluster = cluster
        self._client = client

    async def create(
        self, name: str, partitions: int, *, factor: int, config: dict[str, str] | None = None
    ) -> None:
        topic = CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(partitions),
            replication_factor=i16(factor),
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()
            ),
        )
        while f"/brokers/topics/{name}" not in self._cluster.tree.entries:
            await self._ask(CreateTopicsRequest(topics=(topic,)))

    async def grow(self, name: str, count: int) -> None:
        path = f"/brokers/topics/{name}/partitions/{count - 1}/state"
        topic = CreatePartitionsTopic(name=TopicName(name), count=i32(count), assignments=None)
        while path not in self._cluster.tree.entries:
            await self._ask(
                CreatePartitionsRequest(topics=(topic,), timeout=_timeout(), validate_only=False)
            )

    async def delete(self, name: str) -> None:
        """By id: an attempt by name that arrives late would delete the topic created again."""
        topic_id = self._topic_id(name)
        topic = DeleteTopicState(topic_id=topic_id)
        while topic_id is not None and self._topic_id(name) == topic_id:
            await self._ask(DeleteTopicsRequest(topics=(topic,), timeout=_timeout()))

    def _topic_id(self, name: str) -> UUID | None:
        entry = self._cluster.tree.entries.get(f"/brokers/topics/{name}")
        return None if entry is None else UUID(json.loads(entry.value)["topic_id"])

    async def set_topic_config(self, name: str, key: str, value: str) -> None:
        """One attempt; may be refused."""
        config = AlterableConfig(name=key, config_operation=i8(0), value=value)
        resource = AlterConfigsResource(
            resource_type=i8(TOPIC_RESOURCE), resource_name=name, configs=(config,)
        )
        await self._ask(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))

    async def move(self, partition: Partition, target: Sequence[int] | None) -> None:
        """Move a partition, or, without a target, cancel its move. One attempt; may be refused."""
        replicas = None if target is None else tuple(BrokerId(broker) for broker in target)
        reassignable = ReassignablePartition(partition_index=i32(partition[1]), replicas=replicas)
        topic = ReassignableTopic(name=TopicName(partition[0]), partitions=(reassignable,))
        await self._ask(AlterPartitionReassignmentsRequest(topics=(topic,)))

    async def start_moves(self, request: StartMoves) -> None:
        await self._client.send_insync_request(Api.START_MOVES, moves.write_request(request))

    async def hold_throttle(self, request: HoldThrottle) -> None:
        await self._client.send_insync_request(Api.HOLD_THROTTLE, holds.write_request(request))

    async def _ask(self, request: Any) -> None:
        await self._client.ask_any_broker(request)
        await asyncio.sleep(RETRY_AFTER_S)


def _timeout() -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=1))
