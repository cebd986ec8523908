"""The lag of followers, on virtual time: from Insync's leaders, and estimated from logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.cli.replica_words import why
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections, Patience
from insync.client.partition_client import PartitionClient
from insync.client.replica_lag import SAMPLES_MAX, FollowerRow, ReplicaLag, Report, _LeaderEnds
from insync.client.replica_limits import KEPT_MS, Limits, ReplicaLimits
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.wire.any_version import Values
from insync.wire.apis import SUPPORTED, Api
from insync.wire.configs import Resource
from support.sim.simulated_cluster import SETTINGS

CLIENT, WRITER = 200, 201
PATIENCE = Patience(request_ms=500, operation_ms=5_000)
LAG_MAX_MS = 2_000


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with virtual_time() as loop:
        yield loop


class MeasuredCluster:
    """A cluster with one topic led by broker 1, a producer, and lag reports."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin
        self.lag = ReplicaLag(admin.connections, clock_ms=cluster.loop.clock_ms)
        network = cluster.network.host(WRITER)
        self.writer = PartitionClient(network, cluster.addresses, "t", 0)

    async def measure(self) -> Report:
        return await self.lag.measure(await self.admin.topics())

    async def rows(self) -> dict[int, FollowerRow]:
        report = await self.measure()
        return {row.follower: row for row in report.rows}


def scenario(
    loop: VirtualLoop, check: Callable[[MeasuredCluster], Awaitable[None]], **settings: str
) -> None:
    async def run_scenario() -> None:
        all_settings = {
            **SETTINGS,
            "min.insync.replicas": "1",
            "replica.lag.time.max.ms": str(LAG_MAX_MS),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        cluster = Cluster(loop, Random(3), settings=all_settings)  # noqa: S311
        for number in cluster.brokers:
            await cluster.start(number)
        await asyncio.sleep(1)
        host = cluster.network.host(CLIENT)
        async with Admin(Connections(host, [("broker-1", 9092)], patience=PATIENCE)) as admin:
            await admin.create_topic(NewTopic(name="t", assignment=[[1, 2, 3]]))
            await check(MeasuredCluster(cluster, admin))
        assert cluster.unexpected_errors == []

    loop.run_until_complete(run_scenario())


def test_caught_up_followers_have_no_lag(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.writer.append([b"1", b"2"])
        await asyncio.sleep(1)
        report = await at.measure()
        assert report.is_exact
        assert report.problems == ()
        for row, follower in zip(report.rows, (2, 3), strict=True):
            assert (row.topic, row.partition, row.leader, row.follower) == ("t", 0, 1, follower)
            assert row.in_sync
            assert (row.lag_ms, row.messages, row.bytes, row.leaves_in_ms) == (0, 0, 0, None)
            assert why(row) == "caught up"

    scenario(loop, check)


def test_an_unreachable_follower_leaves_the_isr_at_the_reported_time(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.writer.append([b"0"])
        await asyncio.sleep(1)
        at.cluster.network.cut(1, 3)
        writing = loop.create_task(at.writer.append([b"a" * 100] * 5))
        await asyncio.sleep(1)
        rows = await at.rows()
        measured_at_ms = loop.clock_ms()
        assert why(rows[2]) == "caught up"
        out = rows[3]
        assert out.in_sync
        assert out.messages == 5
        leader = at.cluster.brokers[1].node
        assert leader is not None
        # Two batches, one record and five: what the last one takes is what is missing.
        assert out.bytes == leader.replicas.partitions["t", 0].log.size_bytes - 69
        assert out.lag_ms is not None
        assert out.leaves_in_ms is not None
        assert out.lag_ms + out.leaves_in_ms == LAG_MAX_MS + 1
        assert 950 <= out.lag_ms <= 1_250  # cut off a second ago; it fetches every 200 ms
        await asyncio.sleep((out.leaves_in_ms - 50) / 1_000)
        assert (await at.rows())[3].in_sync
        await writing  # acknowledged as soon as it is out
        late_ms = loop.clock_ms() - measured_at_ms - out.leaves_in_ms
        assert 0 <= late_ms + 20 <= 100, "the store's and the network's delays aside"
        gone = (await at.rows())[3]
        assert not gone.in_sync
        assert why(gone).startswith("stopped fetching for 2.")
        assert gone.leaves_in_ms is None

    scenario(loop, check)


def test_a_returning_follower_is_reported_as_catching_up(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
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
            if row.in_sync and row.is_caught_up:
                break
            await asyncio.sleep(0.01)
        assert seen[-1] == "caught up"
        assert any("catching up, " in text and " left" in text for text in seen), seen

    scenario(loop, check, replica_fetch_max_bytes="20000", replica_fetch_response_max_bytes="20000")


def test_a_dead_followers_broker_is_down(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.writer.append([b"0"])
        at.cluster.kill(3)
        await asyncio.sleep(1)
        report = await at.measure()
        assert report.problems == ()
        assert [(row.follower, row.in_sync, why(row)) for row in report.rows] == [
            (2, True, "caught up"),
            (3, False, "its broker is down"),
        ]

    scenario(loop, check)


def test_only_rows_of_a_leader_that_does_not_respond_are_unknown(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.admin.create_topic(NewTopic(name="u", assignment=[[2, 3]]))
        await at.measure()
        at.cluster.network.cut(CLIENT, 1)
        addresses = [("broker-2", 9092)]
        host = at.cluster.network.host(CLIENT)
        async with Admin(Connections(host, addresses, patience=PATIENCE)) as admin:
            lag = ReplicaLag(admin.connections, clock_ms=loop.clock_ms)
            report = await lag.measure(await admin.topics())
        assert len(report.problems) == 1
        assert report.problems[0].startswith("broker 1: cannot reach broker-1:9092")
        assert [why(row) for row in report.rows] == [
            "broker 1 leads it and does not respond",
            "broker 1 leads it and does not respond",
            "caught up",
        ]

    scenario(loop, check)


class AsStrangers(Connections):
    """Insync's brokers without DescribeReplicas, as if they were Apache Kafka's."""

    async def broker_offers(self, broker: int, api: Api) -> bool:
        return api is not Api.DESCRIBE_REPLICAS and await super().broker_offers(broker, api)


def test_estimated_lag_is_near_what_the_leader_knows(loop: VirtualLoop) -> None:
    assert Api.DESCRIBE_REPLICAS in SUPPORTED

    async def check(at: MeasuredCluster) -> None:
        host = at.cluster.network.host(CLIENT)
        strangers = AsStrangers(host, at.cluster.addresses, patience=PATIENCE)
        async with Admin(strangers) as admin:
            lag = ReplicaLag(strangers, clock_ms=loop.clock_ms)
            await at.writer.append([b"0"])
            await asyncio.sleep(0.5)
            report = await lag.measure(await admin.topics())
            assert not report.is_exact
            assert [why(row) for row in report.rows] == ["caught up", "caught up"]
            at.cluster.network.cut(1, 3)
            compared = 0
            row = report.rows[1]
            for _ in range(40):
                await asyncio.sleep(0.1)
                await at.writer.append([b"x"] * 10)
                estimated = await lag.measure(await admin.topics())
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

    scenario(loop, check, replica_lag_time_max_ms="300", replica_fetch_wait_max_ms="100")


def test_behind_all_samples_a_lag_is_at_least_the_time_since_the_first() -> None:
    ends = _LeaderEnds()
    for at_ms, end in ((1_000, 100), (2_000, 200), (3_000, 400)):
        ends.add(at_ms, end)
    assert ends.age_ms(300, now_ms=3_000) == (500, False)
    assert ends.age_ms(200, now_ms=3_000) == (1_000, False)
    assert ends.age_ms(150, now_ms=3_500) == (2_000, False)
    assert ends.age_ms(100, now_ms=3_000) == (2_000, False)
    assert ends.age_ms(99, now_ms=3_000) == (2_000, True)
    ends.add(4_000, 50)  # another log
    assert ends.age_ms(10, now_ms=4_000) == (0, True)


def slow_age_ms(samples: list[tuple[int, int]], end: int, *, now_ms: int) -> tuple[int, bool]:
    """The same from every sample, one by one, the latest first."""
    later_ms, later_end = now_ms, samples[-1][1]
    for at_ms, leader_end in reversed(samples):
        if leader_end <= end:
            grown = later_end - leader_end
            fraction = (end - leader_end) / grown if grown else 1.0
            return round(now_ms - (at_ms + fraction * (later_ms - at_ms))), False
        later_ms, later_end = at_ms, leader_end
    return now_ms - samples[0][0], True


@given(
    growth=st.lists(st.sampled_from([0, 0, 0, 1, 5]), min_size=1, max_size=60),
    behind=st.integers(0, 70),
)
def test_merged_samples_say_the_same_as_all(growth: list[int], behind: int) -> None:
    ends, samples, end = _LeaderEnds(), [], 100
    for turn, grown in enumerate(growth):
        end += grown
        samples.append((turn * 1_000, end))
        ends.add(turn * 1_000, end)
    now_ms = samples[-1][0]
    assert ends.age_ms(end - behind, now_ms=now_ms) == slow_age_ms(
        samples, end - behind, now_ms=now_ms
    )


def test_samples_are_bounded_and_those_of_an_idle_log_are_two() -> None:
    idle, busy = _LeaderEnds(), _LeaderEnds()
    for turn in range(5 * SAMPLES_MAX):
        idle.add(turn, 7)
        busy.add(turn, turn)
        assert len(busy.ends) == len(busy.times_ms) <= SAMPLES_MAX
    assert list(idle.times_ms) == [0, 5 * SAMPLES_MAX - 1]
    assert busy.ends[-1] == 5 * SAMPLES_MAX - 1
    assert len(busy.ends) > SAMPLES_MAX // 2


class CountedStrangers(AsStrangers):
    """Which brokers were asked for what."""

    requests: list[tuple[int, Api]]

    async def ask_broker(self, broker: int, api: Api, values: Values) -> Any:
        self.requests.append((broker, api))
        return await super().ask_broker(broker, api, values)


def test_sizes_are_asked_for_only_where_a_follower_is_behind(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.admin.create_topic(NewTopic(name="u", assignment=[[2, 3]]))
        await at.writer.append([b"0"])
        await asyncio.sleep(0.5)
        host = at.cluster.network.host(CLIENT)
        strangers = CountedStrangers(host, at.cluster.addresses, patience=PATIENCE)
        strangers.requests = []
        async with Admin(strangers) as admin:
            lag = ReplicaLag(strangers, clock_ms=loop.clock_ms)
            report = await lag.measure(await admin.topics())
            assert [row.messages for row in report.rows] == [0, 0, 0]
            assert strangers.requests == [(broker, Api.LIST_OFFSETS) for broker in (1, 2, 3)]
            at.cluster.network.cut(1, 3)
            await at.writer.append([b"x" * 1_000])
            await asyncio.sleep(0.1)
            strangers.requests.clear()
            report = await lag.measure(await admin.topics())
            (row,) = (row for row in report.rows if row.messages)
            assert (row.topic, row.follower, row.messages) == ("t", 3, 1)
            assert row.bytes is not None
            assert row.bytes > 1_000
            asked = [each for each in strangers.requests if each[1] is Api.DESCRIBE_LOG_DIRS]
            assert [broker for broker, _ in asked] == [1, 2, 3]

    scenario(loop, check, replica_lag_time_max_ms="300", replica_fetch_wait_max_ms="100")


# What a report is judged by.


def test_limits_are_read_where_needed_and_kept(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        limits = ReplicaLimits(at.admin, clock_ms=loop.clock_ms)
        assert await limits.read(await at.measure()) == Limits()
        at.cluster.kill(3)
        await asyncio.sleep(1)
        read = await limits.read(await at.measure())
        assert read == Limits(min_isr={"t": 1})
        assert read.required_isr("t", replication_factor=3) == 1
        assert read.required_isr("unknown", replication_factor=3) is None
        nine = {"min.insync.replicas": "9"}
        await at.admin.alter_configs(Resource.TOPIC, "t", set_values=nine)
        assert await limits.read(await at.measure()) == read, "kept for some time"
        await asyncio.sleep(KEPT_MS / 1_000)
        later = await limits.read(await at.measure())
        assert later.required_isr("t", replication_factor=3) == 3, "as leaders require it"

    scenario(loop, check)


def test_the_session_timeout_is_read_when_a_broker_does_not_respond(loop: VirtualLoop) -> None:
    async def check(at: MeasuredCluster) -> None:
        await at.measure()
        at.cluster.network.cut(CLIENT, 3)
        report = await at.measure()
        assert report.silent.keys() == {3}
        limits = await ReplicaLimits(at.admin, clock_ms=loop.clock_ms).read(report)
        assert limits.session_timeout_ms == 7_000
        stranger = replace(report, is_exact=False)
        limits = await ReplicaLimits(at.admin, clock_ms=loop.clock_ms).read(stranger)
        assert limits.session_timeout_ms is None, "Apache Kafka's leaders report no silence"

    scenario(loop, check, broker_session_timeout_ms="7000")


def test_a_follower_held_back_by_a_throttle_is_reported_as_throttled(loop: VirtualLoop) -> None:
    """At 1 B/s: its leader responds, but with no records for it."""

    async def check(at: MeasuredCluster) -> None:
        at.cluster.network.cut(1, 2)
        for _ in range(20):
            await at.writer.append([bytes(50_000)])
        rates = {f"{side}.replication.throttled.rate": "1" for side in ("leader", "follower")}
        await at.admin.alter_configs(Resource.BROKER, "", set_values=rates)
        lists = {
            "leader.replication.throttled.replicas": "0:1",
            "follower.replication.throttled.replicas": "0:2",
        }
        await at.admin.alter_configs(Resource.TOPIC, "t", set_values=lists)
        at.cluster.network.heal()
        await asyncio.sleep(5)
        rows = await at.rows()
        assert (rows[2].is_throttled, rows[2].in_sync) == (True, False)
        assert why(rows[2]).startswith("throttled: ")
        assert why(rows[3]) == "caught up"

    scenario(loop, check)


def test_a_broker_that_was_late_once_has_as_much_time_as_the_others_again(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of thousands of partitions takes longer than a hung broker is waited for."""

    async def check(at: MeasuredCluster) -> None:
        connections, delay_s = at.admin.connections, 3.0
        ask = connections.ask_broker_bytes

        async def ask_late(broker: int, api: Api, body: bytes) -> Any:
            await asyncio.sleep(delay_s)
            return await ask(broker, api, body)

        monkeypatch.setattr(connections, "ask_broker_bytes", ask_late)
        assert (await at.measure()).silent.keys() == {1, 2, 3}
        delay_s = 1.0
        assert (await at.measure()).silent == {}
        at.cluster.network.cut(CLIENT, 3)
        delay_s = 0.0
        for within_ms in (2_000, 400, 400):
            began_ms = loop.clock_ms()
            assert (await at.measure()).silent.keys() == {3}
            assert loop.clock_ms() - began_ms <= within_ms

    scenario(loop, check)
