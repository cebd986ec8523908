"""Replicas move between real processes under load, and nothing is lost whichever broker dies."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from insync.wire import moves
from insync.wire.apis import Api
from insync.wire.moves import Move, MovesStarted, StartMoves
from support.cluster.clients import (
    IntegerProducer,
    check_nothing_lost,
    eventually,
    partitions_of,
)
from support.cluster.reassign_command import controller, create_with_replicas, throttles
from support.cluster.segment_files import check_identical
from support.wire.raw_client import RawClient

TOPIC, PARTITIONS = "moved", 3
SOURCE, DESTINATION = 1, 4
BEFORE, AFTER = [SOURCE, 2, 3], [DESTINATION, 2, 3]
THROTTLE = 5_000_000
SETTINGS = {
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "100",
}
pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(brokers=4, settings=SETTINGS)]


@pytest.fixture
def cluster(insync_cluster: Cluster) -> Cluster:
    create_with_replicas(insync_cluster, TOPIC, [BEFORE] * PARTITIONS)
    return insync_cluster


def start(cluster: Cluster, target: list[int], *, throttle: int = THROTTLE) -> MovesStarted:
    wanted = tuple(Move(TOPIC, number, tuple(target)) for number in range(PARTITIONS))
    body = moves.write_request(StartMoves(wanted, throttle_bytes_per_s=throttle))
    with RawClient(cluster.brokers[2].port) as client:
        frame, at = client.exchange(Api.START_MOVES, 0, body)
        return moves.read_response(frame, at)


def is_moved(cluster: Cluster) -> bool:
    partitions = partitions_of(cluster, TOPIC).values()
    return all(each.replicas == AFTER and sorted(each.isrs) == sorted(AFTER) for each in partitions)


VICTIMS: dict[str, Callable[[Cluster], int | None]] = {
    "none": lambda _: None,
    "the source": lambda _: SOURCE,
    "the destination": lambda _: DESTINATION,
    "the controller": controller,
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_move_under_load_survives_the_death_of_a_broker(cluster: Cluster, victim: str) -> None:
    producer = IntegerProducer(cluster, TOPIC, partitions=PARTITIONS)
    producer.send(3_000)
    producer.flush()
    for other in (1, 2, 3):  # whichever broker leads: nothing arrives yet
        cluster.cut(other, DESTINATION)
    assert start(cluster, AFTER).error == ErrorCode.none.value
    produce(producer, 0.3)
    assert not is_moved(cluster)
    dead = VICTIMS[victim](cluster)
    if dead is not None:
        cluster.kill(dead)
        produce(producer, 0.5)
        cluster.restart(dead)
    cluster.heal()

    def moves_on() -> bool:
        producer.send(20)
        return is_moved(cluster)

    eventually(moves_on, within_s=40, what="every partition has moved")
    produce(producer, 0.2)
    producer.flush()
    assert producer.errors == []
    check_nothing_lost(cluster, producer)
    eventually(lambda: not throttles(cluster, TOPIC), within_s=10, what="no throttle is left")
    folders = [each.log_dir for each in cluster.brokers.values()]
    eventually(
        lambda: not list(folders[SOURCE - 1].glob(f"{TOPIC}-*")),
        within_s=10,
        what="the source's files are gone",
    )
    for number in range(PARTITIONS):
        end = len(producer.acknowledged[number])
        check_identical([folders[b - 1] / f"{TOPIC}-{number}" for b in AFTER], up_to=end)


def produce(producer: IntegerProducer, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        producer.send(20)
