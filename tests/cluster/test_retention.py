"""Old segments go, on leader and followers alike, and never what is not committed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    await_in_sync,
    check_replicas_agree,
    create_topic,
    eventually,
    leader_of,
    read_to_end,
)
from support.cluster.segment_files import log_start
from support.wire.raw_client import EARLIEST, LATEST, RawClient, plain

pytestmark = pytest.mark.process

SEGMENT_BYTES, KEPT_BYTES = 20_000, 60_000
SETTINGS = {
    "min.insync.replicas": "2",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.retention.check.interval.ms": "200",
}


def folders(cluster: Cluster) -> list[Path]:
    return [each.log_dir / "orders-0" for each in cluster.brokers.values()]


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def offset(cluster: Cluster, broker: int, timestamp: int) -> int:
    with RawClient(cluster.brokers[broker].port) as client:
        code, offset = client.offset("orders", timestamp)
    assert code is ErrorCode.none
    return offset


def earliest(cluster: Cluster) -> int:
    return offset(cluster, leader_of(cluster), EARLIEST)


def append(client: RawClient, count: int, *, acks: int = -1) -> int:
    """So many records of a kilobyte each; returns the offset after the last."""
    last = -1
    for _ in range(count):
        record = plain(bytes(1_000), timestamp_ms=int(time.time() * 1_000))
        code, last = client.produce("orders", record, acks=acks)
        assert code is ErrorCode.none
    return last + 1


def test_retention_by_size() -> None:
    config = {"retention.bytes": str(KEPT_BYTES)}
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1, config=config)
        producer = IntegerProducer(cluster, "orders", partitions=1)
        for _ in range(100):  # in batches much smaller than a segment
            producer.send(200)
            producer.flush()
        bound = KEPT_BYTES + 2 * SEGMENT_BYTES
        eventually(
            lambda: all(size_bytes(folder) < bound for folder in folders(cluster)),
            within_s=20,
            what="every replica is kept to its size",
        )
        assert producer.errors == []
        before = earliest(cluster)
        records = read_to_end(cluster, "orders", [0])[0]
        start = records[0][0]
        assert 0 < before <= start <= earliest(cluster)
        assert records == [(each, each) for each in range(start, 20_000)]
        assert check_replicas_agree(cluster, "orders", 1) > KEPT_BYTES / 2


def test_retention_by_time() -> None:
    config = {"retention.ms": "2000"}
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1, config=config)
        producer = IntegerProducer(cluster, "orders", partitions=1)
        producer.send(3_000)
        producer.flush()
        eventually(
            lambda: all(log_start(folder) == 3_000 for folder in folders(cluster)),
            within_s=20,
            what="everything has grown old everywhere",
        )
        assert earliest(cluster) == 3_000
        assert [size_bytes(folder) for folder in folders(cluster)] == [0, 0, 0]
        producer.send(10)
        producer.flush()
        records = read_to_end(cluster, "orders", [0])[0]
        assert records == [(each, each) for each in range(3_000, 3_010)]
        for broker in cluster.brokers:  # and the start is still known when all have died
            cluster.kill(broker)
        cluster.start()
        assert earliest(cluster) in (3_000, 3_010)  # the last ten may have grown old meanwhile


def test_uncommitted_records_are_not_deleted() -> None:
    config = {"retention.bytes": str(SEGMENT_BYTES), "retention.ms": "1000"}
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1, config=config)
        await_in_sync(cluster, "orders")
        leader = leader_of(cluster)
        with RawClient(cluster.brokers[leader].port) as client:
            append(client, 100)
            for broker in cluster.brokers:
                if broker != leader:
                    cluster.pause(broker)
            end = append(client, 200, acks=1)
            committed = offset(cluster, leader, LATEST)
            assert committed < end
            eventually(
                lambda: offset(cluster, leader, EARLIEST) > committed - 50,
                within_s=10,
                what="what is committed and old has gone",
            )
            until_s = time.monotonic() + 2  # ten more rounds of retention
            while time.monotonic() < until_s:
                assert offset(cluster, leader, EARLIEST) <= offset(cluster, leader, LATEST)
                assert offset(cluster, leader, LATEST) == committed
        for broker in cluster.brokers:
            cluster.resume(broker)
        eventually(
            lambda: offset(cluster, leader_of(cluster), LATEST) == end,
            within_s=20,
            what="the followers got what was kept for them",
        )


def test_a_follower_whose_fetch_offset_was_deleted_restarts_at_the_log_start() -> None:
    config = {"retention.bytes": str(KEPT_BYTES)}
    with Cluster(settings=SETTINGS) as cluster:
        create_topic(cluster, "orders", partitions=1, config=config)
        await_in_sync(cluster, "orders")
        leader = leader_of(cluster)
        follower = next(broker for broker in cluster.brokers if broker != leader)
        with RawClient(cluster.brokers[leader].port) as client:
            behind = append(client, 30)
            cluster.kill(follower)
            append(client, 300)
        eventually(
            lambda: earliest(cluster) > behind, within_s=20, what="the follower's end is deleted"
        )
        cluster.restart(follower)
        await_in_sync(cluster, "orders")
        assert log_start(cluster.brokers[follower].log_dir / "orders-0") > behind
        assert check_replicas_agree(cluster, "orders", 1) > KEPT_BYTES / 2
