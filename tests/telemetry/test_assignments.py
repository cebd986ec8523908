"""Which brokers have replicas of a partition, recorded by its leaders as it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from insync.sim.clients import Admin
from insync.sim.cluster import Cluster
from support.sim.few_brokers import (
    KEY,
    ONE,
    TWO,
    client_of,
    isr_of,
    play,
    state_of,
    topic,
    until,
)
from support.telemetry.recorded_runs import RECORDED, as_rows, collect

Rows = list[dict[str, Any]]


def recorded(fault: Callable[[Cluster], Awaitable[None]], *, brokers: int = 4) -> Rows:
    rows: Rows = []

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        await fault(cluster)
        await asyncio.sleep(2.0)  # all of it is published
        rows.extend(as_rows(await collect(cluster))["assignments"])

    play(scenario, settings=RECORDED, brokers=brokers)
    assert {(row["topic"], row["partition"]) for row in rows} == {KEY}
    return rows


def as_tuples(rows: Rows) -> list[tuple[Any, ...]]:
    names = ("leader", "leader_epoch", "replicas", "adding", "removing")
    return [tuple(row[name] for name in names) for row in rows]


def test_each_term_begins_with_its_assignment() -> None:
    async def fault(cluster: Cluster) -> None:
        cluster.kill(1)
        await until(lambda: isr_of(cluster) == [2, 3])
        await asyncio.sleep(0.5)

    assert as_tuples(recorded(fault)) == [
        (1, 0, [1, 2, 3], [], []),
        (2, 1, [1, 2, 3], [], []),
    ]


def test_a_reassignment_is_recorded_from_its_start_to_its_end() -> None:
    async def fault(cluster: Cluster) -> None:
        await Admin(cluster, client_of(cluster)).move(KEY, [1, 2, 4])
        await until(lambda: isr_of(cluster) == [1, 2, 4])

    rows = recorded(fault)
    assert as_tuples(rows) == [
        (1, 0, [1, 2, 3], [], []),
        (1, 0, [1, 2, 4, 3], [4], [3]),
        (1, 1, [1, 2, 4], [], []),
    ]
    versions = [row["version"] for row in rows]
    assert versions == sorted(set(versions))
    assert len({row["topic_id"] for row in rows}) == 1


def test_the_removal_of_a_replica_that_is_out_of_sync_is_recorded() -> None:
    """The ISR does not change, so no other table has it: broker 4 is dead, and never joins."""

    async def fault(cluster: Cluster) -> None:
        cluster.kill(4)
        admin = Admin(cluster, client_of(cluster))
        await asyncio.sleep(0.5)
        await admin.move(KEY, [1, 2, 4])
        await until(lambda: state_of(cluster)["adding"] == [4])
        await asyncio.sleep(0.2)
        await admin.move(KEY, None)
        await until(lambda: not state_of(cluster)["adding"])

    assert as_tuples(recorded(fault)) == [
        (1, 0, [1, 2, 3], [], []),
        (1, 0, [1, 2, 4, 3], [4], [3]),
        (1, 1, [1, 2, 3], [], []),
    ]


def test_a_topic_that_is_created_again_has_another_id() -> None:
    async def fault(cluster: Cluster) -> None:
        await Admin(cluster, client_of(cluster)).delete(KEY[0])
        await asyncio.sleep(1.0)
        await topic(cluster, replicas=(TWO, ONE))

    rows = recorded(fault)
    assert as_tuples(rows) == [
        (1, 0, [1, 2, 3], [], []),
        (1, 0, [], [], []),
        (2, 0, [2, 1], [], []),
    ]
    first, deleted, second = (row["topic_id"] for row in rows)
    assert first == deleted != second
