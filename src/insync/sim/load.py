"""What clients do in a run. All of it is recorded in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from insync.sim.checks import Monitor, RunFailed
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.history import ACKS_ALL, Append, History, Latest, Partition, Read
from insync.sim.producer import WINDOW_MAX, PipelinedProducer

FIRST_HOST: Final = 100
REREAD_CHANCE: Final = 0.02


class Clients:
    """All clients of one run, except its admin."""

    def __init__(
        self, cluster: Cluster, history: History, monitor: Monitor, random: Random, *, unclean: bool
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._monitor = monitor
        self._random = random
        self._is_unclean = unclean
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by topic
        self._next_host = FIRST_HOST
        self.has_ended = False
        self.producers_expired = False  # a wall clock passed the expiry of producers
        self.partitions: dict[Partition, None] = {}
        # Called with the broker that has just acknowledged with acks=all.
        self.on_acknowledged: Callable[[int], None] | None = None

    @property
    def hosts(self) -> range:
        return range(FIRST_HOST, self._next_host)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._tasks.values() for task in tasks]

    def start_clients(self, partition: Partition, *, busy: bool = True) -> None:
        """Start clients of a partition: if busy, of each kind, else one producer and one reader."""
        self.partitions[partition] = None
        coroutines = [self._produce(partition), self._consume(partition)]
        if busy:
            coroutines += [
                self._produce(partition),
                self._produce_acks_one(partition),
                self._consume(partition),
                self._query_latest(partition),
            ]
        loop = self._cluster.loop
        self._tasks.setdefault(partition[0], []).extend(map(loop.create_task, coroutines))

    async def stop_clients(self, topic: str) -> None:
        """Stop the clients of a topic that will be deleted, and forget its history."""
        tasks = self._tasks.pop(topic, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.partitions = {key: None for key in self.partitions if key[0] != topic}
        self._history.forget_topic(topic)

    def new_client(self, partition: Partition) -> SimClient:
        return SimClient(self._cluster, self._new_host(), partition, self._random)

    def _new_host(self) -> int:
        host, self._next_host = self._next_host, self._next_host + 1
        return host

    def _now_s(self) -> float:
        return self._cluster.loop.time()

    # What they do.

    async def _produce(self, partition: Partition) -> None:
        """Idempotent, with acks=all: each batch is sent until it is acknowledged."""
        random = self._new_random()
        producer = PipelinedProducer(
            self._cluster,
            self._new_host(),
            partition,
            self._random,
            on_acknowledged=self._acknowledge,
            may_lose_state=lambda: self._is_unclean or self.producers_expired,
        )
        number = 0
        window = random.choice((1, 2, WINDOW_MAX, WINDOW_MAX))
        pause_s = random.choice((0.1, 0.3, 0.8))
        while not self.has_ended:
            while producer.under_way < window:
                append = self._new_append(producer.host, partition, number, random.randint(1, 5))
                number += len(append.values)
                await producer.send(append)
            await producer.settle(down_to=random.randrange(window))
            await asyncio.sleep(random.uniform(0.001, pause_s))
        await producer.settle(down_to=0)

    async def _produce_acks_one(self, partition: Partition) -> None:
        """With acks=1 and no producer id: each batch is sent once, and may be lost."""
        client, random = self.new_client(partition), self._new_random()
        number = 0
        while not self.has_ended:
            append = self._new_append(client.host, partition, number, 2, acks=1)
            number += len(append.values)
            offset = await client.append_once(append.values)
            if offset is not None:
                self._acknowledge(client, append, offset)
            await asyncio.sleep(random.uniform(0.001, 0.2))

    def _new_append(
        self, host: int, partition: Partition, number: int, count: int, acks: int = -1
    ) -> Append:
        append = Append(
            client=host,
            partition=partition,
            first_number=number,
            values=[b"%d.%d" % (host, each) for each in range(number, number + count)],
            acks=acks,
            invoked_at_s=self._now_s(),
            is_idempotent=acks == -1,
        )
        self._history.add(append)
        return append

    def _acknowledge(self, client: SimClient, append: Append, offset: int) -> None:
        append.base_offset, append.returned_at_s = offset, self._now_s()
        broker, at_ms = client.responding_broker, client.response_sent_at_ms
        self._cluster.note("acknowledged", append.partition, offset, len(append.values), broker)
        if not self._monitor.had_session(broker, at_ms):
            raise RunFailed(
                f"{append.partition}: broker {broker} acknowledged offset {offset} at {at_ms} ms, "
                "after its session had ended"
            )
        if append.acks == ACKS_ALL and self.on_acknowledged is not None:
            self.on_acknowledged(broker)

    async def _consume(self, partition: Partition) -> None:
        """Read on from the last record, and now and then from an earlier one."""
        client, random = self.new_client(partition), self._new_random()
        offset = 0
        while not self.has_ended:
            offset = await self._read_once(client, partition, offset)
            if random.random() < REREAD_CHANCE:
                offset = max(0, offset - random.randint(0, 300))
            await asyncio.sleep(random.uniform(0.001, 0.3))

    async def _read_once(self, client: SimClient, partition: Partition, offset: int) -> int:
        """The next offset to read."""
        invoked_at_s = self._now_s()
        fetched = await client.fetch(offset)
        read = Read(
            client=client.host,
            partition=partition,
            offset=offset,
            records=fetched.records,
            log_start=fetched.log_start,
            invoked_at_s=invoked_at_s,
            returned_at_s=self._now_s(),
            is_out_of_range=fetched.is_out_of_range,
        )
        if read.records or read.is_out_of_range:
            self._history.add(read)
        if read.is_out_of_range:
            return max(0, read.log_start)
        return read.records[-1][0] + 1 if read.records else offset

    async def _query_latest(self, partition: Partition) -> None:
        client, random = self.new_client(partition), self._new_random()
        while not self.has_ended:
            invoked_at_s = self._now_s()
            offset = await client.latest()
            if offset is not None:
                latest = Latest(
                    client=client.host,
                    partition=partition,
                    offset=offset,
                    invoked_at_s=invoked_at_s,
                    returned_at_s=self._now_s(),
                )
                self._history.add(latest)
            await asyncio.sleep(random.uniform(0.001, 0.4))

    async def read_all(self, partition: Partition, *, start: int, end: int) -> dict[int, bytes]:
        """Read a log at rest from `start` to `end`, as a consumer would."""
        client = self.new_client(partition)
        offset = start
        since = len(self._history.operations)
        while offset < end:
            offset = await self._read_once(client, partition, offset)
        reads = [each for each in self._history.operations[since:] if isinstance(each, Read)]
        return {number: value for read in reads for number, value in read.records}

    def _new_random(self) -> Random:
        return Random(self._random.random())  # noqa: S311 - chance, not secrecy
