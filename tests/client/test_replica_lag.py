"""How far followers are behind, on virtual time: told by our leaders, measured at others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import pytest
from simulated import SETTINGS

from insync.cli.replica_words import why
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections, Patience
from insync.client.partition_client import PartitionClient
from insync.client.replica_lag import FollowerRow, ReplicaLag, Report, _Ends
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.wire.apis import SUPPORTED, Api
from insync.wire.configs import Resource

CLIENT, WRITER = 200, 201
PATIENCE = Patience(request_ms=500, operation_ms=5_000)
LAG_MAX_MS = 2_000


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with virtual_time() as loop:
        yield loop


class Looking:
    """A cluster with one topic led by broker 1, somebody who writes, and somebody who looks."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin
        self.lag = ReplicaLag(admin.connections, clock_ms=cluster.loop.clock_ms)
        network = cluster.network.host(WRITER)
        self.writer = PartitionClient(network, cluster.addresses, "t", 0)

    async def look(self) -> Report:
        return await self.lag.look(await self.admin.topics())

    async def rows(self) -> dict[int, FollowerRow]:
        report = await self.look()
        return {row.follower: row for row in report.rows}


def story(loop: VirtualLoop, tell: Callable[[Looking], Awaitable[None]], **settings: str) -> None:
    async def whole() -> None:
        given = {
            **SETTINGS,
            "min.insync.replicas": "1",
            "replica.lag.time.max.ms": str(LAG_MAX_MS),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        cluster = Cluster(loop, Random(3), settings=given)  # noqa: S311
        for number in cluster.brokers:
            await cluster.start(number)
        await asyncio.sleep(1)
        host = cluster.network.host(CLIENT)
        async with Admin(Connections(host, [("broker-1", 9092)], patience=PATIENCE)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=[[1, 2, 3]]))
            await tell(Looking(cluster, admin))
        assert cluster.mishaps == []

    loop.run_until_complete(whole())


def test_level_followers_are_level(loop: VirtualLoop) -> None:
    async def tell(at: Looking) -> None:
        await at.writer.append([b"1", b"2"])
        await asyncio.sleep(1)
        report = await at.look()
        assert report.is_exact
        assert report.problems == ()
        for row, follower in zip(report.rows, (2, 3), strict=True):
            assert (row.topic, row.partition, row.leader, row.follower) == ("t", 0, 1, follower)
            assert row.in_sync
            assert (row.lag_ms, row.messages, row.bytes, row.leaves_in_ms) == (0, 0, 0, None)
            assert why(row) == "level"

    story(loop, tell)


def test_a_follower_that_is_cut_off_leaves_when_it_was_said_to(loop: VirtualLoop) -> None:
    async def tell(at: Looking) -> None:
        await at.writer.append([b"0"])
        await asyncio.sleep(1)
        at.cluster.network.cut(1, 3)
        writing = loop.create_task(at.writer.append([b"a" * 100] * 5))
        await asyncio.sleep(1)
        rows = await at.rows()
        looked_at_ms = loop.clock_ms()
        assert why(rows[2]) == "level"
        out = rows[3]
        assert out.in_sync
        assert out.messages == 5
        leader = at.cluster.brokers[1].node
        assert leader is not None
        # Two batches, one record and five: what the last one takes is what is missing.
        assert out.bytes == leader.replicas.held["t", 0].log.size_bytes - 69
        assert out.lag_ms is not None
        assert out.leaves_in_ms is not None
        assert out.lag_ms + out.leaves_in_ms == LAG_MAX_MS + 1
        assert 950 <= out.lag_ms <= 1_250  # cut off a second ago; it asks every 200 ms
        await asyncio.sleep((out.leaves_in_ms - 50) / 1_000)
        assert (await at.rows())[3].in_sync
        await writing  # acknowledged as soon as it is out
        late_ms = loop.clock_ms() - looked_at_ms - out.leaves_in_ms
        assert 0 <= late_ms + 20 <= 100, "the store's and the network's delays aside"
        gone = (await at.rows())[3]
        assert not gone.in_sync
        assert why(gone).startswith("stopped fetching for 2.")
        assert gone.leaves_in_ms is None

    story(loop, tell)


def test_who_comes_back_is_seen_catching_up(loop: VirtualLoop) -> None:
    async def tell(at: Looking) -> None:
        at.cluster.network.cut(1, 3)
        for _ in range(30):
            await at.writer.append([b"x" * 1_000] * 10)
        await asyncio.sleep(LAG_MAX_MS / 1_000)
        before = (await at.rows())[3]
        assert not before.in_sync
        assert before.messages == 300 or not before.has_fetched
        at.cluster.network.heal()
        seen: list[str] = []
        for _ in range(2_000):
            row = (await at.rows())[3]
            if not seen or seen[-1] != why(row):
                seen.append(why(row))
            if row.in_sync and row.is_level:
                break
            await asyncio.sleep(0.01)
        assert seen[-1] == "level"
        assert any("catching up, " in text and " left" in text for text in seen), seen

    story(loop, tell, replica_fetch_max_bytes="20000", replica_fetch_response_max_bytes="20000")


def test_a_dead_followers_broker_is_down(loop: VirtualLoop) -> None:
    async def tell(at: Looking) -> None:
        await at.writer.append([b"0"])
        at.cluster.kill(3)
        await asyncio.sleep(1)
        report = await at.look()
        assert report.problems == ()
        assert [(row.follower, row.in_sync, why(row)) for row in report.rows] == [
            (2, True, "level"),
            (3, False, "its broker is down"),
        ]

    story(loop, tell)


def test_a_leader_that_does_not_answer_costs_its_own_rows_only(loop: VirtualLoop) -> None:
    async def tell(at: Looking) -> None:
        await at.admin.create_topic(NewTopic(name="u", assignment=[[2, 3]]))
        await at.look()
        at.cluster.network.cut(CLIENT, 1)
        addresses = [("broker-2", 9092)]
        host = at.cluster.network.host(CLIENT)
        async with Admin(Connections(host, addresses, patience=PATIENCE)) as admin:
            lag = ReplicaLag(admin.connections, clock_ms=loop.clock_ms)
            report = await lag.look(await admin.topics())
        assert len(report.problems) == 1
        assert report.problems[0].startswith("broker 1: cannot reach broker-1:9092")
        assert [why(row) for row in report.rows] == [
            "broker 1 leads it and does not answer",
            "broker 1 leads it and does not answer",
            "level",
        ]

    story(loop, tell)


class AsStrangers(Connections):
    """Our brokers, taken for somebody else's: they answer what Apache Kafka's answer."""

    async def broker_offers(self, broker: int, api: Api) -> bool:
        return api is not Api.DESCRIBE_REPLICAS and await super().broker_offers(broker, api)


def test_what_is_measured_from_outside_is_near_what_the_leader_knows(loop: VirtualLoop) -> None:
    assert Api.DESCRIBE_REPLICAS in SUPPORTED

    async def tell(at: Looking) -> None:
        host = at.cluster.network.host(CLIENT)
        strangers = AsStrangers(host, at.cluster.addresses, patience=PATIENCE)
        async with Admin(strangers) as admin:
            lag = ReplicaLag(strangers, clock_ms=loop.clock_ms)
            await at.writer.append([b"0"])
            await asyncio.sleep(0.5)
            report = await lag.look(await admin.topics())
            assert not report.is_exact
            assert [why(row) for row in report.rows] == ["level", "level"]
            at.cluster.network.cut(1, 3)
            compared = 0
            row = report.rows[1]
            for _ in range(40):
                await asyncio.sleep(0.1)
                await at.writer.append([b"x"] * 10)
                estimated = await lag.look(await admin.topics())
                exact = (await at.rows())[3]
                row = next(row for row in estimated.rows if row.follower == 3)
                assert row.lag_is_estimated
                assert row.messages is not None
                if row.messages:
                    compared += 1
                    assert not row.lag_is_at_least
                    assert exact.messages is not None
                    assert exact.messages == row.messages
                    assert row.lag_ms == pytest.approx(exact.lag_ms, abs=250)
                    assert row.falls_back
            assert compared > 20
            assert not row.in_sync

    story(loop, tell, replica_lag_time_max_ms="300", replica_fetch_wait_max_ms="100")


def test_behind_all_samples_a_lag_is_at_least_as_long_as_we_have_looked() -> None:
    ends = _Ends()
    for at_ms, end in ((1_000, 100), (2_000, 200), (3_000, 400)):
        ends.add(at_ms, end)
    assert ends.age_ms(300, now_ms=3_000) == (500, False)
    assert ends.age_ms(200, now_ms=3_000) == (1_000, False)
    assert ends.age_ms(150, now_ms=3_500) == (2_000, False)
    assert ends.age_ms(100, now_ms=3_000) == (2_000, False)
    assert ends.age_ms(99, now_ms=3_000) == (2_000, True)
    ends.add(4_000, 50)  # another log
    assert ends.age_ms(10, now_ms=4_000) == (0, True)


def test_who_is_held_back_by_a_throttle_is_said_to_be(loop: VirtualLoop) -> None:
    """At 1 B/s: its leader answers, but with nothing for it."""

    async def tell(at: Looking) -> None:
        at.cluster.network.cut(1, 2)
        for _ in range(20):
            await at.writer.append([bytes(50_000)])
        rates = {f"{side}.replication.throttled.rate": "1" for side in ("leader", "follower")}
        await at.admin.alter_configs(Resource.BROKER, "", given=rates)
        lists = {
            "leader.replication.throttled.replicas": "0:1",
            "follower.replication.throttled.replicas": "0:2",
        }
        await at.admin.alter_configs(Resource.TOPIC, "t", given=lists)
        at.cluster.network.heal()
        await asyncio.sleep(5)
        rows = await at.rows()
        assert (rows[2].is_throttled, rows[2].in_sync) == (True, False)
        assert why(rows[2]).startswith("throttled: ")
        assert why(rows[3]) == "level"

    story(loop, tell)
