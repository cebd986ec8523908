"""The controller checks moving partitions when they change, and no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from insync.broker.admin.topics import RequestedTopic
from insync.controller import moves
from insync.controller.controller import Controller
from insync.metadata import paths
from insync.metadata.records import decode_state, encode_state, may_be_moving
from insync.metadata.store import Write
from insync.rules import reassignment
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.cluster import Cluster
from support.sim.few_brokers import node_of, play

PARTITIONS = 200


@pytest.fixture
def checked_states(monkeypatch: pytest.MonkeyPatch) -> list[PartitionState]:
    """Every state that a controller checked for completion."""
    states: list[PartitionState] = []

    def complete(state: PartitionState, **options: Any) -> PartitionState:
        states.append(state)
        return reassignment.complete(state, **options)

    monkeypatch.setattr(moves, "complete", complete)
    return states


async def touch(cluster: Cluster, partition: int, **changes: Any) -> None:
    entry = cluster.tree.entries[paths.partition_state("t", partition)]
    state = replace(decode_state(entry.value), **changes)
    cluster.tree.step([Write(entry.path, encode_state(state), entry.version)], None)
    await asyncio.sleep(0.3)


def test_only_moving_partitions_are_checked(checked_states: list[PartitionState]) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = node_of(cluster, 1)
        assignment = dict.fromkeys(range(PARTITIONS), (1, 2, 3))
        await node.topics.create(RequestedTopic(name="t", assignment=assignment))
        await asyncio.sleep(1)
        await touch(cluster, 7, isr=(BrokerId(1), BrokerId(2)))
        assert checked_states == []
        cluster.network.cut(1, 4)
        cluster.network.cut(2, 4)
        cluster.network.cut(3, 4)
        await touch(
            cluster,
            0,
            replicas=tuple(BrokerId(b) for b in (4, 2, 3, 1)),
            adding=(BrokerId(4),),
            removing=(BrokerId(1),),
        )
        assert len(checked_states) == 1
        await touch(cluster, 9, isr=(BrokerId(1), BrokerId(2)))
        assert len(checked_states) == 1, "9 does not move"
        await touch(cluster, 0, isr=(BrokerId(1), BrokerId(2)))
        assert len(checked_states) <= 3, "out of the ISR, and perhaps in again"
        checked_states.clear()
        cluster.kill(4)
        await asyncio.sleep(1)
        assert 1 <= len(checked_states) <= 3, "brokers changed: all moving partitions, which is one"

    play(scenario, brokers=4)


def test_a_move_does_not_make_the_controller_read_all_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    original = Controller._states_after

    def states_after(self: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(Controller, "_states_after", states_after)

    async def scenario(cluster: Cluster) -> None:
        await node_of(cluster, 1).topics.create(RequestedTopic(name="t", assignment={0: (1, 2)}))
        await asyncio.sleep(1)
        calls.clear()
        brokers = tuple(BrokerId(b) for b in (1, 3, 2))
        await touch(cluster, 0, replicas=brokers, adding=brokers[1:2], removing=brokers[2:])
        await asyncio.sleep(3)
        state = decode_state(cluster.tree.entries[paths.partition_state("t", 0)].value)
        assert state.replicas == brokers[:2], "it has moved"
        assert calls == []
        cluster.kill(2)
        await asyncio.sleep(1)
        assert calls

    play(scenario)


@pytest.mark.parametrize(("adding", "removing"), [((), ()), ((2,), ()), ((), (1,)), ((2,), (1,))])
def test_may_be_moving_agrees_with_the_decoded_state(
    adding: tuple[int, ...], removing: tuple[int, ...]
) -> None:
    state = PartitionState(
        replicas=(BrokerId(1), BrokerId(2)),
        isr=(BrokerId(1),),
        leader=None,
        leader_epoch=LeaderEpoch(0),
        adding=tuple(BrokerId(b) for b in adding),
        removing=tuple(BrokerId(b) for b in removing),
    )
    assert may_be_moving(encode_state(state)) is state.is_moving
