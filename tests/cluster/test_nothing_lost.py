"""No acknowledged record is lost, whatever faults the brokers' processes have.

Real integers go in with acks=all and idempotence, factor 3 and min ISR 2. Afterwards every one that
was acknowledged is read back once and in order, and the replicas' files are the same bytes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from insync.sim.history import History
from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    check_all_is_well,
    create_topic,
    eventually,
    leader_of,
)
from support.cluster.recorded_clients import RecordingConsumer, RecordingProducer, check_history
from support.wire.raw_client import ACKS_ALL, RawClient, plain

pytestmark = pytest.mark.process

SETTINGS = {
    "min.insync.replicas": "2",
    "log.segment.bytes": "100000",  # so that segments roll while brokers die
    # A stopped broker must lose its session within the test.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "100",
}


class Faults:
    """Faults of a cluster; each one repairs what it did before it returns."""

    def __init__(self, cluster: Cluster, producer: IntegerProducer, seed: int) -> None:
        self.cluster = cluster
        self.producer = producer
        self.chance = random.Random(seed)  # noqa: S311

    def produce(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.producer.send(20)

    def kill_leader(self) -> None:
        self._kill(leader_of(self.cluster))

    def kill_follower(self) -> None:
        leader = leader_of(self.cluster)
        self._kill(self.chance.choice([b for b in self.cluster.brokers if b != leader]))

    def _kill(self, broker: int) -> None:
        self.producer.send(2_000)  # it dies in the middle of something
        self.cluster.kill(broker)
        self.produce(self.chance.uniform(0.1, 2))
        self.cluster.restart(broker)

    def kill_leader_with_unreplicated_records(self) -> None:
        """Records that it would acknowledge now would be on no other replica."""
        leader = leader_of(self.cluster)
        followers = [broker for broker in self.cluster.brokers if broker != leader]
        for broker in followers:
            self.cluster.pause(broker)
        self.produce(0.3)
        self.cluster.kill(leader)
        for broker in followers:
            self.cluster.resume(broker)
        self.produce(0.5)
        self.cluster.restart(leader)

    def kill_two(self) -> None:
        """Below min ISR: nothing is acknowledged until one is back."""
        first, second = self.chance.sample(sorted(self.cluster.brokers), 2)
        self.cluster.kill(first)
        self.cluster.kill(second)
        self.produce(self.chance.uniform(0.1, 1))
        self.cluster.restart(second)
        self.produce(self.chance.uniform(0.1, 1))
        self.cluster.restart(first)

    def kill_all(self) -> None:
        for broker in self.cluster.brokers:
            self.cluster.kill(broker)
        self.produce(0.2)
        self.cluster.start()

    def bounce(self) -> None:
        """Killed and restarted before its session ends; only the new incarnation shows it."""
        broker = self.chance.choice(sorted(self.cluster.brokers))
        self.cluster.kill(broker)
        self.cluster.restart(broker)

    def stop_leader(self) -> None:
        leader = leader_of(self.cluster)
        self.cluster.pause(leader)
        self.produce(self.chance.uniform(1.5, 2.5))
        self.cluster.resume(leader)

    def stop_follower_kill_leader(self) -> None:
        leader = leader_of(self.cluster)
        follower = self.chance.choice([b for b in self.cluster.brokers if b != leader])
        self.cluster.pause(follower)
        self.produce(self.chance.uniform(0.1, 2))
        self.cluster.kill(leader)
        self.produce(0.3)
        self.cluster.resume(follower)
        self.cluster.restart(leader)


FaultSequence = list[Callable[[Faults], None]]


def run(sequence: FaultSequence, *, seconds: float, seed: int) -> None:
    """Each fault at least once, then in turn, with pauses in between."""
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders")
        history = History()
        producer = RecordingProducer(cluster, "orders", history)
        faults = Faults(cluster, producer, seed)
        end_s = time.monotonic() + seconds
        number = 0
        with RecordingConsumer(cluster, "orders", producer.partitions, history) as consumer:
            while number < len(sequence) or time.monotonic() < end_s:
                faults.produce(faults.chance.uniform(0.3, 1.5))
                sequence[number % len(sequence)](faults)
                number += 1
            producer.flush(60)
        assert consumer.reads > 0
        assert consumer.latest > 0
        check_all_is_well(cluster, producer)
        check_history(cluster, producer, history)


KILLS: FaultSequence = [
    Faults.kill_leader,
    Faults.kill_follower,
    Faults.kill_leader_with_unreplicated_records,
]
EVERYTHING: FaultSequence = [
    *KILLS,
    Faults.bounce,
    Faults.stop_leader,
    Faults.kill_two,
    Faults.kill_all,
    Faults.stop_follower_kill_leader,
]


def test_killing_leader_and_followers_in_turn_loses_nothing() -> None:
    run(KILLS, seconds=25, seed=20_161)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=pytest.mark.slice(1)), pytest.param(1, marks=pytest.mark.slice(2))],
)
def test_killing_leader_and_followers_in_turn_for_minutes_loses_nothing(seed: int) -> None:
    run(KILLS, seconds=150, seed=seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=pytest.mark.slice(3)), pytest.param(1, marks=pytest.mark.slice(4))],
)
def test_every_fault_in_turn_for_minutes_loses_nothing(seed: int) -> None:
    run(EVERYTHING, seconds=150, seed=seed)


def test_every_other_fault_once_loses_nothing() -> None:
    run(EVERYTHING[len(KILLS) :], seconds=0, seed=1)


@pytest.mark.parametrize("acks", [1, ACKS_ALL])
def test_a_leader_stopped_past_its_session_acknowledges_nothing(acks: int) -> None:
    """Neither requests in its socket while it was stopped, nor later ones on an old connection."""
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1)
        stale = leader_of(cluster)
        with RawClient(cluster.brokers[stale].port) as old:
            assert old.produce("orders", plain(b"0")) == (ErrorCode.none, 0)
            cluster.pause(stale)
            old.post_produce("orders", plain(b"lost"), acks=acks)
            eventually(lambda: leader_of(cluster) != stale, within_s=20, what="another leads")
            leader = leader_of(cluster)
            # With patience: a machine that writes back a gigabyte may hold any append up.
            with RawClient(cluster.brokers[leader].port, patience_s=60) as new:
                results: list[tuple[ErrorCode, int]] = []

                def has_result() -> bool:
                    """The broker that named the new leader may have read of it before itself."""
                    results[:] = [new.produce("orders", plain(b"1"), timeout_ms=50_000)]
                    return results != [(ErrorCode.not_leader_or_follower, -1)]

                eventually(has_result, within_s=20, what="the new leader appends")
                assert results == [(ErrorCode.none, 1)]
                cluster.resume(stale)
                assert old.produced() == (ErrorCode.not_leader_or_follower, -1)
                answer = old.produce("orders", plain(b"lost"), acks=acks)
                assert answer == (ErrorCode.not_leader_or_follower, -1)
                code, part = new.fetch("orders", 0)
                assert code is ErrorCode.none
                assert part is not None
                assert part.high_watermark == 2
                assert b"lost" not in bytes(part.records or b"")
