"""Lives notice a leader that lets nobody in or nobody go, and a rule that never says so."""

from __future__ import annotations

import asyncio

import pytest
from few_brokers import ONE, THREE, TWO, client_of, isr_of, play, replica_of, topic

from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.rules.leadership import Leadership
from insync.rules.policy import CaughtUp
from insync.rules.values import BrokerId
from insync.sim.checks import Monitor
from insync.sim.cluster import SETTINGS, Cluster
from insync.sim.membership import CLOSE, DECIDED_WITHIN_MS, LET_IN_WITHIN_MS, OVERDUE, STANDS_STILL

LIMIT_MS = int(SETTINGS["replica.lag.time.max.ms"])


async def first_failure(cluster: Cluster, monitor: Monitor, *, within_s: float) -> str:
    """Under steady writes."""
    client = client_of(cluster)
    for _ in range(int(within_s / 0.02)):
        await client.append_once([b"more"])
        await asyncio.sleep(0.02)
        monitor.look()
        if monitor.failure is not None:
            return monitor.failure
    return "none"


async def without_the_third(cluster: Cluster) -> Monitor:
    monitor = Monitor(cluster, unclean=False)
    await topic(cluster, (ONE, TWO, THREE))
    for other in (ONE, TWO):
        cluster.network.cut(THREE, other)
    return monitor


def test_a_member_that_is_gone_leaves_and_comes_back_and_nothing_is_wrong() -> None:
    async def scenario(cluster: Cluster) -> None:
        monitor = await without_the_third(cluster)
        assert await first_failure(cluster, monitor, within_s=2 * LIMIT_MS / 1_000) == "none"
        assert isr_of(cluster) == [1, 2]
        cluster.network.heal()
        assert await first_failure(cluster, monitor, within_s=3) == "none"
        assert isr_of(cluster) == [1, 2, 3]

    play(scenario)


def test_a_leader_that_does_not_look_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "_look", lambda *_: None)

    async def scenario(cluster: Cluster) -> None:
        monitor = await without_the_third(cluster)
        began_ms = cluster.loop.clock_ms()
        assert OVERDUE in await first_failure(cluster, monitor, within_s=5)
        assert cluster.loop.clock_ms() - began_ms < LIMIT_MS + 10 * DECIDED_WITHIN_MS

    play(scenario)


def test_a_rule_that_lets_nobody_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaughtUp, "leaves_at_ms", lambda *_, **__: None)

    async def scenario(cluster: Cluster) -> None:
        monitor = await without_the_third(cluster)
        assert STANDS_STILL in await first_failure(cluster, monitor, within_s=5)

    play(scenario)


def test_a_leader_that_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def took_effect(
        _: Replicas, found: Replica, _follower: BrokerId, term: Leadership, **_at: int
    ) -> None:
        found.advance(term)

    monkeypatch.setattr(Replicas, "took_effect", took_effect)

    async def scenario(cluster: Cluster) -> None:
        monitor = Monitor(cluster, unclean=False)
        await topic(cluster, (ONE, TWO, THREE), (ONE, TWO))
        within_s = 3 * LET_IN_WITHIN_MS / 1_000
        assert CLOSE in await first_failure(cluster, monitor, within_s=within_s)
        assert replica_of(cluster, 3).log.end > 0

    play(scenario)
