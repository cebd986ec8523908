"""A small idempotent client of one partition: finds its leader, appends, reads, and retries.

For demonstrations and simulations, where each request should be easy to follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v0.request import InitProducerIdRequest
from kio.schema.list_offsets.v6.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from insync.client.connection import ClientConnection, Disconnected, Network
from insync.rules.refusals import Refusal
from insync.wire import batches, messages
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION = 9, 12, 6
LATEST, EARLIEST = -1, -2
RETRY_S = 0.02
RESPONSE_WITHIN_S = 2.0
ACKS_ALL = -1

RETRIABLE = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.offset_not_available,
    }
)


class Refused(Refusal):
    """The broker responded with an error that is not retriable."""


class PartitionClient:
    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[tuple[str, int]],
        topic: str,
        partition: int,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._retry_s = retry_s
        self._network = network
        self._bootstrap = list(bootstrap)
        self._topic = topic
        self._partition = partition
        self._connections: dict[tuple[str, int], ClientConnection] = {}
        self._leader: tuple[str, int] | None = None
        self._producer_id: int | None = None
        self._sequence = 0
        self.leader_id = -1

    async def append(self, values: Sequence[bytes]) -> int:
        """Append with acks=all until it is acknowledged; returns the first offset."""
        return await self.append_records([(None, value) for value in values])

    async def append_records(
        self,
        records: list[tuple[bytes | None, bytes | None]],
        *,
        timestamp_ms: int = 0,
        is_zipped: bool = False,
    ) -> int:
        """The same with keys, and optionally with the batch compressed."""
        if self._producer_id is None:
            self._producer_id = await self._new_producer_id()
        batch = batches.build(
            records,
            timestamp_ms=timestamp_ms,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
            is_zipped=is_zipped,
        )
        produce = ProducePartition(self._topic, self._partition, batch)
        body = write_produce_request(
            PRODUCE_VERSION, ProduceRequest(None, ACKS_ALL, 1_000, [produce])
        )
        while True:
            response = await self._ask_leader(Api.PRODUCE, PRODUCE_VERSION, body)
            if response is None:
                continue
            (result,) = read_produce_response(PRODUCE_VERSION, *response).results
            if await self._is_success(ErrorCode(result.error)):
                self._sequence += len(records)
                return result.base_offset

    async def read(self, offset: int, *, max_bytes: int = 1 << 20) -> tuple[list[bytes], int]:
        """Committed values from `offset` on, and the next offset to read."""
        fetched = await self.read_batches(offset, max_bytes=max_bytes)
        return _values(fetched.records or b"", offset)

    async def read_batches(
        self, offset: int, *, max_bytes: int = 1 << 20, from_start: bool = False
    ) -> FetchedPartition:
        """Committed batches from `offset`; with `from_start`, not below the log start offset."""
        fetch = FetchPartition(self._partition, -1, offset, -1, -1, max_bytes)
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(self._topic, [fetch])]
        )
        body = write_fetch_request(FETCH_VERSION, request)
        while True:
            response = await self._ask_leader(Api.FETCH, FETCH_VERSION, body)
            if response is None:
                continue
            ((_, (fetched,)),) = read_fetch_response(FETCH_VERSION, *response).topics
            if from_start and ErrorCode(fetched.error) is ErrorCode.offset_out_of_range:
                return await self.read_batches(fetched.log_start, max_bytes=max_bytes)
            if await self._is_success(ErrorCode(fetched.error)):
                return fetched

    async def bounds(self) -> tuple[int, int]:
        """The log start offset, and the offset after the last committed record.

        A fetch has both, but the high watermark of a new leader may be below acknowledged records.
        ListOffsets fails with a retriable error until that is over (KIP-207).
        """
        end = await self._list_offset(LATEST)
        return await self._list_offset(EARLIEST), end

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def _list_offset(self, timestamp: int) -> int:
        while True:
            offset = await self._ask_offset(timestamp)
            if offset is not None:
                return offset

    async def _ask_offset(self, timestamp: int) -> int | None:
        """None: try again."""
        listed = ListOffsetsPartition(
            partition_index=i32(self._partition), timestamp=i64(timestamp)
        )
        topic = ListOffsetsTopic(name=TopicName(self._topic), partitions=(listed,))
        request = ListOffsetsRequest(
            replica_id=BrokerId(-1), isolation_level=i8(0), topics=(topic,)
        )
        body = messages.write_request(request)
        frame = await self._ask_leader(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        if frame is None:
            return None
        response: Any = messages.read_response(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, *frame)
        result = response.topics[0].partitions[0]
        return int(result.offset) if await self._is_success(result.error_code) else None

    async def _is_success(self, code: ErrorCode) -> bool:
        if code is ErrorCode.none:
            return True
        if code not in RETRIABLE:
            raise Refused(f"{self._topic}-{self._partition}: {code.name}")
        self._leader = None
        await asyncio.sleep(self._retry_s)
        return False

    async def _ask_leader(
        self, api: Api, version: int, body: bytes
    ) -> tuple[memoryview | bytes, int] | None:
        """None: there is no leader, or it did not respond; try again."""
        try:
            if self._leader is None:
                self._leader = await self._find_leader()
            if self._leader is None:
                await asyncio.sleep(self._retry_s)
                return None
            async with asyncio.timeout(RESPONSE_WITHIN_S):
                connection = await self._connection(self._leader)
                return await connection.ask(api, version, [body])
        except (Disconnected, TimeoutError):
            if self._leader is not None:
                self._drop(self._leader)
            self._leader = None
            await asyncio.sleep(self._retry_s)
            return None

    async def _find_leader(self) -> tuple[str, int] | None:
        response = await self._ask_any_broker(
            MetadataRequest(
                topics=(MetadataRequestTopic(name=TopicName(self._topic)),),
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )
        for topic in () if response is None else response.topics:
            for each in topic.partitions:
                if each.partition_index == self._partition and each.leader_id >= 0:
                    self.leader_id = each.leader_id
                    return next(
                        (b.host, b.port) for b in response.brokers if b.node_id == each.leader_id
                    )
        return None

    async def _new_producer_id(self) -> int:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout=i32Timedelta.parse(timedelta(seconds=60))
        )
        while True:
            response = await self._ask_any_broker(request)
            if response is not None and response.error_code is ErrorCode.none:
                return int(response.producer_id)
            await asyncio.sleep(self._retry_s)

    async def _ask_any_broker(self, request: Any) -> Any:
        """The response of the first broker that sends one; None if none does."""
        for address in self._bootstrap:
            try:
                async with asyncio.timeout(RESPONSE_WITHIN_S):
                    return await (await self._connection(address)).request(request)
            except (Disconnected, TimeoutError):
                self._drop(address)
        return None

    async def _connection(self, address: tuple[str, int]) -> ClientConnection:
        opened = self._connections.get(address)
        if opened is not None and opened.is_open:
            return opened
        connection = ClientConnection(client_id="insync")
        await self._network.connect(*address, connection)
        self._connections[address] = connection
        return connection

    def _drop(self, address: tuple[str, int]) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()


def _values(records: bytes | memoryview, offset: int) -> tuple[list[bytes], int]:
    values: list[bytes] = []
    next_offset = offset
    for header in batches.whole_batches(records):
        batch = memoryview(records)[header.position : header.end_position]
        for number, (_, value) in enumerate(batches.records(batch), start=header.base_offset):
            if number >= offset:
                values.append(value or b"")
        next_offset = header.next_offset
    return values, next_offset
