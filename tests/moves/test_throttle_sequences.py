"""Throttles set, changed, killed and ended in any order: the operator's values are restored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.moves import throttle
from insync.moves.journal import Journal, JournalFile
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.throttle_settings import Throttle
from insync.rules.throttled_replicas import FOLLOWER_LIST, FOLLOWER_RATE, LEADER_LIST, LEADER_RATE
from insync.wire.configs import Resource
from support.moves.admin_in_memory import OneCluster, ids, partition

TOPICS = ("t", "u")


class Killed(BaseException):
    """kill -9: no `except` or `finally` of the tool handles it."""


class InMemory(JournalFile):
    """A journal in memory: hundreds of runs need no disk."""

    kept = Journal()

    def read(self) -> Journal:
        return self.kept

    def write(self, journal: Journal) -> None:
        self.kept = Journal() if journal.is_empty else journal


class Mortal(OneCluster):
    """Kills the tool before its nth change; None: never."""

    dies_before: int | None = None

    async def alter_configs(
        self,
        kind: Resource,
        name: str,
        *,
        set_values: Mapping[str, str],
        deleted: Sequence[str] = (),
    ) -> str:
        if self.dies_before is not None:
            if self.dies_before == 0:
                raise Killed
            self.dies_before -= 1
        return await super().alter_configs(kind, name, set_values=set_values, deleted=deleted)


LISTS = st.sampled_from(["", "*", "0:1", "0:3,1:2", "7:7"])
RATES = st.sampled_from(["1", "100", "200"])


@st.composite
def operators(draw: st.DrawFn) -> Mortal:
    """A cluster with settings that an operator made before."""
    topics = {}
    for name in TOPICS:
        lists = {LEADER_LIST: draw(LISTS), FOLLOWER_LIST: draw(LISTS)}
        topics[name] = {key: value for key, value in lists.items() if value}
    brokers = {
        str(number): draw(
            st.dictionaries(st.sampled_from([LEADER_RATE, FOLLOWER_RATE]), RATES, max_size=2)
        )
        for number in (1, 2, 3)
    }
    return Mortal(topics_set=topics, brokers_set=brokers)


PARTITIONS = st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), min_size=1, max_size=4)
# A throttle of some partitions at a rate, perhaps killed before a change; then what still moves.
STEPS = st.lists(
    st.tuples(PARTITIONS, st.sampled_from([100, 200, 300]), st.none() | st.integers(0, 6)),
    min_size=1,
    max_size=4,
)


@pytest.mark.property
@given(operators(), STEPS, st.sets(st.integers(0, 3)))
def test_no_throttle_stays_and_no_operators_value_is_lost(
    cluster: Mortal,
    steps: list[tuple[set[tuple[str, int]], int, int | None]],
    ended_between: set[int],
) -> None:
    before = deepcopy(cluster.throttles())
    file = InMemory(Path("nowhere"), "one")
    for number, (partitions, rate, dies_before) in enumerate(steps):
        moving = {
            partition(index, topic): Move(
                sources=frozenset(ids([1, 2])), destinations=frozenset(ids([3]))
            )
            for topic, index in partitions
        }
        wanted = throttle.of_moves(moving, bytes_per_s=rate, alive=frozenset(ids([1, 2, 3])))
        cluster.dies_before = dies_before
        _set(cluster, file, wanted, moving)
        cluster.dies_before = None
        if number in ended_between:
            still = list(moving)[::2]
            cluster.dies_before = dies_before
            with suppress(Killed):
                asyncio.run(throttle.end(cluster.admin, file, active=still))
            cluster.dies_before = None
    asyncio.run(throttle.end(cluster.admin, file, active=[]))
    assert cluster.throttles() == before
    assert file.kept.is_empty


def _set(
    cluster: Mortal,
    file: JournalFile,
    wanted: Throttle,
    moving: Mapping[TopicPartition, Move],
) -> None:
    async def setting() -> None:
        await throttle.set_throttle(cluster.admin, file, wanted, partitions=moving)

    with suppress(Killed):
        asyncio.run(setting())
