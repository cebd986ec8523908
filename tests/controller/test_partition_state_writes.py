"""Conditions of writes of partition state: each sentence of the design, and its tests.

By a leader: "its own incarnation node and that of each added member still exist, and the state's
version matches", and the topic is still the same one:
    test_a_replaced_leader_cannot_change_the_isr
    test_a_member_is_not_added_once_it_restarted
    test_a_damaged_replica_is_not_added_before_it_is_repaired
    test_a_leader_cannot_undo_what_a_controller_wrote
    test_a_step_for_a_deleted_topic_does_not_change_a_topic_of_the_same_name
By the controller: "its controller epoch still holds, and the version matches":
    test_a_deposed_controller_changes_nothing
    test_a_controllers_step_checks_its_epoch_and_every_version
"When a session ends, or a broker registers a new incarnation, the controller in one step removes it
from every ISR that has another live member, elects where it led, and bumps the version":
    test_dead_brokers_leave_every_isr_and_lead_nothing
    test_an_unnoticed_restart_is_a_new_incarnation
    test_a_lone_leader_that_restarted_gets_a_new_version_and_epoch
"The last ISR member is never removed (no leader until it returns)":
    test_the_last_member_is_kept_and_leads_again
"Repeating this is harmless; every new controller does":
    test_every_new_controller_repeats_the_work_and_changes_nothing
    test_the_next_controller_completes_the_work_of_one_that_died
"A leader whose compare-and-set fails re-reads and stays on the maximal ISR until it knows":
    test_a_leader_keeps_the_maximal_isr_until_the_outcome_is_known
    test_a_refused_proposal_does_not_count
"A broker that restarted is a new incarnation at once ... fetches of the old one are refused":
    test_a_restarted_broker_serves_before_its_old_session_ends
    test_a_former_incarnation_is_refused
Joining below the watermark or the epoch's start, a leader past its session, and everything here
once more: the simulated runs in tests/sim.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from insync.metadata import paths
from insync.metadata.errors import Conflict
from insync.metadata.records import encode_state
from insync.metadata.store import Check, Delete, Operation, Write
from insync.rules.follower import Fetch
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from insync.sim.cluster import Cluster
from insync.sim.ownership import acting_as
from insync.storage.inventory import Damage
from support.sim import few_brokers
from support.sim.few_brokers import (
    KEY,
    ONE,
    PATH,
    THREE,
    TWO,
    client_of,
    node_of,
    replica_of,
    state_of,
    until,
)
from support.sim.hello_client import caller_of, secret_of

play = partial(few_brokers.play, within_s=120)
topic = partial(few_brokers.topic, settled_s=0.1)


def version_of(cluster: Cluster) -> int:
    return cluster.tree.entries[PATH].version


def leave_step(cluster: Cluster, leader: int, leaving: BrokerId) -> list[Operation]:
    """What this leader would commit now to remove a member from the ISR."""
    replica = replica_of(cluster, leader)
    assert replica.term is not None
    step = node_of(cluster, leader).replicas.leading._commits.operations(
        replica, replica.term.propose_leave({leaving})
    )
    assert step is not None
    return step


def checks(step: list[Operation]) -> list[Operation]:
    return [operation for operation in step if isinstance(operation, Check)]


# By a leader.


def test_a_replaced_leader_cannot_change_the_isr() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        step = leave_step(cluster, 1, THREE)
        cluster.tree.step(checks(step), None)  # they hold
        cluster.kill(1, noticed_after_ms=60_000)
        await cluster.start(1)
        with pytest.raises(Conflict):
            cluster.tree.step(checks(step), None)

    play(scenario)


def join_step(cluster: Cluster) -> list[Operation] | None:
    """What leader 1 would commit now to let 3 into the ISR."""
    replica = replica_of(cluster, 1)
    assert replica.term is not None
    now_ms = cluster.loop.clock_ms()
    fetched = replica.term.fetch(
        THREE,
        Fetch(
            offset=Offset(0),
            leader_end=Offset(0),
            at_ms=now_ms,
            served_at_ms=now_ms,
            incarnation=node_of(cluster, 3).replicas.incarnation,
        ),
    )
    return node_of(cluster, 1).replicas.leading._commits.operations(
        replica, fetched.propose_join(THREE)
    )


def test_a_damaged_replica_is_not_added_before_it_is_repaired() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(1, 3)
        await topic(cluster, (ONE, TWO, THREE), (ONE, TWO))
        proposed_before = join_step(cluster)
        assert proposed_before is not None
        node = node_of(cluster, 3)
        node.directory.mark(KEY, Damage(reason="a test", up_to=1, keep_to=0))
        with acting_as(3):
            node.replicas.offline.report_damage(KEY)
        path = paths.damaged_replica(*KEY, node.replicas.incarnation)
        await until(lambda: path in cluster.tree.entries)
        await asyncio.sleep(0.1)
        assert join_step(cluster) is None
        with pytest.raises(Conflict) as conflict:
            cluster.tree.step(proposed_before, None)
        assert conflict.value.path == path
        with acting_as(3):
            node.replicas.offline.allow_joining(KEY)
        await until(lambda: join_step(cluster) is not None)
        step = join_step(cluster)
        assert step is not None
        cluster.tree.step(step, None)
        assert path not in cluster.tree.entries, "it may lead from here on"
        assert state_of(cluster)["isr"] == [1, 2, 3]

    play(scenario)


def test_a_member_is_not_added_once_it_restarted() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(1, 3)
        await topic(cluster, (ONE, TWO, THREE), (ONE, TWO))
        step = join_step(cluster)
        assert step is not None
        cluster.tree.step(checks(step), None)  # they hold
        cluster.kill(3, noticed_after_ms=60_000)
        await cluster.start(3)
        with pytest.raises(Conflict):
            cluster.tree.step(step, None)

    play(scenario)


def test_a_leader_cannot_undo_what_a_controller_wrote() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (THREE, ONE, TWO))
        step = leave_step(cluster, 3, ONE)
        cluster.kill(2)
        await until(lambda: state_of(cluster)["isr"] == [3, 1])
        with pytest.raises(Conflict):
            cluster.tree.step(step, None)

    play(scenario)


def test_a_step_for_a_deleted_topic_does_not_change_a_topic_of_the_same_name() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        step = leave_step(cluster, 1, THREE)
        gone = [path for path in cluster.tree.entries if path.startswith("/brokers/topic")]
        cluster.tree.step([Delete(path) for path in gone], None)
        await topic(cluster, (ONE, TWO, THREE))
        with pytest.raises(Conflict):
            cluster.tree.step(step, None)

    play(scenario)


def test_a_leader_keeps_the_maximal_isr_until_the_outcome_is_known() -> None:
    """The store does not respond for a while: the member that is to leave still counts."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        client = client_of(cluster)
        await client.append([b"1"])
        cluster.tree.freeze()
        cluster.network.cut(1, 3)
        assert await client.append_once([b"2"]) == 1
        replica = replica_of(cluster, 1)
        await asyncio.sleep(3)  # its shrink waits for the store
        assert await client.append_once([b"3"]) == 2
        await asyncio.sleep(1)
        assert replica_of(cluster, 2).log.end == replica.log.end == 3
        assert replica.high_watermark == 1, "3 may still be in the ISR for all that is known"
        cluster.tree.thaw()
        await until(lambda: replica.high_watermark == 3)
        assert state_of(cluster)["isr"] == [1, 2]

    play(scenario)


def test_a_refused_proposal_does_not_count() -> None:
    """The leader wants one out; the store holds another ISR by then, without two."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (THREE, TWO, ONE))
        replica = replica_of(cluster, 3)
        cluster.tree.freeze()
        cluster.network.cut(3, 1)
        client = client_of(cluster)
        assert await client.append_once([b"1"]) == 0
        await asyncio.sleep(3)  # the leader waits for the store to take its shrink
        state = encode_state(
            PartitionState(
                replicas=(THREE, TWO, ONE),
                isr=(THREE, ONE),
                leader=THREE,
                leader_epoch=LeaderEpoch(0),
            )
        )
        cluster.network.cut(3, 2)
        cluster.network.mend(3, 1)
        cluster.tree.step([Write(PATH, state, version_of(cluster))], None)
        cluster.tree.thaw()
        await until(lambda: replica.high_watermark == 1)
        members = state_of(cluster)["isr"]
        assert 2 not in members
        ends = {member: replica_of(cluster, member).log.end for member in members}
        assert set(ends.values()) == {1}, "what is committed is on every member"

    play(scenario)


# By the controller.


def test_a_deposed_controller_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.controller()
        assert first is not None
        controller = node_of(cluster, first).controller
        cluster.tree.step([controller._check_still_controller()], None)  # it is
        cluster.pause(first)
        await until(lambda: cluster.controller() not in (None, first))
        with pytest.raises(Conflict):
            cluster.tree.step([controller._check_still_controller()], None)
        cluster.resume(first)
        await asyncio.sleep(1)
        assert cluster.controller() != first

    play(scenario)


def test_a_controllers_step_checks_its_epoch_and_every_version() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.controller()
        assert first is not None
        other = BrokerId(next(number for number in cluster.brokers if number != first))
        await topic(cluster, (BrokerId(first), other))
        steps: list[tuple[Operation, ...]] = []
        store = cluster.brokers[first].store
        assert store is not None
        commit = store.commit

        async def recording(*operations: Operation) -> int:
            steps.append(operations)
            return await commit(*operations)

        store.commit = recording  # type: ignore[method-assign]
        cluster.kill(other)
        await until(lambda: state_of(cluster)["isr"] == [first])
        (step,) = [step for step in steps if any(each.path == PATH for each in step)]
        assert any(isinstance(e, Check) and e.path == paths.CONTROLLER_EPOCH for e in step)
        with pytest.raises(Conflict) as conflict:
            cluster.tree.step(step, None)  # a second time: the version has moved on
        assert conflict.value.path == PATH

    play(scenario)


def test_dead_brokers_leave_every_isr_and_lead_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        cluster.kill(1)
        await until(lambda: state_of(cluster)["isr"] == [2, 3], within_s=1)
        assert state_of(cluster)["leader"] == 2
        cluster.kill(3)
        await until(lambda: state_of(cluster)["isr"] == [2], within_s=1)

    play(scenario)


@pytest.mark.parametrize("restarted", [1, 3])
def test_an_unnoticed_restart_is_a_new_incarnation(restarted: int) -> None:
    """Its old session has not ended, and the controller is notified of both registrations at once.

    The machine lost what it had not flushed: a leader would write other records in the same
    epoch, a member would be in sync without having what was acknowledged.
    """

    async def scenario(cluster: Cluster) -> None:
        controller = cluster.controller()
        assert controller == 1
        replicas = (THREE, TWO) if restarted == 3 else (TWO, ONE)
        await topic(cluster, replicas)
        client = client_of(cluster)
        await client.append([b"1", b"2", b"3"])
        before = state_of(cluster)
        if restarted != controller:
            cluster.pause(controller)
        cluster.kill(restarted, noticed_after_ms=60_000, loses_power=True)
        starting = asyncio.ensure_future(cluster.start(restarted))
        await asyncio.sleep(0.5)
        cluster.resume(controller)
        await starting
        if restarted == 1:
            # Its session, and so its being controller, ends with the timeout.
            cluster.tree.end_session(cluster.tree.entries["/controller"].session or "")
        await until(lambda: _is_handled(cluster, restarted))
        after = state_of(cluster)
        if restarted == 3:
            assert after["leader_epoch"] > before["leader_epoch"]
            assert after["leader"] == 2
        await until(lambda: set(state_of(cluster)["isr"]) == set(replicas))
        values, _ = await client.read(0)
        assert values == [b"1", b"2", b"3"]
        for number in replicas:
            assert replica_of(cluster, number).log.end == 3

    play(scenario, settings={"min.insync.replicas": "2"})


def _is_handled(cluster: Cluster, number: int) -> bool:
    seen = cluster.tree.entries.get(paths.broker_seen(number))
    now = cluster.tree.entries.get(paths.broker_id(number))
    if seen is None or now is None:
        return False
    return int(seen.value) == int(json.loads(now.value)["incarnation"])


def test_a_lone_leader_that_restarted_gets_a_new_version_and_epoch() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (THREE,))
        before, version = state_of(cluster), version_of(cluster)
        assert cluster.controller() == 1
        cluster.pause(1)  # it is notified of the end and of the beginning at once
        cluster.kill(3, noticed_after_ms=60_000)
        await cluster.start(3)
        await asyncio.sleep(0.1)
        cluster.resume(1)
        await until(lambda: replica_of(cluster, 3).is_leader)
        assert version_of(cluster) > version
        assert state_of(cluster)["leader_epoch"] > before["leader_epoch"]
        assert state_of(cluster)["leader"] == 3

    play(scenario)


def test_the_last_member_is_kept_and_leads_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(3, 2)
        await topic(cluster, (THREE, TWO), (THREE,))
        cluster.kill(3)
        await until(lambda: state_of(cluster)["leader"] is None)
        await asyncio.sleep(2)
        assert state_of(cluster)["isr"] == [3]
        await cluster.start(3)
        await until(lambda: state_of(cluster)["leader"] == 3)

    play(scenario)


def test_every_new_controller_repeats_the_work_and_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (TWO, THREE))
        assert cluster.controller() == 1
        before = cluster.tree.entries[PATH]
        cluster.tree.end_session(cluster.tree.entries[paths.CONTROLLER].session or "")
        await until(lambda: cluster.controller() in {2, 3})
        await asyncio.sleep(0.5)
        assert cluster.tree.entries[PATH] == before

    play(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_controller_completes_the_work_of_one_that_died(when: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (THREE, TWO))
        assert cluster.controller() == 1
        store = cluster.brokers[1].store
        assert store is not None

        def die() -> None:
            cluster.kill_from_within(1)

        if when == "before":
            store.before_controller_step = die
        else:
            store.after_controller_step = die
        cluster.kill(3)
        await until(lambda: state_of(cluster)["leader"] == 2 and replica_of(cluster, 2).is_leader)
        assert state_of(cluster)["isr"] == [2]
        assert cluster.brokers[1].node is None

    play(scenario)


# Incarnations.


def test_a_restarted_broker_serves_before_its_old_session_ends() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (THREE, TWO))
        old = node_of(cluster, 3).replicas.incarnation
        cluster.kill(3, noticed_after_ms=60_000)
        await cluster.start(3)
        await until(lambda: state_of(cluster)["isr"] == [2, 3], within_s=3)
        assert paths.session(old) in cluster.tree.entries
        assert node_of(cluster, 3).replicas.incarnation > old

    play(scenario)


def test_a_former_incarnation_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        old = node_of(cluster, 2).replicas.incarnation
        caller = await caller_of(cluster, 1)
        assert await caller.prove(secret_of(cluster), 2, old) is ErrorCode.none
        assert await caller.fetch(2, old) is ErrorCode.none
        cluster.kill(2, noticed_after_ms=60_000)
        await cluster.start(2)
        await asyncio.sleep(0.1)
        assert await caller.fetch(2, old) is ErrorCode.cluster_authorization_failed

    play(scenario)


# What the epochs are for.


def test_a_leader_records_its_epoch_before_its_first_append() -> None:
    """Else a follower with records of a lost epoch, and fewer of them, would keep them."""

    async def scenario(cluster: Cluster) -> None:
        cluster.network.cut(2, 3)
        await topic(cluster, (THREE, TWO), (THREE,))
        client = client_of(cluster)
        await client.append([b"a", b"b", b"c", b"d"])
        cluster.kill(3)
        await until(lambda: state_of(cluster)["leader"] == 2)  # unclean
        await client.append_once([b"x"])
        while replica_of(cluster, 2).log.end == 0:
            await client.append_once([b"x"])
        cluster.kill(2)
        await until(lambda: state_of(cluster)["leader"] is None)
        await cluster.start(3)
        await until(lambda: replica_of(cluster, 3).is_leader)  # unclean again, nothing written
        cluster.network.heal()
        await cluster.start(2)
        await until(lambda: set(state_of(cluster)["isr"]) == {2, 3})
        await until(lambda: replica_of(cluster, 2).log.end == 4)
        logs = [
            bytes(
                replica_of(cluster, n)
                .log.read(  # type: ignore[union-attr]
                    0, 1 << 20, up_to=4, min_one_batch=True, nowait=False
                )
                .data
            )
            for n in (2, 3)
        ]
        assert logs[0] == logs[1]

    play(scenario, settings={"unclean.leader.election.enable": "true"})
