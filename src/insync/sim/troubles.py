"""What befalls a cluster. Each trouble begins, lasts a while and ends; several last at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random

from insync.rules.throttle_lease import HOLD_MS
from insync.sim.checks import Partition
from insync.sim.clients import Admin, Clients
from insync.sim.cluster import Broker, Cluster
from insync.sim.reads import READ_S
from insync.sim.store import SESSION_TIMEOUT_MS
from insync.wire.holds import HoldThrottle
from insync.wire.moves import Move, StartMoves

HOUR_MS = 3_600_000
TOPICS_MAX = 6
PARTITIONS_MAX = 4

MIXES: dict[str, tuple[str, ...]] = {
    "deaths": ("kill", "kill", "bounce", "bounce", "die_in_append", "die_as_controller"),
    "pauses": ("pause_briefly", "pause_long", "pause_long", "bounce", "cut_link"),
    "network": ("cut_link", "isolate", "slow_link", "reset", "kill"),
    "store": ("cut_off_briefly", "cut_off_long", "freeze_store", "slow_store", "bounce", "kill"),
    "disks": ("fill_disk", "fail_reads", "cool_disk", "die_in_append", "kill", "cut_link"),
    "topics": ("make_topic", "make_topic", "drop_topic", "grow_topic", "kill", "bounce", "isolate"),
    "moves": (
        *("move", "move", "move_throttled", "cancel", "cancel", "die_mid_move", "hold_throttle"),
        *("kill", "bounce", "isolate", "slow_link"),
    ),
    "power": ("lose_power",),
}
MIXES["everything"] = (
    *dict.fromkeys(name for mix, names in MIXES.items() if mix != "power" for name in names),
    "jump_wall_clock",
    "quiet",
)


class Troubles:
    def __init__(
        self,
        cluster: Cluster,
        clients: Clients,
        admin: Admin,
        random: Random,
        *,
        mix: str,
        topic: str,
        factor: int,
        is_healthy: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._admin = admin
        self._random = random
        self._kinds = [getattr(self, name) for name in MIXES[mix]]
        self._topic = topic
        self._factor = factor
        self._is_healthy = is_healthy
        self._partitions = 0
        self._extra_topics: list[str] = []
        self._under_way: list[asyncio.Task[None]] = []

    async def befall(self, seconds: float) -> None:
        """Trouble after trouble for so long; those under way at the end are cut short."""
        loop = self._cluster.loop
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(self._random.uniform(0.05, 2.0))
            kind: Callable[[], Awaitable[None]] = self._random.choice(self._kinds)
            task = loop.create_task(self._one(kind))
            self._under_way.append(task)
            if kind in (self.quiet, self.lose_power):
                await task  # alone
        for task in self._under_way:
            task.cancel()
        for result in await asyncio.gather(*self._under_way, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _one(self, kind: Callable[[], Awaitable[None]]) -> None:
        await kind()

    async def _last(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._random.uniform(low_s, high_s))

    def _any(self) -> Broker:
        return self._random.choice(list(self._cluster.brokers.values()))

    # Processes.

    async def kill(self) -> None:
        number = self._any().number
        self._cluster.kill(number, noticed_after_ms=self._random.choice((0, 0, 5, 50)))
        await self._last(0.01, 4.0)
        await self._cluster.start(number)

    async def bounce(self) -> None:
        """Back at once, often before anybody has noticed that it was gone."""
        number = self._any().number
        self._cluster.kill(number, noticed_after_ms=self._random.choice((0, 5, 50, 500)))
        await self._cluster.start(number)

    async def die_in_append(self) -> None:
        """The next append stops half-way: the file keeps a torn batch."""
        broker = self._any()
        broker.disk.on_append = lambda _path: self._cluster.kill_from_within(broker.number)
        await self._last(0.5, 3.0)
        broker.disk.on_append = None
        await self._cluster.start(broker.number)

    async def die_as_controller(self) -> None:
        """Just before or just after the next step it makes as controller, which a death causes."""
        number = self._cluster.controller()
        store = None if number is None else self._cluster.brokers[number].store
        if number is None or store is None:
            return

        def die() -> None:
            self._cluster.kill_from_within(number)

        if self._random.choice((True, False)):
            store.before_controller_step = die
        else:
            store.after_controller_step = die
        others = [other for other in self._cluster.brokers if other != number]
        other = self._random.choice(others)
        self._cluster.kill(other)
        await self._last(0.1, 1.5)
        await self._cluster.start(other)
        await self._last(0.1, 1.0)
        await self._cluster.start(number)

    async def pause_briefly(self) -> None:
        await self._pause(0.05, SESSION_TIMEOUT_MS / 1_000 - 0.1)

    async def pause_long(self) -> None:
        """Longer than its session: another is elected meanwhile, and it does not know."""
        await self._pause(SESSION_TIMEOUT_MS / 1_000 - 0.05, SESSION_TIMEOUT_MS / 1_000 + 3.0)

    async def _pause(self, low_s: float, high_s: float) -> None:
        number = self._any().number
        self._cluster.pause(number)
        try:
            await self._last(low_s, high_s)
        finally:
            self._cluster.resume(number)

    async def lose_power(self) -> None:
        """One machine loses what it had not flushed, while all others have it."""
        if not self._is_healthy():
            await self._last(0.1, 0.5)
            return
        number = self._any().number
        self._cluster.kill(
            number, noticed_after_ms=self._random.choice((0, 5, 50, 500)), loses_power=True
        )
        await self._last(0.0, 0.01)
        await self._cluster.start(number)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if self._is_healthy():
                break

    # The network.

    async def cut_link(self) -> None:
        one, other = self._random.sample(list(self._cluster.brokers), 2)
        self._cluster.note("cut", one, other)
        self._cluster.network.cut(one, other)
        await self._last(0.1, 4.0)
        self._cluster.network.mend(one, other)

    async def isolate(self) -> None:
        """From brokers and clients, not from the store."""
        number = self._any().number
        self._cluster.note("isolate", number)
        others = [n for n in (*self._cluster.brokers, *self._clients.hosts) if n != number]
        some = others if self._random.choice((True, False)) else self._random.sample(others, 3)
        for other in some:
            self._cluster.network.cut(number, other)
        await self._last(0.1, 4.0)
        for other in some:
            self._cluster.network.mend(number, other)

    async def slow_link(self) -> None:
        one, other = self._random.sample(list(self._cluster.brokers), 2)
        latency_s_max = self._random.choice((0.02, 0.2, 1.0))
        self._cluster.note("slow", one, other, latency_s_max)
        self._cluster.network.slow(one, other, latency_s_max=latency_s_max)
        await self._last(0.5, 5.0)
        self._cluster.network.quicken(one, other)

    async def reset(self) -> None:
        number = self._any().number
        self._cluster.note("reset", number)
        self._cluster.network.reset(number)

    # The store.

    async def cut_off_briefly(self) -> None:
        await self._cut_off(0.1, SESSION_TIMEOUT_MS / 1_000 - 0.1)

    async def cut_off_long(self) -> None:
        await self._cut_off(SESSION_TIMEOUT_MS / 1_000 - 0.1, SESSION_TIMEOUT_MS / 1_000 + 3.0)

    async def _cut_off(self, low_s: float, high_s: float) -> None:
        """The broker lives and serves, and neither hears nor tells anything through the store."""
        number = self._any().number
        self._cluster.cut_off_from_store(number)
        await self._last(low_s, high_s)
        self._cluster.reconnect_to_store(number)

    async def freeze_store(self) -> None:
        self._cluster.note("freeze store")
        self._cluster.tree.freeze()
        await self._last(0.1, 3.0)
        self._cluster.tree.thaw()

    async def slow_store(self) -> None:
        before, self._cluster.store_delay_ms = self._cluster.store_delay_ms, (1, 400)
        await self._last(1.0, 5.0)
        self._cluster.store_delay_ms = before

    # Disks and clocks.

    async def fill_disk(self) -> None:
        disk = self._any().disk
        disk.is_full = True
        await self._last(0.1, 3.0)
        disk.is_full = False

    async def fail_reads(self) -> None:
        disk = self._any().disk
        disk.fails_reads = True
        await self._last(0.1, 2.0)
        disk.fails_reads = False

    async def cool_disk(self) -> None:
        """Nothing is in memory; a read takes a moment, or so long that the leader should resign."""
        broker = self._any()
        broker.disk.is_cold = True
        broker.read_s = self._random.choice((READ_S, (0.05, 0.6), (0.5, 2.5)))
        self._cluster.note("cool", broker.number, broker.read_s)
        await self._last(0.1, 3.0)
        broker.disk.is_cold = False
        broker.read_s = READ_S

    async def jump_wall_clock(self) -> None:
        self._any().wall_ahead_ms = self._random.randint(-HOUR_MS, HOUR_MS)

    # Topics.

    async def make_topic(self) -> None:
        if len(self._extra_topics) >= TOPICS_MAX:
            return
        name = f"brief-{len(self._extra_topics)}"
        self._extra_topics.append(name)
        self._cluster.note("make", name)
        await self._admin.create(name, 1, factor=self._factor)
        self._clients.attend((name, 0), busy=False)

    async def drop_topic(self) -> None:
        """And, half of the time, make another of the same name."""
        attended = [key[0] for key in self._clients.partitions if key[0] in self._extra_topics]
        if not attended:
            return
        name = self._random.choice(attended)
        self._cluster.note("drop", name)
        await self._clients.leave(name)
        await self._admin.delete(name)
        if self._random.choice((True, False)):
            await self._admin.create(name, 1, factor=self._factor)
            while self._is_former_led(name):
                await asyncio.sleep(0.05)
            self._clients.attend((name, 0), busy=False)

    def _is_former_led(self, name: str) -> bool:
        """A leader out of touch with the store serves a deleted topic to whoever asks by name."""
        topic = json.loads(self._cluster.tree.entries[f"/brokers/topics/{name}"].value)
        held = [
            broker.node.replicas.held.get((name, 0))
            for broker in self._cluster.up()
            if broker.node is not None and broker.has_started
        ]
        led = [found for found in held if found is not None and found.is_leader]
        return any(str(found.topic_id) != topic["topic_id"] for found in led)

    async def grow_topic(self) -> None:
        count = len([key for key in self._clients.partitions if key[0] == self._topic])
        if self._partitions >= PARTITIONS_MAX or count >= PARTITIONS_MAX:
            return
        self._partitions = PARTITIONS_MAX  # once in a life
        await self._admin.grow(self._topic, count + 1)
        self._clients.attend((self._topic, count))

    # Moves.

    async def move(self) -> None:
        """Anywhere, a replica more or less included, also in place of a move under way."""
        partition, target = self._any_move()
        self._cluster.note("move", partition, target)
        await self._admin.move(partition, target)

    async def move_throttled(self) -> None:
        """Several at once, with a throttle that nobody takes away."""
        asked = dict(self._any_move() for _ in range(self._random.randint(1, 3)))
        self._cluster.note("move throttled", asked)
        await self._admin.start_moves(
            StartMoves(
                tuple(Move(*partition, target) for partition, target in asked.items()),
                throttle_bytes_per_s=self._random.choice((20_000, 200_000)),
                is_additional=self._random.choice((True, True, False)),
            )
        )

    async def hold_throttle(self) -> None:
        """Of a broker, by a tool that renews it for a while and then is killed, or lets go."""
        holder = f"tool-{self._random.randrange(1_000_000)}"
        broker, rate = self._any().number, self._random.choice((20_000, 200_000))
        self._cluster.note("hold throttle", broker, holder)
        for _ in range(self._random.randint(1, 4)):
            await self._admin.hold_throttle(HoldThrottle(broker, holder, rate))
            await asyncio.sleep(HOLD_MS / 3_000)
        if self._random.choice((True, False)):
            await self._admin.hold_throttle(HoldThrottle(broker, holder))

    async def cancel(self) -> None:
        """What moves, if anything does."""
        moving = [key for key in self._clients.partitions if self._is_moving(key)]
        partition = self._random.choice(moving) if moving else self._any_move()[0]
        self._cluster.note("cancel", partition)
        await self._admin.move(partition, None)

    def _is_moving(self, partition: Partition) -> bool:
        name, number = partition
        path = f"/brokers/topics/{name}/partitions/{number}/state"
        entry = self._cluster.tree.entries.get(path)
        state = {} if entry is None else json.loads(entry.value)
        return bool(state.get("adding") or state.get("removing"))

    async def die_mid_move(self) -> None:
        """The controller, at one of the next steps it makes, which are those of a move."""
        number = self._cluster.controller()
        store = None if number is None else self._cluster.brokers[number].store
        if number is None or store is None:
            return
        steps = self._random.randint(1, 3)

        def die() -> None:
            nonlocal steps
            steps -= 1
            if steps == 0:
                self._cluster.kill_from_within(number)

        if self._random.choice((True, False)):
            store.before_controller_step = die
        else:
            store.after_controller_step = die
        await self.move_throttled()
        await self._last(0.1, 3.0)
        store.before_controller_step = store.after_controller_step = _nothing
        await self._cluster.start(number)

    def _any_move(self) -> tuple[Partition, tuple[int, ...]]:
        partition = self._random.choice(list(self._clients.partitions))
        brokers = list(self._cluster.brokers)
        factor = self._factor + self._random.choice((-1, 0, 0, 0, 1))
        target = self._random.sample(brokers, min(max(1, factor), len(brokers)))
        return partition, tuple(target)

    # Nothing.

    async def quiet(self) -> None:
        """All is well for a while: what goes by time alone shows."""
        others = self._under_way[:-1]  # this is the last of them
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._cluster.heal()
        await self._last(2.0, 8.0)


def _nothing() -> None:
    pass
