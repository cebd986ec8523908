"""The documents' experiments with real brokers: the same load under two policies at once.

Two topics, each with a policy of its own, are led by the same broker and get the same records.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Accepted, Cluster
from support.cluster.clients import await_in_sync, eventually, partitions_of
from support.cluster.isr_log import evictions_of, joined, log_of
from support.wire.kio_client import KioClient
from support.wire.kio_requests import (
    DEBUG_REPLICA,
    LATEST,
    PRODUCE,
    batch,
    create,
    list_offset,
    produce_values,
)

LAG_MS = 1_000
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.lag.max.messages": "200",
    "replica.fetch.wait.max.ms": "200",
    "broker.session.timeout.ms": "20000",
}
PIPELINED = 5  # requests sent and not answered yet
LEADER = 1

pytestmark = [pytest.mark.process, pytest.mark.timed]
Topic = tuple[str, UUID]


class Load:
    """Topics led by broker 1, and a connection to it for each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open = ExitStack()
        self._clients: dict[str, KioClient] = {}
        self._topics: dict[str, Topic] = {}
        self._unanswered: dict[str, int] = {}

    def add(self, name: str, **config: str) -> None:
        client = self._open.enter_context(KioClient(self.cluster.brokers[LEADER].port))
        settings = {key.replace("_", "."): value for key, value in config.items()}
        made = create(
            client,
            7,
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[{"partition_index": 0, "broker_ids": (1, 2, 3)}],
            configs=[{"name": key, "value": value} for key, value in settings.items()],
        )
        assert made.error_code is ErrorCode.none, made
        self._clients[name], self._topics[name] = client, (name, made.topic_id)
        self._unanswered[name] = 0
        for each in self.cluster.brokers.values():
            with KioClient(each.port) as follower:
                eventually(
                    lambda client=follower: own_end(client, name) == 0,  # type: ignore[misc]
                    within_s=10,
                    what="every broker holds it",
                )

    def send(self, data: bytes) -> None:
        """To each, pipelined, acknowledged by the leader alone."""
        for name, client in self._clients.items():
            client.send(PRODUCE, 9, produce_values(self._topics[name], data, acks=1))
            self._unanswered[name] += 1
            while self._unanswered[name] > PIPELINED:
                self._receive(name)

    def finish(self) -> None:
        for name in self._clients:
            while self._unanswered[name]:
                self._receive(name)

    def _receive(self, name: str) -> None:
        answer = self._clients[name].receive(PRODUCE, 9)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        self._unanswered[name] -= 1

    def await_level(self, topic: str, *followers: int) -> None:
        end = own_end(self._clients[topic], topic)
        for follower in followers:
            with KioClient(self.cluster.brokers[follower].port) as client:
                eventually(
                    lambda client=client: own_end(client, topic) == end,  # type: ignore[misc]
                    within_s=20,
                    what=f"{follower} has everything",
                )

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def load(insync_cluster: Cluster) -> Iterator[Load]:
    load = Load(insync_cluster)
    yield load
    load.close()


def own_end(client: KioClient, topic: str) -> int:
    code, offset, _ = list_offset(client, 1, topic, LATEST, replica=DEBUG_REPLICA)
    return offset if code is ErrorCode.none else -1


def put_out(cluster: Cluster, topic: str) -> set[int]:
    return {each.broker for each in evictions_of(cluster) if each.topic == topic}


def paced(every_s: float, *, for_s: float, work: Callable[[], None]) -> None:
    """Do it at a steady rate, making up for what the machine held up."""
    began_s = due_s = time.monotonic()
    while due_s - began_s < for_s:
        work()
        due_s += every_s
        time.sleep(max(0.0, due_s - time.monotonic()))


@pytest.mark.insync_cluster(settings=SETTINGS)
def test_a_tenfold_burst(load: Load) -> None:
    """The article: by messages all followers are evicted, by time none."""
    load.add("counts", replica_in_sync_policy="messages")
    load.add("times", replica_in_sync_policy="caught-up")
    usual, burst = batch(*[1] * 25), batch(*[1] * 250)
    load.send(usual)
    load.finish()
    for topic in ("counts", "times"):  # a broker that has just started may take its time
        load.await_level(topic, 2, 3)
    paced(0.05, for_s=0.5, work=lambda: load.send(usual))
    assert put_out(load.cluster, "counts") == set()
    load.send(burst)
    paced(0.05, for_s=1.0, work=lambda: load.send(usual))
    load.finish()
    assert put_out(load.cluster, "counts") == {2, 3}
    assert put_out(load.cluster, "times") == set()
    await_in_sync(load.cluster, "counts")
    assert "limit 1000 ms; at once): " in log_of(load.cluster, LEADER)


@pytest.mark.insync_cluster(settings=SETTINGS)
def test_many_small_requests(load: Load) -> None:
    """KAFKA-4485's second problem: every fetch finds something new, and is never at the end."""
    load.add("begins", replica_in_sync_policy="lag-begin")
    load.add("by-caught-up", replica_in_sync_policy="caught-up")
    # An answer takes a moment, in which more arrives: so it is wherever the rate is high.
    load.cluster.slow_reads(LEADER, delay_ms=40)
    small = batch(1)
    paced(0.005, for_s=2.5 * LAG_MS / 1_000, work=lambda: load.send(small))
    load.finish()
    assert put_out(load.cluster, "begins") == {2, 3}
    assert put_out(load.cluster, "by-caught-up") == set()


@pytest.mark.insync_cluster(settings=SETTINGS | {"replica.fetch.max.bytes": "65536"})
def test_a_bootstrapping_follower_joins_once_and_stays(load: Load) -> None:
    """KIP-16: far behind and fetching is not in sync; caught up, it is, and remains so."""
    cluster = load.cluster
    load.add("orders")
    cluster.kill(3)
    eventually(lambda: 3 not in isr_of(cluster, "orders"), within_s=10, what="it is gone")
    shutil.rmtree(cluster.brokers[3].log_dir)
    large = batch(*[1] * 10, values=(bytes(3_000),) * 10)
    for _ in range(150):  # 4.5 MB: some seventy fetches
        load.send(large)
    load.finish()
    load.await_level("orders", 2)
    cluster.slow_reads(LEADER, delay_ms=30)
    cluster.restart(3, accepted=Accepted(new_directory=True))
    small = batch(1)
    outside = 0
    end_s = time.monotonic() + 20
    while 3 not in isr_of(cluster, "orders"):
        assert time.monotonic() < end_s, "it never caught up"
        outside += 1
        for _ in range(5):
            load.send(small)
            time.sleep(0.005)
    assert outside > 5, "too quick to show anything"
    paced(0.01, for_s=2 * LAG_MS / 1_000, work=lambda: load.send(small))
    load.finish()
    (lacked,) = joined(cluster, 3)
    assert lacked < 500, "of more than 1500"
    assert put_out(cluster, "orders") == set()


@pytest.mark.long
@pytest.mark.insync_cluster(
    settings=SETTINGS | {"replica.fetch.max.bytes": "30000", "replica.lag.time.max.ms": "3000"}
)
def test_a_follower_always_several_fetches_behind_with_little_lag_stays_in_sync(load: Load) -> None:
    """What KIP-16 rejected for want of times: by true lag such a follower is in sync.

    First we see how many batches a second the followers can get. Then almost as many are written,
    on top of a backlog of a little more than a second.
    """
    load.add("by-caught-up", replica_in_sync_policy="caught-up")
    load.add("by-true-lag", replica_in_sync_policy="true-lag")
    load.cluster.slow_reads(LEADER, delay_ms=15)
    ten_kb = batch(1, values=(bytes(9_800),))
    began_s, some = time.monotonic(), 40
    for _ in range(some):
        load.send(ten_kb)
    load.finish()
    for topic in ("by-caught-up", "by-true-lag"):
        load.await_level(topic, 2, 3)
    rate = some / (time.monotonic() - began_s)
    assert evictions_of(load.cluster) == []
    for _ in range(int(1.2 * rate)):
        load.send(ten_kb)
    paced(1 / (0.95 * rate), for_s=6.0, work=lambda: load.send(ten_kb))
    load.finish()
    assert put_out(load.cluster, "by-caught-up") == {2, 3}
    assert put_out(load.cluster, "by-true-lag") == set()


def isr_of(cluster: Cluster, topic: str) -> set[int]:
    return set(partitions_of(cluster, topic)[0].isrs)
