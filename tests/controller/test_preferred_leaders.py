"""Leadership goes back to the first replica when it is due, and only then: on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from insync.controller.controller import Controller
from insync.controller.preferred import Rebalance, preferred_elections
from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.records import BrokerRecord, decode_state, encode_state
from insync.metadata.store import Create, Delete, Write
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, Incarnation
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from support.rules.partition_states import partition
from support.sim.simulated_cluster import client_of, new_cluster

INTERVAL_S = 300
AT_HOME = partition(2, 1, leader=2)
LED_BY_ANOTHER = partition(2, 1, leader=1)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with virtual_time() as loop:
        yield loop


class World:
    """Brokers that are registered, one of them the controller, and the partitions they hold."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.tree = MemoryTree()
        self.stores: dict[int, MemoryStore] = {}
        self.incarnations: dict[int, int] = {}

    async def register(self, number: int) -> None:
        store = self.stores[number] = MemoryStore(self.tree, clock_ms=self.loop.clock_ms)
        await store.start()
        incarnation = self.incarnations[number] = await store.open_session(f"broker-{number}")
        record = BrokerRecord(
            broker=BrokerId(number), incarnation=Incarnation(incarnation), host="h", port=9
        )
        await store.commit(Create(paths.broker_id(number), record.encode(), ephemeral=True))

    async def begin(
        self, states: dict[int, PartitionState], rebalance: Rebalance | None
    ) -> Controller:
        for number in (1, 2, 3):
            await self.register(number)
        controller = Controller(
            broker=BrokerId(1), store=self.stores[1], unclean_default=False, rebalance=rebalance
        )
        await asyncio.sleep(1)
        await self.stores[1].commit(
            *(
                Create(paths.partition_state("t", number), encode_state(state))
                for number, state in states.items()
            )
        )
        return controller

    def state(self, number: int = 0) -> PartitionState:
        entry = self.stores[3].get(paths.partition_state("t", number))
        assert entry is not None
        return decode_state(entry.value)

    def leaders(self, count: int) -> list[int | None]:
        return [self.state(number).leader for number in range(count)]


Scenario = Callable[[World], Awaitable[None]]


def play(loop: VirtualLoop, scenario: Scenario) -> None:
    loop.run_until_complete(scenario(World(loop)))


def test_preferred_leaders_are_elected_at_the_interval_and_not_before(loop: VirtualLoop) -> None:
    async def scenario(world: World) -> None:
        await world.begin({0: LED_BY_ANOTHER}, Rebalance(interval_s=INTERVAL_S))
        await asyncio.sleep(INTERVAL_S - 2)
        assert world.state() == LED_BY_ANOTHER
        await asyncio.sleep(2)
        assert world.state() == LED_BY_ANOTHER.led_by(BrokerId(2))

    play(loop, scenario)


def test_no_preferred_election_when_disabled(loop: VirtualLoop) -> None:
    async def scenario(world: World) -> None:
        await world.begin({0: LED_BY_ANOTHER}, None)
        await asyncio.sleep(10 * INTERVAL_S)
        assert world.state() == LED_BY_ANOTHER

    play(loop, scenario)


def test_preferred_election_can_be_enabled_sped_up_and_disabled_at_run_time(
    loop: VirtualLoop,
) -> None:
    async def scenario(world: World) -> None:
        controller = await world.begin({0: LED_BY_ANOTHER}, None)
        slow, fast = Rebalance(interval_s=INTERVAL_S), Rebalance(interval_s=10)
        controller.apply_settings(unclean_default=False, rebalance=slow)
        await asyncio.sleep(INTERVAL_S - 1)
        controller.apply_settings(unclean_default=False, rebalance=None)
        await asyncio.sleep(2 * INTERVAL_S)
        assert world.state() == LED_BY_ANOTHER
        controller.apply_settings(unclean_default=False, rebalance=slow)
        controller.apply_settings(unclean_default=False, rebalance=fast)
        await asyncio.sleep(11)
        assert world.state() == LED_BY_ANOTHER.led_by(BrokerId(2))

    play(loop, scenario)


def test_an_unclean_election_is_held_at_once_when_it_is_enabled(loop: VirtualLoop) -> None:
    async def scenario(world: World) -> None:
        lost = partition(4, 2, isr=(4,), leader=None)
        controller = await world.begin({0: lost}, None)
        await asyncio.sleep(1)
        assert world.state() == lost
        controller.apply_settings(unclean_default=True, rebalance=None)
        await asyncio.sleep(1)
        assert (world.state().leader, world.state().isr) == (2, (2,))

    play(loop, scenario)


@pytest.mark.parametrize(("led_by_another", "returned"), [(1, False), (2, True), (20, True)])
def test_no_preferred_election_until_the_imbalance_exceeds_the_percentage(
    loop: VirtualLoop,
    led_by_another: int,
    returned: bool,  # noqa: FBT001
) -> None:
    """Five percent of twenty may be led by others: one, of those of this broker alone."""

    async def scenario(world: World) -> None:
        states = {
            number: LED_BY_ANOTHER if number < led_by_another else AT_HOME for number in range(20)
        }
        states |= {number: partition(3, 1, leader=3) for number in range(20, 40)}
        await world.begin(states, Rebalance(interval_s=INTERVAL_S, percentage_max=5))
        await asyncio.sleep(INTERVAL_S + 1)
        kept = led_by_another if not returned else 0
        assert world.leaders(20) == [1] * kept + [2] * (20 - kept)

    play(loop, scenario)


@pytest.mark.parametrize(
    "state",
    [
        partition(2, 1, isr=(1,), leader=1),
        partition(4, 1, leader=1),
        partition(2, 1, leader=1, adding=(2,)),
        partition(1, 2, leader=1, removing=(2,)),
    ],
    ids=["not in sync", "not alive", "moving", "already"],
)
def test_a_preferred_replica_that_cannot_lead_is_not_elected(state: PartitionState) -> None:
    live = {BrokerId(1), BrokerId(2), BrokerId(3)}
    assert preferred_elections({"p": state}, live=live, percentage_max=0) == {}


def test_a_cooling_broker_is_not_elected_for_the_partition_it_resigned() -> None:
    live = {BrokerId(1), BrokerId(2)}
    elected = preferred_elections(
        {"a": LED_BY_ANOTHER, "b": LED_BY_ANOTHER},
        live=live,
        percentage_max=10,
        cooling={"a": {BrokerId(2)}},
    )
    assert elected == {"b": LED_BY_ANOTHER.led_by(BrokerId(2))}


def test_an_election_does_not_overwrite_a_concurrent_change(loop: VirtualLoop) -> None:
    """The store takes a while; meanwhile the ISR shrinks, and the preferred one is out of it."""

    async def scenario(world: World) -> None:
        await world.begin({0: LED_BY_ANOTHER}, Rebalance(interval_s=INTERVAL_S))
        path = paths.partition_state("t", 0)
        shrunk = partition(2, 1, isr=(1,), leader=1)

        def delayed() -> int:
            world.tree.delay_ms = lambda: 0
            world.tree.step([Write(path, encode_state(shrunk), 0)], None)
            return 50

        world.tree.delay_ms = delayed
        await asyncio.sleep(INTERVAL_S + 2)
        assert world.state() == shrunk

    play(loop, scenario)


def test_a_deposed_controller_elects_no_leader(loop: VirtualLoop) -> None:
    """Its step is under way when another broker becomes the controller."""

    async def scenario(world: World) -> None:
        await world.begin({0: LED_BY_ANOTHER}, Rebalance(interval_s=INTERVAL_S))

        def delayed() -> int:
            world.tree.delay_ms = lambda: 0
            epoch = world.tree.entries[paths.CONTROLLER_EPOCH]
            controller = world.tree.entries[paths.CONTROLLER]
            world.tree.step([Write(epoch.path, b"9", epoch.version)], None)
            world.tree.step([Delete(controller.path)], None)
            world.tree.step([Create(controller.path, b"2")], None)
            return 50

        world.tree.delay_ms = delayed
        await asyncio.sleep(10 * INTERVAL_S)
        assert world.state() == LED_BY_ANOTHER

    play(loop, scenario)


def test_a_new_incarnation_of_the_preferred_replica_is_not_elected_for_the_former_one(
    loop: VirtualLoop,
) -> None:
    """It dies and is back while the step is under way: it leads only after it has caught up."""

    async def scenario(world: World) -> None:
        await world.begin({0: LED_BY_ANOTHER}, Rebalance(interval_s=INTERVAL_S))

        def delayed() -> int:
            world.tree.delay_ms = lambda: 0
            world.tree.end_session(world.incarnations[2])
            back = asyncio.ensure_future(world.register(2))
            back.add_done_callback(lambda done: done.result())
            return 50

        world.tree.delay_ms = delayed
        await asyncio.sleep(INTERVAL_S + 2)
        assert world.state().leader == 1
        assert world.state().isr == (1,)
        assert world.state().leader_epoch == LED_BY_ANOTHER.leader_epoch

    play(loop, scenario)


def test_after_its_return_a_broker_leads_again(loop: VirtualLoop) -> None:
    """The whole cluster: its preferred partitions wait for the check, then go home."""

    async def scenario() -> None:
        cluster = new_cluster(loop, 7)
        for number in cluster.brokers:
            await cluster.start(number)
        client = client_of(cluster, 200)
        await client.append([b"a"])
        first = client.leader_id
        cluster.kill(first)
        await client.append([b"b"])
        assert client.leader_id != first
        await cluster.start(first)
        await asyncio.sleep(INTERVAL_S + 5)
        assert await client.append([b"c"]) == 2
        assert client.leader_id == first

    loop.run_until_complete(scenario())
