"""KIP-501 for as many partitions as a leader has: its disk becomes slow under all of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from insync.client.connection import ClientConnection
from insync.metadata import paths
from insync.metadata.records import TopicRecord, encode_state
from insync.metadata.store import Create
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.values import LeaderEpoch
from insync.sim.cluster import Cluster
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)
from support.sim.few_brokers import ONE, THREE, TWO, node_of, play, until
from support.sim.slow_leader import SOLUTION_1, SOLUTION_2

LAG_S, READ_S = 3.0, 8.0
SHORT_LAG = {"replica.lag.time.max.ms": "3000"}
PROCESS_TIME_S = 0.5  # follower.fetch.process.time.max.ms, the default
TOPIC = "t"

sizes = pytest.mark.parametrize(
    "partitions", [1, 30, 300, pytest.param(1_000, marks=pytest.mark.slow)]
)


async def create(cluster: Cluster, partitions: int) -> None:
    """Every partition is led by broker 1; 2 and 3 follow."""
    topic_id = UUID(int=7, version=4)
    record = TopicRecord(topic_id=topic_id, partitions=partitions, replication_factor=3)
    state = PartitionState(
        replicas=(ONE, TWO, THREE), isr=(ONE, TWO, THREE), leader=ONE, leader_epoch=LeaderEpoch(0)
    )
    cluster.tree.step(
        [
            Create(paths.topic(TOPIC), record.encode()),
            Create(paths.topic_id(topic_id), TOPIC.encode()),
            *(
                Create(paths.partition_state(TOPIC, number), encode_state(state))
                for number in range(partitions)
            ),
        ],
        None,
    )
    await asyncio.sleep(1.0)


async def produce(cluster: Cluster, partitions: int, *, host: int) -> None:
    """One record to each partition, in one request to broker 1 with acks=1."""
    connection = ClientConnection(client_id=f"host-{host}")
    await cluster.network.host(host).connect(*cluster.brokers[1].address, connection)
    parts = [
        ProducePartition(TOPIC, number, batches.build([(None, b"x" * 100)]))
        for number in range(partitions)
    ]
    body = write_produce_request(7, ProduceRequest(None, 1, 1_000, parts))
    response = read_produce_response(7, *await connection.ask(Api.PRODUCE, 7, [body]))
    assert {int(result.error) for result in response.results} == {0}


def terms(cluster: Cluster, partitions: int) -> list[Leadership | None]:
    replicas = node_of(cluster, 1).replicas.partitions
    return [replicas[TOPIC, number].term for number in range(partitions)]


def states(cluster: Cluster, partitions: int) -> list[dict[str, Any]]:
    entries = cluster.tree.entries
    return [
        json.loads(entries[paths.partition_state(TOPIC, number)].value)
        for number in range(partitions)
    ]


def isr_sizes(cluster: Cluster, partitions: int) -> Counter[int]:
    return Counter(len(state["isr"]) for state in states(cluster, partitions))


def leaders(cluster: Cluster, partitions: int) -> Counter[object]:
    return Counter(state["leader"] for state in states(cluster, partitions))


async def write_first(cluster: Cluster, partitions: int, *, written: int) -> None:
    """All partitions exist, and followers have one record of those that are written to."""
    await create(cluster, partitions)
    await produce(cluster, written, host=201)
    await until(
        lambda: all(
            term is not None and all(each.end == 1 for each in term.followers.values())
            for term in terms(cluster, written)
        )
    )


async def slow_down(cluster: Cluster, written: int) -> None:
    """Partitions get a record more, which broker 1 has to read from a slow disk."""
    make_slow(cluster, 1)
    await produce(cluster, written, host=202)


def make_slow(cluster: Cluster, broker: int) -> None:
    cluster.brokers[broker].disk.is_cold = True
    cluster.brokers[broker].read_s = (READ_S, READ_S)


@sizes
def test_pending_reads_keep_followers_in_sync(partitions: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, partitions, written=partitions)
        await slow_down(cluster, partitions)
        await asyncio.sleep(LAG_S + 1)
        assert isr_sizes(cluster, partitions) == {3: partitions}
        assert leaders(cluster, partitions) == {1: partitions}
        pending = [
            all(each.reads.hold for each in term.followers.values())
            for term in terms(cluster, partitions)
            if term is not None
        ]
        assert pending == [True] * partitions, "reads that wait for memory count as well"

    play(scenario, settings=SOLUTION_1 | SHORT_LAG)


@sizes
def test_all_partitions_of_a_slow_disk_are_handed_over_in_time(partitions: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, partitions, written=partitions)
        await slow_down(cluster, partitions)
        await asyncio.sleep(3 * PROCESS_TIME_S)
        assert isr_sizes(cluster, partitions) == {3: partitions}
        half = partitions // 2
        spread = {2: partitions - half, 3: half} if half else {2: 1}
        assert leaders(cluster, partitions) == spread
        assert all(state["isr"][-1] == 1 for state in states(cluster, partitions))
        await asyncio.sleep(2 * READ_S)
        assert leaders(cluster, partitions)[1] == 0, "not elected again during its cool-down"

    play(scenario, settings=SOLUTION_2 | SHORT_LAG)


def test_partitions_without_a_slow_read_go_too_when_the_disk_is_slow() -> None:
    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, 30, written=3)
        await slow_down(cluster, 3)
        await asyncio.sleep(3 * PROCESS_TIME_S)
        assert leaders(cluster, 30) == {2: 15, 3: 15}

    play(scenario, settings=SOLUTION_2 | SHORT_LAG)


def test_two_slow_partitions_are_no_slow_disk() -> None:
    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, 30, written=2)
        await slow_down(cluster, 2)
        await asyncio.sleep(3 * PROCESS_TIME_S)
        assert leaders(cluster, 30) == {1: 28, 2: 1, 3: 1}

    play(scenario, settings=SOLUTION_2 | SHORT_LAG)


def test_a_failover_onto_a_slow_disk_evicts_no_follower() -> None:
    """Their first fetch from the new leader is pending, and asks for the high watermark."""

    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, 30, written=30)
        await asyncio.sleep(1.0)  # until the followers know the watermark
        cluster.network.cut(1, 3)
        await produce(cluster, 30, host=202)  # broker 2 has this record, broker 3 has not
        await asyncio.sleep(0.5)
        make_slow(cluster, 2)
        cluster.kill(1)
        await until(lambda: leaders(cluster, 30) == {2: 30})
        await asyncio.sleep(LAG_S + 1)
        assert isr_sizes(cluster, 30) == {2: 30}

    play(scenario, settings=SOLUTION_1 | SHORT_LAG)


@pytest.mark.parametrize("silent", [2, 3])
def test_leadership_goes_to_no_follower_that_may_be_gone(silent: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await write_first(cluster, 30, written=30)
        cluster.pause(silent)
        await asyncio.sleep(1.1)  # a fetch waits for 0.5 s, and a heartbeat is due every 0.5 s
        await slow_down(cluster, 30)
        await until(lambda: leaders(cluster, 30)[1] == 0)
        assert leaders(cluster, 30) == {5 - silent: 30}
        cluster.resume(silent)

    play(scenario, settings=SOLUTION_2 | SHORT_LAG)
