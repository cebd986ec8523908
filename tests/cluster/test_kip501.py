"""KIP-501 in real processes: the leader's disk is slow, and its followers are not to blame."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from support.cluster.clients import (
    QUIET,
    IntegerProducer,
    admin,
    await_in_sync,
    check_all_is_well,
    check_nothing_lost,
    create_topic,
    eventually,
    incarnations,
    leader_of,
    partitions_of,
    stored_isr,
)
from support.cluster.isr_log import evictions_of, lines_of, log_of, logged_at_s, stalled_ms

INSYNC = Path(sys.executable).with_name("insync")
LAG_MS = 1_500
WAIT_MS = 200
SLOW_MS = 5_000
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.fetch.wait.max.ms": str(WAIT_MS),
    "broker.session.timeout.ms": "10000",
    "min.insync.replicas": "2",
    "log.segment.bytes": str(1 << 20),
}
SOLUTION_1 = SETTINGS | {
    "follower.fetch.pending.reads.insync.enable": "true",
    "follower.fetch.process.time.max.ms": "60000",
}
# Time enough for a leader that resigned: it truncates uncommitted records, and reads for that.
SOLUTION_2 = SETTINGS | {
    "replica.lag.time.max.ms": "5000",
    "replica.in.sync.policy": "pending-reads",
    "follower.fetch.process.time.max.ms": "200",
}

pytestmark = [pytest.mark.process, pytest.mark.timed]


def isr_of(cluster: Cluster) -> list[int]:
    return stored_isr(cluster, "orders")


def slow_leader(cluster: Cluster, *, read_ms: int = SLOW_MS) -> tuple[int, IntegerProducer]:
    if "orders" not in admin(cluster).list_topics(timeout=10).topics:
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
def test_with_kip_501_off_the_followers_are_evicted_and_acks_all_fails(
    insync_cluster: Cluster,
) -> None:
    cluster = insync_cluster
    leader, producer = slow_leader(cluster)
    took_s = while_writing(producer, lambda: isr_of(cluster) == [leader], what="alone in sync")
    assert took_s < SLOW_MS / 1_000
    results: list[KafkaError | None] = []
    impatient = Producer({"bootstrap.servers": cluster.bootstrap, "retries": 0, **QUIET})
    impatient.produce("orders", b"0", partition=0, on_delivery=lambda e, _: results.append(e))
    impatient.flush(10)
    assert results[0] is not None
    assert results[0].code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert leader_of(cluster) == leader
    cluster.heal()
    await_in_sync(cluster, "orders")
    producer.flush()
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_1)
def test_with_kip_501_on_only_a_dead_follower_leaves_the_isr(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    leader, producer = slow_leader(cluster)
    end_s = time.monotonic() + 2.5 * LAG_MS / 1_000
    while_writing(producer, lambda: time.monotonic() > end_s, what="much more than the lag time")
    assert evictions_of(cluster) == []
    assert len(isr_of(cluster)) == 3
    assert leader_of(cluster) == leader
    dead = isr_of(cluster)[-1]
    assert dead != leader
    cluster.kill(dead)
    took_s = while_writing(
        producer, lambda: dead not in isr_of(cluster), what="the dead follower is out"
    )
    assert took_s < LAG_MS / 1_000
    cluster.heal()
    cluster.restart(dead)
    producer.flush()
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_1)
@pytest.mark.parametrize("gives_up_after_ms", [LAG_MS // 3, 2 * LAG_MS])
def test_with_kip_501_on_a_follower_that_only_lost_its_connection_leaves_on_its_deadline(
    insync_cluster: Cluster, gives_up_after_ms: int
) -> None:
    """It is live and keeps its session. It gets no response, disconnects and cannot connect again.

    Until it closes, its fetch holds it in, past the lag time too; then its deadline counts.
    """
    cluster = insync_cluster
    create_topic(cluster, "orders", partitions=1)
    await_in_sync(cluster, "orders")
    incarnations_before, leader = incarnations(cluster), leader_of(cluster)
    gone, stays = (broker for broker in cluster.brokers if broker != leader)
    change_setting(cluster, gone, "replica.socket.timeout.ms", str(gives_up_after_ms - WAIT_MS))
    _, producer = slow_leader(cluster, read_ms=60_000)
    producer.send(5)  # both fetch it, and it is being read
    time.sleep(0.05)
    cluster.cut(leader, gone, one_way=True)
    leaves = ("orders-0: ISR is now", f": {gone} leaves (")
    while_writing(producer, lambda: bool(lines_of(cluster, leader, *leaves)), what="it is out")
    (gave_up,) = lines_of(cluster, gone, f"cannot fetch from leader {leader}: ")[:1]
    (out,) = lines_of(cluster, leader, *leaves)
    (leaving,) = evictions_of(cluster)
    assert leaving.broker == gone
    tolerated_ms = 0.05 * LAG_MS + sum(stalled_ms(cluster, leader)) + 100
    if gives_up_after_ms < LAG_MS:
        assert leaving.late_ms <= tolerated_ms
    else:
        assert leaving.late_ms > 0, "held in until then"
        assert 0 <= logged_at_s(out) - logged_at_s(gave_up) <= tolerated_ms / 1_000
    assert sorted(isr_of(cluster)) == sorted([leader, stays])
    assert leader_of(cluster) == leader
    assert incarnations(cluster) == incarnations_before
    assert not re.search("lost its session|ended the session", log_of(cluster))
    cluster.heal()
    await_in_sync(cluster, "orders")
    producer.flush()
    check_nothing_lost(cluster, producer)


def change_setting(cluster: Cluster, broker: int, name: str, value: str) -> None:
    bootstrap = f"127.0.0.1:{cluster.brokers[broker].port}"
    flags = ["--alter", "--broker", str(broker), "--add-config", f"{name}={value}"]
    assert cli.main(["configs", "--bootstrap-server", bootstrap, *flags]) == 0


@pytest.mark.insync_cluster(settings=SOLUTION_2)
def test_a_leader_whose_read_takes_too_long_resigns(insync_cluster: Cluster) -> None:
    cluster = insync_cluster
    old, producer = slow_leader(cluster, read_ms=400)
    took_s = while_writing(
        producer, lambda: partitions_of(cluster, "orders")[0].leader != old, what="it resigns"
    )
    assert took_s < 1.5
    assert (len(isr_of(cluster)), isr_of(cluster)[-1]) == (3, old)
    before = producer.acknowledged_count
    while_writing(
        producer, lambda: producer.acknowledged_count > before + 100, what="clients carry on"
    )
    producer.flush()
    assert evictions_of(cluster) == []
    assert log_of(cluster).count(" resigned (") == 1
    cluster.heal()
    check_all_is_well(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_2 | {"broker.session.timeout.ms": "2500"})
def test_a_leader_that_resigned_looks_up_its_truncation_offset_off_the_loop(
    insync_cluster: Cluster,
) -> None:
    """Each read takes longer than its session would last without heartbeats."""
    cluster = insync_cluster
    create_topic(cluster, "others", partitions=3)
    await_in_sync(cluster, "others")
    incarnations_before = incarnations(cluster)
    old, producer = slow_leader(cluster, read_ms=8_000)
    while_writing(
        producer,
        lambda: bool(lines_of(cluster, old, "orders-0: truncating from offset ")),
        what="it truncates",
    )
    beside = IntegerProducer(cluster, "others")
    beside.send(30)
    beside.flush()  # it checks for a producer id twice a second
    end_s = time.monotonic() + 4
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        beside.send(30)
        beside.flush()  # on all brokers, each of which leads one
        assert time.monotonic() - began_s < 1
    assert incarnations(cluster) == incarnations_before
    assert not re.search("lost its session|ended the session", log_of(cluster))
    assert [each.topic for each in evictions_of(cluster)].count("others") == 0
    cluster.heal()
    await_in_sync(cluster, "orders")
    producer.flush()
    check_all_is_well(cluster, producer)
    check_all_is_well(cluster, beside)


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
    assert 1 <= log.count(" resigned (") <= 3
    for broker in cluster.brokers:
        assert log.count(f": broker {broker} resigned (") <= 1
    cluster.heal()
    producer.flush()
    check_all_is_well(cluster, producer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replica.in.sync.policy": "sometimes"}, "use messages or lag-begin"),
        ({"replica.lag.time.max.ms": "100"}, "replica.fetch.wait.max.ms is 500"),
        ({"replica.lag.time.max.ms": "-1"}, "it must be between 1 and 2147483647"),
        ({"replica.lag.time.max.ms": "9" * 30}, "is a number of 30 digits; it must be between"),
        ({"replica.lag.time.max.ms": "half a minute"}, "write a whole number"),
        ({"replica.fetch.wait.max.ms": "-1"}, "it must be between 0 and"),
        ({"follower.fetch.process.time.max.ms": "-1"}, "it must be between 1 and"),
        (
            {
                "replica.in.sync.policy": "lag-begin",
                "follower.fetch.pending.reads.insync.enable": "true",
            },
            "has no meaning with replica.in.sync.policy=lag-begin",
        ),
    ],
)
def test_invalid_settings_are_one_line(
    settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    (broker,) = Cluster(brokers=1, settings=settings, folder=tmp_path).brokers.values()
    command = [str(INSYNC), "broker", "--config", str(broker.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("insync: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not broker.log_dir.exists(), "refused before anything is touched"


@pytest.mark.insync_cluster(settings=SOLUTION_1)
@pytest.mark.parametrize("led", [30, pytest.param(300, marks=pytest.mark.long)])
def test_with_kip_501_on_no_follower_of_any_partition_leaves_the_isr(
    insync_cluster: Cluster, led: int
) -> None:
    cluster = insync_cluster
    producer = slow_broker_1(cluster, led)
    end_s = time.monotonic() + 2.5 * LAG_MS / 1_000
    while_writing(producer, lambda: time.monotonic() > end_s, what="much more than the lag time")
    assert evictions_of(cluster) == []
    assert {len(each.isrs) for each in partitions_of(cluster, "orders").values()} == {3}
    cluster.heal()
    producer.flush()
    check_nothing_lost(cluster, producer)


@pytest.mark.insync_cluster(settings=SOLUTION_2)
@pytest.mark.parametrize("led", [30, pytest.param(300, marks=pytest.mark.long)])
def test_a_broker_with_a_slow_disk_hands_over_all_its_partitions(
    insync_cluster: Cluster, led: int
) -> None:
    cluster = insync_cluster
    producer = slow_broker_1(cluster, led)

    def leads_nothing() -> bool:
        return 1 not in {each.leader for each in partitions_of(cluster, "orders").values()}

    took_s = while_writing(producer, leads_nothing, what="broker 1 leads nothing")
    assert took_s < LAG_MS / 1_000
    partitions = partitions_of(cluster, "orders").values()
    assert min(len(each.isrs) for each in partitions) > 1
    taken_over = Counter(each.leader for each in partitions)
    assert abs(taken_over[2] - taken_over[3]) <= led // 2, "spread over both"
    cluster.heal()
    producer.flush()
    check_nothing_lost(cluster, producer)


def slow_broker_1(cluster: Cluster, led: int) -> IntegerProducer:
    """Each broker leads so many partitions with records; reads of broker 1 become slow."""
    create_topic(cluster, "orders", partitions=3 * led)
    await_in_sync(cluster, "orders")
    producer = IntegerProducer(cluster, "orders", partitions=3 * led)
    producer.send(6 * led)
    producer.flush()
    cluster.slow_reads(1, delay_ms=SLOW_MS, topic="orders")
    return producer
