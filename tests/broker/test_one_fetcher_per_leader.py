"""However many partitions a broker follows, it has one connection and one session per leader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest
from few_brokers import node_of, play, until

from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.connection import ClientConnection
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.network import SimNetwork
from insync.wire.apis import Api
from insync.wire.fetch import FetchRequest, read_fetch

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
        """Who has none yet says 0."""
        return len({each.request.session_id for each in self.sent[leader]} - {0})

    def listed(self, leader: int) -> set[int]:
        """Partitions that were named since `listen_anew`."""
        return {
            part.partition
            for each in self.sent[leader][self._listed_from[leader] :]
            for topic in each.request.topics
            for part in topic.partitions
        }

    def listen_anew(self) -> None:
        self._listed_from = {leader: len(sent) for leader, sent in self.sent.items()}


async def write(cluster: Cluster, partition: int) -> None:
    client = SimClient(cluster, 200 + partition, ("t", partition), Random(partition))  # noqa: S311
    at = await client.append([b"value"])
    held = node_of(cluster, 3).replicas.held
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
            # What comes later joins them, and is all that the leader hears of.
            await asyncio.sleep(1)
            followed.listen_anew()
            await admin.grow_topic("t", 7, [[1, 3]])
            await until(lambda: ("t", 6) in node_of(cluster, 3).replicas.held)
            await write(cluster, 6)
            await asyncio.sleep(1)
            assert followed.listed(1) == {6}
            assert followed.listed(2) == set()
            for leader in LED_BY:
                assert followed.connections(leader) == 1
                assert followed.sessions(leader) == 1

    play(scenario)


def test_idle_partitions_are_not_named_in_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)

    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=ASSIGNMENT))
            await write(cluster, 0)
            await asyncio.sleep(2)
            followed.listen_anew()
            before = len(followed.sent[1])
            await asyncio.sleep(2)
            assert len(followed.sent[1]) > before + 1, "it goes on asking"
            assert followed.listed(1) == set()
            await write(cluster, 3)
            await asyncio.sleep(2)
            assert followed.listed(1) == {3}

    play(scenario)


def test_what_is_asked_for_meanwhile_brings_nothing_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second request lists what changed; its answer may be of before the third."""

    async def scenario(cluster: Cluster) -> None:
        async with Admin(Connections(cluster.network.host(100), cluster.addresses)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=[[1, 3]] * 4))
            writing = [
                asyncio.ensure_future(write_on(cluster, partition)) for partition in range(4)
            ]
            for count in range(5, 25):  # each new partition is one more reason to ask at once
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
