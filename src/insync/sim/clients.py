"""Clients of a simulated cluster: they write, read and ask, and report all of it to the witness."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

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
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from insync.client.connection import Disconnected
from insync.client.partition_client import (
    ANSWER_WITHIN_S,
    LATEST,
    PRODUCE_VERSION,
    PartitionClient,
    Refused,
)
from insync.sim.checks import LifeFailed, Monitor, Partition, Witness
from insync.sim.cluster import Cluster
from insync.sim.network import SimHost
from insync.wire import batches, holds, moves
from insync.wire.apis import Api
from insync.wire.holds import HoldThrottle
from insync.wire.moves import StartMoves
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)

FIRST_HOST = 100
TRY_AGAIN_S = 0.05


class ClientHost(SimHost):
    """Remembers its connections: when what arrived over one of them was sent."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster.network, number)
        self.transports: dict[tuple[str, int], Any] = {}

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> asyncio.Transport:
        transport = await super().connect(host, port, protocol)
        self.transports[host, port] = transport
        return transport


class SimClient(PartitionClient):
    """A client that knows who answered it, and when that was sent."""

    def __init__(self, cluster: Cluster, host: int, partition: Partition, random: Random) -> None:
        self.host = host
        self._wires = ClientHost(cluster, host)
        addresses = cluster.addresses
        random.shuffle(addresses)
        super().__init__(self._wires, addresses, *partition)
        self.answered_by = 0
        self.answered_at_ms = 0

    async def append_once(self, values: Sequence[bytes]) -> int | None:
        """Append with acks=1 and without a producer id; None: nobody knows what became of it."""
        batch = batches.build([(None, value) for value in values])
        part = ProducePartition(self._topic, self._partition, batch)
        body = write_produce_request(PRODUCE_VERSION, ProduceRequest(None, 1, 1_000, [part]))
        answer = await self._ask_leader(Api.PRODUCE, PRODUCE_VERSION, body)
        if answer is None:
            return None
        (result,) = read_produce_response(PRODUCE_VERSION, *answer).results
        return result.base_offset if await self._is_well(ErrorCode(result.error)) else None

    async def append_again(self, values: Sequence[bytes]) -> int:
        """Send the last batch once more, as if its acknowledgement had been lost."""
        self._sequence -= len(values)
        return await self.append(values)

    def begin_anew(self) -> None:
        """Forget the producer id: records of it were lost."""
        self._producer_id = None
        self._sequence = 0

    async def latest(self) -> int | None:
        return await self._ask_offset(LATEST)

    async def ask_anybody(self, request: Any) -> Any:
        return await self._ask_anybody(request)

    async def ask_of_ours(self, api: Api, body: bytes) -> None:
        """Until one broker answers; one that did not may have done it all the same."""
        for address in self._bootstrap:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
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
            told_at_s = self._wires.transports[self._leader].told_at_s
            self.answered_by = int(self._leader[0].rpartition("-")[2])
            self.answered_at_ms = int(told_at_s * 1_000 + 1e-6)
        return answer

    async def _is_well(self, code: ErrorCode) -> bool:
        if code is ErrorCode.kafka_storage_error:  # its disk may get well, or another may lead
            code = ErrorCode.not_leader_or_follower
        return await super()._is_well(code)


class Clients:
    """Everybody who uses the cluster during one life."""

    def __init__(
        self, cluster: Cluster, witness: Witness, monitor: Monitor, random: Random, *, unclean: bool
    ) -> None:
        self._cluster = cluster
        self._witness = witness
        self._monitor = monitor
        self._random = random
        self._is_unclean = unclean
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by topic
        self._next_host = FIRST_HOST
        self.has_ended = False
        self.partitions: dict[Partition, None] = {}

    @property
    def hosts(self) -> range:
        return range(FIRST_HOST, self._next_host)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._tasks.values() for task in tasks]

    def attend(self, partition: Partition, *, busy: bool = True) -> None:
        """Begin to use a partition: writers of each kind, two readers, one who asks for the end."""
        self.partitions[partition] = None
        work = [self._write_surely(partition), self._read(partition)]
        if busy:
            work += [
                self._write_surely(partition),
                self._write_lightly(partition),
                self._read(partition),
                self._ask_latest(partition),
            ]
        loop = self._cluster.loop
        self._tasks.setdefault(partition[0], []).extend(loop.create_task(each) for each in work)

    async def leave(self, topic: str) -> None:
        """Nobody uses this topic any more, and what was in it does not matter."""
        tasks = self._tasks.pop(topic, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.partitions = {key: None for key in self.partitions if key[0] != topic}
        self._witness.forget(topic)

    def new_client(self, partition: Partition) -> SimClient:
        host, self._next_host = self._next_host, self._next_host + 1
        return SimClient(self._cluster, host, partition, self._random)

    # What they do.

    async def _write_surely(self, partition: Partition) -> None:
        """acks=all, idempotent, again and again until it is acknowledged."""
        client, random = self.new_client(partition), self._new_random()
        written = self._witness.producer(partition, client.host, acks=-1)
        number = 0
        pause_s = random.choice((0.05, 0.3, 0.8))
        while not self.has_ended:
            count = random.randint(1, 5)
            values = [b"%d.%d" % (client.host, each) for each in range(number, number + count)]
            written.tried.update(values)
            number += count
            try:
                offset = await client.append(values)
            except Refused:
                if not self._is_unclean:
                    raise
                client.begin_anew()
                continue
            self._acknowledged(client, partition, offset, count)
            written.acknowledged += values
            if random.random() < 0.1 and not self._is_unclean:  # noqa: PLR2004
                again = await client.append_again(values)
                if again != offset:
                    raise LifeFailed(f"{partition}: a batch at {offset} came to lie at {again} too")
            await asyncio.sleep(random.uniform(0.001, pause_s))

    async def _write_lightly(self, partition: Partition) -> None:
        """acks=1: each batch is tried once, and may be lost."""
        client, random = self.new_client(partition), self._new_random()
        written = self._witness.producer(partition, client.host, acks=1)
        number = 0
        while not self.has_ended:
            values = [b"%d.%d" % (client.host, number + each) for each in range(2)]
            written.tried.update(values)
            number += len(values)
            offset = await client.append_once(values)
            if offset is not None:
                self._acknowledged(client, partition, offset, len(values))
                written.acknowledged += values
            await asyncio.sleep(random.uniform(0.001, 0.2))

    def _acknowledged(
        self, client: SimClient, partition: Partition, offset: int, count: int
    ) -> None:
        broker, at_ms = client.answered_by, client.answered_at_ms
        self._cluster.note("acknowledged", partition, offset, count, broker)
        if not self._monitor.had_session(broker, at_ms):
            raise LifeFailed(
                f"{partition}: broker {broker} acknowledged {offset} at {at_ms} ms, "
                "when its session was over"
            )

    async def _read(self, partition: Partition) -> None:
        client, random = self.new_client(partition), self._new_random()
        offset = 0
        while not self.has_ended:
            try:
                values, after = await client.read(offset)
            except Refused:
                if not self._is_unclean:
                    raise
                offset = 0
                continue
            for index, value in enumerate(values):
                self._witness.saw(partition, offset + index, value)
            offset = after
            if random.random() < 0.02:  # noqa: PLR2004 - now and then something again
                offset = max(0, offset - random.randint(0, 300))
            await asyncio.sleep(random.uniform(0.001, 0.3))

    async def _ask_latest(self, partition: Partition) -> None:
        client, random = self.new_client(partition), self._new_random()
        while not self.has_ended:
            known_before = self._witness.latest_known(partition)
            offset = await client.latest()
            if offset is not None:
                self._witness.latest(partition, offset, known_before=known_before)
            await asyncio.sleep(random.uniform(0.001, 0.4))

    async def read_all(self, partition: Partition, *, end: int) -> list[bytes]:
        client = self.new_client(partition)
        found: list[bytes] = []
        offset = 0
        while offset < end:
            values, offset = await client.read(offset)
            found += values
        return found

    def _new_random(self) -> Random:
        return Random(self._random.random())  # noqa: S311 - chance, not secrecy


class Admin:
    """Creates, grows and deletes topics, and does not rest until it is so."""

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
        while f"/brokers/topics/{name}" in self._cluster.tree.entries:
            await self._ask(DeleteTopicsRequest(topic_names=(TopicName(name),), timeout=_timeout()))

    async def move(self, partition: Partition, target: Sequence[int] | None) -> None:
        """Or, without a target, cancel its move. Asked once: it may be refused."""
        replicas = None if target is None else tuple(BrokerId(broker) for broker in target)
        part = ReassignablePartition(partition_index=i32(partition[1]), replicas=replicas)
        topic = ReassignableTopic(name=TopicName(partition[0]), partitions=(part,))
        await self._ask(AlterPartitionReassignmentsRequest(topics=(topic,)))

    async def start_moves(self, request: StartMoves) -> None:
        await self._client.ask_of_ours(Api.START_MOVES, moves.write_request(request))

    async def hold_throttle(self, request: HoldThrottle) -> None:
        await self._client.ask_of_ours(Api.HOLD_THROTTLE, holds.write_request(request))

    async def _ask(self, request: Any) -> None:
        await self._client.ask_anybody(request)
        await asyncio.sleep(TRY_AGAIN_S)


def _timeout() -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=1))
