"""A throttle that a tool holds, on virtual time: taken, renewed, released, expired."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from insync.metadata import paths
from insync.metadata.records import decode_config, encode_config
from insync.metadata.store import Write
from insync.rules.throttle_lease import HOLD_MS
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.wire.holds import HoldThrottle, ThrottleHeld
from insync.wire.moves import Move
from support.sim.few_brokers import (
    ONE,
    THREE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    state_of,
    stays,
    topic,
    until,
)
from support.sim.reassignments import (
    RATES,
    alter,
    config,
    hold,
    leases,
    start_moves,
    throttles,
)

LEADER_RATE, FOLLOWER_RATE = RATES
LEADER_LIST, FOLLOWER_LIST = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
HELD = ThrottleHeld(0, None, HOLD_MS)
GONE = ThrottleHeld(0, None, 0)
SOON_S = 1.0  # for the controller to notice and act
IN_PROGRESS = ErrorCode.reassignment_in_progress.value

OF_TWO = {
    "/config/brokers/1": {LEADER_RATE: "1000"},
    "/config/brokers/2": {FOLLOWER_RATE: "1000"},
    "/config/topics/t": {LEADER_LIST: "0:1", FOLLOWER_LIST: "0:2"},
}


async def let_go(cluster: Cluster, *, holder: str = "tool", of: int = 1) -> ThrottleHeld:
    return await hold(cluster, throttle=-1, holder=holder, of=of)


def traces(cluster: Cluster) -> list[str]:
    """Of leases, while they last."""
    kept = (paths.THROTTLE_LEASES, paths.THROTTLE_HOLDS)
    return [path for path in cluster.tree.entries if path.startswith(kept)]


def is_gone(cluster: Cluster) -> bool:
    return not traces(cluster) and not throttles(cluster)


def test_a_throttle_is_held_and_released() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        assert await hold(cluster) == HELD
        assert throttles(cluster) == OF_TWO
        assert await let_go(cluster, of=2) == GONE
        assert is_gone(cluster)
        assert await let_go(cluster) == GONE, "again, as after a lost answer"

    play(scenario)


def test_a_throttle_expires_in_bounded_time_after_its_tool_dies() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await hold(cluster)
        await stays(lambda: throttles(cluster) == OF_TWO, for_s=HOLD_MS / 1_000 - SOON_S)
        await until(lambda: is_gone(cluster), within_s=2 * SOON_S)

    play(scenario)


def test_a_held_throttle_lasts_while_it_is_renewed_through_any_broker() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await hold(cluster)
        for number in (1, 2, 3, 1, 2, 3):
            await stays(lambda: throttles(cluster) == OF_TWO, for_s=HOLD_MS / 2_000)
            assert await hold(cluster, of=number) == HELD
        assert len(leases(cluster)) == 1
        await until(lambda: is_gone(cluster), within_s=HOLD_MS / 1_000 + SOON_S)

    play(scenario)


def test_a_renewal_adds_a_leader_that_leads_since() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, THREE, TWO))
        await hold(cluster, of=2)
        assert throttles(cluster) == OF_TWO
        cluster.kill(1)
        await until(lambda: state_of(cluster)["leader"] == THREE)
        await asyncio.sleep(SOON_S)
        assert throttles(cluster) == OF_TWO
        assert await hold(cluster, of=3) == HELD
        both = {
            **OF_TWO,
            "/config/brokers/3": {LEADER_RATE: "1000"},
            "/config/topics/t": {LEADER_LIST: "0:1,0:3", FOLLOWER_LIST: "0:2"},
        }
        assert throttles(cluster) == both
        assert await hold(cluster, of=3) == HELD
        assert throttles(cluster) == both
        assert len(leases(cluster)) == 1
        assert await let_go(cluster, of=3) == GONE
        assert is_gone(cluster)

    play(scenario)


def test_earlier_values_are_restored_and_values_set_meanwhile_are_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={LEADER_LIST: "7:7"})
        store = node_of(cluster, 1).world.store

        async def set_rate(broker: int, value: str) -> None:
            entry = store.get(paths.broker_config(BrokerId(broker)))
            assert entry is not None
            theirs = {**decode_config(entry.value), FOLLOWER_RATE: value}
            await store.commit(Write(entry.path, encode_config(theirs), entry.version))

        await hold(cluster)
        await set_rate(2, "5")
        await hold(cluster)
        assert config(cluster, "/config/brokers/2") == {FOLLOWER_RATE: "5"}, (
            "renewed, not set again"
        )
        await let_go(cluster)
        theirs = {
            "/config/topics/t": {LEADER_LIST: "7:7"},
            "/config/brokers/2": {FOLLOWER_RATE: "5"},
        }
        assert throttles(cluster) == theirs
        await hold(cluster)
        assert config(cluster, "/config/brokers/2") == {FOLLOWER_RATE: "1000"}
        await until(lambda: not traces(cluster), within_s=HOLD_MS / 1_000 + SOON_S)
        assert throttles(cluster) == theirs

    play(scenario)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_the_controller_dies_while_it_is_held(*, is_renewed: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await hold(cluster)
        controller = cluster.controller()
        assert controller is not None
        other = 3 if controller != 3 else 2
        await asyncio.sleep(HOLD_MS / 1_500)
        cluster.kill(controller)
        await until(lambda: cluster.controller() not in (None, controller))
        if is_renewed:
            for _ in range(4):
                assert await hold(cluster, of=other) == HELD
                await stays(lambda: bool(throttles(cluster)), for_s=HOLD_MS / 2_000)
        await until(lambda: is_gone(cluster), within_s=HOLD_MS / 1_000 + SOON_S)

    play(scenario)


def test_the_broker_restarts_while_it_is_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await hold(cluster)
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        assert await hold(cluster) == HELD
        assert throttles(cluster) == OF_TWO
        await cluster.start(2)
        await until(lambda: isr_of(cluster) == [1, 2])
        assert throttles(cluster) == OF_TWO, "the tool says when it is over"
        await let_go(cluster)
        assert is_gone(cluster)

    play(scenario)


def test_a_broker_that_is_down_gets_a_rate_of_its_own_and_none_if_it_never_returns() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        assert await hold(cluster) == HELD
        assert throttles(cluster) == OF_TWO
        await until(lambda: is_gone(cluster), within_s=HOLD_MS / 1_000 + SOON_S)

    play(scenario)


def test_two_tools_at_once_one_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        answers = await asyncio.gather(
            hold(cluster, holder="a", of=1), hold(cluster, holder="b", broker=3, of=2)
        )
        assert sorted(answer.error for answer in answers) == [0, IN_PROGRESS]
        assert len(leases(cluster)) == 1
        (refused,) = (answer for answer in answers if answer.error)
        assert "is held back by another tool" in (refused.message or "")
        loser = "ab"[answers.index(refused)]
        assert await let_go(cluster, holder=loser) == HELD, "by the other, as before"
        assert len(leases(cluster)) == 1

    play(scenario)


def test_throttled_moves_and_a_held_throttle_exclude_each_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"x"])
        await hold(cluster)
        before = cluster.tree.revision
        started = await start_moves(cluster, Move("t", 0, (3, 1)), throttle=1000)
        assert started.error == IN_PROGRESS
        assert "broker 2 is rebuilding its replicas under a throttle" in (started.message or "")
        assert cluster.tree.revision == before
        cluster.network.cut(3, 1)
        started = await start_moves(cluster, Move("t", 0, (3, 1)))
        assert (started.error, started.lease) == (0, None), "without a throttle it may move"
        assert throttles(cluster) == OF_TWO
        await let_go(cluster)
        again = await start_moves(cluster, Move("t", 0, (3, 1)), throttle=7, is_additional=True)
        assert again.error == 0
        held = await hold(cluster)
        assert held.error == IN_PROGRESS
        assert "reassignments are under way under a throttle" in (held.message or "")
        cluster.network.heal()
        await until(lambda: is_gone(cluster), within_s=60)

    play(scenario)


def test_moves_that_complete_do_not_release_a_held_throttle() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await hold(cluster)
        await alter(cluster, {("t", 0): (1, 3)})
        await stays(lambda: bool(leases(cluster)), for_s=5)
        await let_go(cluster)
        assert is_gone(cluster)

    play(scenario)


@pytest.mark.parametrize(
    ("invalid", "says"),
    [
        (HoldThrottle(2, "tool", 0), "0 B/s"),
        (HoldThrottle(2, "tool", -2), "-2 B/s"),
        (HoldThrottle(2, "", 1), "1 to 64 characters, not 0"),
        (HoldThrottle(2, "x" * 65, 1), "1 to 64 characters, not 65"),
        (HoldThrottle(9, "tool", 1), "broker 9 follows no partition"),
        (HoldThrottle(-1, "tool", 1), "broker -1 follows no partition"),
        (HoldThrottle(1, "tool", 1), "broker 1 follows no partition"),
    ],
)
def test_impossible_requests_are_refused(invalid: HoldThrottle, says: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        before = cluster.tree.revision
        held = await hold(
            cluster,
            broker=invalid.broker,
            holder=invalid.holder,
            throttle=invalid.throttle_bytes_per_s,
        )
        assert held.error == ErrorCode.invalid_request.value
        assert says in (held.message or "")
        assert cluster.tree.revision == before

    play(scenario)


def test_an_unreadable_throttled_replica_list_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={LEADER_LIST: "nonsense"})
        assert (await hold(cluster)).error == ErrorCode.invalid_config.value
        assert not leases(cluster)

    play(scenario)
