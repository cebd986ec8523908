"""However many partitions a broker follows, it has one connection and one session per leader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.connection import ClientConnection
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.network import SimNetwork
from insync.wire.apis import Api
from insync.wire.fetch import FetchRequest, read_fetch
from support.sim.few_brokers import client_of, node_of, play, replica_of, topic, until

ASSIGNMENT = [[1, 3], [1, 3], [2, 3], [1, 3], [2, 3], [1, 3]]  # broker 3 leads nothing
LED_BY = {1: {0, 1, 3, 5}, 2: {2, 4}}


class Sent(NamedTuple):
    connection: ClientConnection
    request: FetchRequest


class Followed:
    """Every fetch of a follower, by the leader at the other end of its connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[int, list[Sent]] = {1: [], 2: []}
        self._listed_from: dict[int, int] = {1: 0, 2: 0}
        self._called: list[tuple[asyncio.Protocol, str]] = []
        connect, send = SimNetwork.connect, ClientConnection.send

        async def connecting(
            network: SimNetwork, host: int, address: tuple[str, int], protocol: asyncio.Protocol
        ) -> asyncio.Transport:
            self._called.append((protocol, address[0]))
            return await connect(network, host, address, protocol)

        def sending(
            connection: ClientConnection, api: int, version: int, body: Sequence[bytes | memoryview]
        ) -> asyncio.Future[memoryview | bytes]:
            if api == Api.FETCH:
                request = read_fetch(version, b"".join(body), 0)
                if request.replica_id >= 0:
                    self.sent[self._leader(connection)].append(Sent(connection, request))
            return send(connection, api, version, body)

        monkeypatch.setattr(SimNetwork, "connect", connecting)
        monkeypatch.setattr(ClientConnection, "send", sending)

    def _leader(self, connection: ClientConnection) -> int:
        (name,) = [name for protocol, name in self._called if protocol is connection]
        return int(name.removeprefix("broker-"))

    def connections(self, leader: int) -> int:
        return len({id(each.connection) for each in self.sent[leader]})

    def sessions(self, leader: int) -> int:
        """A request without a session has session id 0."""
        return len({each.request.session_id for each in self.sent[leader]} - {0})

    def listed(self, leader: int) -> set[int]:
        """Partitions that were listed since `listen_again`."""
        return {
            partition.partition
            for each in self.sent[leader][self._listed_from[leader] :]
            for topic in each.request.topics
            for partition in topic.partitions
        }

    def listen_again(self) -> None:
        self._listed_from = {leader: len(sent) for leader, sent in self.sent.items()}


async def write(cluster: Cluster, partition: int) -> None:
    client = SimClient(cluster, 200 + partition, ("t", partition), Random(partition))  # noqa: S311
    at = await client.append([b"value"])
    held = node_of(cluster, 3).replicas.partitions
    await until(lambda: held["t", partition].log.end > at)


def test_partitions_of_one_leader_share_a_connection_and_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = Followed(monkeypatch)

    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=ASSIGNMENT))
            for partition in range(len(ASSIGNMENT)):
                await write(cluster, partition)
            for leader, partitions in LED_BY.items():
                assert followed.listed(leader) == partitions
            # A new partition joins them, and only it is listed.
            await asyncio.sleep(1)
            followed.listen_again()
            await admin.grow_topic("t", 7, [[1, 3]])
            await until(lambda: ("t", 6) in node_of(cluster, 3).replicas.partitions)
            await write(cluster, 6)
            await asyncio.sleep(1)
            assert followed.listed(1) == {6}
            assert followed.listed(2) == set()
            for leader in LED_BY:
                assert followed.connections(leader) == 1
                assert followed.sessions(leader) == 1

    play(scenario)


def test_idle_partitions_are_not_listed_in_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)

    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=ASSIGNMENT))
            await write(cluster, 0)
            await asyncio.sleep(2)
            followed.listen_again()
            before = len(followed.sent[1])
            await asyncio.sleep(2)
            assert len(followed.sent[1]) > before + 1, "it goes on fetching"
            assert followed.listed(1) == set()
            await write(cluster, 3)
            await asyncio.sleep(2)
            assert followed.listed(1) == {3}

    play(scenario)


def test_a_second_request_under_way_brings_no_record_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second request lists what changed; its answer may be older than the third request."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=[[1, 3]] * 4))
            writing = [
                asyncio.ensure_future(write_on(cluster, partition)) for partition in range(4)
            ]
            for count in range(5, 25):  # each new partition makes the fetcher send a second request
                await asyncio.sleep(0.05)
                await admin.grow_topic("t", count, [[1, 3]])
            for each in writing:
                each.cancel()
            for partition in range(4):
                await write(cluster, partition)

    play(scenario)
    assert "fetch from the end" not in caplog.text


async def write_on(cluster: Cluster, partition: int) -> None:
    client = SimClient(cluster, 300 + partition, ("t", partition), Random(partition))  # noqa: S311
    while True:
        await client.append([b"value"])


def test_a_damaged_batch_stops_the_replica_of_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=[[1, 3]] * 3))
            for partition in range(3):
                await write(cluster, partition)
            cluster.kill(3)
            client = SimClient(cluster, 100, ("t", 1), Random(1))  # noqa: S311
            assert await client.append_once([b"to be damaged"]) == 1
            disk = cluster.brokers[1].disk
            (path,) = [path for path in disk._files if path.endswith("/t-1/" + "0" * 20 + ".log")]
            disk._files[path].data[-1] ^= 1
            await cluster.start(3)
            for partition in (0, 2):
                await write(cluster, partition)
            assert node_of(cluster, 3).replicas.partitions["t", 1].log.end == 1
            failure = "the CRC of the batch at offset 1 does not match"
            assert f"t-1: append of fetched records failed: {failure}" in caplog.text

    play(scenario)


def test_a_batch_larger_than_a_followers_answer_is_replicated() -> None:
    """Between two small ones, so that what comes behind it is not held up either."""
    size_bytes = 11 << 20
    config = {"max.message.bytes": str(2 * size_bytes)}

    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, config=config)
        settings = node_of(cluster, 2).settings
        assert settings.integer("replica.fetch.response.max.bytes") < size_bytes
        client = client_of(cluster)
        for value in (b"small", bytes(size_bytes), b"small"):
            assert await client.append_once([value]) is not None
        await until(lambda: all(replica_of(cluster, n).log.end == 3 for n in (2, 3)), within_s=30)

    play(scenario)
