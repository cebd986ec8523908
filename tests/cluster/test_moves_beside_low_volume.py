"""KAFKA-4313 with processes: a throttle on a big move puts no low-volume partition out of sync.

A high-volume topic is copied to a broker under a quota that each of its batches takes most of a
second of. Topics with a message now and then share its links, and some of them the throttle too.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    admin,
    await_in_sync,
    check_nothing_lost,
    eventually,
    partitions_of,
)
from support.cluster.isr_log import CHANGE, evictions_of, log_of
from support.cluster.reassign_command import (
    command,
    create_with_replicas,
    throttles,
    trickling,
    write_plan,
)

pytestmark = [pytest.mark.process, pytest.mark.timed]

LAG_MS_MAX = 3_000
QUOTA = 300_000
HEAVY, THROTTLED, PLAIN = "heavy", "throttled", "plain"
HEAVY_PARTITIONS, LOW_PARTITIONS = 6, 6
HEAVY_BATCHES, BATCH_BYTES = 2, 240_000
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS_MAX),
    "broker.session.timeout.ms": "60000",
    "auto.leader.rebalance.enable": "false",
    "telemetry.enable": "false",
}
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def throttle_all_replicas(cluster: Cluster, topic: str) -> None:
    """As an operator may, besides any move."""
    wanted = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, "*", incremental_operation=AlterConfigOpType.SET) for name in LISTS
        ],
    )
    client = admin(cluster)
    for answer in client.incremental_alter_configs([wanted]).values():
        answer.result(10)


def isr_changes(cluster: Cluster, *topics: str) -> list[str]:
    """Every change of an ISR of these topics that any leader has logged."""
    return [
        f"{topic}-{number}: {why}"
        for topic, number, why in CHANGE.findall(log_of(cluster))
        if topic in topics
    ]


def test_low_volume_partitions_stay_in_sync_while_a_big_one_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))
    with Cluster(settings=SETTINGS) as cluster:
        create_with_replicas(cluster, HEAVY, [[1, 2]] * HEAVY_PARTITIONS)
        heavy = IntegerProducer(cluster, HEAVY, partitions=HEAVY_PARTITIONS, digits=4_000)
        for _ in range(HEAVY_BATCHES):
            heavy.send(HEAVY_PARTITIONS * BATCH_BYTES // 4_000)
            heavy.flush()
        low = []
        for topic in (THROTTLED, PLAIN):
            create_with_replicas(cluster, topic, [[1, 2, 3]] * LOW_PARTITIONS)
            low.append(IntegerProducer(cluster, topic, partitions=LOW_PARTITIONS))
        throttle_all_replicas(cluster, THROTTLED)
        for topic in (THROTTLED, PLAIN):
            await_in_sync(cluster, topic)
        before = isr_changes(cluster, THROTTLED, PLAIN)

        plan = write_plan(tmp_path / "plan.json", HEAVY, [[3, 2]] * HEAVY_PARTITIONS)
        flags = ["--execute", "--reassignment-json-file", plan, "--throttle", str(QUOTA)]
        began_s = time.monotonic()
        with (
            trickling(*low, count=LOW_PARTITIONS, every_s=0.2),
            subprocess.Popen(
                command(cluster, *flags, "--force", "--watch", "--json"),
                stdout=subprocess.DEVNULL,
            ) as tool,
        ):
            try:
                assert tool.wait(90) == 0
            finally:
                tool.kill()
        assert time.monotonic() - began_s > 2 * LAG_MS_MAX / 1_000, "long enough to fall behind"
        assert isr_changes(cluster, THROTTLED, PLAIN) == before
        assert evictions_of(cluster) == [], "not even of the topic that moved"
        for topic in (THROTTLED, PLAIN):
            assert all(
                sorted(each.isrs) == [1, 2, 3] for each in partitions_of(cluster, topic).values()
            )
        for producer in (heavy, *low):
            check_nothing_lost(cluster, producer)
        eventually(
            lambda: (
                sorted(throttles(cluster, HEAVY, THROTTLED))
                == [f"{THROTTLED}: {name}" for name in sorted(LISTS)]
            ),
            within_s=10,
            what="the move's throttle is gone, and the operator's is not",
        )
