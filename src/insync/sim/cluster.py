"""Real brokers in a simulated world, where they can be started, killed, paused and cut off.

A broker's process is all tasks and callbacks that run as that broker (`ownership`). Its disk and
its address outlive the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from insync.broker.accepted import NOTHING, Accepted
from insync.broker.settings import Settings
from insync.metadata.memory import MemoryTree
from insync.node.node import Node
from insync.node.world import World
from insync.rules.refusals import Refusal
from insync.sim.network import SimNetwork
from insync.sim.ownership import acting_as, context_of, current_host, run_as
from insync.sim.reads import READ_S, SlowReads
from insync.sim.store import BrokerStore, StoreFaults
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.errors import EpochWentBack, OffsetOutOfOrder
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
    "telemetry.enable": "false",  # tests of telemetry enable it
}


class ProcessDied(BaseException):
    """Unwinds the code that ran when its process died. No `except Exception` catches it."""


@dataclass
class Broker:
    number: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    node: Node | None = None
    store: BrokerStore | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    has_started: bool = False
    refusal: str = ""  # why it last refused to start
    is_paused: bool = False
    starting: asyncio.Task[None] | None = None  # its last start
    is_cut_off: bool = False  # from the store
    wall_ahead_ms: int = 0
    clock_rate: float = 1.0  # of its monotonic clock
    store_faults: StoreFaults = field(default_factory=StoreFaults)
    read_s: tuple[float, float] = READ_S  # shortest and longest read from the disk
    ends: dict[tuple[str, int], int] = field(
        default_factory=dict
    )  # log end offsets when it was killed

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
        new_tree: Callable[..., MemoryTree] = MemoryTree,
    ) -> None:
        self.loop = loop
        self.note = note
        self.network = SimNetwork(Random(random.random()))  # noqa: S311 - chance, not secrecy
        self.brokers = {number: Broker(number) for number in range(1, brokers + 1)}
        self.unexpected_errors: list[str] = []  # exceptions that no broker should raise
        self.store_delay_ms = STORE_DELAY_MS
        self._random = random
        self.tree = new_tree(delay_ms=lambda: random.randint(*self.store_delay_ms))
        self._settings = SETTINGS | (settings or {})
        loop.set_task_factory(self._new_task)
        loop.set_exception_handler(self._on_unexpected_error)

    @property
    def cooldown_ms(self) -> int:
        return Settings(self._settings).integer("leader.resign.cooldown.ms")

    @property
    def lag_time_max_ms(self) -> int:
        return Settings(self._settings).integer("replica.lag.time.max.ms")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [broker.address for broker in self.brokers.values()]

    def up(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.node is not None]

    # Starting and killing.

    async def start(
        self, number: int, *, accepted: Accepted = NOTHING, tree: MemoryTree | None = None
    ) -> None:
        """Start a broker that is down; wait until it serves, refuses to start, or is killed.

        With `tree` it finds another store than the others.
        """
        broker = self.brokers[number]
        if broker.node is not None:
            return
        self.note("start", number)
        with acting_as(number):
            broker.node = node = self._new_node(broker, accepted, tree or self.tree)
            broker.starting = starting = self.loop.create_task(node.start())
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:  # the fault has ended, and the broker goes on starting
            starting.add_done_callback(lambda _: self._finish_start(broker, node, starting))
            raise
        self._finish_start(broker, node, starting)

    def _finish_start(self, broker: Broker, node: Node, starting: asyncio.Task[None]) -> None:
        if broker.node is not node or starting.cancelled():
            return
        refusal = starting.exception()
        if refusal is None:
            broker.has_started = True
            return
        self.note("refused to start", broker.number, str(refusal))
        broker.refusal = str(refusal)
        self.kill(broker.number)
        if not isinstance(refusal, Refusal):
            raise refusal

    def clock_ms_of(self, broker: Broker) -> int:
        """A broker's monotonic clock, which may be fast or slow."""
        return int(self.loop.time() * broker.clock_rate * 1_000 + 1e-6)

    def _new_node(self, broker: Broker, accepted: Accepted, tree: MemoryTree) -> Node:
        settings = Settings(
            {
                **self._settings,
                "node.id": str(broker.number),
                "listeners": f"PLAINTEXT://broker-{broker.number}:{PORT}",
            }
        )
        random = Random(self._random.random())  # noqa: S311
        broker.store = BrokerStore(
            tree,
            broker.number,
            clock_ms=lambda: self.clock_ms_of(broker),
            random=random,
            faults=broker.store_faults,
        )
        if broker.is_cut_off:
            broker.store.cut_off()
        world = World(
            clock_ms=lambda: self.clock_ms_of(broker),
            wall_ms=lambda: WALL_AT_START_MS + broker.wall_ahead_ms + self.loop.clock_ms(),
            network=self.network.host(broker.number),
            disk=broker.disk,
            store=broker.store,
            reads=SlowReads(Random(random.random()), lambda: broker.read_s),  # noqa: S311
            random=random,
        )
        return Node(settings, world, accepted=accepted)

    def kill(
        self,
        number: int,
        *,
        noticed_after_ms: int = 0,
        loses_power: bool = False,
        torn: Random | None = None,
    ) -> None:
        """As kill -9: the disk keeps what was written; the session ends at once or later."""
        broker = self.brokers[number]
        node, store = broker.node, broker.store
        if node is None or store is None:
            return
        self.note("kill", number, noticed_after_ms, loses_power)
        if broker.has_started:
            replicas = node.replicas.partitions.values()
            broker.ends |= {replica.key: replica.log.end for replica in replicas}
        broker.node = broker.store = None
        broker.has_started = broker.is_paused = False
        self.loop.forget(number)
        self.network.crash(number)
        for task in list(broker.tasks):
            task.cancel()
        if hasattr(node, "replicas"):
            node.loop.stop()
            run_as(number, node.replicas.end_terms)
        session = store.session
        store.cut_off()
        broker.disk.on_append = None
        if loses_power:
            broker.disk.lose_power(torn)
            broker.ends.clear()
        else:
            broker.disk.crash()
        if session is not None:
            delay_s = noticed_after_ms / 1_000
            context = context_of(None)
            self.loop.call_later(delay_s, self.tree.end_session, session, context=context)

    def kill_from_within(self, number: int) -> None:
        """Kill the broker whose code is running now, in the middle of it."""
        self.kill(number)
        raise ProcessDied

    # Pausing, and cutting off from the store.

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
        reconnects_first = self._random.choice((True, False))
        if reconnects_first:
            self._reconnect_store(broker)
        self.loop.resume(number, timers_first=self._random.choice((True, False)))
        if not reconnects_first:
            self._reconnect_store(broker)

    def pause_for(self, number: int, seconds: float) -> None:
        """Pause, also from within the broker, and resume later."""
        if self.brokers[number].is_paused:
            return
        self.pause(number)
        self.loop.call_later(seconds, self.resume, number, context=context_of(None))

    def cut_off_from_store(self, number: int) -> None:
        broker = self.brokers[number]
        self.note("cut off", number)
        broker.is_cut_off = True
        if broker.store is not None:
            broker.store.cut_off()

    def reconnect_to_store(self, number: int) -> None:
        broker = self.brokers[number]
        broker.is_cut_off = False
        self._reconnect_store(broker)

    def _reconnect_store(self, broker: Broker) -> None:
        if broker.store is not None and not broker.is_paused and not broker.is_cut_off:
            self.loop.call_soon(broker.store.resume, context=context_of(broker.number))

    def mend_store(self, number: int) -> None:
        """End what is wrong between a broker and the store."""
        broker = self.brokers[number]
        faults = broker.store_faults
        was_unreadable, faults.is_unreadable = faults.is_unreadable, False
        faults.is_read_only, faults.lost_answers, faults.commit_delay_ms_max = False, 0.0, 0
        if was_unreadable and broker.store is not None:
            self.loop.call_soon(broker.store.catch_up, context=context_of(number))

    def controller(self) -> int | None:
        entry = self.tree.entries.get("/controller")
        return None if entry is None else int(entry.value)

    # After faults.

    async def heal(self) -> None:
        """End every fault; start brokers that are down, and restart those with a failed log."""
        self.note("heal")
        self.network.heal()
        self.tree.thaw()
        self.store_delay_ms = STORE_DELAY_MS
        for number, broker in self.brokers.items():
            disk = broker.disk
            disk.is_full = disk.is_cold = False
            disk.stop_lying()
            disk.fails_reads = disk.fails_flushes = disk.fails_appends = False
            disk.torn_part = 0.5
            self.mend_store(number)
            disk.on_append = None
            broker.wall_ahead_ms = 0
            broker.read_s = READ_S
            if broker.store is not None:
                broker.store.forget_hooks()
            self.resume(number)
            if broker.is_cut_off:
                self.reconnect_to_store(number)
        await asyncio.sleep(0)
        for number, broker in self.brokers.items():
            node = broker.node
            if broker.has_started and node is not None:
                failed = [each for each in node.replicas.partitions.values() if each.log.has_failed]
                if failed:
                    self.kill(number)
            elif node is not None and broker.starting is not None:
                await asyncio.wait([broker.starting])  # it may refuse because of a former fault
            await self.start(number)

    # Tasks and errors of brokers.

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Each task has an owner, so that a kill cancels all tasks of a broker and no others."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        broker = self.brokers.get(current_host() or 0)
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
        if name != Node.start.__qualname__:  # `start` handles its error
            self.unexpected_errors.append(f"broker {broker.number}: {name}: {task.exception()!r}")

    def _on_unexpected_error(
        self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, ProcessDied):
            self.unexpected_errors.append(f"{context.get('message')}: {error!r}")


class ErrorLogHandler(logging.Handler):
    """Collects errors that brokers log with an exception. A refusal is expected.

    Except of what a leader sent: it names the offset where the logs differ, and never sends records
    that do not continue the follower's log (KIP-101, KIP-279).
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.WARNING)
        self._mishaps = cluster.unexpected_errors

    def emit(self, record: logging.LogRecord) -> None:
        refusal = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(refusal, EpochWentBack | OffsetOutOfOrder):
            self._mishaps.append(record.getMessage())
        elif record.levelno >= logging.ERROR and not isinstance(error, Refusal | None):
            self._mishaps.append(f"{record.getMessage()}: {error!r}")
