"""A failed log accepts and serves nothing until a restart: its broker gives up its role."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from insync.broker.admin.described_partition import describe_partition, reported_offline
from insync.metadata import paths
from insync.metadata.records import TopicRecord, encode_state
from insync.metadata.store import Create
from insync.rules.partition_state import PartitionState
from insync.rules.values import LeaderEpoch
from insync.sim.cluster import Cluster
from support.sim.few_brokers import (
    KEY,
    ONE,
    THREE,
    TWO,
    client_of,
    isr_of,
    node_of,
    play,
    replica_of,
    state_of,
    stays,
    topic,
    until,
)

FLUSHED_OFTEN = {"log.flush.interval.ms": "1000"}
FLUSH_S = 2.5  # by then a background flush has failed


async def append_and_fail(cluster: Cluster, number: int) -> None:
    """One record on every replica; then a background flush fails on one broker."""
    assert await client_of(cluster).append([b"first"]) == 0
    await until(lambda: all(replica_of(cluster, each).log.end == 1 for each in cluster.brokers))
    cluster.brokers[number].disk.fails_flushes = True
    await until(lambda: replica_of(cluster, number).log.has_failed, within_s=FLUSH_S)
    cluster.brokers[number].disk.fails_flushes = False


def reports(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.entries if path.startswith(paths.FAILED_REPLICAS)]


@pytest.mark.parametrize("policy", ["caught-up", "messages", "lag-begin", "true-lag"])
def test_a_follower_whose_log_failed_leaves_the_isr_of_an_idle_partition_at_once(
    policy: str,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        await append_and_fail(cluster, 2)
        await until(lambda: isr_of(cluster) == [1, 3], within_s=0.2)
        assert state_of(cluster)["leader"] == 1
        await client_of(cluster).append([b"second"])
        await stays(lambda: isr_of(cluster) == [1, 3], for_s=5)
        assert replica_of(cluster, 2).log.end == 1, "it fetches nothing"
        cluster.kill(2)
        await cluster.start(2)
        await until(lambda: isr_of(cluster) == [1, 2, 3])
        assert reports(cluster) == []

    play(scenario, settings=FLUSHED_OFTEN | {"replica.in.sync.policy": policy})


def test_a_leader_whose_log_failed_is_replaced_and_leaves_the_isr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        await other_topic(cluster)
        await append_and_fail(cluster, 1)
        await until(lambda: state_of(cluster)["leader"] == 2, within_s=0.2)
        assert isr_of(cluster) == [2, 3]
        assert await client_of(cluster).append([b"second"]) == 1
        assert (await client_of(cluster, 102).read(0))[0] == [b"first", b"second"]
        assert other_state(cluster)["leader"] == 1, "other partitions go on"
        assert sorted(other_state(cluster)["isr"]) == [1, 2, 3]
        await stays(lambda: isr_of(cluster) == [2, 3], for_s=5)
        assert "t-0: the log failed" in caplog.text

    play(scenario, settings=FLUSHED_OFTEN)


def test_the_last_isr_member_stays_and_leads_again_after_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE,))
        assert await client_of(cluster).append([b"first"]) == 0
        cluster.brokers[1].disk.fails_flushes = True
        await until(lambda: state_of(cluster)["leader"] is None, within_s=FLUSH_S)
        assert isr_of(cluster) == [1]
        cluster.brokers[1].disk.fails_flushes = False
        cluster.kill(1)
        await cluster.start(1)
        await until(lambda: state_of(cluster)["leader"] == 1)
        assert (await client_of(cluster, 102).read(0))[0] == [b"first"]

    play(scenario, settings=FLUSHED_OFTEN)


def test_the_last_isr_member_is_kept_after_every_log_failed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        await append_and_fail(cluster, 1)
        await until(lambda: isr_of(cluster) == [2, 3])
        replica_of(cluster, 2).log.fail("of a test")
        await until(lambda: isr_of(cluster) == [3])
        assert state_of(cluster)["leader"] == 3
        replica_of(cluster, 3).log.fail("of a test")
        await until(lambda: state_of(cluster)["leader"] is None)
        assert isr_of(cluster) == [3]

    play(scenario, settings=FLUSHED_OFTEN)


def test_metadata_lists_a_failed_replica_as_offline() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        assert offline_in_metadata(cluster) == ()
        await append_and_fail(cluster, 2)
        await until(lambda: offline_in_metadata(cluster) == (2,))
        cluster.kill(3)
        await until(lambda: offline_in_metadata(cluster) == (2, 3))
        cluster.kill(2)
        for number in (2, 3):
            await cluster.start(number)
        await until(lambda: offline_in_metadata(cluster) == ())

    play(scenario, settings=FLUSHED_OFTEN)


def offline_in_metadata(cluster: Cluster) -> tuple[int, ...]:
    view = node_of(cluster, 1).view
    fields = describe_partition(view, KEY, reported_offline(view), view.live)
    return tuple(sorted(fields["offline_replicas"]))


@pytest.mark.parametrize("hook", ["before_controller_step", "after_controller_step"])
def test_a_failure_report_outlives_a_controller_that_dies_at_its_step(hook: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        controller = cluster.controller()
        assert controller is not None
        failing = next(number for number in cluster.brokers if number != controller)
        store = cluster.brokers[controller].store
        assert store is not None
        setattr(store, hook, lambda: cluster.kill_from_within(controller))
        replica_of(cluster, failing).log.fail("of a test")
        await until(lambda: cluster.controller() not in (None, controller))
        left = sorted({1, 2, 3} - {controller, failing})
        await until(lambda: isr_of(cluster) == left)
        assert state_of(cluster)["leader"] == left[0]

    play(scenario)


def test_a_broker_that_lost_its_session_reports_the_failure_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO, THREE))
        await append_and_fail(cluster, 2)
        await until(lambda: isr_of(cluster) == [1, 3])
        store = cluster.brokers[2].store
        assert store is not None
        before = node_of(cluster, 2).replicas.incarnation
        assert store.session is not None
        cluster.tree.end_session(store.session)
        await until(lambda: node_of(cluster, 2).replicas.incarnation != before)
        incarnation = node_of(cluster, 2).replicas.incarnation
        assert reports(cluster) == [paths.failed_replica("t", 0, incarnation)]
        for number in (1, 3):
            cluster.kill(number)
        await asyncio.sleep(3)
        assert state_of(cluster)["leader"] is None, "a failed log does not lead"

    play(scenario, settings=FLUSHED_OFTEN)


async def other_topic(cluster: Cluster) -> None:
    topic_id = UUID(int=cluster.tree.revision, version=4)
    replicas = (ONE, TWO, THREE)
    state = PartitionState(replicas=replicas, isr=replicas, leader=ONE, leader_epoch=LeaderEpoch(0))
    record = TopicRecord(topic_id=topic_id, partitions=1, replication_factor=3)
    step = [
        Create(paths.topic("other"), record.encode()),
        Create(paths.topic_id(topic_id), b"other"),
        Create(paths.partition_state("other", 0), encode_state(state)),
    ]
    cluster.tree.step(step, None)
    await asyncio.sleep(0.5)


def other_state(cluster: Cluster) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(
        cluster.tree.entries[paths.partition_state("other", 0)].value
    )
    return state
