"""Brokers that can be started, killed, paused and cut off: the real ones in a simulated world.

A broker's process is everything done in its name (`ownership`). Its disk and its place in the
network outlive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from insync.broker.settings import Settings
from insync.metadata.memory import MemoryTree
from insync.node.node import Node, World
from insync.rules.refusals import Refusal
from insync.sim.network import SimNetwork
from insync.sim.ownership import acting_as, context_of, in_the_name_of, owner
from insync.sim.reads import READ_S, SlowReads
from insync.sim.store import BrokerStore
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.memory_disk import MemoryDisk

PORT = 9092
WALL_AT_START_MS = 1_700_000_000_000
STORE_DELAY_MS = (1, 20)

SETTINGS = {
    "log.dirs": "/logs",
    "metadata.dir": "/unused",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "200",
    "replica.socket.timeout.ms": "1500",
    "log.retention.ms": "-1",
    "telemetry.enable": "false",  # but where it is what is looked at
}


class ProcessDied(BaseException):
    """Ends whatever a process was doing when it died. Not an `Exception`: nobody handles it."""


@dataclass
class Broker:
    number: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    node: Node | None = None
    store: BrokerStore | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    has_started: bool = False
    is_paused: bool = False
    is_cut_off: bool = False  # from the store
    wall_ahead_ms: int = 0
    read_s: tuple[float, float] = READ_S  # what a read takes that is not in memory
    ends: dict[tuple[str, int], int] = field(default_factory=dict)  # of its logs, at its death

    @property
    def address(self) -> tuple[str, int]:
        return f"broker-{self.number}", PORT


class Cluster:
    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        *,
        brokers: int = 3,
        settings: dict[str, str] | None = None,
        note: Callable[..., None] = lambda *_: None,
    ) -> None:
        self.loop = loop
        self.note = note
        self.network = SimNetwork(Random(random.random()))  # noqa: S311 - chance, not secrecy
        self.brokers = {number: Broker(number) for number in range(1, brokers + 1)}
        self.mishaps: list[str] = []  # what brokers did that nobody should have to handle
        self.store_delay_ms = STORE_DELAY_MS
        self._random = random
        self.tree = MemoryTree(delay_ms=lambda: random.randint(*self.store_delay_ms))
        self._settings = SETTINGS | (settings or {})
        loop.set_task_factory(self._task)
        loop.set_exception_handler(self._on_mishap)

    @property
    def cooldown_ms(self) -> int:
        return Settings(self._settings).integer("leader.resign.cooldown.ms")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [broker.address for broker in self.brokers.values()]

    def up(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.node is not None]

    # Life and death.

    async def start(self, number: int) -> None:
        """Start a broker that is down, and wait until it serves, refuses to start, or is killed."""
        broker = self.brokers[number]
        if broker.node is not None:
            return
        self.note("start", number)
        with acting_as(number):
            broker.node = node = self._new_node(broker)
            starting = self.loop.create_task(node.start())
        await asyncio.wait([starting])
        if broker.node is not node or starting.cancelled():
            return
        refusal = starting.exception()
        if refusal is None:
            broker.has_started = True
            return
        self.note("refused to start", number, str(refusal))
        self.kill(number)
        if not isinstance(refusal, Refusal):
            raise refusal

    def _new_node(self, broker: Broker) -> Node:
        settings = Settings(
            {
                **self._settings,
                "node.id": str(broker.number),
                "listeners": f"PLAINTEXT://broker-{broker.number}:{PORT}",
            }
        )
        random = Random(self._random.random())  # noqa: S311
        clock_ms = self.loop.clock_ms
        broker.store = BrokerStore(self.tree, broker.number, clock_ms=clock_ms, random=random)
        if broker.is_cut_off:
            broker.store.cut_off()
        world = World(
            clock_ms=clock_ms,
            wall_ms=lambda: WALL_AT_START_MS + broker.wall_ahead_ms + clock_ms(),
            network=self.network.host(broker.number),
            disk=broker.disk,
            store=broker.store,
            reads=SlowReads(Random(random.random()), lambda: broker.read_s),  # noqa: S311
            random=random,
        )
        return Node(settings, world)

    def kill(self, number: int, *, noticed_after_ms: int = 0, loses_power: bool = False) -> None:
        """As kill -9: the disk keeps what was written; the store notices at once or later."""
        broker = self.brokers[number]
        node, store = broker.node, broker.store
        if node is None or store is None:
            return
        self.note("kill", number, noticed_after_ms, loses_power)
        if broker.has_started:
            held = node.replicas.held.values()
            broker.ends |= {found.key: found.log.end for found in held}
        broker.node = broker.store = None
        broker.has_started = broker.is_paused = False
        self.loop.forget(number)
        self.network.crash(number)
        for task in list(broker.tasks):
            task.cancel()
        if hasattr(node, "replicas"):
            in_the_name_of(number, node.replicas.abandon)
        session = store.session
        store.cut_off()
        broker.disk.on_append = None
        if loses_power:
            broker.disk.lose_power()
            broker.ends.clear()
        else:
            broker.disk.crash()
        if session is not None:
            delay_s = noticed_after_ms / 1_000
            context = context_of(None)
            self.loop.call_later(delay_s, self.tree.end_session, session, context=context)

    def kill_from_within(self, number: int) -> None:
        """The process dies in the middle of what it is doing now."""
        self.kill(number)
        raise ProcessDied

    # Being stopped, and being out of touch.

    def pause(self, number: int) -> None:
        """As SIGSTOP: nothing runs, and its heartbeats stop."""
        broker = self.brokers[number]
        if broker.node is None or broker.is_paused:
            return
        self.note("pause", number)
        broker.is_paused = True
        self.loop.pause(number)
        if broker.store is not None:
            broker.store.pause()

    def resume(self, number: int) -> None:
        broker = self.brokers[number]
        if not broker.is_paused:
            return
        self.note("resume", number)
        broker.is_paused = False
        hears_first = self._random.choice((True, False))
        if hears_first:
            self._be_in_touch(broker)
        self.loop.resume(number, timers_first=self._random.choice((True, False)))
        if not hears_first:
            self._be_in_touch(broker)

    def cut_off_from_store(self, number: int) -> None:
        broker = self.brokers[number]
        self.note("cut off", number)
        broker.is_cut_off = True
        if broker.store is not None:
            broker.store.cut_off()

    def reconnect_to_store(self, number: int) -> None:
        broker = self.brokers[number]
        broker.is_cut_off = False
        self._be_in_touch(broker)

    def _be_in_touch(self, broker: Broker) -> None:
        if broker.store is not None and not broker.is_paused and not broker.is_cut_off:
            self.loop.call_soon(broker.store.resume, context=context_of(broker.number))

    def controller(self) -> int | None:
        entry = self.tree.entries.get("/controller")
        return None if entry is None else int(entry.value)

    # After trouble.

    async def heal(self) -> None:
        """End every fault, and start what is down or holds a log that needs a restart."""
        self.note("heal")
        self.network.heal()
        self.tree.thaw()
        self.store_delay_ms = STORE_DELAY_MS
        for number, broker in self.brokers.items():
            disk = broker.disk
            disk.is_full = disk.fails_reads = disk.is_cold = False
            disk.on_append = None
            broker.wall_ahead_ms = 0
            broker.read_s = READ_S
            if broker.store is not None:
                broker.store.before_controller_step = broker.store.after_controller_step = _nothing
            self.resume(number)
            if broker.is_cut_off:
                self.reconnect_to_store(number)
        await asyncio.sleep(0)
        for number, broker in self.brokers.items():
            node = broker.node
            if broker.has_started and node is not None:
                failed = [f for f in node.replicas.held.values() if f.log.has_failed]
                if failed:
                    self.kill(number)
            await self.start(number)

    # Who does what.

    def _task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Every task knows whose it is, so that a crash ends all of a broker's and no others."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        broker = self.brokers.get(owner() or 0)
        if broker is not None:
            broker.tasks.append(task)
            task.add_done_callback(lambda done: self._on_done(broker, done))
        return task

    def _on_done(self, broker: Broker, task: asyncio.Task[Any]) -> None:
        if task in broker.tasks:
            broker.tasks.remove(task)
        if task.cancelled() or isinstance(task.exception(), ProcessDied | None):
            return
        name = getattr(task.get_coro(), "__qualname__", "a task")
        if name != Node.start.__qualname__:  # which may refuse
            self.mishaps.append(f"broker {broker.number}: {name}: {task.exception()!r}")

    def _on_mishap(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, ProcessDied):
            self.mishaps.append(f"{context.get('message')}: {error!r}")


class MishapHandler(logging.Handler):
    """What brokers log as their own mistakes. A refusal is not one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.ERROR)
        self._mishaps = cluster.mishaps

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Refusal):
            self._mishaps.append(f"{record.getMessage()}: {error!r}")


def _nothing() -> None:
    pass
