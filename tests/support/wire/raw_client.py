"""A client that sends any bytes, one request at a time, and retries nothing."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from kio.schema.errors import ErrorCode

from insync.testing.cluster import HOST
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
from insync.wire.headers import response_body_at, write_request_header
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

ACKS_ALL = -1
EARLIEST, LATEST = -2, -1
CONSUMER, DEBUG = -1, -2  # replica ids; DEBUG fetches up to the log end of any broker


class RawClient:
    """One connection to one broker."""

    def __init__(self, port: int, *, patience_s: float = 10) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=patience_s)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Bytes.

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, api: int, version: int, body: bytes) -> None:
        """Send a request, and leave its response for later."""
        head = write_request_header(
            api_key=api, api_version=version, correlation_id=7, client_id="stranger"
        )
        self.send(struct.pack(">i", len(head) + len(body)) + head + body)

    def exchange(self, api: int, version: int, body: bytes) -> tuple[bytes, int]:
        self.post(api, version, body)
        frame = self.receive()
        return frame, response_body_at(api, version, frame)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed in the middle of an answer")
            data += more
        return data

    # Messages.

    def request(self, api: Api, version: int, **fields: Any) -> Any:
        """A message with fields as `kio` has them, and its answer."""
        request = messages.request_type(api, version)(**fields)
        frame, body_at = self.exchange(api, version, messages.write_request(request))
        return messages.read_response(api, version, frame, body_at)

    def post_produce(
        self, topic: str, records: bytes, *, acks: int, partition: int = 0, timeout_ms: int = 5_000
    ) -> None:
        part = ProducePartition(topic, partition, records)
        request = ProduceRequest(None, acks, timeout_ms, [part])
        self.post(Api.PRODUCE, 9, write_produce_request(9, request))

    def produced(self) -> tuple[ErrorCode, int]:
        """The answer to a produce that was posted: its error, and the offset that it got."""
        frame = self.receive()
        body_at = response_body_at(Api.PRODUCE, 9, frame)
        (result,) = read_produce_response(9, frame, body_at).results
        return ErrorCode(result.error), result.base_offset

    def produce(
        self,
        topic: str,
        records: bytes,
        *,
        acks: int = ACKS_ALL,
        partition: int = 0,
        timeout_ms: int = 5_000,
    ) -> tuple[ErrorCode, int]:
        self.post_produce(topic, records, acks=acks, partition=partition, timeout_ms=timeout_ms)
        return self.produced()

    def post_fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        replica: int = CONSUMER,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 100,
    ) -> None:
        partition_request = FetchPartition(partition, -1, offset, -1, 0, max_bytes)
        request = FetchRequest(
            replica_id=replica,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic, [partition_request])],
        )
        self.post(Api.FETCH, 12, write_fetch_request(12, request))

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, replica: int = CONSUMER
    ) -> tuple[ErrorCode, FetchedPartition | None]:
        """The answer's own error, or its one partition's, and the partition."""
        self.post_fetch(topic, offset, partition=partition, replica=replica)
        frame = self.receive()
        response = read_fetch_response(12, frame, response_body_at(Api.FETCH, 12, frame))
        if response.error:
            return ErrorCode(response.error), None
        ((_, (part,)),) = response.topics
        return ErrorCode(part.error), part

    def offset(
        self, topic: str, timestamp: int, *, partition: int = 0, replica: int = CONSUMER
    ) -> tuple[ErrorCode, int]:
        """ListOffsets: `EARLIEST`, `LATEST` or a time."""
        topic_type, part_type = _types_beside(
            Api.LIST_OFFSETS, 5, "ListOffsetsTopic", "ListOffsetsPartition"
        )
        part = part_type(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
        answer = self.request(
            Api.LIST_OFFSETS,
            5,
            replica_id=replica,
            isolation_level=0,
            topics=(topic_type(name=topic, partitions=(part,)),),
        )
        result = answer.topics[0].partitions[0]
        return result.error_code, int(result.offset)

    def metadata(self, topic: str, *, may_create: bool = True) -> Any:
        (topic_type,) = _types_beside(Api.METADATA, 4, "MetadataRequestTopic")
        return self.request(
            Api.METADATA, 4, topics=(topic_type(name=topic),), allow_auto_topic_creation=may_create
        )


def _types_beside(api: Api, version: int, *names: str) -> list[Any]:
    module = __import__(messages.request_type(api, version).__module__, fromlist=["x"])
    return [getattr(module, name) for name in names]


def sequenced(value: bytes, *, sequence: int, producer: int = 1_000_000, epoch: int = 0) -> bytes:
    """One record of an idempotent producer."""
    return batches.build(
        [(None, value)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=1,
    )


def plain(value: bytes, *, timestamp_ms: int = 1) -> bytes:
    return batches.build([(None, value)], timestamp_ms=timestamp_ms)
