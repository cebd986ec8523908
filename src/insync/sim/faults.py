"""Faults that are injected into a cluster. Each starts, lasts a while and ends; several overlap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from insync.metadata import paths
from insync.rules.throttle_lease import HOLD_MS
from insync.sim.aimed_faults import AimedFaults, HeldSteps
from insync.sim.clients import Admin
from insync.sim.cluster import Cluster
from insync.sim.disk_faults import DiskFaults
from insync.sim.election_faults import ElectionFaults
from insync.sim.history import Partition
from insync.sim.load import Clients
from insync.sim.store import SESSION_TIMEOUT_MS, is_controllers
from insync.sim.store_faults import StoreFaultKinds
from insync.wire.holds import HoldThrottle
from insync.wire.moves import Move, StartMoves

TOPIC_CONFIGS: Final = (
    *(("segment.bytes", str(size)) for size in (1_024, 8_192, 1 << 20)),
    *(("retention.bytes", str(size)) for size in (2_048, 10_000, -1)),
    ("segment.ms", "500"),
    ("flush.messages", "1"),
)
HOUR_MS = 3_600_000
TOPICS_MAX = 6
PARTITIONS_MAX = 4

MIXES: dict[str, tuple[str, ...]] = {
    "deaths": (
        *("kill", "kill", "bounce", "bounce", "die_in_append", "die_as_controller"),
        *("kill_after_acknowledgement", "fail_while_recovering"),
    ),
    "pauses": (
        *("pause_briefly", "pause_long", "pause_long", "bounce", "cut_link"),
        *("pause_between_proposal_and_commit", "slow_appends", "depose_leader"),
    ),
    "network": (
        *("cut_link", "cut_one_way", "isolate", "slow_link", "reset", "break_connections", "kill"),
        "cut_joining_follower",
    ),
    "store": (
        *("cut_off_briefly", "cut_off_long", "freeze_store", "slow_store", "bounce", "kill"),
        *("lose_answers", "delay_commits", "delay_commits", "make_store_read_only"),
        *("make_store_unreadable", "cut_link", "pause_between_proposal_and_commit"),
        *("cut_joining_follower", "refuse_proposal_late", "restart_joining_follower"),
        "restore_backup",
    ),
    "disks": (
        *("fill_disk", "fail_reads", "fail_appends", "fail_flushes", "cool_disk", "slow_appends"),
        *("die_in_append", "fail_while_recovering", "kill", "cut_link"),
        *("damage_sector", "damage_file", "damage_while_all_are_stopped"),
        "damage_joining_follower",
    ),
    "topics": (
        *("create_topic", "create_topic", "delete_topic", "grow_topic", "set_config"),
        *("kill", "bounce", "isolate", "recreate_topic_during_step"),
    ),
    "moves": (
        *("move", "move", "move_throttled", "cancel", "cancel", "die_mid_move", "hold_throttle"),
        *("kill", "bounce", "isolate", "slow_link", "set_config", "cut_joining_follower"),
    ),
    "power": ("lose_power", "lose_power_unnoticed", "lie_about_flushes", "kill", "cut_link"),
    "power everywhere": ("lose_power_everywhere", "kill", "bounce", "fail_flushes", "cut_link"),
}
MIXES["everything"] = (
    *dict.fromkeys(name for names in MIXES.values() for name in names),
    *("jump_wall_clock", "jump_past_producer_expiry", "quiet"),
)
MIXES["elections"] = (
    *("elect_while_a_follower_returns", "elect_twice", "elect_and_return"),
    *("refuse_proposal_late", "restart_joining_follower", "depose_leader"),
    *("lose_power_unnoticed", "damage_while_all_are_stopped", "damage_joining_follower"),
)

EXCLUSIVE: Final = frozenset(
    {"quiet", "lose_power", "lose_power_unnoticed", "lose_power_everywhere", "lie_about_flushes"}
    | {"damage_sector", "damage_file", "damage_while_all_are_stopped", "damage_joining_follower"}
    | {"elect_while_a_follower_returns", "elect_twice", "elect_and_return"}
    | {"refuse_proposal_late", "restart_joining_follower", "depose_leader", "restore_backup"}
)
"""No other fault starts before one of these has ended."""

NEEDS_FLUSHES: Final = frozenset({"lose_power_everywhere"})
"""Promised only if every append is flushed."""

NEEDS_THREE_REPLICAS: Final = frozenset(
    {"lose_power", "lose_power_unnoticed", "lie_about_flushes", "damage_sector", "damage_file"}
    | {"damage_while_all_are_stopped", "damage_joining_follower"}
)
"""One machine loses data: two others must have it, whichever leads."""

NEEDS_STEADY_ISR: Final = frozenset({"damage_sector"})
"""The damage is found later: meanwhile no leader may be alone in the ISR without other faults."""


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """The chance of a fault is its own: the others are the same without it."""

    number: int
    name: str
    after_s: float
    seed: float


class FaultInjector(DiskFaults, StoreFaultKinds, AimedFaults, ElectionFaults):
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
        check_brokers: Callable[[], None],
        off: frozenset[str] = frozenset(),
        only: frozenset[int] | None = None,
    ) -> None:
        super().__init__(
            cluster,
            clients,
            admin,
            topic=topic,
            factor=factor,
            is_healthy=is_healthy,
            check_brokers=check_brokers,
        )
        self._schedule_random = random
        self._names = [name for name in MIXES[mix] if name not in off]
        self._only = only
        self._partitions = 0
        self._extra_topics: list[str] = []
        self._deleting: set[str] = set()  # a second deletion would hit the topic created again
        self.started: list[ScheduledFault] = []

    def _schedule(self) -> Iterator[ScheduledFault]:
        """Each kind of the mix is due once before any is due again."""
        random, due = self._schedule_random, list[str]()
        # Where none overlap, a long time between them shows nothing and leaves some of them out.
        after_s_max = 0.5 if EXCLUSIVE.issuperset(self._names) else 2.0
        for number in count():
            due = due or random.sample(self._names, len(self._names))
            name, after_s = due.pop(), random.uniform(0.05, after_s_max)
            yield ScheduledFault(number, name, after_s, random.random())

    async def inject_faults(self, seconds: float) -> None:
        """Start one fault after another for `seconds`, then cancel those that still run."""
        loop = self._cluster.loop
        end_s = loop.time() + seconds
        self._backup = self._cluster.tree.backup()
        for fault in self._schedule():
            await asyncio.sleep(fault.after_s)
            if loop.time() >= end_s:
                break
            if self._only is not None and fault.number not in self._only:
                continue
            self.started.append(fault)
            self._cluster.note("fault", fault.number, fault.name)
            task = loop.create_task(self._run_fault(fault))
            self._running.append(task)
            if fault.name in EXCLUSIVE:
                await task
        for task in self._running:
            task.cancel()
        for result in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _run_fault(self, fault: ScheduledFault) -> None:
        self._use_random(fault.seed)
        run: Callable[[], Awaitable[None]] = getattr(self, fault.name)
        await run()

    # Processes.

    async def kill(self) -> None:
        number = self._choose_broker().number
        self._cluster.kill(number, noticed_after_ms=self._random.choice((0, 0, 5, 50)))
        await self._wait(0.01, 4.0)
        await self._cluster.start(number)

    async def bounce(self) -> None:
        """Restart at once, often before the store has ended the killed broker's session."""
        number = self._choose_broker().number
        self._cluster.kill(number, noticed_after_ms=self._random.choice((0, 5, 50, 500)))
        await self._cluster.start(number)

    async def die_in_append(self) -> None:
        """Die in the middle of the next append: the file keeps a torn batch."""
        broker = self._choose_broker()
        broker.disk.torn_part = self._random.random()
        broker.disk.on_append = lambda _path: self._cluster.kill_from_within(broker.number)
        await self._wait(0.5, 3.0)
        broker.disk.on_append = None
        broker.disk.torn_part = 0.5
        await self._cluster.start(broker.number)

    async def die_as_controller(self) -> None:
        """Kill the controller just before or after its next step, which another's death causes."""
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
        await self._wait(0.1, 1.5)
        await self._cluster.start(other)
        await self._wait(0.1, 1.0)
        await self._cluster.start(number)

    async def pause_briefly(self) -> None:
        await self._pause(0.05, SESSION_TIMEOUT_MS / 1_000 - 0.1)

    async def pause_long(self) -> None:
        """Longer than its session: another leader is elected, and the paused one does not know."""
        await self._pause(SESSION_TIMEOUT_MS / 1_000 - 0.05, SESSION_TIMEOUT_MS / 1_000 + 3.0)

    async def _pause(self, low_s: float, high_s: float) -> None:
        number = self._choose_broker().number
        self._cluster.pause(number)
        try:
            await self._wait(low_s, high_s)
        finally:
            self._cluster.resume(number)

    # The network.

    async def cut_link(self) -> None:
        one, other = self._random.sample(list(self._cluster.brokers), 2)
        self._cluster.note("cut", one, other)
        self._cluster.network.cut(one, other)
        await self._wait(0.1, 4.0)
        self._cluster.network.mend(one, other)

    async def cut_one_way(self) -> None:
        """One broker's messages do not reach another; those of the other do."""
        one, other = self._random.sample(list(self._cluster.brokers), 2)
        self._cluster.note("cut one way", one, other)
        self._cluster.network.cut(one, other, one_way=True)
        await self._wait(0.1, 4.0)
        self._cluster.network.mend(one, other)

    async def break_connections(self) -> None:
        """Connections of one broker die with requests under way, again and again."""
        number = self._choose_broker().number
        self._cluster.note("break connections", number)
        for _ in range(self._random.randint(1, 20)):
            self._cluster.network.break_pending(number)
            await self._wait(0.001, 0.2)

    async def isolate(self) -> None:
        """Cut a broker off from brokers and clients, not from the store."""
        number = self._choose_broker().number
        self._cluster.note("isolate", number)
        others = [n for n in (*self._cluster.brokers, *self._clients.hosts) if n != number]
        cut_hosts = others if self._random.choice((True, False)) else self._random.sample(others, 3)
        for other in cut_hosts:
            self._cluster.network.cut(number, other)
        await self._wait(0.1, 4.0)
        for other in cut_hosts:
            self._cluster.network.mend(number, other)

    async def slow_link(self) -> None:
        one, other = self._random.sample(list(self._cluster.brokers), 2)
        latency_s_max = self._random.choice((0.02, 0.2, 1.0))
        self._cluster.note("slow", one, other, latency_s_max)
        self._cluster.network.slow(one, other, latency_s_max=latency_s_max)
        await self._wait(0.5, 5.0)
        self._cluster.network.quicken(one, other)

    async def reset(self) -> None:
        number = self._choose_broker().number
        self._cluster.note("reset", number)
        self._cluster.network.reset(number)

    # Clocks.

    async def jump_wall_clock(self) -> None:
        self._choose_broker().wall_ahead_ms = self._random.randint(-HOUR_MS, HOUR_MS)

    async def jump_past_producer_expiry(self) -> None:
        """One broker forgets the producers of its partitions."""
        broker = self._choose_broker()
        self._clients.producers_expired = True
        broker.wall_ahead_ms = self._random.choice((26, 24 * 8)) * HOUR_MS
        await self._wait(1.5, 5.0)
        broker.wall_ahead_ms = 0

    # Topics.

    async def set_config(self) -> None:
        """Change a topic's segments or retention while it is written."""
        topic = self._random.choice(list(self._clients.partitions))[0]
        key, value = self._random.choice(TOPIC_CONFIGS)
        self._cluster.note("set config", topic, key, value)
        await self._admin.set_topic_config(topic, key, value)

    async def create_topic(self) -> None:
        if len(self._extra_topics) >= TOPICS_MAX:
            return
        name = f"brief-{len(self._extra_topics)}"
        self._extra_topics.append(name)
        self._cluster.note("make", name)
        await self._admin.create(name, 1, factor=self._factor)
        self._clients.start_clients((name, 0), busy=False)

    async def delete_topic(self) -> None:
        """And, half of the time, create another of the same name."""
        if (name := self._choose_deletable_topic()) is None:
            return
        self._deleting.add(name)
        try:
            await self._delete_topic(name)
            if self._random.choice((True, False)):
                await self._create_again(name)
        finally:
            self._deleting.discard(name)

    async def recreate_topic_during_step(self) -> None:
        """Delete a topic and create another of its name while a step on it is under way.

        The step is the controller's, which has seen a replica's broker restart.
        """
        cluster, number = self._cluster, self._cluster.controller()
        store = None if number is None else cluster.brokers[number].store
        name = self._choose_deletable_topic()
        if name is None or store is None:
            return
        isr = self._state_of((name, 0)).get("isr", ())
        members = [broker for broker in isr if broker != number]
        if not members:
            return
        restarted, path = self._random.choice(members), paths.partition_state(name, 0)
        cluster.note("recreate during step", name, number, restarted)
        self._deleting.add(name)
        held = HeldSteps(
            store,
            lambda step: is_controllers(step) and any(each.path == path for each in step),
            at_most=1,
        )
        try:
            cluster.kill(restarted)
            await cluster.start(restarted)
            await self._until(lambda: len(held) > 0)
            await self._delete_topic(name)
            await self._create_again(name)
            await self._wait(0.0, 1.0)
        finally:
            held.release()
            self._deleting.discard(name)

    def _choose_deletable_topic(self) -> str | None:
        deletable = set(self._extra_topics) - self._deleting
        topics_in_use = [key[0] for key in self._clients.partitions if key[0] in deletable]
        return self._random.choice(topics_in_use) if topics_in_use else None

    async def _delete_topic(self, name: str) -> None:
        self._cluster.note("drop", name)
        await self._clients.stop_clients(name)
        await self._admin.delete(name)

    async def _create_again(self, name: str) -> None:
        await self._admin.create(name, 1, factor=self._factor)
        while self._is_deleted_topic_led(name):
            await asyncio.sleep(0.05)
        self._clients.start_clients((name, 0), busy=False)

    def _is_deleted_topic_led(self, name: str) -> bool:
        """A leader without the store's notifications serves a deleted topic to requests by name."""
        topic = json.loads(self._cluster.tree.entries[f"/brokers/topics/{name}"].value)
        replicas = [
            broker.node.replicas.partitions.get((name, 0))
            for broker in self._cluster.up()
            if broker.node is not None and broker.has_started
        ]
        led = [replica for replica in replicas if replica is not None and replica.is_leader]
        return any(str(replica.topic_id) != topic["topic_id"] for replica in led)

    async def grow_topic(self) -> None:
        count = len([key for key in self._clients.partitions if key[0] == self._topic])
        if self._partitions >= PARTITIONS_MAX or count >= PARTITIONS_MAX:
            return
        self._partitions = PARTITIONS_MAX  # once in a run
        await self._admin.grow(self._topic, count + 1)
        self._clients.start_clients((self._topic, count))

    # Moves.

    async def move(self) -> None:
        """To random brokers, with one replica more or less at times; may replace a running move."""
        partition, target = self._choose_move()
        self._cluster.note("move", partition, target)
        await self._admin.move(partition, target)

    async def move_throttled(self) -> None:
        """Several at once, with a throttle that no client removes."""
        targets = dict(self._choose_move() for _ in range(self._random.randint(1, 3)))
        self._cluster.note("move throttled", targets)
        await self._admin.start_moves(
            StartMoves(
                tuple(Move(*partition, target) for partition, target in targets.items()),
                throttle_bytes_per_s=self._random.choice((20_000, 200_000)),
                is_additional=self._random.choice((True, True, False)),
            )
        )

    async def hold_throttle(self) -> None:
        """A tool renews a broker's throttle for a while; then it is killed, or it releases it."""
        holder = f"tool-{self._random.randrange(1_000_000)}"
        broker, rate = self._choose_broker().number, self._random.choice((20_000, 200_000))
        self._cluster.note("hold throttle", broker, holder)
        for _ in range(self._random.randint(1, 4)):
            await self._admin.hold_throttle(HoldThrottle(broker, holder, rate))
            await asyncio.sleep(HOLD_MS / 3_000)
        if self._random.choice((True, False)):
            await self._admin.hold_throttle(HoldThrottle(broker, holder))

    async def cancel(self) -> None:
        """Cancel a running move, or, without one, a move that does not exist."""
        moving = [key for key in self._clients.partitions if self._is_moving(key)]
        partition = self._random.choice(moving) if moving else self._choose_move()[0]
        self._cluster.note("cancel", partition)
        await self._admin.move(partition, None)

    def _is_moving(self, partition: Partition) -> bool:
        name, number = partition
        path = f"/brokers/topics/{name}/partitions/{number}/state"
        entry = self._cluster.tree.entries.get(path)
        state = {} if entry is None else json.loads(entry.value)
        return bool(state.get("adding") or state.get("removing"))

    async def die_mid_move(self) -> None:
        """Kill the controller at one of its next steps, which are those of a move."""
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
        await self._wait(0.1, 3.0)
        store.forget_hooks()
        await self._cluster.start(number)

    def _choose_move(self) -> tuple[Partition, tuple[int, ...]]:
        partition = self._random.choice(list(self._clients.partitions))
        brokers = list(self._cluster.brokers)
        factor = self._factor + self._random.choice((-1, 0, 0, 0, 1))
        target = self._random.sample(brokers, min(max(1, factor), len(brokers)))
        return partition, tuple(target)

    # Nothing.

    async def quiet(self) -> None:
        """No faults for a while, which shows what happens by time alone."""
        await self._end_other_faults()
        await self._wait(2.0, 8.0)
