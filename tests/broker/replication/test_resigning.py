"""KIP-501 in running brokers, and the leader's own stalls, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.client.connection import ClientConnection
from insync.metadata import paths
from insync.metadata.records import Resignation
from insync.metadata.store import Create
from insync.rules.isr import Stable
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.cluster import Cluster
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)
from support.search_effort import tried
from support.sim.few_brokers import (
    KEY,
    ONE,
    THREE,
    TWO,
    Resignations,
    client_of,
    deadlines_of,
    isr_of,
    play,
    replica_of,
    state_of,
    stays,
    term_of,
    topic,
    until,
    write_on,
)
from support.sim.slow_leader import EXAMPLE, SOLUTION_1, SOLUTION_2, begin_a_slow_read

COOLDOWN_MS, SHORT_COOLDOWN_MS = 60_000, 8_000
SHORTLY = SOLUTION_2 | {"leader.resign.cooldown.ms": str(SHORT_COOLDOWN_MS)}


def test_with_kip_501_off_a_slow_read_evicts_the_followers_and_acks_all_fails() -> None:
    async def scenario(cluster: Cluster) -> None:
        await begin_a_slow_read(cluster)
        due_ms = min(deadlines_of(cluster).values())
        assert due_ms <= cluster.loop.clock_ms() + 10_001
        out_at_ms = await until(lambda: not isinstance(term_of(cluster).isr, Stable), within_s=20)
        assert out_at_ms == due_ms
        await until(lambda: isr_of(cluster) == [1], within_s=1)
        assert await produce_to(cluster, 1, acks=-1) == ErrorCode.not_enough_replicas

    play(scenario, settings=EXAMPLE)


def test_solution_1_no_follower_leaves_the_isr_while_its_fetch_is_pending() -> None:
    async def scenario(cluster: Cluster) -> None:
        began_ms = await begin_a_slow_read(cluster)
        assert deadlines_of(cluster) == {}
        served_ms = began_ms + 25_000
        left_s = (served_ms - cluster.loop.clock_ms()) / 1_000
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=left_s - 0.1)
        await until(lambda: replica_of(cluster, 2).log.end == 11)
        # "Once the fetch request is served, lastCaughtupTime is set as ty + 25."
        caught_up_ms = term_of(cluster).followers[TWO].caught_up_served_at_ms
        assert served_ms <= caught_up_ms <= served_ms + 500
        cluster.brokers[1].disk.is_cold = False
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=11.0)
        assert state_of(cluster)["leader"] == 1

    play(scenario, settings=SOLUTION_1)


def test_solution_2_the_leader_resigns_while_the_read_is_still_running() -> None:
    async def scenario(cluster: Cluster) -> None:
        began_ms = await begin_a_slow_read(cluster)
        resignation_path = paths.resignation(*KEY)
        asked_ms = await until(
            lambda: resignation_path in cluster.tree.entries or state_of(cluster)["leader"] != 1
        )
        assert began_ms + 501 <= asked_ms <= began_ms + 501 + 25  # the store takes up to 20 ms
        moved_ms = await until(lambda: state_of(cluster)["leader"] != 1)
        assert moved_ms <= asked_ms + 100
        # Looking up its truncation offset takes a read too, which must not block its event loop.
        cluster.brokers[1].read_s = (5.0, 5.0)
        state = state_of(cluster)
        assert (state["leader"], state["isr"], state["leader_epoch"]) == (2, [2, 3, 1], 1)
        assert resignation_path not in cluster.tree.entries
        assert paths.cooling(*KEY, 1) in cluster.tree.entries
        client = client_of(cluster, 102)
        await client.append([b"after"])
        assert client.responding_broker == 2
        values, _ = await client.read(0)
        assert values[:10] == [b"x"] * 10
        assert values[-1] == b"after"
        assert await produce_to(cluster, 1, acks=1) == ErrorCode.not_leader_or_follower
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=30.0)

    play(scenario, settings=SOLUTION_2)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_dead_follower_leaves_although_its_read_is_pending(*, noticed: bool) -> None:
    """Its session ends and a controller removes it; or only its connection closes."""

    async def scenario(cluster: Cluster) -> None:
        await begin_a_slow_read(cluster)
        dies_ms = cluster.loop.clock_ms()
        if noticed:
            cluster.kill(2)
        else:  # it is live, and cannot connect again
            cluster.network.reset(2)
            cluster.network.cut(1, 2)
        await asyncio.sleep(0.01)
        due_ms = dies_ms if noticed else deadlines_of(cluster)[TWO]
        assert due_ms <= dies_ms + 10_001
        out_ms = await until(lambda: isr_of(cluster) == [1, 3], within_s=20)
        assert due_ms <= out_ms <= due_ms + 100

    play(scenario, settings=SOLUTION_1)


def test_a_leader_without_an_eligible_successor_does_not_resign() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(1, 2)
        cluster.network.cut(1, 3)
        await topic(cluster, isr=(ONE,))
        cluster.brokers[1].disk.is_cold = True
        cluster.brokers[1].read_s = (5.0, 5.0)
        await client_of(cluster).append_once([b"x"])
        cluster.network.heal()
        await stays(lambda: state_of(cluster)["leader"] == 1, for_s=4.0)
        assert not [path for path in cluster.tree.entries if path.startswith(paths.RESIGNATIONS)]

    play(scenario, settings=SOLUTION_2)


@pytest.mark.slow
def test_a_slow_disk_on_changing_brokers_does_not_make_leadership_thrash() -> None:
    """Every disk is slow again and again: one resignation per replica and cool-down at most."""

    async def scenario(cluster: Cluster) -> None:
        resignations = Resignations(cluster)
        await topic(cluster)
        await client_of(cluster).append([b"x"])
        writing = cluster.loop.create_task(write_on(cluster, every_s=0.05))
        for broker in cluster.brokers.values():
            broker.read_s = (0.4, 1.2)
        for turn in range(150):
            for broker in cluster.brokers.values():
                broker.disk.is_cold = (turn + broker.number) % 3 != 0
            await asyncio.sleep(1.0)
        writing.cancel()
        granted = resignations.granted
        assert len(granted) >= 4, "slow enough that leaders did resign, again after cooling"
        for number in cluster.brokers:
            times_ms = [at_ms for at_ms, broker in granted if broker == number]
            gaps_ms = [b - a for a, b in pairwise(times_ms)]
            assert all(gap_ms >= COOLDOWN_MS for gap_ms in gaps_ms), granted
        # If all replicas are cooling, the leader stays, however slow it is.
        windows = [[a for a, _ in granted if at <= a < at + COOLDOWN_MS] for at, _ in granted]
        assert max(map(len, windows)) <= 3

    play(scenario, settings=SOLUTION_2)


def test_a_cooling_broker_leads_again_only_when_no_other_can() -> None:
    async def scenario(cluster: Cluster) -> None:
        await begin_a_slow_read(cluster)
        await until(lambda: state_of(cluster)["leader"] == 2)
        cluster.kill(2)
        await until(lambda: state_of(cluster)["leader"] == 3)  # 1 comes first, but is cooling
        cluster.kill(3)
        await until(lambda: state_of(cluster)["leader"] == 1)
        cluster.brokers[1].disk.is_cold = False
        await cluster.start(2)
        await until(lambda: isr_of(cluster) == [1, 2])
        # However slow it is now, it stays: it is cooling.
        cluster.brokers[1].disk.is_cold = True
        await client_of(cluster).append_once([b"slow"])
        await until(lambda: term_of(cluster).followers[TWO].reads.hold)
        resignation_path = paths.resignation(*KEY)
        await stays(lambda: resignation_path not in cluster.tree.entries, for_s=20.0)
        await stays(lambda: state_of(cluster)["leader"] == 1, for_s=1.0)

    play(scenario, settings=SOLUTION_2)


def test_leadership_goes_back_to_the_preferred_replica_only_when_it_has_cooled() -> None:
    async def scenario(cluster: Cluster) -> None:
        await begin_a_slow_read(cluster, read_s=5.0)
        moved_ms = await until(lambda: state_of(cluster)["leader"] == 2)
        cluster.brokers[1].disk.is_cold = False
        back_ms = await until(lambda: state_of(cluster)["leader"] == 1, within_s=70)
        assert SHORT_COOLDOWN_MS <= back_ms - moved_ms <= SHORT_COOLDOWN_MS + 2_000

    settings = SHORTLY | {"leader.imbalance.check.interval.seconds": "1"}
    play(scenario, settings=settings)


def test_a_cool_down_ends_by_the_controllers_own_clock() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = paths.cooling(*KEY, 1)
        await begin_a_slow_read(cluster)
        began_ms = await until(lambda: node in cluster.tree.entries)
        for broker in cluster.brokers.values():
            broker.wall_ahead_ms = 3_600_000
        ended_ms = await until(lambda: node not in cluster.tree.entries, within_s=70)
        assert 0 <= ended_ms - began_ms - SHORT_COOLDOWN_MS <= 100

    play(scenario, settings=SHORTLY)


def test_a_new_controller_restarts_a_cool_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = paths.cooling(*KEY, 1)
        await begin_a_slow_read(cluster)
        await until(lambda: node in cluster.tree.entries)
        await asyncio.sleep(6)
        controller = cluster.controller()
        assert controller is not None
        cluster.kill(controller)
        again_ms = await until(lambda: cluster.controller() not in (None, controller))
        ended_ms = await until(lambda: node not in cluster.tree.entries, within_s=70)
        assert 0 <= ended_ms - again_ms - SHORT_COOLDOWN_MS <= 100

    play(scenario, settings=SHORTLY)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_resignation_outlives_a_controller_that_dies_at_its_step(when: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = cluster.controller()
        assert controller is not None
        resignations = Resignations(cluster)
        # The controller must not be the leader: another broker leads, and requests it.
        others = [number for number in (ONE, TWO, THREE) if number != controller]
        await topic(cluster, replicas=(*others, [ONE, TWO, THREE][controller - 1]))
        leader = others[0]
        client = client_of(cluster)
        await client.append([b"x"])
        store = cluster.brokers[controller].store
        assert store is not None
        die: Callable[[], None] = lambda: cluster.kill_from_within(controller)  # noqa: E731
        setattr(store, f"{when}_controller_step", die)
        cluster.brokers[leader].disk.is_cold = True
        cluster.brokers[leader].read_s = (20.0, 20.0)
        await client.append_once([b"slow"])
        await until(lambda: cluster.brokers[controller].node is None)
        await until(lambda: state_of(cluster)["leader"] == others[1])
        await until(lambda: cluster.controller() not in (None, controller))
        await asyncio.sleep(1.0)
        assert [broker for _, broker in resignations.granted] == [leader]
        assert paths.resignation(*KEY) not in cluster.tree.entries
        assert paths.cooling(*KEY, leader) in cluster.tree.entries

    play(scenario, settings=SOLUTION_2)


@pytest.mark.parametrize(
    ("leader", "epoch", "is_topic"), [(ONE, 1, True), (TWO, 0, True), (ONE, 0, False)]
)
def test_a_resignation_of_another_term_or_topic_is_not_granted(
    *, leader: BrokerId, epoch: int, is_topic: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        before = state_of(cluster)
        resignation = Resignation(
            topic_id=replica_of(cluster, 1).topic_id if is_topic else UUID(int=7),
            leader=leader,
            leader_epoch=LeaderEpoch(epoch),
            why="",
        )
        cluster.tree.step([Create(paths.resignation(*KEY), resignation.encode())], None)
        await until(lambda: paths.resignation(*KEY) not in cluster.tree.entries)
        assert state_of(cluster) == before
        assert paths.cooling(*KEY, leader) not in cluster.tree.entries

    play(scenario, settings=SOLUTION_2)


@pytest.mark.parametrize("includes_stalls", [False, True])
def test_a_leader_that_stalled_during_a_read_resigns_only_if_stalls_are_included(
    *, includes_stalls: bool
) -> None:
    """The read takes 300 ms, and the leader does not run for 700 ms meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        began_ms = await begin_a_slow_read(cluster, read_s=0.3)
        cluster.pause(1)
        await asyncio.sleep(0.7)
        cluster.resume(1)
        if includes_stalls:
            moved_ms = await until(lambda: state_of(cluster)["leader"] != 1)
            assert moved_ms <= began_ms + 1_000
            assert isr_of(cluster) == [1, 2, 3]
        else:
            await stays(lambda: state_of(cluster)["leader"] == 1, for_s=5.0)
        await until(lambda: replica_of(cluster, 2).log.end == 11)

    value = str(includes_stalls).lower()
    settings = SOLUTION_2 | {"follower.fetch.process.time.include.stalls": value}
    play(scenario, settings=settings)


# The leader's own stalls. Here the lag time is 1500 ms and a session lasts 2000.


@pytest.mark.property
@pytest.mark.parametrize("seed", tried(range(6)))
@pytest.mark.parametrize("pause_s", [1.4, 1.6, 1.9])
def test_no_follower_leaves_the_isr_because_its_leader_stalled(pause_s: float, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(1.0)
        cluster.pause(1)
        await asyncio.sleep(pause_s)
        cluster.resume(1)
        await stays(lambda: isr_of(cluster) == [1, 2, 3], for_s=5.0)
        # More than T of the last 2 T: it resigns.
        assert state_of(cluster)["leader"] == (2 if pause_s > 1.5 else 1)
        writing.cancel()

    play(scenario, settings={}, seed=seed)


@pytest.mark.property
@pytest.mark.parametrize("seed", tried(range(4)))
def test_a_follower_that_died_in_a_leader_stall_leaves_within_twice_the_lag_time_and_a_fetch_wait(
    seed: int,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(1.0)
        last_fetch_ms = term_of(cluster).followers[THREE].fetched_at_ms
        cluster.network.cut(1, 3)
        cluster.pause(1)
        await asyncio.sleep(1.2)
        cluster.resume(1)
        out_ms = await until(lambda: isr_of(cluster) == [1, 2])
        assert out_ms - last_fetch_ms - 1_200 <= 2 * 1_500 + 200 + 50
        writing.cancel()

    play(scenario, settings={}, seed=seed)


@pytest.mark.property
@pytest.mark.parametrize("seed", tried(range(4)))
def test_a_follower_that_died_leaves_in_bounded_time_when_the_stalled_leader_resigns(
    seed: int,
) -> None:
    """Longer than T, shorter than a session: the next leader evicts the dead follower after T."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(1.0)
        for other in (1, 2):
            cluster.network.cut(other, 3)
        cluster.pause(1)
        await asyncio.sleep(1.7)
        cluster.resume(1)
        resumed_ms = cluster.loop.clock_ms()
        led_ms = await until(lambda: state_of(cluster)["leader"] == 2)
        assert led_ms - resumed_ms <= 500
        out_ms = await until(lambda: isr_of(cluster) == [1, 2])
        assert out_ms - led_ms <= 1_500 + 50
        writing.cancel()

    play(scenario, settings={}, seed=seed)


def test_a_leader_that_stalls_most_of_the_time_resigns() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        resignations = Resignations(cluster)
        for _ in range(8):
            cluster.pause(1)
            await asyncio.sleep(0.6)
            cluster.resume(1)
            await asyncio.sleep(0.2)
        assert [broker for _, broker in resignations.granted] == [1]
        assert (state_of(cluster)["leader"], isr_of(cluster)) == (2, [1, 2, 3])

    play(scenario, settings={})


async def produce_to(cluster: Cluster, broker: int, *, acks: int) -> ErrorCode:
    """What this broker answers to one record."""
    connection = ClientConnection(client_id="direct")
    await cluster.network.host(103).connect(f"broker-{broker}", 9092, connection)
    part = ProducePartition(*KEY, batches.build([(None, b"direct")]))
    body = write_produce_request(9, ProduceRequest(None, acks, 1_000, [part]))
    (result,) = read_produce_response(9, *await connection.ask(Api.PRODUCE, 9, [body])).results
    return ErrorCode(result.error)


@pytest.mark.parametrize("seed", range(4))
def test_a_deadline_that_falls_into_a_stall_too_short_to_matter_is_still_kept(seed: int) -> None:
    """120 ms are a stall, but too short to count for a limit of 6 s; nothing happens after it."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        client = client_of(cluster)
        await client.append([b"before"])
        cluster.network.cut(1, 3)
        await client.append_once([b"it lacks this"])
        due_ms = deadlines_of(cluster)[THREE]
        await asyncio.sleep((due_ms - cluster.loop.clock_ms() - 60) / 1_000)
        cluster.pause(1)
        await asyncio.sleep(0.12)
        cluster.resume(1)
        out_ms = await until(lambda: isr_of(cluster) == [1, 2], within_s=5)
        assert out_ms - due_ms <= 120

    play(scenario, settings={"replica.lag.time.max.ms": "6000"}, seed=seed)
