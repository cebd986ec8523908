"""One EIO in a background flush: the partition moves to another leader, the others stay."""

from __future__ import annotations

import json

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
    stored_isr,
)

pytestmark = pytest.mark.process

SETTINGS = {"min.insync.replicas": "2", "log.flush.interval.ms": "300"}


def test_a_leader_whose_log_fails_hands_over(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders")
        producer = IntegerProducer(cluster, "orders")
        producer.send(300)
        producer.flush()
        before = {number: each.leader for number, each in partitions_of(cluster, "orders").items()}
        failing = before[0]
        cluster.fail_writes(failing, topic="orders", partition=0)
        producer.send(300)  # appended by other leaders and followers; flushed in the background

        def has_moved() -> bool:
            leader = partitions_of(cluster, "orders")[0].leader
            return leader not in (failing, -1) and failing not in stored_isr(cluster, "orders", 0)

        eventually(has_moved, within_s=20, what="another broker leads orders-0")
        producer.flush()
        for number, partition in partitions_of(cluster, "orders").items():
            assert number == 0 or partition.leader == before[number], "the others go on"
        cli.main(["replicas", "-b", cluster.bootstrap, "--topic", "orders", "--json"])
        rows = json.loads(capsys.readouterr().out)["followers"]
        offline = {(row["partition"], row["follower"]) for row in rows if row["offline"]}
        assert offline == {(0, failing)}
        cluster.restart(failing)
        await_in_sync(cluster, "orders")
        check_all_is_well(cluster, producer)
