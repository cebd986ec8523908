"""Disks that fill and fail, links that are cut, clocks that jump: nothing acknowledged is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

from insync.testing.cluster import Cluster
from insync.testing.control import CommandRefused
from support.cluster.clients import (
    QUIET,
    IntegerProducer,
    await_in_sync,
    check_all_is_well,
    check_nothing_lost,
    consumer_of,
    create_topic,
    eventually,
    incarnations,
    partitions_of,
    read_all,
)

LAG_MS = 2_000
SESSION_MS = 2_500
SETTINGS = {"replica.lag.time.max.ms": str(LAG_MS), "min.insync.replicas": "2"}

pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(settings=SETTINGS)]


def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> int:
    return int(partitions_of(cluster, topic)[partition].leader)


def isr_of(cluster: Cluster, topic: str, partition: int = 0) -> set[int]:
    return set(partitions_of(cluster, topic)[partition].isrs)


def all_in_sync(cluster: Cluster, topic: str) -> None:
    await_in_sync(cluster, topic, within_s=20)


def produce_until(producer: IntegerProducer, condition: Callable[[], bool], *, what: str) -> None:
    """Keep writing: a follower that has everything is in sync however silent it is."""

    def sent_and_so() -> bool:
        producer.send(10)
        return condition()

    eventually(sent_and_so, within_s=20, what=what)


def produce_one(cluster: Cluster, topic: str, partition: int, **config: Any) -> Any:
    """The error one record was refused with in the end; None if it was acknowledged."""
    results: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **config, **QUIET})
    producer.produce(
        topic, b"1", partition=partition, on_delivery=lambda error, _message: results.append(error)
    )
    assert producer.flush(30) == 0
    return results[0]


@pytest.fixture
def cluster(insync_cluster: Cluster) -> Iterator[Cluster]:
    yield insync_cluster
    assert all(each.is_running for each in insync_cluster.brokers.values()), "a broker died"


@pytest.mark.parametrize("ending", ["heal", "restart"])
def test_a_leader_whose_disk_is_full_refuses_appends_and_loses_nothing(
    cluster: Cluster, ending: str
) -> None:
    create_topic(cluster, "orders")
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders")
    producer.send(300)
    producer.flush()
    full = leader_of(cluster, "orders", 0)
    others = [p for p, each in partitions_of(cluster, "orders").items() if each.leader != full]
    cluster.fill_disk(full, after_bytes=2_000)
    before = {partition: len(producer.acknowledged[partition]) for partition in range(3)}
    produce_until(
        producer,
        lambda: all(len(producer.acknowledged[p]) > before[p] + 200 for p in others),
        what="partitions led by others are written to",
    )
    refused = produce_one(cluster, "orders", 0, retries=0)
    assert refused is not None
    assert refused.code() == KafkaError.KAFKA_STORAGE_ERROR
    if ending == "heal":
        cluster.heal(full)
    else:
        cluster.restart(full)
    producer.send(300)
    producer.flush()
    check_all_is_well(cluster, producer)


def test_a_follower_whose_disk_is_full_leaves_and_comes_back(cluster: Cluster) -> None:
    create_topic(cluster, "orders", partitions=1)
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=1)
    full = next(iter(isr_of(cluster, "orders") - {leader_of(cluster, "orders")}))
    cluster.fill_disk(full)
    produce_until(
        producer,
        lambda: full not in isr_of(cluster, "orders"),
        what="the full follower is out of the ISR",
    )
    producer.flush()
    cluster.heal()
    check_all_is_well(cluster, producer)


def test_a_full_disk_does_not_keep_a_broker_from_stopping(cluster: Cluster) -> None:
    create_topic(cluster, "orders")
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders")
    producer.send(300)
    producer.flush()
    cluster.fill_disk(1)
    began_s = time.monotonic()
    process = cluster.brokers[1].process
    assert process is not None
    process.terminate()
    assert process.wait(10) == 0
    assert time.monotonic() - began_s < 10
    assert "Traceback" not in cluster.brokers[1].log.read_text()
    cluster.restart(1)
    check_all_is_well(cluster, producer)


def test_a_topic_created_while_a_disk_is_full_is_replicated_in_the_end(cluster: Cluster) -> None:
    cluster.fill_disk(1)
    create_topic(cluster, "orders")
    cluster.restart(1)
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders")
    producer.send(300)
    producer.flush()
    check_all_is_well(cluster, producer)


def test_a_follower_leaves_the_isr_when_its_link_is_cut_and_rejoins_when_it_heals(
    cluster: Cluster,
) -> None:
    create_topic(cluster, "orders", partitions=1)
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=1)
    producer.send(100)
    producer.flush()
    leader = leader_of(cluster, "orders")
    follower = min(isr_of(cluster, "orders") - {leader})
    cluster.cut(leader, follower)
    cut_at_s = time.monotonic()
    produce_until(
        producer,
        lambda: follower not in isr_of(cluster, "orders"),
        what="the cut-off follower is out of the ISR",
    )
    assert time.monotonic() - cut_at_s >= (LAG_MS - 500) / 1_000  # a fetch may be 500 ms old
    producer.flush()  # with two of three in sync
    assert leader_of(cluster, "orders") == leader
    cluster.heal()
    all_in_sync(cluster, "orders")
    assert producer.errors == []
    check_nothing_lost(cluster, producer)


def test_an_isolated_leader_acknowledges_nothing_and_loses_nothing(cluster: Cluster) -> None:
    create_topic(cluster, "orders", partitions=1)
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=1)
    producer.send(100)
    producer.flush()
    leader = leader_of(cluster, "orders")
    cluster.isolate(leader)
    assert produce_one(cluster, "orders", 0, **{"message.timeout.ms": 1_500}) is not None
    cluster.heal()
    producer.send(100)
    producer.flush()
    all_in_sync(cluster, "orders")
    check_nothing_lost(cluster, producer)


def test_failing_reads_are_errors_to_clients_and_do_not_stop_the_broker(cluster: Cluster) -> None:
    create_topic(cluster, "orders")
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders")
    producer.send(300)
    producer.flush()
    leader = leader_of(cluster, "orders", 0)
    cluster.fail_reads(leader, topic="orders", partition=0)
    consumer = consumer_of(cluster)
    consumer.assign([TopicPartition("orders", 0, 0)])
    deadline_s = time.monotonic() + 3
    while time.monotonic() < deadline_s:
        message = consumer.poll(0.2)
        assert message is None or message.error() is not None, "read from a disk that cannot"
    consumer.close()
    rest = [1, 2]
    assert read_all(cluster, "orders", rest) == {p: producer.acknowledged[p] for p in rest}
    cluster.heal()
    check_nothing_lost(cluster, producer)
    all_in_sync(cluster, "orders")


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
@pytest.mark.insync_cluster(
    settings={
        **SETTINGS,
        "log.retention.check.interval.ms": "100",
        "broker.session.timeout.ms": "2000",
    }
)
def test_a_wall_clock_jump_changes_no_isr(cluster: Cluster, by_ms: int) -> None:
    create_topic(cluster, "orders")
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders")
    producer.send(300)
    producer.flush()
    before = {p: (each.leader, each.isrs) for p, each in partitions_of(cluster, "orders").items()}
    for broker in cluster.brokers:
        cluster.shift_wall_clock(broker, by_ms=by_ms)
        end_s = time.monotonic() + 1  # each sees the other clocks for a while
        while time.monotonic() < end_s:
            producer.send(10)
    producer.flush()
    after = {p: (each.leader, each.isrs) for p, each in partitions_of(cluster, "orders").items()}
    assert after == before
    for each in cluster.brokers.values():
        log = each.log.read_text()
        assert " leaves (" not in log, "a follower left an ISR"
        assert "lost its session" not in log
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings={**SETTINGS, "broker.session.timeout.ms": str(SESSION_MS)})
def test_slow_reads_of_one_partition_disturb_no_other(cluster: Cluster) -> None:
    """Nor the heartbeats of its broker: each read takes longer than its session would last."""
    create_topic(cluster, "orders", partitions=6)
    all_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=6)
    producer.send(600)
    producer.flush()
    leader = leader_of(cluster, "orders", 0)
    same = next(
        p for p, each in partitions_of(cluster, "orders").items() if p and each.leader == leader
    )
    incarnations_before = incarnations(cluster)
    before = {p: (each.leader, each.isrs) for p, each in partitions_of(cluster, "orders").items()}
    cluster.slow_reads(leader, delay_ms=4 * SESSION_MS, topic="orders", partition=0)
    slow, quick = (consumer_of(cluster) for _ in range(2))
    writer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
    written: list[Any] = []
    try:
        _, end = quick.get_watermark_offsets(TopicPartition("orders", same), timeout=10)
        quick.assign([TopicPartition("orders", same, end)])
        slow.assign([TopicPartition("orders", 0, 0)])
        end_s = time.monotonic() + 2 * SESSION_MS / 1_000
        while time.monotonic() < end_s:
            assert slow.poll(0.05) is None, "it is being read"
            began_s = time.monotonic()
            writer.produce(
                "orders", b"1", partition=same, on_delivery=lambda *it: written.append(it)
            )
            assert writer.flush(30) == 0
            error, message = written[-1]
            assert error is None
            while (read := quick.poll(1)) is None or read.offset() < message.offset():
                assert time.monotonic() - began_s < 1, "it has not been read"
            assert time.monotonic() - began_s < 1
        assert written
    finally:
        slow.close()
        quick.close()
    assert incarnations(cluster) == incarnations_before, (
        "a broker that lost its session would have registered again"
    )
    after = {p: (each.leader, each.isrs) for p, each in partitions_of(cluster, "orders").items()}
    assert after == before
    for each in cluster.brokers.values():
        assert not re.search("lost its session|ended the session", each.log.read_text())


def test_a_restart_clears_the_faults_of_a_broker_and_its_links(cluster: Cluster) -> None:
    create_topic(cluster, "orders", partitions=1)
    all_in_sync(cluster, "orders")
    leader = leader_of(cluster, "orders")
    follower = min(isr_of(cluster, "orders") - {leader})
    cluster.cut(leader, follower)
    cluster.fill_disk(follower)
    cluster.restart(follower)
    producer = IntegerProducer(cluster, "orders", partitions=1)
    producer.send(100)
    producer.flush()
    all_in_sync(cluster, "orders")


def test_a_paused_broker_does_not_respond_to_commands(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insync.testing.cluster.COMMAND_WITHIN_S", 0.2)
    cluster.pause(1)
    with pytest.raises(CommandRefused, match="broker 1: no response within"):
        cluster.fill_disk(1)
    cluster.resume(1)


def test_faults_need_brokers_started_with_fault_injection() -> None:
    with (
        Cluster(brokers=1, with_faults=False) as cluster,
        pytest.raises(CommandRefused, match="broker 1: no broker with faults runs"),
    ):
        cluster.fill_disk(1)
