"""KIP-501 in real processes: the leader's disk is slow, and its followers are not to blame."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from cluster_helpers import (
    QUIET,
    IntegerProducer,
    await_in_sync,
    check_all_is_well,
    check_nothing_lost,
    create_topic,
    eventually,
    leader_of,
    partitions_of,
)
from confluent_kafka import KafkaError, Producer
from isr_log import left, log_of

from insync.testing.cluster import Cluster

LAG_MS = 1_500
SLOW_MS = 5_000
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.fetch.wait.max.ms": "200",
    "broker.session.timeout.ms": "10000",
    "min.insync.replicas": "2",
    "log.segment.bytes": str(1 << 20),
}
SOLUTION_1 = SETTINGS | {
    "follower.fetch.pending.reads.insync.enable": "true",
    "follower.fetch.process.time.max.ms": "60000",
}
# Time enough for a leader that handed over: it cuts off what nobody could read, and reads for it.
SOLUTION_2 = SETTINGS | {
    "replica.lag.time.max.ms": "5000",
    "replica.in.sync.policy": "pending-reads",
    "follower.fetch.process.time.max.ms": "200",
}

pytestmark = pytest.mark.process


def isr_of(cluster: Cluster) -> list[int]:
    return list(partitions_of(cluster, "orders")[0].isrs)


def slow_leader(cluster: Cluster, *, read_ms: int = SLOW_MS) -> tuple[int, IntegerProducer]:
    create_topic(cluster, "orders", partitions=1)
    await_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=1)
    producer.send(100)
    producer.flush()
    leader = leader_of(cluster)
    cluster.slow_reads(leader, delay_ms=read_ms, topic="orders", partition=0)
    return leader, producer


def while_writing(producer: IntegerProducer, until: Callable[[], bool], *, what: str) -> float:
    """Returns how long it took, in seconds."""
    began_s = time.monotonic()

    def sent_and_so() -> bool:
        producer.send(5)
        return until()

    eventually(sent_and_so, within_s=20, what=what)
    return time.monotonic() - began_s


@pytest.mark.insync_cluster(settings=SETTINGS)
def test_off_the_followers_are_put_out_and_acks_all_fails(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    leader, producer = slow_leader(cluster)
    took_s = while_writing(producer, lambda: isr_of(cluster) == [leader], what="alone in sync")
    assert took_s < SLOW_MS / 1_000
    told: list[KafkaError | None] = []
    impatient = Producer({"bootstrap.servers": cluster.bootstrap, "retries": 0, **QUIET})
    impatient.produce("orders", b"0", partition=0, on_delivery=lambda e, _: told.append(e))
    impatient.flush(10)
    assert told[0] is not None
    assert told[0].code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert leader_of(cluster) == leader
    cluster.heal()
    await_in_sync(cluster, "orders")
    producer.flush()
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_1)
def test_on_no_live_follower_leaves_and_a_dead_one_does(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    leader, producer = slow_leader(cluster)
    end_s = time.monotonic() + 2.5 * LAG_MS / 1_000
    while_writing(producer, lambda: time.monotonic() > end_s, what="much more than the lag time")
    assert left(cluster) == []
    assert len(isr_of(cluster)) == 3
    assert leader_of(cluster) == leader
    dead = isr_of(cluster)[-1]
    assert dead != leader
    cluster.kill(dead)
    took_s = while_writing(producer, lambda: dead not in isr_of(cluster), what="the dead one out")
    assert took_s < LAG_MS / 1_000
    cluster.heal()
    cluster.restart(dead)
    producer.flush()
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_2)
def test_a_leader_that_reads_too_long_hands_over(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    old, producer = slow_leader(cluster, read_ms=400)
    took_s = while_writing(
        producer, lambda: partitions_of(cluster, "orders")[0].leader != old, what="it hands over"
    )
    assert took_s < 1.5
    assert (len(isr_of(cluster)), isr_of(cluster)[-1]) == (3, old)
    before = producer.acknowledged_count
    while_writing(
        producer, lambda: producer.acknowledged_count > before + 100, what="clients carry on"
    )
    producer.flush()
    assert left(cluster) == []
    assert log_of(cluster).count(" resigns (") == 1
    cluster.heal()
    check_all_is_well(cluster, producer)


@pytest.mark.long
@pytest.mark.insync_cluster(settings=SOLUTION_2)
def test_when_every_disk_is_slow_leadership_does_not_thrash(insync_cluster: Cluster) -> None:
    """The document's own worry. Each replica resigns once at most until it has cooled down."""
    cluster = insync_cluster
    _, producer = slow_leader(cluster, read_ms=500)
    for broker in cluster.brokers:
        cluster.slow_reads(broker, delay_ms=500, topic="orders")
    end_s = time.monotonic() + 5
    while_writing(producer, lambda: time.monotonic() > end_s, what="a while")
    log = log_of(cluster)
    assert 1 <= log.count(" resigns (") <= 3
    for broker in cluster.brokers:
        assert log.count(f": {broker} resigns (") <= 1
    cluster.heal()
    producer.flush()
    check_all_is_well(cluster, producer)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"replica.in.sync.policy": "sometimes"}, "use messages or lag-begin"),
        ({"replica.lag.time.max.ms": "100"}, "replica.fetch.wait.max.ms is 500"),
        (
            {
                "replica.in.sync.policy": "lag-begin",
                "follower.fetch.pending.reads.insync.enable": "true",
            },
            "has no meaning with replica.in.sync.policy=lag-begin",
        ),
    ],
)
def test_what_has_no_meaning_is_one_line(settings: dict[str, str], complaint: str) -> None:
    cluster = Cluster(brokers=1, settings=settings)
    try:
        with pytest.raises(Exception, match=complaint):
            cluster.start()
        assert len(cluster.brokers[1].log.read_text().splitlines()) == 1
    finally:
        cluster.__exit__(None, None, None)
