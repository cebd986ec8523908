"""Three real brokers and a real client: produced, replicated, read back; faults in between."""

from __future__ import annotations

import random
import time

import pytest
from cluster_helpers import (
    IntegerProducer,
    check_nothing_lost,
    create_topic,
    eventually,
    partitions_of,
)

from insync.testing.cluster import Cluster

pytestmark = pytest.mark.process


def test_what_is_produced_is_read_back_from_every_replica(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "orders")
    producer = IntegerProducer(insync_cluster, "orders")
    producer.send(3_000)
    producer.flush()
    assert producer.acknowledged_count == 3_000
    check_nothing_lost(insync_cluster, producer)
    eventually(
        lambda: all(len(p.isrs) == 3 for p in partitions_of(insync_cluster, "orders").values()),
        within_s=10,
        what="every replica is in sync",
    )


def test_a_topic_is_made_when_it_is_first_asked_for(insync_cluster: Cluster) -> None:
    producer = IntegerProducer(insync_cluster, "unheard-of", partitions=1)
    producer.send(10)
    producer.flush()
    check_nothing_lost(insync_cluster, producer)


def test_the_leader_dies_and_the_next_acknowledgement_comes_within_a_second_or_so(
    insync_cluster: Cluster,
) -> None:
    create_topic(insync_cluster, "orders", partitions=1, config={"min.insync.replicas": "2"})
    producer = IntegerProducer(insync_cluster, "orders", partitions=1)
    producer.send(100)
    producer.flush()
    leader = partitions_of(insync_cluster, "orders")[0].leader
    insync_cluster.kill(leader)
    killed_at_s = time.monotonic()
    producer.send(1)
    producer.flush(20)
    # A generous limit: this is a test of failing over, not a benchmark on a busy machine.
    assert producer.acknowledged_at_s - killed_at_s < 5
    assert partitions_of(insync_cluster, "orders")[0].leader != leader
    check_nothing_lost(insync_cluster, producer)


def test_all_die_at_once_and_everything_acknowledged_is_there_again(
    insync_cluster: Cluster,
) -> None:
    create_topic(insync_cluster, "orders", config={"min.insync.replicas": "2"})
    producer = IntegerProducer(insync_cluster, "orders")
    producer.send(2_000)
    producer.flush()
    for broker in insync_cluster.brokers:
        insync_cluster.kill(broker)
    insync_cluster.start()
    check_nothing_lost(insync_cluster, producer)


def test_a_broker_that_restarts_joins_again(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "orders")
    producer = IntegerProducer(insync_cluster, "orders")
    producer.send(300)
    producer.flush()
    insync_cluster.restart(2)
    producer.send(300)
    producer.flush()
    eventually(
        lambda: all(len(p.isrs) == 3 for p in partitions_of(insync_cluster, "orders").values()),
        within_s=10,
        what="the restarted broker is in sync again",
    )
    check_nothing_lost(insync_cluster, producer)


def test_a_leader_stopped_past_its_session_acknowledges_nothing() -> None:
    settings = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"}
    with Cluster(settings=settings) as cluster:
        create_topic(cluster, "orders", partitions=1, config={"min.insync.replicas": "2"})
        producer = IntegerProducer(cluster, "orders", partitions=1)
        producer.send(100)
        producer.flush()
        leader = partitions_of(cluster, "orders")[0].leader
        cluster.pause(leader)
        producer.send(100)
        producer.flush(30)
        cluster.resume(leader)
        producer.send(100)
        producer.flush(30)
        assert producer.errors == []
        assert partitions_of(cluster, "orders")[0].leader != leader
        eventually(
            lambda: len(partitions_of(cluster, "orders")[0].isrs) == 3,
            within_s=15,
            what="the stopped broker is in sync again",
        )
        check_nothing_lost(cluster, producer)


def kill_run(seconds: float, seed: int) -> None:
    """Kill -9 and restart brokers in turn while producing; nothing acknowledged is lost."""
    chance = random.Random(seed)  # noqa: S311
    with Cluster(settings={"min.insync.replicas": "2"}) as cluster:
        create_topic(cluster, "orders")
        producer = IntegerProducer(cluster, "orders")
        down: int | None = None
        end_s = time.monotonic() + seconds
        next_s = time.monotonic() + 1
        while time.monotonic() < end_s:
            producer.send(20)
            if time.monotonic() < next_s:
                continue
            if down is None:
                down = chance.choice(sorted(cluster.brokers))
                cluster.kill(down)
            else:
                cluster.restart(down)
                down = None
            next_s = time.monotonic() + chance.uniform(0.3, 2.5)
        if down is not None:
            cluster.restart(down)
        producer.flush(60)
        assert producer.errors == []
        check_nothing_lost(cluster, producer)


def test_nothing_acknowledged_is_lost_while_brokers_are_killed_and_restarted() -> None:
    kill_run(seconds=45, seed=20_161)
