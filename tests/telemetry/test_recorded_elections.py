"""Every leader change is recorded once: the old and new leader, the epoch and the cause."""

from __future__ import annotations

import asyncio

import pytest

from insync.sim.cluster import STORE_DELAY_MS, WALL_AT_START_MS, Cluster
from support.sim.few_brokers import KEY, THREE, isr_of, play, state_of, topic, until, write_on
from support.telemetry.recorded_runs import RECORDED, Tables, as_rows, collect

LAG_S = 1.5
PUBLISHED_S = 2.0
SETTINGS = RECORDED | {
    "leader.imbalance.check.interval.seconds": "10",
    "leader.resign.cooldown.ms": "3000",
}
GONE, RESIGNED = "a broker came or went", "its leader resigned"
PREFERRED = "back to the preferred replica"
Election = tuple[int | None, int | None, int, str]


def elections(tables: Tables) -> list[Election]:
    """By epoch; whichever controller made them, and when."""
    rows = sorted(tables["elections"], key=lambda row: row["leader_epoch"])
    assert {(row["topic"], row["partition"]) for row in rows} <= {KEY}
    assert [row["at_ms"] for row in rows] == sorted(row["at_ms"] for row in rows)
    return [
        (row["leader_before"], row["leader_after"], row["leader_epoch"], row["cause"])
        for row in rows
    ]


async def recorded_tables(cluster: Cluster) -> Tables:
    await asyncio.sleep(PUBLISHED_S)
    return as_rows(await collect(cluster))


def leader_of(cluster: Cluster) -> int | None:
    leader: int | None = state_of(cluster)["leader"]
    return leader


@pytest.mark.slow
def test_elections_after_a_kill_a_restart_and_a_resignation() -> None:
    """The controller dies with the first leader: its successor elects, and records it."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        writing = cluster.loop.create_task(write_on(cluster))
        await asyncio.sleep(PUBLISHED_S)
        assert cluster.controller() == 1
        cluster.kill(1)
        elected_ms = await until(lambda: leader_of(cluster) == 2)
        await cluster.start(1)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        returned_ms = await until(lambda: leader_of(cluster) == 1, within_s=30)
        await asyncio.sleep(PUBLISHED_S)
        cluster.pause(1)
        await asyncio.sleep(LAG_S + 0.3)  # more than half of the last two limits
        cluster.resume(1)
        # The telemetry topic goes to 2 in the same step: partitions are spread over the followers.
        resigned_ms = await until(lambda: leader_of(cluster) == 3)
        tables = await recorded_tables(cluster)
        writing.cancel()
        assert elections(tables) == [
            (1, 2, 1, GONE),
            (2, 1, 2, PREFERRED),
            (1, 3, 3, RESIGNED),
        ]
        for row in tables["elections"]:
            happened_ms = (elected_ms, returned_ms, resigned_ms)[row["leader_epoch"] - 1]
            late_ms = row["at_ms"] - WALL_AT_START_MS - happened_ms
            assert 0 <= late_ms <= STORE_DELAY_MS[1], "once the store's answer is there"

    play(scenario, settings=SETTINGS)


def test_a_partition_without_a_leader_for_a_while() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, replicas=(THREE,))
        await asyncio.sleep(PUBLISHED_S)
        cluster.kill(THREE)
        await until(lambda: leader_of(cluster) is None)
        await asyncio.sleep(PUBLISHED_S)
        await cluster.start(THREE)
        await until(lambda: leader_of(cluster) == THREE)
        assert elections(await recorded_tables(cluster)) == [(3, None, 1, GONE), (None, 3, 2, GONE)]

    play(scenario, settings=SETTINGS)
