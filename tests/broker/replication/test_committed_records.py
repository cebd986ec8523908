"""What is not committed is neither acknowledged, nor read, nor deleted; what is committed stays."""

from __future__ import annotations

import asyncio

import pytest

from insync.metadata.records import decode_state, encode_state
from insync.metadata.store import Write
from insync.rules import election
from insync.rules.values import BrokerId
from insync.sim.cluster import Cluster
from insync.storage.log import Log
from insync.storage.truncation import PreparedTruncation
from support.sim.few_brokers import (
    KEY,
    ONE,
    PATH,
    THREE,
    TWO,
    client_of,
    node_of,
    play,
    replica_of,
    state_of,
    stays,
    topic,
    until,
)

BEFORE_SHRINK_S = 1.0  # replica.lag.time.max.ms is 1500 here


async def make_topic(cluster: Cluster, replicas: tuple[BrokerId, ...] = (ONE, TWO)) -> None:
    """A topic with one record that every replica knows to be committed."""
    await topic(cluster, replicas)
    assert await client_of(cluster).append([b"first"]) == 0
    await until(lambda: replica_of(cluster, 2).high_watermark == 1)


def test_an_append_that_blocks_while_the_isr_shrinks_is_not_acknowledged_by_the_leader_alone() -> (
    None
):
    """The ISR is checked before the append, and again when the leader notices that it stalled."""

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO), config={"min.insync.replicas": "2"})
        client = client_of(cluster)
        await client.append([b"first"])
        await until(lambda: replica_of(cluster, 2).high_watermark == 1)
        disk = cluster.brokers[1].disk

        def block(path: str) -> None:
            """For 300 ms, in which broker 2 dies and the controller removes it from the ISR."""
            if "/t-0/" not in path:
                return
            disk.on_append = None
            store = cluster.brokers[2].store
            assert store is not None
            session = store.session
            assert session is not None
            cluster.kill(2, noticed_after_ms=100_000)
            cluster.tree.end_session(session)
            entry = cluster.tree.entries[PATH]
            live = frozenset({ONE, THREE})
            shrunk = election.brokers_changed(
                decode_state(entry.value), ended=(TWO,), live=live, min_isr=2
            )
            cluster.tree.step([Write(PATH, encode_state(shrunk), entry.version)], None)
            cluster.loop._now_s += 0.3

        disk.torn_part = 1.0
        disk.on_append = block
        appending = asyncio.ensure_future(client.append([b"second"]))
        await until(lambda: replica_of(cluster, 1).log.end == 2)
        await stays(lambda: not appending.done(), for_s=5)
        assert replica_of(cluster, 1).has_eligible
        await cluster.start(2)
        assert await appending == 1

    play(scenario)


def test_a_record_that_no_follower_has_is_not_acknowledged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.network.cut(1, 2)
        appending = asyncio.ensure_future(client_of(cluster).append([b"second"]))
        await until(lambda: replica_of(cluster, 1).log.end == 2)
        await stays(lambda: not appending.done(), for_s=BEFORE_SHRINK_S)
        cluster.network.heal()
        assert await appending == 1
        assert replica_of(cluster, 2).log.end == 2

    play(scenario)


def test_a_record_that_no_follower_has_is_not_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.network.cut(1, 2)
        assert await client_of(cluster).append_once([b"second"]) == 1
        values, after = await client_of(cluster, 101).read(0)
        assert (values, after) == ([b"first"], 1)
        assert await client_of(cluster, 102).latest() == 1

    play(scenario)


def test_a_record_that_no_follower_has_is_not_deleted_by_retention() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        cluster.network.cut(1, 2)
        for _ in range(5):
            await client_of(cluster).append_once([b"x" * 1_500])
        log = replica_of(cluster, 1).log
        assert len(log.segment_bases) > 3
        node_of(cluster, 1).replicas.apply_retention([KEY])
        assert log.start <= replica_of(cluster, 1).high_watermark == 1
        await until(lambda: state_of(cluster)["isr"] == [1], within_s=60)
        await until(lambda: replica_of(cluster, 1).high_watermark == log.end)
        node_of(cluster, 1).replicas.apply_retention([KEY])
        assert log.start > 1

    play(scenario, settings={"log.segment.bytes": "2048", "log.retention.bytes": "2048"})


def test_a_leader_acknowledges_nothing_after_its_session() -> None:
    """It was stopped, and has not read yet that another broker was elected meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        replicas = node_of(cluster, 1).replicas
        assert replicas.leader_of(KEY) is replica_of(cluster, 1)
        cluster.pause(1)
        await until(lambda: state_of(cluster)["leader"] == 2)
        assert replica_of(cluster, 1).is_leader, "it does not know"
        assert replicas.leader_of(KEY) is None

    play(scenario)


def test_a_follower_truncates_by_epoch_and_not_to_its_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-101: its watermark may be behind what it has and the leader has too."""
    ends: list[tuple[int, int]] = []

    def truncate(log: Log, truncation: PreparedTruncation) -> bool:
        before = log.end
        is_truncated = original(log, truncation)
        ends.append((before, log.end))
        return is_truncated

    original = Log.truncate
    monkeypatch.setattr(Log, "truncate", truncate)

    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        assert await client_of(cluster).append([b"second"]) == 1
        cluster.network.cut(1, 2)
        assert await client_of(cluster).append_once([b"lost"]) == 2
        cluster.kill(1)  # before it writes its watermark
        await until(lambda: state_of(cluster)["leader"] == 2)
        assert await client_of(cluster, 101).append([b"third", b"fourth"]) == 2
        cluster.network.heal()
        await cluster.start(1)
        await until(lambda: sorted(state_of(cluster)["isr"]) == [1, 2], within_s=60)
        assert ends[0] == (3, 2)
        assert replica_of(cluster, 1).log.end == 4

    play(scenario)


def test_a_followers_watermark_is_never_beyond_its_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        follower = replica_of(cluster, 2)
        follower.follow(5)
        assert (follower.high_watermark, follower.leader_watermark) == (1, 5)

    play(scenario)


def test_a_truncation_commits_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await make_topic(cluster)
        follower = replica_of(cluster, 2)
        follower.high_watermark = 0
        follower.log_truncated()
        assert follower.high_watermark == 0
        follower.high_watermark = 1
        follower.log.truncate_to(0)
        follower.log_truncated()
        assert follower.high_watermark == 0

    play(scenario)
