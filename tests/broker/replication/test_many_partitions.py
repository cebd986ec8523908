"""A broker with many partitions: what it does per callback, and per new or idle partition."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from insync.broker.broker_loop import BrokerLoop
from insync.broker.replication import replicas as module
from insync.broker.replication.leader_driver import LeaderDriver
from insync.node.node import Node
from insync.rules.stalls import STALL_MS_MIN, Stall
from insync.rules.values import BrokerId
from insync.sim.virtual_loop import VirtualLoop
from insync.storage.directory import LogDirectory
from support.sim.one_broker import OneBroker, on_virtual_time

PARTITIONS = 1_000
PER_TURN_MAX = 50


class Calls:
    """Counts calls of a method, by callback of the broker's loop."""

    def __init__(self, patch: pytest.MonkeyPatch, of: type, name: str) -> None:
        self.by_callback: Counter[int] = Counter()
        self._callbacks = 0
        run = BrokerLoop.run

        def counted_run(loop: BrokerLoop, *arguments: Any) -> None:
            self._callbacks += not loop._is_running
            run(loop, *arguments)

        patch.setattr(BrokerLoop, "run", counted_run)
        original = getattr(of, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.by_callback[self._callbacks] += 1
            return original(*arguments, **options)

        patch.setattr(of, name, counted)

    @property
    def count(self) -> int:
        return self.by_callback.total()


def test_new_logs_are_checkpointed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint lists every log: one for each few new logs would take quadratic time."""
    writes = Calls(monkeypatch, LogDirectory, "write_replica_checkpoint")

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=PARTITIONS)
        replicas = broker.node.replicas.partitions
        assert len(replicas) == PARTITIONS
        assert all(replica.is_leader for replica in replicas.values())
        assert set(broker.node.directory.replica_checkpoint.replicas) == set(replicas)
        assert writes.count <= 10  # doubling from the first few
        await broker.node.stop()

    on_virtual_time(scenario)


def test_no_log_is_led_before_it_is_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loss of a log with committed records would go unnoticed."""
    begin = LeaderDriver.begin

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)

        def begin_checkpointed(
            driver: LeaderDriver, replica: Any, *arguments: Any, **options: Any
        ) -> Any:
            assert broker.node.directory.replica_checkpoint.get(replica.key) is not None
            return begin(driver, replica, *arguments, **options)

        monkeypatch.setattr(LeaderDriver, "begin", begin_checkpointed)
        await broker.start(partitions=PARTITIONS)
        replicas = broker.node.replicas.partitions
        assert all(replica.is_leader for replica in replicas.values())
        await broker.node.stop()

    on_virtual_time(scenario)


def test_a_start_begins_its_terms_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each term writes to the disk: in one turn they would keep heartbeats back for seconds."""
    begins = Calls(monkeypatch, LeaderDriver, "begin")

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=PARTITIONS)
        await broker.node.stop()
        begins.by_callback.clear()
        again = Node(broker.node.settings, broker.world(loop))
        await again.start()
        await asyncio.sleep(1.0)
        assert begins.count == PARTITIONS
        assert max(begins.by_callback.values()) <= PER_TURN_MAX
        assert all(replica.is_leader for replica in again.replicas.partitions.values())
        await again.stop()

    on_virtual_time(scenario)


def test_a_start_creates_new_logs_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were created while the broker was down: each takes a millisecond or more."""
    creates = Calls(monkeypatch, LogDirectory, "_create_log")

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.node.start()
        with monkeypatch.context() as patch:
            patch.setattr(module.Replicas, "_create_new", lambda _replicas: None)
            await broker.create("t", partitions=PARTITIONS)
            await broker.node.stop()
        assert creates.count == 0
        again = Node(broker.node.settings, broker.world(loop))
        await again.start()
        await asyncio.sleep(1.0)
        assert creates.count == PARTITIONS
        assert max(creates.by_callback.values()) <= PER_TURN_MAX
        assert all(replica.is_leader for replica in again.replicas.partitions.values())
        await again.stop()

    on_virtual_time(scenario)


def test_a_partition_deleted_before_its_turn_is_not_led(monkeypatch: pytest.MonkeyPatch) -> None:
    led: set[int] = set()
    begin = LeaderDriver.begin

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=PARTITIONS)
        replicas = broker.node.replicas

        def begin_first(driver: LeaderDriver, replica: Any, *arguments: Any, **options: Any) -> Any:
            led.add(replica.key[1])
            return begin(driver, replica, *arguments, **options)

        monkeypatch.setattr(LeaderDriver, "begin", begin_first)
        replicas.end_terms()
        replicas.start(replicas.incarnation)
        assert len(led) == PER_TURN_MAX, "the first turn"
        last = ("t", PARTITIONS - 1)
        del broker.node.view.states[last]
        replicas._on_change({last}, brokers=False)
        await asyncio.sleep(0.5)
        assert led == set(range(PARTITIONS - 1))
        assert last not in replicas.partitions
        await broker.node.stop()

    on_virtual_time(scenario)


def test_a_short_stall_costs_nothing_per_idle_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of partitions, reporting it to each would take as long as another stall."""
    reports = Calls(monkeypatch, LeaderDriver, "report")

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=PARTITIONS)
        reports.by_callback.clear()
        now_ms = loop.clock_ms()
        replicas = broker.node.replicas
        replicas.on_stall(Stall(began_at_ms=now_ms - STALL_MS_MIN, ended_at_ms=now_ms))
        replicas.on_drained()
        assert reports.count == 0
        replicas.on_stall(Stall(began_at_ms=now_ms, ended_at_ms=now_ms + 2_000))
        replicas.on_drained()
        assert reports.count == 2 * PARTITIONS, "one that counts reaches all"
        await broker.node.stop()

    on_virtual_time(scenario)


def test_a_stop_ends_what_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are made after a clean stop are made without the directory's lock."""
    monkeypatch.setattr(module, "CHANGES_PER_TURN", 5)
    create_new: Callable[[Any], None] = module.Replicas._create_new
    turns = 0
    stops: list[asyncio.Task[None]] = []
    closed: list[set[str]] = []

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.node.start()
        replicas, directory = broker.node.replicas, broker.node.directory

        def create_until_stopped(replicas: module.Replicas) -> None:
            nonlocal turns
            turns += 1
            create_new(replicas)
            if turns == 3:
                stops.append(loop.create_task(broker.node.stop()))

        def close(close: Callable[[LogDirectory], None] = LogDirectory.close) -> None:
            close(directory)
            closed.append({*broker.disk.paths()})

        monkeypatch.setattr(module.Replicas, "_create_new", create_until_stopped)
        monkeypatch.setattr(directory, "close", close)
        creation = loop.create_task(broker.create("t", partitions=PARTITIONS))
        await asyncio.sleep(1.0)
        creation.cancel()
        await stops[0]
        assert 0 < len(replicas.partitions) < PARTITIONS, "it stopped in the middle"
        assert closed == [{*broker.disk.paths()}]
        assert not any(replica.is_leader for replica in replicas.partitions.values())
        monkeypatch.undo()
        again = Node(broker.node.settings, broker.world(loop))
        await again.start()
        await asyncio.sleep(1.0)
        assert len(again.replicas.partitions) == PARTITIONS
        assert all(replica.is_leader for replica in again.replicas.partitions.values())
        await again.stop()

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("of", "name"), [(LeaderDriver, "begin"), (module.Replicas, "_create_replica")]
)
def test_an_error_with_one_partition_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch, of: type, name: str
) -> None:
    original, failures = getattr(of, name), 0

    def fail_once(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == PER_TURN_MAX + 10:  # in a later turn
            raise RuntimeError("a defect")
        return original(*arguments, **options)

    async def scenario(loop: VirtualLoop) -> None:
        loop.set_exception_handler(lambda _loop, _context: None)
        broker = OneBroker(loop)
        monkeypatch.setattr(of, name, fail_once)
        await broker.start(partitions=PARTITIONS)
        led = [each for each in broker.node.replicas.partitions.values() if each.is_leader]
        assert len(led) == PARTITIONS - 1
        await broker.node.stop()

    on_virtual_time(scenario)


def test_nothing_is_followed_after_the_fetchers_stopped() -> None:
    """A partition may get its role while the broker stops, and logs are closed next."""

    async def scenario(loop: VirtualLoop) -> None:
        broker = OneBroker(loop)
        await broker.start(partitions=1)
        (replica,) = broker.node.replicas.partitions.values()
        await broker.node.fetchers.stop()
        replica.leader = BrokerId(2)
        broker.node.replicas.on_following(replica)
        assert broker.node.fetchers._fetchers == {}
        await broker.node.stop()

    on_virtual_time(scenario)
