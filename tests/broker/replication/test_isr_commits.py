"""An outcome settles the ISR change it belongs to, and no other.

The metadata store may answer late, or not at all. While a proposed change can still be committed,
its members count: a record they lack is not committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from insync.metadata.errors import Unavailable
from insync.metadata.records import decode_state, encode_state
from insync.metadata.store import Operation, Write
from insync.rules.isr import Expanding, Shrinking
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from support.sim.few_brokers import (
    KEY,
    ONE,
    PATH,
    THREE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    stays,
    term_of,
    topic,
    until,
)


class HeldCommits:
    """The ISR changes of one broker, each held on its way to the store until it is released."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        store = cluster.brokers[number].store
        assert store is not None
        self._commit = store.commit
        self._gates: list[asyncio.Event] = []
        self.loses_answers = False  # the step is committed, and its response is lost
        store.commit = self._held  # type: ignore[method-assign]

    @property
    def count(self) -> int:
        return len(self._gates)

    def release(self, index: int) -> None:
        self._gates[index].set()

    async def _held(self, *operations: Operation) -> int:
        if operations[0].path != PATH:
            return await self._commit(*operations)
        gate = asyncio.Event()
        self._gates.append(gate)
        await gate.wait()
        revision = await self._commit(*operations)
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        return revision


@contextmanager
def unreachable(cluster: Cluster, one: int, other: int) -> Iterator[None]:
    cluster.network.cut(one, other)
    yield
    cluster.network.mend(one, other)


def change_isr(cluster: Cluster, *isr: BrokerId) -> None:
    """As a controller does, before what the leader proposed has arrived."""
    entry = cluster.tree.entries[PATH]
    state = replace(decode_state(entry.value), isr=isr)
    cluster.tree.step([Write(PATH, encode_state(state), entry.version)], None)


async def propose_an_expand_behind_a_late_shrink(cluster: Cluster) -> HeldCommits:
    """A shrink is on its way, a controller made it first, and now the follower is to join again."""
    await topic(cluster)
    await client_of(cluster).append([b"x"] * 10)
    commits = HeldCommits(cluster, 1)
    with unreachable(cluster, 1, 3):
        await client_of(cluster).append_once([b"more"])
        await until(lambda: isinstance(term_of(cluster).isr, Shrinking))
        change_isr(cluster, ONE, TWO)
        await until(lambda: term_of(cluster).isr.members == {ONE, TWO})
    await until(lambda: isinstance(term_of(cluster).isr, Expanding))
    await until(lambda: commits.count == 2)
    return commits


def test_a_late_conflict_does_not_drop_a_newer_expand() -> None:
    async def scenario(cluster: Cluster) -> None:
        commits = await propose_an_expand_behind_a_late_shrink(cluster)
        cluster.network.cut(1, 3)
        commits.release(0)  # the shrink meets the controller's change: a conflict
        writing = cluster.loop.create_task(client_of(cluster).append([b"late"]))
        await until(lambda: replica_of(cluster, 2).log.end == 12)
        await stays(lambda: isinstance(term_of(cluster).isr, Expanding), for_s=0.5)
        assert replica_of(cluster, 1).high_watermark == 11, "broker 3 may be a member already"
        commits.release(1)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert not writing.done()
        writing.cancel()

    play(scenario)


def test_reading_the_same_state_again_does_not_drop_a_pending_expand() -> None:
    """As after the disk refused something: the partition state is applied a second time."""

    async def scenario(cluster: Cluster) -> None:
        commits = await propose_an_expand_behind_a_late_shrink(cluster)
        node_of(cluster, 1).replicas._apply_state_again(KEY)
        assert isinstance(term_of(cluster).isr, Expanding)
        commits.release(1)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        await until(lambda: term_of(cluster).isr.members == {ONE, TWO, THREE})

    play(scenario)


def test_a_commit_whose_answer_is_lost_keeps_its_members_counted() -> None:
    async def scenario(cluster: Cluster) -> None:
        commits = await propose_an_expand_behind_a_late_shrink(cluster)
        commits.loses_answers = True
        commits.release(1)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        await until(lambda: term_of(cluster).isr.members == {ONE, TWO, THREE})

    play(scenario)


@pytest.mark.parametrize("is_gone", [lambda c: c.kill(3), lambda c: c.kill(3, noticed_after_ms=50)])
def test_an_expand_of_a_broker_that_is_gone_is_given_up(
    is_gone: Callable[[Cluster], None],
) -> None:
    async def scenario(cluster: Cluster) -> None:
        commits = await propose_an_expand_behind_a_late_shrink(cluster)
        is_gone(cluster)
        await asyncio.sleep(0.2)
        commits.release(1)
        await until(lambda: term_of(cluster).isr.members == {ONE, TWO})
        await until(lambda: not isinstance(term_of(cluster).isr, Expanding))
        assert isr_of(cluster) == [1, 2]
        await client_of(cluster).append([b"goes on"])

    play(scenario)
