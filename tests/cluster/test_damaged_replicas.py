"""Real processes whose files are damaged while all are down: nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    await_in_sync,
    check_all_is_well,
    create_topic,
    eventually,
    partitions_of,
)

pytestmark = pytest.mark.process

SETTINGS = {"min.insync.replicas": "2"}
RECORDS = 400
CHECKPOINT_S = 5.5  # by then every watermark is noted


def logs(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("orders-[0-9]*"))


def remove_folder(data_dir: Path) -> None:
    for log in logs(data_dir):
        shutil.rmtree(log)


def garble_topic_id(data_dir: Path) -> None:
    for log in logs(data_dir):
        (log / "partition.metadata").write_bytes(b"\x00garbled\xff")


def cut_segment(data_dir: Path) -> None:
    for log in logs(data_dir):
        segment = max(log.glob("*.log"))
        segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])


def empty_segment(data_dir: Path) -> None:
    for log in logs(data_dir):
        max(log.glob("*.log")).write_bytes(b"")


def stop_all(cluster: Cluster, *, cleanly: bool) -> None:
    if cleanly:
        cluster.stop()
    else:
        for broker in cluster.brokers:
            cluster.kill(broker)


Damage = Callable[[Path], None]


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
def test_one_damaged_broker_loses_no_records(*, cleanly: bool) -> None:
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders")
        producer = IntegerProducer(cluster, "orders")
        for round_, damage in enumerate(
            (remove_folder, garble_topic_id, cut_segment, empty_segment)
        ):
            producer.send(RECORDS)
            producer.flush()
            time.sleep(CHECKPOINT_S)
            stop_all(cluster, cleanly=cleanly)
            brokers = list(cluster.brokers)
            damaged = brokers[round_ % len(brokers)]
            damage(cluster.brokers[damaged].log_dir)
            # The damaged one first: only its own inventory shows what it lost.
            for broker in sorted(brokers, key=lambda each: each != damaged):
                cluster.restart(broker)
            await_in_sync(cluster, "orders")
        check_all_is_well(cluster, producer)


def test_if_all_replicas_are_damaged_the_operator_elects_a_leader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1)
        producer = IntegerProducer(cluster, "orders", partitions=1)
        for _ in range(4):
            producer.send(RECORDS // 4)
            producer.flush()
        time.sleep(CHECKPOINT_S)
        stop_all(cluster, cleanly=True)
        damages: tuple[Damage, ...] = (remove_folder, cut_segment, empty_segment)
        for broker, damage in zip(cluster.brokers.values(), damages, strict=True):
            damage(broker.log_dir)
        cluster.start()
        time.sleep(3)
        assert partitions_of(cluster, "orders")[0].leader == -1
        assert cli.main(["replicas", "-b", cluster.bootstrap, "--topic", "orders", "--json"]) == 1
        rows = json.loads(capsys.readouterr().out)["followers"]
        assert {row["follower"]: row["offline"]["damaged"] for row in rows} == dict.fromkeys(
            (1, 2, 3), True
        )
        command = ["topics", "-b", cluster.bootstrap, "--elect-damaged", "--json"]
        assert cli.main(command) == 0
        (row,) = json.loads(capsys.readouterr().out)["elected"]
        assert (row["leader"], row["high_watermark"]) == (2, RECORDS), "the longest log"
        assert 0 < row["log_end_offset"] < RECORDS
        assert f"LOST offsets {row['log_end_offset']} to {RECORDS - 1}" in row["text"]
        await_in_sync(cluster, "orders")
        assert cli.main(command) == 0
        assert json.loads(capsys.readouterr().out) == {"elected": []}
        eventually(
            lambda: partitions_of(cluster, "orders")[0].leader == 2, within_s=10, what="2 leads"
        )
