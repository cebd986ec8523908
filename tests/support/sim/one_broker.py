"""One real broker on virtual time, and a client that sends raw requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from kio.schema.create_topics.v2.request import CreatableTopic, CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from insync.broker.settings import Settings
from insync.client.connection import ClientConnection
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.node.node import Node
from insync.node.world import World
from insync.sim.network import SimHost, SimNetwork
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.storage.disk import Buffer, DiskFile
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk, MemoryFile
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
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

T = TypeVar("T")
FETCH_VERSION, PRODUCE_VERSION = 12, 9
TOPIC = "t"


class ColdFile(MemoryFile):
    """A file whose bytes are not in memory while its partition is cold."""

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        disk = self._disk
        assert isinstance(disk, ColdDisk), "made by one"
        return None if disk.has_cold(self._path) else super().read_nowait(position, size)

    def read(self, position: int, size: int) -> Buffer:
        disk = self._disk
        assert isinstance(disk, ColdDisk), "made by one"
        if disk.is_broken:
            raise DiskError(5, self._path)
        return super().read(position, size)


class ColdDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.cold: set[str] = set()  # as "t-0"
        self.is_broken = False

    def has_cold(self, path: str) -> bool:
        return any(f"/{name}/" in path for name in self.cold)

    def open(self, path: str) -> DiskFile:
        return self._cold(path, super().open(path))

    def create(self, path: str) -> DiskFile:
        return self._cold(path, super().create(path))

    def _cold(self, path: str, file: DiskFile) -> ColdFile:
        assert isinstance(file, MemoryFile), "what a MemoryDisk opens"
        return ColdFile(self, path, file._content)


class TimedReads:
    """A read pool whose reads take as long as the test says."""

    def __init__(self) -> None:
        self.read_s = 1.0
        self.under_way = 0
        self.most_under_way = 0

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)

        def finish() -> None:
            self.under_way -= 1
            try:
                future.set_result(read())
            except Exception as error:
                future.set_exception(error)

        loop.call_later(self.read_s, finish)
        return future

    def close(self) -> None:
        pass


class OneBroker:
    def __init__(self, loop: VirtualLoop, **settings: str) -> None:
        self.loop = loop
        self.disk = ColdDisk()
        self.reads = TimedReads()
        self.network = SimNetwork(Random(1))  # noqa: S311
        self.tree = MemoryTree(delay_ms=lambda: 1)
        properties = {
            "node.id": "1",
            "listeners": "PLAINTEXT://broker:9092",
            "log.dirs": "/logs",
            "telemetry.enable": "false",
            "metadata.dir": "/unused",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.node = Node(Settings(properties), self.world(loop))

    def world(self, loop: VirtualLoop) -> World:
        """What a process of this broker finds; a later one finds what an earlier one left."""
        return World(
            clock_ms=loop.clock_ms,
            wall_ms=lambda: 1_700_000_000_000 + loop.clock_ms(),
            network=self.network.host(1),
            disk=self.disk,
            store=MemoryStore(self.tree, clock_ms=loop.clock_ms),
            reads=self.reads,
            random=Random(2),  # noqa: S311
        )

    async def start(self, *, partitions: int) -> None:
        await self.node.start()
        await self.create(TOPIC, partitions=partitions)

    async def create(self, topic: str, *, partitions: int) -> None:
        client = await self.client()
        answer = await client.connection.request(
            CreateTopicsRequest(
                topics=(
                    CreatableTopic(
                        name=TopicName(topic),
                        num_partitions=i32(partitions),
                        replication_factor=i16(1),
                        assignments=(),
                        configs=(),
                    ),
                ),
                timeout=i32Timedelta.parse(timedelta(seconds=10)),
                validate_only=False,
            )
        )
        assert answer.topics[0].error_code is ErrorCode.none
        await asyncio.sleep(0.2)

    async def client(self) -> Client:
        connection = ClientConnection(client_id="test")
        await SimHost(self.network, 100).connect("broker", 9092, connection)
        return Client(connection)


class Client:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def produce(self, partition: int, *values: bytes) -> None:
        batch = batches.build([(None, value) for value in values], timestamp_ms=1)
        request = ProduceRequest(None, -1, 1_000, [ProducePartition(TOPIC, partition, batch)])
        body = write_produce_request(PRODUCE_VERSION, request)
        frame, at = await self.connection.ask(Api.PRODUCE, PRODUCE_VERSION, [body])
        (result,) = read_produce_response(PRODUCE_VERSION, frame, at).results
        assert result.error == ErrorCode.none, result

    async def fetch(
        self,
        offsets: dict[int, int] | None = None,
        *,
        session: tuple[int, int] = (0, -1),
        forget: tuple[int, ...] = (),
        max_wait_ms: int = 500,
        max_bytes: int = 1 << 20,
        partition_bytes: int = 1 << 20,
        min_bytes: int = 1,
        replica_id: int = -1,
    ) -> FetchResponse:
        request = FetchRequest(
            replica_id=replica_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                FetchTopic(
                    TOPIC,
                    [
                        FetchPartition(number, -1, offset, -1, -1, partition_bytes)
                        for number, offset in offsets.items()
                    ],
                )
            ]
            if offsets
            else [],
            forgotten=[(TOPIC, list(forget))] if forget else [],
        )
        body = write_fetch_request(FETCH_VERSION, request)
        frame, at = await self.connection.ask(Api.FETCH, FETCH_VERSION, [body])
        return read_fetch_response(FETCH_VERSION, frame, at)


def answers_in(response: FetchResponse) -> dict[int, tuple[int, int]]:
    """By partition in the response: its error, and the number of records."""
    return {
        answer.partition: (int(answer.error), _count(answer.records))
        for _, answers in response.topics
        for answer in answers
    }


def _count(records: memoryview | bytes | None) -> int:
    data = bytes(records or b"")
    return sum(header.last_offset_delta + 1 for header in batches.whole_batches(data))


def on_virtual_time(test: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    with virtual_time() as loop:
        loop.run_until_complete(test(loop))
