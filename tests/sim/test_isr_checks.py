"""Runs detect a leader or a policy that never expands or never shrinks the ISR."""

from __future__ import annotations

import asyncio

import pytest

from insync.rules import leader_machine
from insync.rules.policy import CaughtUp
from insync.sim.checks import Monitor
from insync.sim.cluster import SETTINGS, Cluster
from insync.sim.isr_checks import (
    DECIDED_WITHIN_MS,
    JOINS_WITHIN_MS,
    NO_PROGRESS,
    NOT_JOINED,
    OVERDUE,
)
from support.sim.few_brokers import ONE, THREE, TWO, client_of, isr_of, play, replica_of, topic

LIMIT_MS = int(SETTINGS["replica.lag.time.max.ms"])


async def first_failure(cluster: Cluster, monitor: Monitor, *, within_s: float) -> str:
    """The first violation under steady writes."""
    client = client_of(cluster)
    for _ in range(int(within_s / 0.02)):
        await client.append_once([b"more"])
        await asyncio.sleep(0.02)
        monitor.check_brokers()
        if monitor.failure is not None:
            return monitor.failure
    return "none"


async def monitor_without_third_broker(cluster: Cluster) -> Monitor:
    monitor = Monitor(cluster, unclean=False)
    await topic(cluster, (ONE, TWO, THREE))
    for other in (ONE, TWO):
        cluster.network.cut(THREE, other)
    return monitor


def test_a_member_leaves_and_rejoins_without_a_violation() -> None:
    async def scenario(cluster: Cluster) -> None:
        monitor = await monitor_without_third_broker(cluster)
        assert await first_failure(cluster, monitor, within_s=2 * LIMIT_MS / 1_000) == "none"
        assert isr_of(cluster) == [1, 2]
        cluster.network.heal()
        assert await first_failure(cluster, monitor, within_s=3) == "none"
        assert isr_of(cluster) == [1, 2, 3]

    play(scenario)


def test_a_leader_that_does_not_check_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_machine, "_schedule", lambda state, _moment: state)

    async def scenario(cluster: Cluster) -> None:
        monitor = await monitor_without_third_broker(cluster)
        began_ms = cluster.loop.clock_ms()
        assert OVERDUE in await first_failure(cluster, monitor, within_s=5)
        assert cluster.loop.clock_ms() - began_ms < LIMIT_MS + 10 * DECIDED_WITHIN_MS

    play(scenario)


def test_a_policy_that_never_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaughtUp, "leaves_at_ms", lambda *_, **__: None)

    async def scenario(cluster: Cluster) -> None:
        monitor = await monitor_without_third_broker(cluster)
        assert NO_PROGRESS in await first_failure(cluster, monitor, within_s=5)

    play(scenario)


def test_a_leader_that_never_expands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_machine, "_join", lambda state, _follower, _moment: state)

    async def scenario(cluster: Cluster) -> None:
        monitor = Monitor(cluster, unclean=False)
        await topic(cluster, (ONE, TWO, THREE), (ONE, TWO))
        within_s = 3 * JOINS_WITHIN_MS / 1_000
        assert NOT_JOINED in await first_failure(cluster, monitor, within_s=within_s)
        assert replica_of(cluster, 3).log.end > 0

    play(scenario)
