"""KIP-73 in real brokers on virtual time: strict on both sides, fair, no effect on other traffic.

Bytes are measured by how the destination's logs grow, not by what the quota counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from insync.broker.admin.topics import RequestedTopic, TopicRefused
from insync.broker.broker_loop import BrokerLoop
from insync.broker.quotas.quota_admission import NoQuota, QuotaAdmission
from insync.broker.quotas.quotas import Quotas
from insync.broker.settings import Settings
from insync.client.partition_client import PartitionClient
from insync.metadata import paths
from insync.metadata.records import decode_state, encode_config, encode_state
from insync.metadata.store import Create, Write
from insync.rules.refusals import BadSetting, BadThrottledReplicas
from insync.rules.throttling import Treatment
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.telemetry.recorder import Recorder
from insync.telemetry.rows import ThrottleRow
from insync.wire import batches
from support.sim.broker_metrics import metrics_of, samples
from support.sim.few_brokers import node_of, play

MB = 1_000_000
BATCH_BYTES = 100_000
TOPIC = "moving"
BOTH = ("leader", "follower")
SAMPLE_S = 0.02
HOUR_MS = 3_600_000
RECORDS_UNDER_WAY = 12  # which the follower has, and its next fetch will say so: a second's


def record_batch(size_bytes: int) -> bytes:
    return batches.build([(None, bytes(size_bytes - 100))])


async def create(cluster: Cluster, leaders: Iterable[int], *, name: str = TOPIC) -> None:
    """One partition for each of these, with that one replica."""
    assignment = {number: (leader,) for number, leader in enumerate(leaders)}
    await node_of(cluster, 1).topics.create(RequestedTopic(name=name, assignment=assignment))
    await asyncio.sleep(0.2)


def append(cluster: Cluster, partition: int, *batch_bytes: int, name: str = TOPIC) -> None:
    state = decode_state(cluster.tree.entries[paths.partition_state(name, partition)].value)
    assert state.leader is not None
    node = node_of(cluster, state.leader)
    replica = node.replicas.partitions[name, partition]
    for size_bytes in batch_bytes:
        data = bytearray(record_batch(size_bytes))
        headers = list(batches.whole_batches(data))
        result = replica.log.append_leader(data, headers, epoch=replica.epoch, now_ms=0)
        node.replicas.leading.on_append(replica, result.end, size_bytes=result.bytes)


def add_replica(cluster: Cluster, partitions: Iterable[int], broker: int) -> None:
    for number in partitions:
        entry = cluster.tree.entries[paths.partition_state(TOPIC, number)]
        state = decode_state(entry.value)
        grown = replace(state, replicas=(*state.replicas, BrokerId(broker)))
        cluster.tree.step([Write(entry.path, encode_state(grown), entry.version)], None)


def configure(cluster: Cluster, path: str, config: dict[str, str]) -> None:
    entry = cluster.tree.entries.get(path)
    value = encode_config(config)
    step = Create(path, value) if entry is None else Write(path, value, entry.version)
    cluster.tree.step([step], None)


def throttle(
    cluster: Cluster, rate: int, *, sides: tuple[str, ...] = BOTH, replicas: str = "*"
) -> None:
    rates = {f"{side}.replication.throttled.rate": str(rate) for side in sides}
    lists = {f"{side}.replication.throttled.replicas": replicas for side in sides}
    configure(cluster, paths.broker_config(None), rates)
    configure(cluster, paths.topic_config(TOPIC), lists)


def held_bytes(cluster: Cluster, broker: int, name: str = TOPIC) -> int:
    held = node_of(cluster, broker).replicas.partitions
    return sum(replica.log.size_bytes for key, replica in held.items() if key[0] == name)


def is_in_sync(cluster: Cluster, partition: int, broker: int, name: str = TOPIC) -> bool:
    path = paths.partition_state(name, partition)
    return broker in decode_state(cluster.tree.entries[path].value).isr


class Growth:
    """What arrived on some brokers, sample by sample."""

    def __init__(self, cluster: Cluster, brokers: Iterable[int]) -> None:
        self._cluster = cluster
        self._brokers = list(brokers)
        self._began_at_s = asyncio.get_running_loop().time()
        self.samples = [(0.0, 0)]

    async def until_in_sync(self, partitions: int, *, within_s: float) -> float:
        """Returns how long it took."""
        async with asyncio.timeout(within_s):
            while not all(
                is_in_sync(self._cluster, number, broker)
                for number in range(partitions)
                for broker in self._brokers
            ):
                await asyncio.sleep(SAMPLE_S)
                self._sample()
        return self.samples[-1][0]

    def _sample(self) -> None:
        at_s = asyncio.get_running_loop().time() - self._began_at_s
        bytes_now = sum(held_bytes(self._cluster, broker) for broker in self._brokers)
        self.samples.append((at_s, bytes_now))

    def most_within(self, span_s: float) -> int:
        """The most that arrived in any span of this length."""
        first, most = 0, 0
        for at_s, total in self.samples:
            while self.samples[first][0] < at_s - span_s:
                first += 1
            most = max(most, total - self.samples[first][1])
        return most


async def begin_move(cluster: Cluster, *, sides: tuple[str, ...] = BOTH, others: int = 0) -> Growth:
    """12 MB in 24 partitions, from 1 to 2 at 1 MB/s; other partitions stay where they are."""
    await create(cluster, [1] * (24 + others))
    for number in range(24):
        append(cluster, number, *[BATCH_BYTES] * 5)
    throttle(cluster, MB, sides=sides)
    growth = Growth(cluster, [2])
    add_replica(cluster, range(24), 2)
    return growth


@pytest.mark.parametrize("sides", [BOTH, ("leader",), ("follower",)])
def test_a_move_uses_its_quota_and_never_exceeds_it(sides: tuple[str, ...]) -> None:
    """12 MB at 1 MB/s are 12 s; any 10 s hold at most 1.05 x 10 MB and a batch."""

    async def scenario(cluster: Cluster) -> None:
        growth = await begin_move(cluster, sides=sides)
        took_s = await growth.until_in_sync(24, within_s=60)
        assert 12 * 0.95 <= took_s <= 12 * 1.05
        assert growth.most_within(10) <= 1.05 * 10 * MB + BATCH_BYTES
        assert growth.most_within(1) <= 1.5 * MB + BATCH_BYTES  # the first second as well

    play(scenario, brokers=2)


def test_a_wall_clock_jump_changes_no_quota_and_no_isr() -> None:
    async def scenario(cluster: Cluster) -> None:
        growth = await begin_move(cluster)

        async def jump() -> None:
            for ahead_ms in cycle((HOUR_MS, -HOUR_MS, 0)):
                await asyncio.sleep(0.7)
                for broker in cluster.brokers.values():
                    broker.wall_ahead_ms = ahead_ms

        jumping = asyncio.create_task(jump())
        took_s = await growth.until_in_sync(24, within_s=60)
        assert 12 * 0.95 <= took_s <= 12 * 1.05
        assert growth.most_within(10) <= 1.05 * 10 * MB + BATCH_BYTES
        await asyncio.sleep(5)
        assert all(is_in_sync(cluster, number, 2) for number in range(24))
        jumping.cancel()

    play(scenario, brokers=2, settings={"replica.lag.time.max.ms": "1000"})


def test_a_consumer_of_a_throttled_partition_is_not_throttled() -> None:
    """At 1 B/s for replicas."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1])
        append(cluster, 0, *[BATCH_BYTES] * 20)
        throttle(cluster, 1)
        add_replica(cluster, [0], 2)
        client = PartitionClient(cluster.network.host(200), cluster.addresses, TOPIC, 0)
        offset = 0
        async with asyncio.timeout(2):
            while offset < 20:
                values, offset = await client.read(offset)
                assert values
        assert held_bytes(cluster, 2) == 0

    play(scenario, brokers=2)


def test_the_metrics_of_a_move_are_the_bytes_that_were_sent() -> None:
    async def scenario(cluster: Cluster) -> None:
        await begin_move(cluster, others=1)
        client = PartitionClient(cluster.network.host(200), cluster.addresses, TOPIC, 24)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in (1, 2)}
        for _ in range(105):  # of the twelve seconds that it takes; the rate is that of ten
            await client.append([bytes(10_000)])
            await asyncio.sleep(0.1)
        scraped = {number: samples(metrics[number]) for number in (1, 2)}
        for number, side in ((1, "leader"), (2, "follower")):
            for name in ("throttledrate", "_byte_rate"):
                rate = scraped[number][f"kafka_server_{side}replication{name}", ""]
                assert rate == pytest.approx(MB, rel=0.1)
            limit = scraped[number][f"insync_{side}_replication_throttle_bytes_per_second", ""]
            assert limit == MB
        leader, follower = (node_of(cluster, number).replicas.partitions for number in (1, 2))
        lacks = sum(leader[key].log.end - replica.log.end for key, replica in follower.items())
        assert scraped[1]["kafka_server_sumreplicalag", ""] == lacks > 0
        rates = [
            sample.value
            for family in text_string_to_metric_families(metrics[1].text().decode())
            for sample in family.samples
            if sample.name == "kafka_server_partitionbytesinrate"
            if sample.labels == {"topic": TOPIC, "partition": "24"}
        ]
        assert rates == [pytest.approx(100_000, rel=0.15)]
        await asyncio.sleep(10)
        assert samples(metrics[1])["kafka_server_sumreplicalag", ""] == 0

    play(scenario, brokers=2)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_the_alert_of_a_stuck_move_fires_in_a_stuck_one_and_in_no_other(*, is_stuck: bool) -> None:
    """The sum is what the followers lack, from the first moment on."""
    expression = alert_expression("InsyncMoveStuck")
    assert "kafka_server_replicamanager_reassigningpartitions) > 0" in expression
    assert "delta(kafka_server_sumreplicalag[10m])) >= 0" in expression

    async def scenario(cluster: Cluster) -> None:
        await begin_move(cluster, others=1)
        written = 0 if is_stuck else 24  # one that moves, or one that stays
        throttle(cluster, 1 if is_stuck else MB)
        client = PartitionClient(cluster.network.host(200), cluster.addresses, TOPIC, written)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in (1, 2)}
        sums: list[float] = []
        for _ in range(60):
            await client.append([bytes(1_000)])
            await asyncio.sleep(0.1)
            leader, follower = (node_of(cluster, each).replicas.partitions for each in (1, 2))
            lacks = sum(leader[key].log.end - replica.log.end for key, replica in follower.items())
            sums.append(
                sum(samples(each)["kafka_server_sumreplicalag", ""] for each in metrics.values())
            )
            assert abs(sums[-1] - lacks) <= RECORDS_UNDER_WAY
        window = len(sums) // 3
        deltas = [later - sooner for sooner, later in zip(sums, sums[window:], strict=False)]
        assert all(delta >= 0 for delta in deltas) == is_stuck
        assert all(delta < 0 for delta in deltas) != is_stuck

    play(scenario, brokers=2)


def alert_expression(name: str) -> str:
    rules = (Path(__file__).parents[3] / "deploy" / "prometheus-alerts.yml").read_text()
    return " ".join(rules.split(f"- alert: {name}\n")[1].split("for:")[0].split())


@pytest.mark.parametrize(("windows", "size_s"), [(2, 1), (2, 3), (20, 1)])
def test_a_new_quota_window_applies_from_when_it_is_set(windows: int, size_s: int) -> None:
    """The rate covers the bytes of one window; the default window is eleven seconds.

    The quota itself is a bucket, which the window does not change.
    """

    async def scenario(cluster: Cluster) -> None:
        growth = await begin_move(cluster)
        metrics = {number: metrics_of(node_of(cluster, number)) for number in (1, 2)}

        def rates() -> list[float]:
            return [
                samples(metrics[number])[f"kafka_server_{side}replicationthrottledrate", ""]
                for number, side in ((1, "leader"), (2, "follower"))
            ]

        await asyncio.sleep(3)
        assert rates() == [pytest.approx(MB, rel=0.4)] * 2, "since its beginning"
        config = {
            **{f"{side}.replication.throttled.rate": str(MB) for side in BOTH},
            "replication.quota.window.num": str(windows),
            "replication.quota.window.size.seconds": str(size_s),
        }
        configure(cluster, paths.broker_config(None), config)
        await asyncio.sleep(0.1)
        rates()  # measuring begins with the first call
        await asyncio.sleep(6)
        assert rates() == [pytest.approx(MB, rel=0.1)] * 2
        took_s = await growth.until_in_sync(24, within_s=30)
        assert took_s == pytest.approx(12, rel=0.05)
        await asyncio.sleep(windows * size_s - 1)
        assert min(rates()) > 0
        await asyncio.sleep(2)
        assert rates() == [0, 0]

    play(scenario, brokers=2)


@pytest.mark.parametrize("partitions", [6, 100, 1_000])
def test_work_per_partition_does_not_grow_with_the_partitions_held_back(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 MB in batches of 6 kB at 8 MB/s: some 30 responses carry them, not one per few batches.

    Beside these, a partition costs a few fetches until it is in sync, however many others wait.
    """
    rate, small_batch_bytes, total_bytes = 8 * MB, 6_000, 24 * MB
    counts: Counter[str] = Counter()

    def count(target: object, method: str, name: str) -> None:
        call = getattr(target, method)

        def counted(*args: object, **options: object) -> object:
            counts[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(target, method, counted)

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * partitions)
        for number in range(partitions):
            batches_each = total_bytes // small_batch_bytes // partitions
            append(cluster, number, *[small_batch_bytes] * batches_each)
        throttle(cluster, rate)
        await asyncio.sleep(0.2)
        count(node_of(cluster, 1).quotas.leader, "response", "responses tried")
        count(node_of(cluster, 2).quotas.follower, "treatment", "partitions looked at")
        growth = Growth(cluster, [2])
        add_replica(cluster, range(partitions), 2)
        took_s = await growth.until_in_sync(partitions, within_s=30)
        assert took_s == pytest.approx(total_bytes / rate, rel=0.06)  # half a second is saved up
        assert counts["responses tried"] <= 100 + 4 * partitions
        assert counts["partitions looked at"] <= 200 + 10 * partitions

    play(scenario, brokers=2)


def test_five_leaders_and_one_follower_stay_within_its_quota() -> None:
    async def scenario(cluster: Cluster) -> None:
        leaders = [1, 2, 3, 4, 5] * 4
        await create(cluster, leaders)
        for number in range(20):
            append(cluster, number, *[BATCH_BYTES] * 6)
        throttle(cluster, MB)
        growth = Growth(cluster, [6])
        add_replica(cluster, range(20), 6)
        took_s = await growth.until_in_sync(20, within_s=60)
        assert 12 * 0.95 <= took_s <= 12 * 1.05
        assert growth.most_within(10) <= 1.05 * 10 * MB + BATCH_BYTES
        follower = node_of(cluster, 6).quotas.follower
        assert follower.bytes_passed == held_bytes(cluster, 6)  # nothing came twice

    play(scenario, brokers=6)


def test_one_leader_and_three_followers_stay_within_its_quota() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 8)
        for number in range(8):
            append(cluster, number, *[BATCH_BYTES] * 5)
        throttle(cluster, MB)
        growth = Growth(cluster, [2, 3, 4])
        for broker in (2, 3, 4):
            add_replica(cluster, range(8), broker)
        took_s = await growth.until_in_sync(8, within_s=60)
        assert 12 * 0.95 <= took_s <= 12 * 1.05
        assert growth.most_within(10) <= 1.05 * 10 * MB + BATCH_BYTES

    play(scenario, brokers=4)


def test_batches_larger_than_the_bucket_finish_beside_constant_traffic() -> None:
    """300 kB/s; 100 kB/s keep up, so eight batches of 1 MiB go at the other 200 kB/s: 42 s."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1, 1])
        add_replica(cluster, [0], 2)
        await Growth(cluster, [2]).until_in_sync(1, within_s=5)
        append(cluster, 1, *[1 << 20] * 8)
        throttle(cluster, 300_000)

        async def keep_up() -> None:
            while True:
                append(cluster, 0, 10_000)
                await asyncio.sleep(0.1)

        traffic = asyncio.create_task(keep_up())
        growth = Growth(cluster, [2])
        add_replica(cluster, [1], 2)
        took_s = await growth.until_in_sync(2, within_s=120)
        traffic.cancel()
        assert 36 <= took_s <= 46
        assert is_in_sync(cluster, 0, 2)

    play(scenario, brokers=2, settings={"replica.lag.time.max.ms": "2000"})


def test_an_in_sync_replica_is_never_held_back() -> None:
    """KAFKA-4313, at 1 B/s: low-volume partitions keep their ISR while others wait."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1, 1, 1])
        add_replica(cluster, [0, 1], 2)
        await Growth(cluster, [2]).until_in_sync(2, within_s=5)
        append(cluster, 2, *[BATCH_BYTES] * 20)
        throttle(cluster, 1)
        add_replica(cluster, [2], 2)
        for _ in range(200):
            append(cluster, 0, 2_000)
            await asyncio.sleep(0.1)
            assert is_in_sync(cluster, 0, 2)
            assert is_in_sync(cluster, 1, 2)
        assert not is_in_sync(cluster, 2, 2)
        log = node_of(cluster, 2).replicas.partitions[TOPIC, 0].log
        assert log.end == node_of(cluster, 1).replicas.partitions[TOPIC, 0].log.end

    play(scenario, brokers=2, settings={"replica.lag.time.max.ms": "1000"})


def test_a_replica_held_back_is_fetched_once_it_is_in_the_isr() -> None:
    """At 1 B/s its turn would never come: the change of the state brings it."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 3)
        for number in range(3):
            append(cluster, number, BATCH_BYTES)
        throttle(cluster, 1)
        add_replica(cluster, range(3), 2)
        await asyncio.sleep(3)
        replicas = node_of(cluster, 2).replicas.partitions
        held_back = node_of(cluster, 2).fetchers.held_back
        assert replicas[TOPIC, 2].log.end == 0
        entry = cluster.tree.entries[paths.partition_state(TOPIC, 2)]
        state = replace(decode_state(entry.value), isr=(BrokerId(1), BrokerId(2)))
        cluster.tree.step([Write(entry.path, encode_state(state), entry.version)], None)
        await asyncio.sleep(0.3)
        assert replicas[TOPIC, 2].log.end == 1
        assert node_of(cluster, 2).fetchers.held_back == held_back - 1

    play(scenario, brokers=2)


def test_a_small_partition_does_not_starve_behind_large_ones() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 6)
        for number in range(5):
            append(cluster, number, *[BATCH_BYTES] * 30)
        append(cluster, 5, 500)
        throttle(cluster, MB)
        add_replica(cluster, range(6), 2)
        async with asyncio.timeout(6):  # of the fifteen that all of them take
            while not is_in_sync(cluster, 5, 2):
                await asyncio.sleep(SAMPLE_S)

    play(scenario, brokers=2)


def test_unthrottled_partitions_are_not_delayed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1])
        await create(cluster, [1], name="free")
        append(cluster, 0, *[BATCH_BYTES] * 20)
        throttle(cluster, 1)
        add_replica(cluster, [0], 2)
        entry = cluster.tree.entries[paths.partition_state("free", 0)]
        state = replace(decode_state(entry.value), replicas=(BrokerId(1), BrokerId(2)))
        cluster.tree.step([Write(entry.path, encode_state(state), entry.version)], None)
        for _ in range(20):
            append(cluster, 0, 1_000, name="free")
            await asyncio.sleep(0.05)
            free = node_of(cluster, 2).replicas.partitions["free", 0]
            assert free.log.end == node_of(cluster, 1).replicas.partitions["free", 0].log.end

    play(scenario, brokers=2)


def test_a_large_batch_is_sent_beside_responses_that_are_never_empty() -> None:
    """KIP-74 allows a batch larger than requested only for the first partition of a response."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1])
        await create(cluster, [1], name="busy")
        append(cluster, 0, 1 << 20)
        entry = cluster.tree.entries[paths.partition_state("busy", 0)]
        state = replace(decode_state(entry.value), replicas=(BrokerId(1), BrokerId(2)))
        cluster.tree.step([Write(entry.path, encode_state(state), entry.version)], None)
        throttle(cluster, 300_000, sides=("follower",))

        async def keep_busy() -> None:
            while True:
                append(cluster, 0, 1_000, name="busy")
                await asyncio.sleep(0.0002)

        traffic = asyncio.create_task(keep_busy())
        growth = Growth(cluster, [2])
        add_replica(cluster, [0], 2)
        await growth.until_in_sync(1, within_s=1)  # half a second until the bucket is full
        traffic.cancel()

    play(scenario, brokers=2)


def test_replicas_that_lack_nothing_do_not_wait_for_one_another() -> None:
    """At this rate they are fetched one at a time; a long poll for each would take 20 s."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 40)
        throttle(cluster, 100_000)
        growth = Growth(cluster, [2])
        add_replica(cluster, range(40), 2)
        await growth.until_in_sync(40, within_s=3)

    play(scenario, brokers=2)


def test_a_new_rate_applies_at_once_and_no_rate_applies_without_a_list() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 4)
        for number in range(4):
            append(cluster, number, *[BATCH_BYTES] * 10)
        throttle(cluster, 1)
        add_replica(cluster, range(4), 2)
        await asyncio.sleep(5)
        before = held_bytes(cluster, 2)
        assert before <= 2 * BATCH_BYTES
        throttle(cluster, MB)
        await asyncio.sleep(2)
        assert held_bytes(cluster, 2) - before == pytest.approx(2 * MB, rel=0.3)
        throttle(cluster, MB, replicas="")
        await asyncio.sleep(0.5)
        assert all(is_in_sync(cluster, number, 2) for number in range(4))

    play(scenario, brokers=2)


def test_the_first_answer_after_a_throttle_is_set_is_counted_too() -> None:
    """A replica that was copying freely stops at once, and owes what was under way."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 4)
        for number in range(4):
            append(cluster, number, *[1 << 20] * 12)
        add_replica(cluster, range(4), 2)
        await asyncio.sleep(0.01)
        throttle(cluster, MB)
        await asyncio.sleep(0.2)
        before = held_bytes(cluster, 2)
        await asyncio.sleep(10)
        assert held_bytes(cluster, 2) - before <= 1.05 * 10 * MB + (1 << 20)

    play(scenario, brokers=2)


def test_throttled_bytes_are_recorded_per_second() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, [1] * 4)
        for number in range(4):
            append(cluster, number, *[BATCH_BYTES] * 10)
        throttle(cluster, MB)
        growth = Growth(cluster, [2])
        recorders = {}
        for number in (1, 2):
            publisher = node_of(cluster, number).publisher
            assert publisher is not None
            recorders[number] = publisher.recorder
        add_replica(cluster, range(4), 2)
        await growth.until_in_sync(4, within_s=30)
        await asyncio.sleep(1.1)
        for number, side in ((1, "leader"), (2, "follower")):
            rows = seconds_of(recorders[number], side)
            assert sum(row.bytes for row in rows) == held_bytes(cluster, 2)
            assert {row.limit_bytes_per_s for row in rows} == {MB}
            assert max(row.bytes for row in rows) <= 1.5 * MB + BATCH_BYTES
        follower = seconds_of(recorders[2], "follower")
        assert any(row.held_back_partitions for row in follower)  # something was held back
        leader = seconds_of(recorders[1], "leader")
        lags = [row.replica_lag_bytes for row in leader if row.replica_lag_bytes]
        assert lags == sorted(lags, reverse=True)
        assert lags[0] > 2 * MB

    settings = {"telemetry.enable": "true", "telemetry.publish.interval.ms": "600000"}
    play(scenario, brokers=2, settings=settings)


def seconds_of(recorder: Recorder, side: str) -> list[ThrottleRow]:
    rows = [row for row in recorder.rows["throttle"] if isinstance(row, ThrottleRow)]
    return [row for row in rows if row.side == side]


# What may be set, and where.


@pytest.mark.parametrize("side", BOTH)
def test_throttles_are_not_settable_in_a_file(side: str) -> None:
    with pytest.raises(BadSetting, match="only be set at run time"):
        Settings({f"{side}.replication.throttled.rate": "1000"})
    with pytest.raises(BadSetting, match="there is no setting"):
        Settings({f"{side}.replication.throttled.replicas": "*"})


def test_throttles_are_not_settable_at_creation() -> None:
    async def scenario(cluster: Cluster) -> None:
        config = {"leader.replication.throttled.replicas": "0:1"}
        with pytest.raises(TopicRefused, match="only be set at run time"):
            await node_of(cluster, 1).topics.create(RequestedTopic(name="t", config=config))

    play(scenario, brokers=1)


@pytest.mark.parametrize("text", ["0", "0:", "a:b", "0:1:2", "0:1;0:2", "*,0:1", "-1:0", ","])
def test_lists_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(BadThrottledReplicas):
        Settings({}).for_topic({"follower.replication.throttled.replicas": text})


def test_a_list_in_the_store_that_cannot_be_read_throttles_nothing() -> None:
    quotas = Quotas(BrokerId(1), BrokerLoop(lambda: 0))
    quotas.apply_lists({"t": {"leader.replication.throttled.replicas": "nonsense"}}, ["t"])
    assert not quotas.leader.is_set


class IgnoringWaiter:
    def has_room(self) -> None:
        pass


def test_responses_filled_at_once_do_not_share_the_same_bytes_of_the_bucket() -> None:
    """One may be sent while another is still being filled. Both were admitted, and both count."""
    now_ms = 0

    async def scenario() -> None:
        nonlocal now_ms
        quota = Quotas(BrokerId(1), BrokerLoop(lambda: now_ms)).leader
        name = "leader.replication.throttled"
        quota.apply_rate(Settings({}).at_run_time(own={f"{name}.rate": "1000"}, everyones={}))
        quota.apply_lists({"t": {f"{name}.replicas": "*"}}, ["t"])
        now_ms = 500  # the bucket holds 500 bytes
        outer, inner = quota.response(IgnoringWaiter()), quota.response(IgnoringWaiter())
        assert outer.admit(400)
        assert inner.admit(400)
        inner.on_sent()
        outer.on_sent()
        assert quota.bytes_passed == 800
        next_one = IgnoringWaiter()
        for at_ms, is_admitted in (
            (899, False),
            (900, True),
        ):  # 300 bytes are owed, and 100 are needed
            now_ms = at_ms
            later = quota.response(next_one)
            assert later.admit(100) is is_admitted
        quota.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("quota", [Quotas(BrokerId(1), BrokerLoop(lambda: 0)).leader, NoQuota()])
def test_a_quota_that_is_not_set_admits_everything(quota: QuotaAdmission) -> None:
    assert not quota.is_set
    assert quota.treatment(("t", 0), is_in_sync=False) is Treatment.FREE
    response = quota.response(IgnoringWaiter())
    for _ in range(2):
        assert response.is_open
        assert response.treatment(("t", 0), is_in_sync=False) is Treatment.FREE
        assert response.room_bytes(MB) == MB
        assert response.admit(MB)
        response.count_in_sync(MB)
    response.on_sent()
    assert quota.reserve(IgnoringWaiter(), MB, batch_bytes_max=BATCH_BYTES) == MB
    quota.settle(MB, 0)
    quota.leave(IgnoringWaiter())
