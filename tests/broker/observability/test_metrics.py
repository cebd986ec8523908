"""The metrics of a broker on virtual time, compared with known values."""

from __future__ import annotations

import asyncio
import time
from math import inf
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from insync.broker.observability.inbound_metrics import PARTITIONS_PER_TURN
from insync.broker.observability.isr_counters import IsrCounters
from insync.broker.observability.metrics import DETAIL_MAX, Metrics
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.partition_client import PartitionClient
from insync.metadata.records import encode_state
from insync.metadata.store import Change, Entry
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop
from support.sim.broker_metrics import metrics_of, samples
from support.sim.few_brokers import (
    THREE,
    client_of,
    deadlines_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    topic,
    until,
    write_on,
)
from support.sim.one_broker import OneBroker, on_virtual_time
from support.sim.simulated_cluster import SETTINGS
from support.sim.slow_leader import EXAMPLE, SOLUTION_1, SOLUTION_2, begin_a_slow_read

SERVER = "kafka_server_replicamanager_"
PARTITIONS = 250
CONTROLLER = "kafka_controller_kafkacontroller_"


async def a_cluster(loop: VirtualLoop, topics: list[NewTopic]) -> Cluster:
    settings = {**SETTINGS, "replica.lag.time.max.ms": "2000"}
    cluster = Cluster(loop, Random(3), settings=settings)  # noqa: S311
    for number in cluster.brokers:
        await cluster.start(number)
    await asyncio.sleep(1)
    host = cluster.network.host(200)
    async with Admin(Connections(host, cluster.addresses)) as admin:
        for topic in topics:
            await admin.create_topic(topic)
    await asyncio.sleep(1)
    return cluster


def test_metrics_of_an_unreachable_follower_until_it_leaves_the_isr() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = await a_cluster(
            loop,
            [
                NewTopic(name="t", assignment=[[1, 2, 3]]),
                NewTopic(name="u", assignment=[[2, 1, 3]]),
            ],
        )
        writer = PartitionClient(cluster.network.host(201), cluster.addresses, "t", 0)
        await writer.append([b"0"] * 7)
        await asyncio.sleep(1)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in cluster.brokers}
        values = samples(metrics[1])
        assert values[f"{SERVER}partitioncount", ""] == 2
        assert values[f"{SERVER}leadercount", ""] == 1
        assert values[f"{SERVER}underreplicatedpartitions", ""] == 0
        assert values[f"{SERVER}atminisrpartitioncount", ""] == 0
        assert values["kafka_server_brokertopicmetrics_messagesin_total", ""] == 7
        size = node_of(cluster, 1).replicas.partitions["t", 0].log.size_bytes
        assert values["kafka_server_brokertopicmetrics_bytesin_total", ""] == size
        assert values["kafka_server_brokertopicmetrics_replicationbytesout_total", ""] == 2 * size
        for number in (2, 3):
            inwards = samples(metrics[number])
            assert inwards["kafka_server_brokertopicmetrics_replicationbytesin_total", ""] == size
            assert values["insync_follower_lag_seconds", str(number)] == 0
        assert values["insync_next_eviction_seconds", ""] == inf
        cluster.network.cut(1, 3)
        writing = loop.create_task(writer.append([b"1"] * 5))
        await asyncio.sleep(1)
        values = samples(metrics[1])
        assert values["insync_follower_lag_messages", "3"] == 5
        assert values["insync_follower_lag_messages", "2"] == 0
        lag_s = values["insync_follower_lag_seconds", "3"]
        assert lag_s == pytest.approx(1.1, abs=0.15)
        assert values["insync_next_eviction_seconds", ""] == pytest.approx(2.001 - lag_s)
        text = metrics[1].text().decode()
        label = '{follower="3",partition="0",topic="t"}'
        assert f"insync_partition_follower_lag_seconds{label} {lag_s}" in text
        await writing
        values = samples(metrics[1])
        assert values[f"{SERVER}isrshrinks_total", ""] == 1
        assert values[f"{SERVER}isrexpands_total", ""] == 0
        assert values[f"{SERVER}underreplicatedpartitions", ""] == 1
        assert values[f"{SERVER}atminisrpartitioncount", ""] == 1
        assert values["insync_follower_partitions_out_of_sync", "3"] == 1
        assert values["insync_next_eviction_seconds", ""] == inf
        others = samples(metrics[2])
        assert others[f"{SERVER}isrshrinks_total", ""] == 0, "only the leader counts it"
        cluster.network.heal()
        await asyncio.sleep(5)
        values = samples(metrics[1])
        assert values[f"{SERVER}isrexpands_total", ""] == 1
        assert values[f"{SERVER}underreplicatedpartitions", ""] == 0

    on_virtual_time(scenario)


def test_bytes_out_are_counted_by_the_broker_that_sent_them() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = await a_cluster(loop, [NewTopic(name="t", assignment=[[1, 2, 3]])])
        client = PartitionClient(cluster.network.host(201), cluster.addresses, "t", 0)
        for number in range(5):
            await client.append([b"x" * number] * 3)
        await asyncio.sleep(1)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in cluster.brokers}

        def out(number: int) -> tuple[float, float]:
            values, prefix = samples(metrics[number]), "kafka_server_brokertopicmetrics_"
            names = (f"{prefix}bytesout_total", f"{prefix}replicationbytesout_total")
            return values[names[0], ""], values[names[1], ""]

        size = node_of(cluster, 1).replicas.partitions["t", 0].log.size_bytes
        assert [out(number) for number in (1, 2, 3)] == [(0, 2 * size), (0, 0), (0, 0)]
        got = [await client.read_batches(offset, from_start=True) for offset in (0, 0, 12)]
        sizes = [len(part.records or b"") for part in got]
        assert sizes[:2] == [size, size]
        assert 0 < sizes[2] < size, "the last batch only"
        assert [out(number) for number in (1, 2, 3)] == [(sum(sizes), 2 * size), (0, 0), (0, 0)]

    on_virtual_time(scenario)


@pytest.mark.slow
def test_a_follower_exposes_its_lag_behind_the_high_watermark() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in cluster.brokers}

        def lag(number: int) -> float:
            return samples(metrics[number])["kafka_server_replicafetchermanager_maxlag", ""]

        def end_of(number: int) -> int:
            return replica_of(cluster, number).log.end

        cluster.network.cut(1, THREE)
        client = client_of(cluster)
        batches = 12
        for _ in range(batches):
            await client.append_once([b"more"] * 3)
        await until(lambda: isr_of(cluster) == [1, 2])
        assert replica_of(cluster, 1).high_watermark == 3 * batches
        assert (end_of(3), lag(3)) == (0, 0), "it cannot know"
        cluster.network.heal()
        lags = []
        while (
            end_of(3) < 3 * batches
        ):  # it fetches a batch at a time, and learns the high watermark
            if end_of(3) > 3:  # the first was under way when nothing was committed
                assert lag(3) == 3 * batches - end_of(3)
                assert (lag(1), lag(2)) == (0, 0)
                lags.append(lag(3))
            await asyncio.sleep(0.0001)
        assert sorted(set(lags), reverse=True) == [3 * left for left in range(batches - 2, 0, -1)]
        assert lag(3) == 0

    play(scenario, settings={"replica.fetch.max.bytes": "1"})


def test_the_controller_exposes_partitions_without_a_leader() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        topics = [NewTopic(name="t", assignment=[[1, 2]]), NewTopic(name="lone", assignment=[[1]])]
        cluster = await a_cluster(loop, topics)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in (2, 3)}
        assert cluster.controller() == 1
        assert samples(metrics[2])[f"{CONTROLLER}activecontrollercount", ""] == 0
        cluster.kill(1)
        await asyncio.sleep(2)
        controller = cluster.controller()
        assert controller in metrics
        values = samples(metrics[controller])
        assert values[f"{CONTROLLER}activecontrollercount", ""] == 1
        assert values[f"{CONTROLLER}offlinepartitionscount", ""] == 1
        assert values[f"{CONTROLLER}globalpartitioncount", ""] == 2
        assert values[f"{CONTROLLER}globaltopiccount", ""] == 2
        assert values[f"{CONTROLLER}activebrokercount", ""] == 2
        assert values[f"{CONTROLLER}preferredreplicaimbalancecount", ""] == 2
        stats = "kafka_controller_controllerstats_"
        assert values[f"{stats}leaderelectionrateandtimems_count", ""] == 1
        assert values[f"{stats}uncleanleaderelections_total", ""] == 0
        (other,) = (number for number in metrics if number != controller)
        values = samples(metrics[other])
        assert values[f"{CONTROLLER}activecontrollercount", ""] == 0
        assert values[f"{CONTROLLER}offlinepartitionscount", ""] == 0
        assert values[f"{stats}leaderelectionrateandtimems_count", ""] == 0

    on_virtual_time(scenario)


def test_stalls_are_counted() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = await a_cluster(loop, [NewTopic(name="t", assignment=[[1, 2, 3]])])
        metrics = metrics_of(node_of(cluster, 2))
        assert samples(metrics)["insync_stalls_total", ""] == 0
        cluster.pause(2)
        await asyncio.sleep(0.7)
        cluster.resume(2)
        await asyncio.sleep(0.2)
        values = samples(metrics)
        assert values["insync_stalls_total", ""] == 1
        assert values["insync_stalled_seconds_total", ""] == pytest.approx(0.7, abs=0.1)

    on_virtual_time(scenario)


def test_a_partition_below_min_isr_is_counted_until_its_isr_suffices() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, config={"min.insync.replicas": "3"})
        metrics = {number: metrics_of(node_of(cluster, number)) for number in cluster.brokers}

        def values(number: int) -> tuple[float, float]:
            of_broker = samples(metrics[number])
            under, at = (f"{SERVER}{name}minisrpartitioncount" for name in ("under", "at"))
            return of_broker[under, ""], of_broker[at, ""]

        assert (values(1), values(2)) == ((0, 1), (0, 0)), "only the leader exports it"
        writing = cluster.loop.create_task(write_on(cluster))
        cluster.network.cut(1, THREE)
        await until(lambda: isr_of(cluster) == [1, 2])
        await asyncio.sleep(0.1)
        assert (values(1), values(2)) == ((1, 0), (0, 0))
        cluster.network.heal()
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        await asyncio.sleep(0.1)
        assert (values(1), values(2)) == ((0, 1), (0, 0))
        writing.cancel()

    play(scenario)


READ_S = 15.0


@pytest.mark.parametrize("settings", [EXAMPLE, SOLUTION_1], ids=["off", "on"])
def test_a_pending_read_is_exposed_with_its_age_and_its_result(settings: dict[str, str]) -> None:
    """With KIP-501 a pending read stops the deadline; without it the deadline runs."""

    async def scenario(cluster: Cluster) -> None:
        began_ms = await begin_a_slow_read(cluster, read_s=READ_S)
        metrics = metrics_of(node_of(cluster, 1))
        due_ms = min(deadlines_of(cluster).values(), default=None)
        assert (due_ms is None) == (settings == SOLUTION_1)
        for _ in range(4):
            await asyncio.sleep(2)
            values, now_ms = samples(metrics), cluster.loop.clock_ms()
            oldest_s = [values["insync_follower_pending_read_seconds", each] for each in "23"]
            # Both fetched at almost the same time; the first fetch is the oldest.
            assert max(oldest_s) == (now_ms - began_ms) / 1_000
            assert max(oldest_s) - min(oldest_s) <= 0.1
            assert [values["insync_follower_pending_reads", each] for each in "23"] == [1, 1]
            left_s = inf if due_ms is None else (due_ms - now_ms) / 1_000
            assert values["insync_next_eviction_seconds", ""] == left_s
            assert values[f"{SERVER}underminisrpartitioncount", ""] == 0
        await asyncio.sleep(READ_S - 8 - 1)  # the reads go on, and the limit of 10 s has passed
        values = samples(metrics)
        are_in = settings == SOLUTION_1
        assert isr_of(cluster) == ([1, 2, 3] if are_in else [1])
        assert values["insync_next_eviction_seconds", ""] == inf, "no follower is left to evict"
        assert values[f"{SERVER}underminisrpartitioncount", ""] == (0 if are_in else 1)
        assert (values[f"{SERVER}isrshrinks_total", ""] == 0) == are_in
        assert [values["insync_follower_pending_reads", each] for each in "23"] == [1, 1]
        cluster.brokers[1].disk.is_cold = False
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        await asyncio.sleep(2)
        values = samples(metrics)
        for name in ("insync_follower_pending_reads", "insync_follower_pending_read_seconds"):
            assert [values[name, each] for each in "23"] == [0, 0]
        assert values["insync_next_eviction_seconds", ""] == inf
        assert values[f"{SERVER}underminisrpartitioncount", ""] == 0

    play(scenario, settings=settings)


def test_a_resignation_is_counted_where_it_happened_and_once() -> None:
    """A preferred leader election is not a resignation of any broker."""

    async def scenario(cluster: Cluster) -> None:
        metrics = {number: metrics_of(node_of(cluster, number)) for number in cluster.brokers}

        def values() -> list[float]:
            return [samples(each)["insync_resignations_total", ""] for each in metrics.values()]

        await begin_a_slow_read(cluster, read_s=3)
        assert values() == [0, 0, 0]
        await until(lambda: state_of(cluster)["leader"] == 2)
        await asyncio.sleep(0.1)
        assert values() == [1, 0, 0]
        cluster.brokers[1].disk.is_cold = False
        await until(lambda: state_of(cluster)["leader"] == 1, within_s=70)
        await asyncio.sleep(0.1)
        assert values() == [1, 0, 0]

    more = {"leader.resign.cooldown.ms": "8000", "leader.imbalance.check.interval.seconds": "1"}
    play(scenario, settings=SOLUTION_2 | more)


def test_a_resignation_is_distinguished_from_other_leader_changes() -> None:
    def state(isr: tuple[int, ...], leader: int | None, epoch: int) -> PartitionState:
        return PartitionState(
            replicas=tuple(map(BrokerId, (2, 1, 3))),
            isr=tuple(map(BrokerId, isr)),
            leader=None if leader is None else BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
        )

    def resignations(before: PartitionState, after: PartitionState) -> int:
        class Store:
            def watch(self, _: object) -> object:
                return lambda: None

            def get(self, _: str) -> None:
                return None

        changes = IsrCounters(BrokerId(1), Store())  # type: ignore[arg-type]
        path = "/brokers/topics/t/partitions/0/state"
        entries = [Entry(path, encode_state(each), 0) for each in (before, after)]
        changes._on_changes([Change(path, *entries)])
        return changes.resignations

    led_by_1 = state((2, 1, 3), 1, 5)
    assert resignations(led_by_1, state((2, 3, 1), 3, 6)) == 1
    assert resignations(led_by_1, state((2, 3, 1), 2, 6)) == 1
    assert resignations(led_by_1, state((2, 1, 3), 2, 6)) == 0, "given back to the preferred one"
    assert resignations(led_by_1, state((2, 3), 2, 6)) == 0, "dead"
    assert resignations(led_by_1, state((2, 1, 3), None, 6)) == 0
    assert resignations(state((1, 2, 3), 2, 5), state((1, 3, 2), 3, 6)) == 0, (
        "another broker resigned"
    )


def test_a_scrape_of_many_partitions_is_cheap() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = await a_cluster(
            loop, [NewTopic(name="t", assignment=[[1, 2, 3] for _ in range(PARTITIONS)])]
        )
        metrics = metrics_of(node_of(cluster, 1))
        values = samples(metrics)
        assert values[f"{SERVER}leadercount", ""] == PARTITIONS
        assert values[f"{SERVER}underreplicatedpartitions", ""] == 0
        assert _least_s(metrics) < 0.03, "a millisecond or two on a free core"
        cluster.kill(3)
        await asyncio.sleep(1)
        values = samples(metrics)
        assert values["insync_follower_partitions_out_of_sync", "3"] == PARTITIONS
        assert metrics.text().count(b"insync_partition_follower_lag_seconds{") <= DETAIL_MAX

    on_virtual_time(scenario)


def test_the_inbound_rate_of_every_partition_is_listed_on_request() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = await a_cluster(
            loop, [NewTopic(name="t", assignment=[[1, 2] for _ in range(PARTITIONS)])]
        )
        client = PartitionClient(cluster.network.host(200), cluster.addresses, "t", 7)
        for _ in range(100):
            await client.append([bytes(1_000)])
            await asyncio.sleep(0.1)
        metrics = metrics_of(node_of(cluster, 1))

        def rates(text: bytes) -> dict[str, float]:
            return {
                sample.labels["partition"]: sample.value
                for family in text_string_to_metric_families(text.decode())
                for sample in family.samples
                if sample.name == "kafka_server_partitionbytesinrate"
            }

        busiest, turns = rates(metrics.text()), list(metrics.text_of_all_partitions())
        assert busiest == {"7": pytest.approx(10_000, rel=0.15)}
        listed = rates(b"".join(turns))
        assert listed == {**{str(number): 0 for number in range(PARTITIONS)}, **busiest}
        assert max(turn.count(b"partitionbytesinrate{") for turn in turns) == PARTITIONS_PER_TURN
        others = [
            {
                line
                for line in text.splitlines()
                if b"bytesinrate" not in line and b"process_" not in line
            }
            for text in (metrics.text(), b"".join(turns))
        ]
        assert others[0] == others[1]
        assert rates(b"".join(metrics_of(node_of(cluster, 2)).text_of_all_partitions())) == {}

    on_virtual_time(scenario)


def _least_s(metrics: Metrics) -> float:
    def once() -> float:
        began_s = time.perf_counter()
        metrics.text()
        return time.perf_counter() - began_s

    return min(once() for _ in range(5))


def test_without_a_port_no_metrics_are_served() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        one = OneBroker(loop)
        await one.start(partitions=1)
        assert ("127.0.0.1", 9_100) not in one.network._listeners
        other = OneBroker(loop, metrics_port="9100")
        await other.node.start()
        assert ("127.0.0.1", 9_100) in other.network._listeners
        await other.node.stop()
        assert ("127.0.0.1", 9_100) not in other.network._listeners

    on_virtual_time(scenario)
