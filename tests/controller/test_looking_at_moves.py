"""The controller looks at what moves when that changes, and at nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from few_brokers import node_of, play

from insync.broker.topics import Wanted
from insync.controller import moves
from insync.controller.controller import Controller
from insync.metadata import paths
from insync.metadata.records import decode_state, encode_state, may_be_moving
from insync.metadata.store import Write
from insync.rules import reassignment
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.cluster import Cluster

PARTITIONS = 200


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[PartitionState]:
    """Every state that a controller asked the rule about."""
    found: list[PartitionState] = []

    def complete(state: PartitionState, **options: Any) -> PartitionState:
        found.append(state)
        return reassignment.complete(state, **options)

    monkeypatch.setattr(moves, "complete", complete)
    return found


async def touch(cluster: Cluster, partition: int, **changes: Any) -> None:
    entry = cluster.tree.entries[paths.partition_state("t", partition)]
    state = replace(decode_state(entry.value), **changes)
    cluster.tree.step([Write(entry.path, encode_state(state), entry.version)], None)
    await asyncio.sleep(0.3)


def test_nothing_is_searched_for(looked_at: list[PartitionState]) -> None:
    async def story(cluster: Cluster) -> None:
        node = node_of(cluster, 1)
        assignment = dict.fromkeys(range(PARTITIONS), (1, 2, 3))
        await node.topics.create(Wanted(name="t", assignment=assignment))
        await asyncio.sleep(1)
        await touch(cluster, 7, isr=(BrokerId(1), BrokerId(2)))
        assert looked_at == []
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
        assert len(looked_at) == 1
        await touch(cluster, 9, isr=(BrokerId(1), BrokerId(2)))
        assert len(looked_at) == 1, "9 does not move"
        await touch(cluster, 0, isr=(BrokerId(1), BrokerId(2)))
        assert len(looked_at) <= 3, "out, and perhaps in again"
        looked_at.clear()
        cluster.kill(4)
        await asyncio.sleep(1)
        assert 1 <= len(looked_at) <= 3, "brokers came or went: all that move, which is one"

    play(story, brokers=4)


def test_a_move_does_not_make_it_go_through_all_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dealt: list[object] = []
    original = Controller._after

    def after(self: Any, *arguments: Any) -> Any:
        dealt.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(Controller, "_after", after)

    async def story(cluster: Cluster) -> None:
        await node_of(cluster, 1).topics.create(Wanted(name="t", assignment={0: (1, 2)}))
        await asyncio.sleep(1)
        dealt.clear()
        brokers = tuple(BrokerId(b) for b in (1, 3, 2))
        await touch(cluster, 0, replicas=brokers, adding=brokers[1:2], removing=brokers[2:])
        await asyncio.sleep(3)
        state = decode_state(cluster.tree.entries[paths.partition_state("t", 0)].value)
        assert state.replicas == brokers[:2], "it has moved"
        assert dealt == []
        cluster.kill(2)
        await asyncio.sleep(1)
        assert dealt

    play(story)


@pytest.mark.parametrize(("adding", "removing"), [((), ()), ((2,), ()), ((), (1,)), ((2,), (1,))])
def test_whether_it_moves_can_be_told_without_reading_it(
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
