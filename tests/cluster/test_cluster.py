"""Three real brokers and a real client: produced, replicated, read back; faults in between."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    await_in_sync,
    check_all_is_well,
    check_nothing_lost,
    create_topic,
    partitions_of,
)

pytestmark = pytest.mark.process


def test_every_replica_serves_what_was_produced(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "orders")
    producer = IntegerProducer(insync_cluster, "orders")
    producer.send(3_000)
    producer.flush()
    assert producer.acknowledged_count == 3_000
    check_nothing_lost(insync_cluster, producer)
    await_in_sync(insync_cluster, "orders")


def test_a_topic_is_auto_created_on_first_use(insync_cluster: Cluster) -> None:
    producer = IntegerProducer(insync_cluster, "unheard-of", partitions=1)
    producer.send(10)
    producer.flush()
    check_nothing_lost(insync_cluster, producer)


def test_after_the_leader_dies_the_next_acknowledgement_comes_within_about_a_second(
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


def test_a_restarted_broker_rejoins_the_isr(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "orders")
    producer = IntegerProducer(insync_cluster, "orders")
    producer.send(300)
    producer.flush()
    insync_cluster.restart(2)
    producer.send(300)
    producer.flush()
    await_in_sync(insync_cluster, "orders")
    check_nothing_lost(insync_cluster, producer)


@pytest.mark.parametrize("has_uvloop", [True, False], ids=["uvloop", "asyncio alone"])
def test_brokers_serve_and_fail_over_with_and_without_uvloop(
    has_uvloop: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_uvloop:
        (tmp_path / "uvloop.py").write_text("raise ImportError('there is none')\n")
        first = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(first))
    with Cluster() as cluster:
        for each in cluster.brokers.values():
            assert ("uvloop" in Path(f"/proc/{each.pid}/maps").read_text()) == has_uvloop
        create_topic(cluster, "orders", config={"min.insync.replicas": "2"})
        producer = IntegerProducer(cluster, "orders")
        producer.send(3_000)
        producer.flush()
        leader = partitions_of(cluster, "orders")[0].leader
        cluster.kill(leader)
        producer.send(300)
        producer.flush()
        cluster.restart(leader)
        check_all_is_well(cluster, producer)
        cluster.stop()
        for each in cluster.brokers.values():
            assert "Traceback" not in each.log.read_text()
