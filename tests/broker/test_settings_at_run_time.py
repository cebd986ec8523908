"""A running leader applies new settings at once: on virtual time, to the millisecond."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from insync.broker import settings_table
from insync.broker.replication.replica import Replica
from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections, Refused
from insync.client.connection import ClientConnection
from insync.rules import isr as isr_rules
from insync.rules import throttled_replicas
from insync.rules.values import BrokerId
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.wire.apis import Api
from insync.wire.configs import Resource
from insync.wire.fetch import FetchRequest, read_fetch

LAG, WAIT = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"
FLAG = "follower.fetch.pending.reads.insync.enable"
KEY = ("t", 0)
GONE = BrokerId(3)


class World:
    """Broker 1 leads, 2 and 3 follow, until the links of 3 are cut; 3 keeps running."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.cluster = Cluster(loop, Random(5), settings={LAG: "4000"})  # noqa: S311

    async def start(self) -> None:
        for number in self.cluster.brokers:
            await self.cluster.start(number)
        await asyncio.sleep(1)
        connections = Connections(self.cluster.network.host(100), self.cluster.addresses)
        self.admin = Admin(connections)
        await self.admin.create_topic(NewTopic(name="t", assignment=[[1, 2, 3]]))
        self.client = SimClient(self.cluster, 101, KEY, Random(1))  # noqa: S311
        assert await self.client.append([b"before"]) == 0
        await asyncio.sleep(1)

    def replica(self, number: int = 1) -> Replica:
        node = self.cluster.brokers[number].node
        assert node is not None
        return node.replicas.partitions[KEY]

    async def cut_off_third(self) -> int:
        """Returns the third's caught-up time, by the leader's clock."""
        for other in (1, 2):
            self.cluster.network.cut(GONE, other)
        # Until requests in flight are done and the leader's log end offset is past theirs.
        await asyncio.sleep(0.3)
        await self.client.append_once([b"after"])
        term = self.replica().term
        assert term is not None
        assert term.followers[GONE].end < term.end
        return term.followers[GONE].caught_up_at_ms

    async def left_at_ms(self) -> int:
        """When the leader decides that the third is out."""
        while True:
            term = self.replica().term
            assert term is not None
            if GONE not in isr_rules.proposed(term.isr):
                return self.loop.clock_ms()
            await asyncio.sleep(0.001)

    async def set(self, kind: Resource, name: str, **values: str) -> None:
        values_by_name = {key.replace("_", "."): value for key, value in values.items()}
        await self.admin.alter_configs(kind, name, set_values=values_by_name)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    with virtual_time() as loop:
        world = World(loop)

        async def run_scenario() -> None:
            await world.start()
            async with world.admin:
                await scenario(world)

        loop.run_until_complete(run_scenario())
        assert world.cluster.unexpected_errors == []


OWNERS = {
    "its topic": (Resource.TOPIC, "t"),
    "its broker": (Resource.BROKER, "1"),
    "all brokers": (Resource.BROKER, ""),
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
@pytest.mark.parametrize("lag_ms", [1_500, 9_000])
def test_the_deadline_moves_with_the_limit(owner: tuple[Resource, str], lag_ms: int) -> None:
    async def scenario(world: World) -> None:
        level_at_ms = await world.cut_off_third()
        await world.set(*owner, replica_lag_time_max_ms=str(lag_ms))
        left_at_ms = await world.left_at_ms()
        # Checked every millisecond: it is seen in the millisecond it happens in, or in the next.
        assert left_at_ms - (level_at_ms + lag_ms + 1) in (0, 1)
        assert world.cluster.brokers[3].node is not None

    play(scenario)


def test_a_limit_that_has_passed_already_applies_at_once() -> None:
    async def scenario(world: World) -> None:
        level_at_ms = await world.cut_off_third()
        await asyncio.sleep(2)
        began_ms = world.loop.clock_ms()
        assert GONE in isr_rules.proposed(world.replica().term.isr)  # type: ignore[union-attr]
        await world.set(Resource.BROKER, "", replica_lag_time_max_ms="1000")
        left_at_ms = await world.left_at_ms()
        assert level_at_ms + 1_001 < began_ms <= left_at_ms <= began_ms + 200

    play(scenario)


def test_deleting_a_value_restores_the_one_in_the_file() -> None:
    async def scenario(world: World) -> None:
        await world.set(Resource.TOPIC, "t", replica_lag_time_max_ms="1000")
        level_at_ms = await world.cut_off_third()
        await world.admin.alter_configs(Resource.TOPIC, "t", set_values={}, deleted=[LAG])
        assert await world.left_at_ms() - (level_at_ms + 4_001) in (0, 1)

    play(scenario)


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_a_new_policy_applies_at_once(owner: tuple[Resource, str]) -> None:
    async def scenario(world: World) -> None:
        await world.cut_off_third()
        for _ in range(3):
            await world.client.append_once([b"more"])
        await world.set(Resource.BROKER, "", replica_lag_max_messages="3")
        began_ms = world.loop.clock_ms()
        await world.set(*owner, replica_in_sync_policy="messages")
        assert await world.left_at_ms() <= began_ms + 200, "it lacks four"
        term = world.replica().term
        assert term is not None
        assert term.policy.name == "messages"

    play(scenario)


def test_pending_reads_count_once_they_are_enabled() -> None:
    async def scenario(world: World) -> None:
        values_by_name = {FLAG: "true", "follower.fetch.process.time.max.ms": "700"}
        await world.admin.alter_configs(Resource.BROKER, "", set_values=values_by_name)
        term = world.replica().term
        assert term is not None
        assert (term.policy.name, term.rule.process_time_max_ms) == ("pending-reads", 700)
        await world.admin.alter_configs(Resource.BROKER, "", set_values={}, deleted=[FLAG])
        term = world.replica().term
        assert term is not None
        assert (term.policy.name, term.rule.process_time_max_ms) == ("caught-up", None)

    play(scenario)


def test_min_isr_and_max_message_bytes_apply_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.set(Resource.TOPIC, "t", min_insync_replicas="3", max_message_bytes="99")
        for number in world.cluster.brokers:
            assert (world.replica(number).min_isr, world.replica(number).batch_bytes_max) == (3, 99)
        await world.set(Resource.BROKER, "", message_max_bytes="98", min_insync_replicas="2")
        assert (world.replica().min_isr, world.replica().batch_bytes_max) == (3, 99)
        names = ["min.insync.replicas", "max.message.bytes"]
        await world.admin.alter_configs(Resource.TOPIC, "t", set_values={}, deleted=names)
        assert (world.replica().min_isr, world.replica().batch_bytes_max) == (2, 98)

    play(scenario)


def test_open_logs_apply_segment_bytes_and_retention() -> None:
    async def scenario(world: World) -> None:
        await world.set(Resource.BROKER, "", log_segment_bytes="2048", log_retention_ms="77")
        await world.set(Resource.TOPIC, "t", segment_bytes="4096")
        for number in world.cluster.brokers:
            config = world.replica(number).log.config
            assert (config.segment_bytes, config.retention_ms) == (4_096, 77)

    play(scenario)


def test_a_throttled_replica_list_is_parsed_once_per_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has an entry per partition: once for each of them would be quadratic."""
    partitions, parsed = 60, [0]
    read = throttled_replicas.parse

    def counted(text: str) -> throttled_replicas.ThrottledReplicas:
        parsed[0] += text.count(":")
        return read(text)

    async def scenario(world: World) -> None:
        await world.admin.create_topic(NewTopic(name="many", assignment=[[1, 2, 3]] * partitions))
        await asyncio.sleep(1)
        setting = settings_table.TOPIC_SETTINGS["leader.replication.throttled.replicas"]
        counting = dataclasses.replace(setting, read=counted)
        monkeypatch.setitem(settings_table.TOPIC_SETTINGS, setting.name, counting)
        entries = ",".join(f"{number}:1" for number in range(partitions))
        await world.set(Resource.TOPIC, "many", leader_replication_throttled_replicas=entries)
        world.cluster.kill(2)  # and each partition's ISR changes
        await asyncio.sleep(5)
        assert world.cluster.brokers[1].node is not None
        assert world.cluster.brokers[1].node.quotas.leader.throttles(("many", partitions - 1))
        assert partitions <= parsed[0] <= 10 * partitions

    play(scenario)


def test_settings_outlive_a_restart_and_belong_to_their_broker() -> None:
    async def scenario(world: World) -> None:
        await world.set(Resource.BROKER, "2", replica_fetch_wait_max_ms="150")
        await world.set(Resource.BROKER, "", replica_fetch_wait_max_ms="160")
        world.cluster.kill(2)
        await asyncio.sleep(1)
        await world.cluster.start(2)
        waits = {}
        for number, broker in world.cluster.brokers.items():
            assert broker.node is not None
            waits[number] = broker.node.settings.integer(WAIT)
        assert waits == {1: 160, 2: 150, 3: 160}

    play(scenario)


def test_a_follower_fetches_with_the_new_wait() -> None:
    """An idle follower fetches again when its wait ends."""

    async def scenario(world: World) -> None:
        async def count_fetches(within_s: float) -> int:
            seen = set()
            for _ in range(int(within_s * 1_000)):
                await asyncio.sleep(0.001)
                seen.add(world.replica().session_fetched_at_ms.get(GONE))
            return len(seen)

        default = await count_fetches(4)
        await world.set(Resource.BROKER, "3", replica_fetch_wait_max_ms="40")
        assert await count_fetches(4) > 3 * default

    play(scenario)


class Fetches:
    """Every fetch that a broker sends, as it goes over the wire."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[int, list[FetchRequest]] = {}
        send = ClientConnection.send

        def sending(
            connection: ClientConnection, api: int, version: int, body: Sequence[bytes | memoryview]
        ) -> asyncio.Future[memoryview | bytes]:
            if api == Api.FETCH:
                request = read_fetch(version, b"".join(body), 0)
                self.sent.setdefault(request.replica_id, []).append(request)
            return send(connection, api, version, body)

        monkeypatch.setattr(ClientConnection, "send", sending)


def test_a_follower_fetches_with_the_new_max_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The running fetcher applies it, in its current fetch session."""
    fetches = Fetches(monkeypatch)

    async def scenario(world: World) -> None:
        default = 10 * 1_024 * 1_024
        assert {each.max_bytes for each in fetches.sent[3]} == {default}
        last = fetches.sent[3][-1]
        await world.set(Resource.BROKER, "3", replica_fetch_response_max_bytes="5000")
        fetches.sent.clear()
        await asyncio.sleep(1)
        assert {each.max_bytes for each in fetches.sent[3]} == {5_000}
        assert {each.session_id for each in fetches.sent[3]} == {last.session_id}
        assert {each.max_bytes for each in fetches.sent[2]} == {default}
        await world.admin.alter_configs(
            Resource.BROKER, "3", set_values={}, deleted=["replica.fetch.response.max.bytes"]
        )
        fetches.sent.clear()
        await asyncio.sleep(1)
        assert {each.max_bytes for each in fetches.sent[3]} == {default}

    play(scenario)


def test_unclean_election_is_allowed_while_there_is_no_leader() -> None:
    async def scenario(world: World) -> None:
        await world.cut_off_third()
        await world.left_at_ms()
        await asyncio.sleep(0.2)
        world.cluster.kill(2)
        await asyncio.sleep(0.2)
        world.cluster.kill(1)
        for other in (1, 2):
            world.cluster.network.mend(GONE, other)
        await asyncio.sleep(1)
        assert world.replica(3).term is None
        connections = Connections(
            world.cluster.network.host(102), [world.cluster.brokers[3].address]
        )
        async with Admin(connections) as admin:
            values_by_name = {"unclean.leader.election.enable": "true"}
            await admin.alter_configs(Resource.TOPIC, "t", set_values=values_by_name)
            await asyncio.sleep(1)
            assert world.replica(3).term is not None

    play(scenario)


def test_a_brokers_configs_are_described_by_that_broker() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused, match="at start only"):
            await world.set(Resource.BROKER, "2", node_id="9")
        with pytest.raises(Refused, match="below replica"):
            await world.set(Resource.BROKER, "2", replica_fetch_wait_max_ms="4000")
        values = {each.name: each for each in await world.admin.configs(Resource.BROKER, "2")}
        assert values["node.id"].value == "2"
        assert values["node.id"].is_read_only

    play(scenario)
