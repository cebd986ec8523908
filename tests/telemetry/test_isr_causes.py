"""Why and how late the ISR changed, in the columns that programs read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from insync.sim.clients import Admin
from insync.sim.cluster import WALL_AT_START_MS, Cluster
from insync.telemetry.schemas import CAUSES
from support.sim.few_brokers import (
    KEY,
    THREE,
    client_of,
    isr_of,
    node_of,
    play,
    term_of,
    topic,
    until,
    write_on,
)
from support.telemetry.recorded_runs import RECORDED, as_rows, collect

Changes = list[dict[str, Any]]


def recorded(
    fault: Callable[[Cluster], Awaitable[None]],
    *,
    settings: dict[str, str] | None = None,
    brokers: int = 3,
) -> Changes:
    """The `isr` rows of a simulated cluster to which this happens."""
    rows: Changes = []

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await fault(cluster)
        await asyncio.sleep(2.0)  # all of it is published
        rows.extend(as_rows(await collect(cluster))["isr"])

    play(scenario, settings=RECORDED | (settings or {}), brokers=brokers)
    assert {row["cause"] for row in rows} <= CAUSES.keys()
    return sorted(rows, key=lambda row: row["version"])


def as_tuples(rows: Changes) -> list[tuple[Any, ...]]:
    names = ("replica", "change", "decided_by", "cause", "late_ms")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize(
    ("policy", "lag_max_messages", "cause"),
    [
        ("caught-up", 4_000, "lag-time"),
        ("pending-reads", 4_000, "lag-time"),
        ("true-lag", 4_000, "fetch-silence"),  # its last fetch is older than what it lacks
        ("lag-begin", 4_000, "fetch-silence"),
        ("messages", 4_000, "fetch-silence"),
        ("messages", 3, "lag-messages"),
    ],
)
def test_a_follower_that_is_cut_off_leaves_and_returns(
    policy: str, lag_max_messages: int, cause: str
) -> None:
    async def fault(cluster: Cluster) -> None:
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(1.0)
        cluster.network.cut(1, 3)
        await until(lambda: isr_of(cluster) == [1, 2])
        cluster.network.heal()
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        writing.cancel()

    settings = {
        "replica.in.sync.policy": policy,
        "replica.lag.max.messages": str(lag_max_messages),
    }
    assert as_tuples(recorded(fault, settings=settings)) == [
        (3, "shrink", "leader", cause, 0),
        (3, "expand", "leader", "caught-up", None),
    ]


def test_a_broker_that_dies_is_removed_by_the_controller() -> None:
    async def fault(cluster: Cluster) -> None:
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])

    assert as_tuples(recorded(fault)) == [(3, "shrink", "controller", "broker-gone", None)]


def test_a_broker_whose_heartbeat_stops_is_frozen_not_gone() -> None:
    """Its process lives, for example stopped, until its session ends; a killed one is gone."""

    async def fault(cluster: Cluster) -> None:
        cluster.pause(3)
        await until(lambda: isr_of(cluster) == [1, 2])
        cluster.resume(3)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        cluster.kill(3)
        await until(lambda: isr_of(cluster) == [1, 2])

    settings = {"replica.lag.time.max.ms": "30000"}  # its session ends first
    rows = recorded(fault, settings=settings)
    assert as_tuples(rows) == [
        (3, "shrink", "controller", "broker-frozen", None),
        (3, "expand", "leader", "caught-up", None),
        (3, "shrink", "controller", "broker-gone", None),
    ]
    assert rows[0]["reason"] == "its heartbeat stopped, and its session ended"


def test_a_replica_whose_log_failed_is_removed_by_the_controller() -> None:
    async def fault(cluster: Cluster) -> None:
        node_of(cluster, 3).directory.logs[KEY].fail("a test")
        await until(lambda: isr_of(cluster) == [1, 2])

    assert as_tuples(recorded(fault)) == [(3, "shrink", "controller", "replica-offline", None)]


def test_a_reassignment_removes_one_replica_and_adds_another() -> None:
    async def fault(cluster: Cluster) -> None:
        await Admin(cluster, client_of(cluster)).move(KEY, [1, 2, 4])
        await until(lambda: isr_of(cluster) == [1, 2, 4])

    assert as_tuples(recorded(fault, brokers=4)) == [
        (4, "expand", "leader", "caught-up", None),
        (3, "shrink", "controller", "reassignment", None),
    ]


def test_a_leader_that_did_not_run_at_the_deadline_is_late() -> None:
    due: list[int] = []

    async def fault(cluster: Cluster) -> None:
        client = client_of(cluster)
        cluster.network.cut(1, 3)
        await client.append_once([b"more"])
        await asyncio.sleep(0.5)
        due.append(term_of(cluster).deadlines()[THREE])
        await asyncio.sleep((due[0] - cluster.loop.clock_ms() - 20) / 1_000)
        cluster.pause(1)
        await asyncio.sleep(0.050)  # too short to count as a stall
        cluster.resume(1)
        await until(lambda: isr_of(cluster) == [1, 2])

    (row,) = recorded(fault)
    assert (row["change"], row["cause"]) == ("shrink", "lag-time")
    assert row["late_ms"] == row["decided_at_ms"] - WALL_AT_START_MS - due[0]
    assert 25 <= row["late_ms"] <= 100
    assert row["reason"].endswith(f"decided {row['late_ms']} ms after the deadline")
