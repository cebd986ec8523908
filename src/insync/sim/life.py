"""One life of a cluster: brokers that crash and are cut off, clients that write and read.

The brokers are the real ones (`node`); clock, network, disks, store and chance are simulated, so a
seed is a life and a failure can be looked at again:

    python -m insync.sim.life SEED [SECONDS]

What must hold, whatever happens: every value that was acknowledged is read back, once and in
order; and an offset, once read by anybody, never shows another value, whoever leads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from insync.broker.settings import Settings
from insync.client.partition_client import PartitionClient
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.store import Watcher
from insync.node.node import Node, World
from insync.sim.network import SimNetwork
from insync.sim.ownership import act_as, in_the_name_of, owner
from insync.sim.reads import SlowReads
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.memory_disk import MemoryDisk

BROKERS = (1, 2, 3)
CLIENT_HOST = 100
TOPIC = "life"
PARTITIONS = 2
WALL_AT_START_MS = 1_700_000_000_000
SETTLED_WITHIN_S = 60.0


class LifeFailed(AssertionError):
    """Something that must hold did not."""


@dataclass
class Broker:
    number: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    node: Node | None = None
    store: MemoryStore | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)


@dataclass
class Witness:
    """What clients were told, and saw."""

    acknowledged: dict[int, list[bytes]] = field(default_factory=dict)
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def saw(self, partition: int, offset: int, value: bytes) -> None:
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            raise LifeFailed(
                f"partition {partition} offset {offset} was {before!r} and is {value!r}"
            )


class BrokerStore(MemoryStore):
    """A broker's handle on the tree, which tells it of changes in its own name."""

    def __init__(self, tree: MemoryTree, number: int, *, clock_ms: Callable[[], int]) -> None:
        super().__init__(tree, clock_ms=clock_ms)
        self._number = number

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return super().watch(lambda changes: in_the_name_of(self._number, callback, changes))


class Life:
    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.random = Random(seed)  # noqa: S311 - chance, not secrecy
        self.loop = loop
        self.network = SimNetwork(Random(self.random.random()))  # noqa: S311
        self.tree = MemoryTree(delay_ms=lambda: self.random.randrange(1, 20))
        self.brokers = {number: Broker(number) for number in BROKERS}
        self.witness = Witness()
        self.trace = sha256()
        self.has_ended = False
        loop.set_task_factory(self._task)

    def _task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Every task knows whose it is, so that a crash ends all of a broker's and no others."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        host = owner()
        if host in self.brokers:
            tasks = self.brokers[host].tasks
            tasks.append(task)
            task.add_done_callback(lambda done: _leave(tasks, done))
        return task

    def note(self, *what: object) -> None:
        self.trace.update(repr((self.loop.clock_ms(), *what)).encode())

    # Brokers.

    async def start(self, number: int) -> None:
        broker = self.brokers[number]
        self.note("start", number)
        act_as(number)
        try:
            broker.store = BrokerStore(self.tree, number, clock_ms=self.loop.clock_ms)
            settings = Settings(
                {
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://broker-{number}:9092",
                    "log.dirs": "/logs",
                    "metadata.dir": "/unused",
                    "min.insync.replicas": "2",
                    "replica.lag.time.max.ms": "1500",
                    "replica.fetch.wait.max.ms": "200",
                    "num.partitions": str(PARTITIONS),
                }
            )
            world = World(
                clock_ms=self.loop.clock_ms,
                wall_ms=lambda: WALL_AT_START_MS + self.loop.clock_ms(),
                network=self.network.host(number),
                disk=broker.disk,
                store=broker.store,
                reads=SlowReads(self.random),
                random=Random(self.random.random()),  # noqa: S311
            )
            broker.node = Node(settings, world)
            await broker.node.start()
        finally:
            act_as(None)

    async def crash(self, number: int) -> None:
        """As kill -9: the disk keeps what was written, the store notices at once."""
        broker = self.brokers[number]
        node, store = broker.node, broker.store
        if node is None or store is None:
            return
        self.note("crash", number)
        broker.node = broker.store = None
        self.network.crash(number)
        for task in list(broker.tasks):
            task.cancel()
        node.replicas.abandon()
        session = store.session
        store.cut_off()
        broker.disk.crash()
        if session is not None:
            self.tree.end_session(session)
        await asyncio.sleep(0)

    # Clients.

    def client(self, host: int, partition: int) -> PartitionClient:
        addresses = [(f"broker-{number}", 9092) for number in BROKERS]
        return PartitionClient(self.network.host(host), addresses, TOPIC, partition)

    async def write(self, partition: int) -> None:
        client = self.client(CLIENT_HOST + partition, partition)
        acknowledged = self.witness.acknowledged.setdefault(partition, [])
        random = Random(self.random.random())  # noqa: S311
        number = 0
        while not self.has_ended:
            count = random.randint(1, 5)
            values = [b"%d" % each for each in range(number, number + count)]
            offset = await client.append(values)
            number += count
            acknowledged += values
            self.note("acknowledged", partition, offset, count)
            await asyncio.sleep(random.uniform(0.001, 0.1))

    async def read(self, partition: int) -> None:
        client = self.client(CLIENT_HOST + 10 + partition, partition)
        random = Random(self.random.random())  # noqa: S311
        offset = 0
        while not self.has_ended:
            values, after = await client.read(offset)
            for index, value in enumerate(values):
                self.witness.saw(partition, offset + index, value)
            offset = after
            await asyncio.sleep(random.uniform(0.001, 0.2))

    # What befalls them.

    async def trouble(self, seconds: float) -> None:
        end_s = self.loop.time() + seconds
        while self.loop.time() < end_s:
            await asyncio.sleep(self.random.uniform(0.2, 2.5))
            number = self.random.choice(BROKERS)
            match self.random.choice(("crash", "crash", "bounce", "cut", "isolate", "heal")):
                case "crash":
                    await self.crash(number)
                case "bounce":
                    await self.crash(number)
                    await self.start(number)
                case "cut":
                    other = self.random.choice([b for b in BROKERS if b != number])
                    self.note("cut", number, other)
                    self.network.cut(number, other)
                case "isolate":
                    self.note("isolate", number)
                    for other in (*BROKERS, CLIENT_HOST, CLIENT_HOST + 1):
                        if other != number:
                            self.network.cut(number, other)
                case _:
                    self.network.heal()
            await self.mend()

    async def mend(self) -> None:
        """Some of what is broken, some of the time."""
        if self.random.choice((True, True, False)):
            self.network.heal()
        for broker in self.brokers.values():
            if broker.node is None and self.random.choice((True, False)):
                await self.start(broker.number)

    # The whole of it.

    async def live(self, seconds: float) -> str:
        for number in BROKERS:
            await self.start(number)
        clients = [self.loop.create_task(self.write(part)) for part in range(PARTITIONS)]
        clients += [self.loop.create_task(self.read(part)) for part in range(PARTITIONS)]
        trouble = self.loop.create_task(self.trouble(seconds))
        done, _ = await asyncio.wait([trouble, *clients], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a client that ended early failed
        await trouble
        self.network.heal()
        for broker in self.brokers.values():
            if broker.node is None:
                await self.start(broker.number)
        self.has_ended = True
        async with asyncio.timeout(SETTLED_WITHIN_S):
            await asyncio.gather(*clients)
            await self.check()
        return self.trace.hexdigest()

    async def check(self) -> None:
        for partition, acknowledged in self.witness.acknowledged.items():
            client = self.client(CLIENT_HOST + 20 + partition, partition)
            found: list[bytes] = []
            offset = 0
            while len(found) < len(acknowledged):
                values, offset = await client.read(offset)
                found += values
            for index, value in enumerate(found):
                self.witness.saw(partition, index, value)
            if found[: len(acknowledged)] != acknowledged:
                raise LifeFailed(f"partition {partition}: what was acknowledged is not there")


def _leave(tasks: list[asyncio.Task[Any]], done: asyncio.Task[Any]) -> None:
    if done in tasks:
        tasks.remove(done)


def live(seed: int, seconds: float = 20.0) -> tuple[str, int]:
    """Live once; returns the hash of the life and how much was acknowledged."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    life = Life(seed, loop)
    try:
        trace = loop.run_until_complete(life.live(seconds))
        return trace, sum(len(values) for values in life.witness.acknowledged.values())
    except Exception as error:
        error.add_note(f"replay with: python -m insync.sim.life {seed} {seconds:g}")
        raise
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()


if __name__ == "__main__":
    print(*live(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 20.0))  # noqa: T201, PLR2004
