"""What a broker recorded reaches the topic, or is counted; nothing else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from insync.broker.observability.telemetry import ROWS_MAX
from insync.sim.clients import Admin, SimClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop
from insync.telemetry.schemas import TELEMETRY_TOPIC
from support.telemetry.recorded_runs import as_rows, collect

Scenario = Callable[[Cluster, SimClient], Awaitable[None]]


def play(scenario: Scenario, *, brokers: int = 3, **settings: str) -> None:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    config = {
        "telemetry.enable": "true",
        "telemetry.topic.partitions": "2",
        "telemetry.publish.interval.ms": "200",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    cluster = Cluster(loop, Random(1), brokers=brokers, settings=config)  # noqa: S311

    async def start_and_play() -> None:
        for number in cluster.brokers:
            await cluster.start(number)
        client = SimClient(cluster, 100, ("t", 0), Random(1))  # noqa: S311
        await scenario(cluster, client)
        assert not cluster.unexpected_errors, cluster.unexpected_errors

    try:
        loop.run_until_complete(start_and_play())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def topic_config(cluster: Cluster) -> dict[str, str]:
    node = cluster.up()[0].node
    assert node is not None
    return node.view.topic_configs[TELEMETRY_TOPIC]


def test_the_topic_is_created_with_the_first_led_partition_and_as_configured() -> None:
    async def scenario(cluster: Cluster, client: SimClient) -> None:
        await asyncio.sleep(2.0)
        node = cluster.up()[0].node
        assert node is not None
        assert TELEMETRY_TOPIC not in node.view.topics  # no broker leads a partition
        await Admin(cluster, client).create("t", 1, factor=1)
        await asyncio.sleep(1.0)
        topic = node.view.topics[TELEMETRY_TOPIC]
        assert (topic.partitions, topic.replication_factor) == (2, 3)
        config = topic_config(cluster)
        assert config["retention.bytes"] == str(10 * 2**20 // 2)
        assert config["retention.ms"] == "-1"
        assert int(config["segment.bytes"]) < int(config["retention.bytes"])

    play(scenario, telemetry_retention_bytes=str(10 * 2**20))


def test_with_one_broker_the_topic_has_one_replica_and_with_telemetry_off_there_is_none() -> None:
    async def alone(cluster: Cluster, client: SimClient) -> None:
        await Admin(cluster, client).create("t", 1, factor=1)
        await asyncio.sleep(1.0)
        rows = as_rows(await collect(cluster))
        assert [row["base_offset"] for row in rows["appends"]] == [0]
        assert {"broker:1"} <= {row["scope"] for row in rows["configs"]}

    async def off(cluster: Cluster, client: SimClient) -> None:
        await Admin(cluster, client).create("t", 1, factor=1)
        await asyncio.sleep(2.0)
        node = cluster.up()[0].node
        assert node is not None
        assert TELEMETRY_TOPIC not in node.view.topics

    play(alone, brokers=1)
    play(off, brokers=1, telemetry_enable="false")


def test_rows_of_one_partition_stay_together_in_order() -> None:
    async def scenario(cluster: Cluster, client: SimClient) -> None:
        await Admin(cluster, client).create("t", 1, factor=3)
        for _ in range(200):
            await client.append([b"x"])
        await asyncio.sleep(1.0)
        sequences = []
        for number in range(2):
            rows = as_rows(await collect(cluster, partitions=[number]))
            sequences.append([row["seq"] for row in rows["appends"]])
        whole = next(each for each in sequences if each)
        assert [] in sequences
        assert len(whole) == 201
        assert whole == sorted(whole)

    play(scenario)


def test_a_full_batch_of_rows_does_not_wait_for_the_interval() -> None:
    async def scenario(cluster: Cluster, client: SimClient) -> None:
        await Admin(cluster, client).create("t", 1, factor=1)
        await client.append([b"x"])
        await asyncio.sleep(61.0)  # the first round creates the topic
        for _ in range(ROWS_MAX):
            await client.append([b"x"])
        await asyncio.sleep(0.5)
        assert cluster.loop.time() < 120.0, "the second interval is over"
        collection = await collect(cluster)
        assert len(as_rows(collection)["appends"]) >= 1 + ROWS_MAX
        assert max(len(rows) for rows in collection.tables["appends"]) <= ROWS_MAX

    play(scenario, telemetry_publish_interval_ms="60000")


def test_an_unreachable_topic_only_drops_rows_and_counts_them() -> None:
    """The leader of "t" cannot reach the leader of the partition that its rows go to."""

    async def scenario(cluster: Cluster, client: SimClient) -> None:
        await Admin(cluster, client).create("t", 1, factor=1)
        await client.append([b"x"])
        await asyncio.sleep(1.0)
        leader = client.responding_broker
        node = cluster.brokers[leader].node
        assert node is not None
        assert node.publisher is not None
        recorder = node.publisher.recorder
        for other in cluster.brokers:
            if other != leader:
                cluster.network.cut(leader, other)
        # Its own telemetry partitions cannot be committed to either, until the others have left.
        began_s = cluster.loop.time()
        for _ in range(1_000):
            await client.append([b"x"])
            await asyncio.sleep(0.001)
        assert cluster.loop.time() - began_s < 10.0  # no client waited
        assert recorder.drops["appends"] > 0
        cluster.network.heal()
        await asyncio.sleep(10.0)
        await client.append([b"x"])
        await asyncio.sleep(2.0)
        collection, dropped = await collect(cluster), recorder.drops["appends"]
        appends = as_rows(collection)["appends"]
        assert len(appends) + dropped == 1_003
        assert sum(drops["appends"] for drops in collection.drops.values()) == dropped

    play(scenario, telemetry_buffer_bytes="65536", replica_lag_time_max_ms="30000")
