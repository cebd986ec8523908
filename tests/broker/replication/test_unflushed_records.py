"""With `log.flush.interval.messages=1` a broker claims no record that it could not flush."""

from __future__ import annotations

import asyncio

import pytest

from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from support.sim.few_brokers import (
    ONE,
    THREE,
    TWO,
    client_of,
    play,
    replica_of,
    state_of,
    stays,
    term_of,
    topic,
    until,
)

SETTINGS = {"log.flush.interval.messages": "1", "min.insync.replicas": "2"}
BEFORE_SHRINK_S = 1.2  # replica.lag.time.max.ms is 1500 here


async def make_topic(cluster: Cluster, replicas: tuple[BrokerId, ...] = (ONE, TWO)) -> None:
    """A topic with one record that every replica has flushed."""
    await topic(cluster, replicas)
    assert await client_of(cluster).append([b"first"]) == 0
    await until(lambda: replica_of(cluster, 2).high_watermark == 1)


def claims(cluster: Cluster) -> tuple[int, int, int]:
    """The leader's high watermark, and the follower's end as the leader and it itself know it."""
    follower_end = term_of(cluster).followers[TWO].end
    return replica_of(cluster, 1).high_watermark, follower_end, replica_of(cluster, 2).log.end


def test_a_follower_whose_flush_fails_does_not_claim_the_records() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.brokers[2].disk.fails_flushes = True
        appending = asyncio.ensure_future(client_of(cluster).append([b"second"]))
        await until(lambda: replica_of(cluster, 2).log.has_failed)
        assert replica_of(cluster, 1).log.end == 2
        assert claims(cluster) == (1, 1, 1)
        await stays(lambda: claims(cluster)[1:] == (1, 1), for_s=BEFORE_SHRINK_S)
        assert not appending.done(), "acknowledged with one flushed copy"
        appending.cancel()

    play(scenario, settings=SETTINGS)


def test_no_acknowledged_record_is_lost_when_power_fails_after_a_failed_flush() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.brokers[2].disk.fails_flushes = True
        appending = asyncio.ensure_future(client_of(cluster).append([b"second"]))
        await until(lambda: replica_of(cluster, 2).log.has_failed)
        await asyncio.sleep(BEFORE_SHRINK_S)
        assert sorted(state_of(cluster)["isr"]) == [1], "it leaves although nothing is fetched"
        acknowledged = [b"first", b"second"] if appending.done() else [b"first"]
        appending.cancel()
        for number in (1, 2, 3):
            cluster.kill(number, loses_power=True)
        cluster.brokers[2].disk.fails_flushes = False
        await cluster.start(2)
        await cluster.start(3)
        await stays(lambda: state_of(cluster)["leader"] is None, for_s=5)
        await cluster.start(1)
        await until(lambda: sorted(state_of(cluster)["isr"]) == [1, 2], within_s=60)
        values, _ = await client_of(cluster, 102).read(0)
        assert values[: len(acknowledged)] == acknowledged

    play(scenario, settings=SETTINGS)


def test_a_follower_that_failed_stops_fetching_and_leaves_the_isr() -> None:
    async def scenario(cluster: Cluster) -> None:
        def fetched_at_ms() -> int:
            return term_of(cluster).followers[TWO].fetched_at_ms

        await make_topic(cluster, (ONE, TWO, THREE))
        cluster.brokers[2].disk.fails_flushes = True
        appending = asyncio.ensure_future(client_of(cluster).append([b"second"]))
        await until(lambda: replica_of(cluster, 2).log.has_failed)
        cluster.brokers[2].disk.fails_flushes = False
        last_fetched_at_ms = fetched_at_ms()
        await until(lambda: sorted(state_of(cluster)["isr"]) == [1, 3])
        assert await appending == 1
        assert fetched_at_ms() == last_fetched_at_ms
        await asyncio.sleep(3)
        assert fetched_at_ms() == last_fetched_at_ms
        cluster.kill(2)
        await cluster.start(2)
        await until(lambda: sorted(state_of(cluster)["isr"]) == [1, 2, 3])
        assert replica_of(cluster, 2).log.end == 2

    play(scenario, settings=SETTINGS)


@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_a_leader_whose_flush_fails_acknowledges_and_serves_nothing_of_it(min_isr: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.brokers[1].disk.fails_flushes = True
        loop = asyncio.get_running_loop()
        appending = loop.create_task(client_of(cluster, 103).append([b"second"]))
        await until(lambda: replica_of(cluster, 1).log.has_failed)
        assert not appending.done()
        assert replica_of(cluster, 1).log.end == replica_of(cluster, 1).high_watermark == 1
        await until(lambda: state_of(cluster)["leader"] == 2)
        assert replica_of(cluster, 2).log.end == 1, "it was served to the follower"
        assert state_of(cluster)["isr"] == [2]
        if min_isr == "1":
            assert await appending == 1
            return
        await asyncio.sleep(BEFORE_SHRINK_S)
        assert not appending.done(), "acknowledged with one copy"
        appending.cancel()

    play(scenario, settings=SETTINGS | {"min.insync.replicas": min_isr})
