"""Brokers that were killed, and files that are not as they were left: they start and serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    await_in_sync,
    check_all_is_well,
    create_topic,
    eventually,
    latest_offset,
    leader_of,
)
from support.cluster.segment_files import checkpointed

pytestmark = pytest.mark.process

SETTINGS = {"min.insync.replicas": "2", "log.segment.bytes": "50000"}
RECOVERY_POINTS = "recovery-point-offset-checkpoint"


def logs(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("orders-*"))


def last_segment(log: Path) -> Path:
    return max(log.glob("*.log"))


def tear(data_dir: Path) -> None:
    """As a process that died in the middle of an append that was not acknowledged."""
    for log in logs(data_dir):
        whole = last_segment(log).read_bytes()
        with last_segment(log).open("ab") as file:
            file.write(whole[:100] or bytes(100))


def scribble(data_dir: Path) -> None:
    for log in logs(data_dir):
        with last_segment(log).open("ab") as file:
            file.write(b"\xff\x00garbage" * 500)


def forget_indexes(data_dir: Path) -> None:
    for log in logs(data_dir):
        for path in [*log.glob("*.index"), *log.glob("*.timeindex"), *log.glob("*.snapshot")]:
            path.unlink()


def break_indexes(data_dir: Path) -> None:
    for log in logs(data_dir):
        for path in [*log.glob("*.index"), *log.glob("*.timeindex"), *log.glob("*.snapshot")]:
            path.write_bytes(path.read_bytes()[:-3] + b"???")


def forget_checkpoints(data_dir: Path) -> None:
    for path in data_dir.rglob("*checkpoint"):
        path.unlink()


def empty_checkpoints(data_dir: Path) -> None:
    """As a loss of power may leave a file that was just renamed."""
    for path in data_dir.rglob("*checkpoint"):
        path.write_bytes(b"")


Damage = Callable[[Path], None]
HARMLESS: list[Damage] = [
    tear,
    scribble,
    forget_indexes,
    break_indexes,
    forget_checkpoints,
    empty_checkpoints,
]


def send(producer: IntegerProducer) -> None:
    for _ in range(30):  # small batches, so that there are several segments
        producer.send(300)
        producer.flush()


def test_damage_above_the_acknowledged_records_after_a_kill_of_all_brokers_loses_nothing() -> None:
    """One damage after the other, to all brokers at once: none can fetch from another."""
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders")
        producer = IntegerProducer(cluster, "orders")
        for damage in HARMLESS:
            send(producer)
            for broker in cluster.brokers.values():
                broker.kill()
            for broker in cluster.brokers.values():
                damage(broker.log_dir)
            cluster.start()
        send(producer)
        check_all_is_well(cluster, producer)


def cut(data_dir: Path) -> None:
    """Beyond what a dying process can do: acknowledged records are gone here."""
    for log in logs(data_dir):
        path = last_segment(log)
        path.write_bytes(path.read_bytes()[:-50])


def flip(data_dir: Path) -> None:
    for log in logs(data_dir):
        data = bytearray(last_segment(log).read_bytes())
        if data:
            data[len(data) // 2] ^= 0xFF
            last_segment(log).write_bytes(data)


def lose_a_segment(data_dir: Path) -> None:
    for log in logs(data_dir):
        sorted(log.glob("*.log"))[1].unlink()


def lose_everything(data_dir: Path) -> None:
    for log in logs(data_dir):
        for path in log.glob("*.log"):
            path.unlink()


def test_a_killed_broker_fetches_the_records_it_lost() -> None:
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders")
        producer = IntegerProducer(cluster, "orders")
        for damage in (cut, flip, lose_a_segment, lose_everything):
            send(producer)
            await_in_sync(cluster, "orders")
            victim = leader_of(cluster)
            cluster.kill(victim)
            producer.send(10)
            producer.flush()  # another leads by now
            damage(cluster.brokers[victim].log_dir)
            cluster.restart(victim)
            await_in_sync(cluster, "orders")
        check_all_is_well(cluster, producer)


@pytest.mark.parametrize(
    "setting",
    [
        {"log.segment.bytes": "20000"},
        {"log.flush.interval.ms": "300"},
        {"log.flush.interval.messages": "1"},
    ],
    ids=["complete segments", "time", "messages"],
)
def test_recovery_points_advance_while_brokers_run(setting: dict[str, str]) -> None:
    """So that a killed broker has little to check; by default only after a minute."""
    with Cluster(settings=setting) as cluster:
        create_topic(cluster, "orders", partitions=1)
        producer = IntegerProducer(cluster, "orders", partitions=1)
        send(producer)
        end = latest_offset(cluster, "orders", 0)
        enough = end if "log.segment.bytes" not in setting else 1

        def have_moved() -> bool:
            points = [
                checkpointed(each.log_dir, RECOVERY_POINTS) for each in cluster.brokers.values()
            ]
            return all(point.get("orders-0", 0) >= enough for point in points)

        eventually(have_moved, within_s=20, what="every broker noted how far it is flushed")
        for broker in cluster.brokers:
            cluster.kill(broker)
        cluster.start()
        check_all_is_well(cluster, producer)
