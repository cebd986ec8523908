"""The admin client on virtual time, with Insync's brokers and scripted ones of other versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.client.admin import Admin, Move, NewTopic
from insync.client.admin_connections import (
    BadAddress,
    Connections,
    NotOffered,
    Patience,
    Refused,
    TimedOut,
    Unreachable,
    parse_bootstrap,
)
from insync.sim.cluster import Cluster
from insync.sim.network import SimNetwork
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import Api
from insync.wire.configs import ConfigSource
from insync.wire.frames import FrameBuffer
from insync.wire.headers import read_request_header, response_header_bytes
from support.rules.partition_states import brokers
from support.sim.simulated_cluster import new_cluster

CLIENT = 200
PATIENCE = Patience(request_ms=500, operation_ms=5_000)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with virtual_time() as loop:
        yield loop


# With our own brokers.


def on_our_brokers(
    loop: VirtualLoop,
    scenario: Callable[[Cluster, Admin], Awaitable[None]],
    *,
    bootstrap_broker: int = 1,
) -> None:
    async def run_scenario() -> None:
        cluster = new_cluster(loop, 3)
        for number in cluster.brokers:
            await cluster.start(number)
        await asyncio.sleep(1)
        addresses = [(f"broker-{bootstrap_broker}", 9092)]
        async with Admin(
            Connections(cluster.network.host(CLIENT), addresses, patience=PATIENCE)
        ) as admin:
            await scenario(cluster, admin)

    loop.run_until_complete(run_scenario())


def test_a_topic_is_created_grown_and_deleted(loop: VirtualLoop) -> None:
    async def scenario(_: Cluster, admin: Admin) -> None:
        assert await admin.topics() == []
        await admin.create_topic(NewTopic(name="t", partitions=2, replication_factor=2))
        await admin.create_topic(NewTopic(name="assigned", assignment=[[3, 1], [2, 3]]))
        await admin.grow_topic("t", 5)
        assigned, topic = await admin.described(await admin.topics())
        assert [part.replicas for part in assigned.partitions] == [(3, 1), (2, 3)]
        assert [part.leader for part in assigned.partitions] == [3, 2]
        assert [part.number for part in topic.partitions] == list(range(5))
        assert topic.replication_factor == 2
        assert topic.topic_id is not None
        assert not any(part.is_under_replicated for part in topic.partitions)
        await admin.delete_topic("t")
        assert [each.name for each in await admin.topics()] == ["assigned"]
        assert [broker.number for broker in await admin.brokers()] == [1, 2, 3]

    on_our_brokers(loop, scenario)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda admin: admin.create_topic(NewTopic(name="t")), "TOPIC_ALREADY_EXISTS"),
        (lambda admin: admin.create_topic(NewTopic(name="a/b")), "INVALID_TOPIC_EXCEPTION"),
        (
            lambda admin: admin.create_topic(NewTopic(name="x", replication_factor=4)),
            "INVALID_REPLICATION_FACTOR",
        ),
        (lambda admin: admin.grow_topic("t", 1), "INVALID_PARTITIONS"),
        (lambda admin: admin.delete_topic("x"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_refusal_has_the_clusters_message(
    loop: VirtualLoop, change: Callable[[Admin], Awaitable[None]], code: str
) -> None:
    async def scenario(_: Cluster, admin: Admin) -> None:
        await admin.create_topic(NewTopic(name="t"))
        with pytest.raises(Refused, match=code):
            await change(admin)

    on_our_brokers(loop, scenario)


def test_no_eligible_leader_outside_the_isr_and_no_move_by_default(loop: VirtualLoop) -> None:
    async def scenario(_: Cluster, admin: Admin) -> None:
        await admin.create_topic(NewTopic(name="t"))
        assert await admin.moves() == {}
        (topic,) = await admin.described(await admin.topics())
        assert topic.partitions[0].elr == ()

    on_our_brokers(loop, scenario)


def test_another_broker_is_used_when_the_first_dies(loop: VirtualLoop) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await admin.topics()
        cluster.kill(1)
        await admin.create_topic(NewTopic(name="t", replication_factor=2))
        assert [topic.name for topic in await admin.topics()] == ["t"]

    on_our_brokers(loop, scenario, bootstrap_broker=1)


def test_unreachable_brokers_are_reported_at_once(loop: VirtualLoop) -> None:
    async def scenario(cluster: Cluster, _: Admin) -> None:
        addresses = [("nowhere", 1), ("no-one", 2)]
        admin = Admin(Connections(cluster.network.host(CLIENT), addresses, patience=PATIENCE))
        began_s = loop.time()
        with pytest.raises(Unreachable, match=r"nowhere:1.*no-one:2"):
            await admin.topics()
        assert loop.time() - began_s < 1

    on_our_brokers(loop, scenario)


def test_brokers_that_do_not_respond_are_tried_until_the_timeout(loop: VirtualLoop) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await admin.topics()
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        began_s = loop.time()
        with pytest.raises(TimedOut, match="not done within 5000 ms"):
            await admin.topics()
        assert loop.time() - began_s == pytest.approx(5, abs=0.1)

    on_our_brokers(loop, scenario)


def test_a_cluster_that_comes_back_in_time_is_waited_for(loop: VirtualLoop) -> None:
    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await admin.topics()
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        loop.call_later(2, cluster.network.heal)
        assert await admin.topics() == []

    on_our_brokers(loop, scenario)


def test_an_error_after_a_lost_response_says_so(loop: VirtualLoop) -> None:
    """The request arrives late, after the client timed out and sent another."""

    async def scenario(cluster: Cluster, admin: Admin) -> None:
        await admin.topics()
        for number in cluster.brokers:
            cluster.network.cut(CLIENT, number)
        loop.call_later(2, cluster.network.heal)
        with pytest.raises(Refused, match="an earlier attempt was lost") as refused:
            await admin.create_topic(NewTopic(name="t"))
        assert refused.value.code is ErrorCode.topic_already_exists
        assert [topic.name for topic in await admin.topics()] == ["t"]

    on_our_brokers(loop, scenario)


# With scripted brokers of other versions.

Script = Callable[[Any], Mapping[str, Any] | None]


class ScriptedBroker(asyncio.Protocol):
    """Responds as the script says, in the given versions; None: no response."""

    def __init__(
        self, versions: Mapping[Api, tuple[int, int]], script: Script, requests: list[Any]
    ) -> None:
        self._versions = {Api.API_VERSIONS: (0, 0), **versions}
        self._script = script
        self._requests = requests
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._frames.receive(data)
        while (frame := self._frames.next_frame()) is not None:
            header = read_request_header(frame)
            api, version = Api(header.api_key), header.api_version
            first, last = self._versions[api]
            assert first <= version <= last, f"{api.name} {version} was not offered"
            values = self._values(messages.read_request(api, version, frame, header.body_at), api)
            if values is None:
                continue
            body = messages.write_response(build(messages.response_type(api, version), values))
            head = response_header_bytes(api, version, header.correlation_id)
            self._transport.write(len(head + body).to_bytes(4, "big") + head + body)

    def _values(self, request: Any, api: Api) -> Mapping[str, Any] | None:
        if api is Api.API_VERSIONS:
            return {
                "api_keys": [
                    {"api_key": api, "min_version": first, "max_version": last}
                    for api, (first, last) in self._versions.items()
                ]
            }
        self._requests.append(request)
        return self._script(request)


def metadata(*brokers: int, controller: int, topics: list[Any] | None = None) -> dict[str, Any]:
    return {
        "brokers": [{"node_id": each, "host": f"b{each}", "port": 1} for each in brokers],
        "controller_id": controller,
        "topics": topics or [],
    }


def on_scripted_brokers(
    loop: VirtualLoop,
    versions: Mapping[Api, tuple[int, int]],
    scripts: Mapping[int, Script],
    scenario: Callable[[Admin], Awaitable[None]],
) -> dict[int, list[Any]]:
    """Run the scenario; returns the requests that each broker received."""
    network = SimNetwork(Random(1))  # noqa: S311
    requests: dict[int, list[Any]] = {number: [] for number in scripts}
    for number, script in scripts.items():
        make = partial(ScriptedBroker, versions, script, requests[number])
        network.listen(number, (f"b{number}", 1), make)

    async def run_scenario() -> None:
        connections = Connections(network.host(CLIENT), [("b1", 1)], patience=PATIENCE)
        async with Admin(connections) as admin:
            await scenario(admin)

    loop.run_until_complete(run_scenario())
    return requests


def test_an_old_broker_gets_requests_in_its_own_versions(loop: VirtualLoop) -> None:
    """Kafka 1.0: no topic ids, no offline replicas, deletion by name only."""

    def script(request: Any) -> Mapping[str, Any]:
        match Api(request.__api_key__):
            case Api.METADATA:
                part = {
                    "partition_index": 0,
                    "leader_id": -1,
                    "replica_nodes": (1, 2),
                    "isr_nodes": (2,),
                }
                return metadata(1, controller=1, topics=[{"name": "t", "partitions": [part]}])
            case Api.DELETE_TOPICS:
                return {"responses": [{"name": "t"}]}
            case _:
                return {"topics": [{"name": "t"}]}

    async def scenario(admin: Admin) -> None:
        (topic,) = await admin.topics()
        assert topic.topic_id is None
        assert topic.partitions[0].leader is None
        assert topic.partitions[0].is_under_replicated
        await admin.create_topic(NewTopic(name="t", partitions=1, replication_factor=1))
        await admin.delete_topic("t")
        with pytest.raises(NotOffered, match="b1:1 does not offer CreatePartitions"):
            await admin.grow_topic("t", 9)

    old = {Api.METADATA: (0, 5), Api.CREATE_TOPICS: (0, 2), Api.DELETE_TOPICS: (0, 1)}
    requests = on_scripted_brokers(loop, old, {1: script}, scenario)
    assert [(type(each).__name__, each.__version__) for each in requests[1]] == [
        ("MetadataRequest", 5),
        ("CreateTopicsRequest", 2),
        ("DeleteTopicsRequest", 1),
    ]
    assert requests[1][-1].topic_names == ("t",)


def test_a_broker_that_hangs_is_not_waited_for_alone(loop: VirtualLoop) -> None:
    async def run_scenario() -> None:
        cluster = new_cluster(loop, 3)
        for number in cluster.brokers:
            await cluster.start(number)
        await asyncio.sleep(1)
        cluster.pause(1)
        addresses = [(f"broker-{number}", 9092) for number in (1, 2, 3)]
        patience = Patience(request_ms=10_000, operation_ms=30_000)
        network = cluster.network.host(CLIENT)
        async with Admin(Connections(network, addresses, patience=patience)) as admin:
            began_s = loop.time()
            assert await admin.topics() == []
            assert 1 <= loop.time() - began_s < 1.5
            assert await admin.topics() == [], "the broker that responded is used again"
            assert loop.time() - began_s < 1.5

    loop.run_until_complete(run_scenario())


def test_changes_go_to_the_controller_also_when_it_changes(loop: VirtualLoop) -> None:
    controllers = iter([2, 3])

    def first(request: Any) -> Mapping[str, Any]:
        assert request.__api_key__ == Api.METADATA
        return metadata(1, 2, 3, controller=next(controllers))

    def former(_: Any) -> Mapping[str, Any]:
        return {"topics": [{"name": "t", "error_code": ErrorCode.not_controller}]}

    def controller(_: Any) -> Mapping[str, Any]:
        return {"topics": [{"name": "t"}]}

    async def scenario(admin: Admin) -> None:
        await admin.create_topic(NewTopic(name="t"))

    versions = {Api.METADATA: (1, 12), Api.CREATE_TOPICS: (2, 7)}
    requests = on_scripted_brokers(loop, versions, {1: first, 2: former, 3: controller}, scenario)
    assert [len(each) for each in requests.values()] == [2, 1, 1]


def test_a_long_description_comes_in_pieces_and_with_its_moves(loop: VirtualLoop) -> None:
    identity = UUID(int=7)

    def part(number: int) -> dict[str, Any]:
        return {
            "partition_index": number,
            "leader_id": 1,
            "replica_nodes": (1, 2, 3),
            "isr_nodes": (1, 2),
            "eligible_leader_replicas": (3,),
            "last_known_elr": (),
        }

    def script(request: Any) -> Mapping[str, Any]:
        match Api(request.__api_key__):
            case Api.METADATA:
                topics = [{"name": "t", "topic_id": identity, "partitions": []}]
                return metadata(1, controller=1, topics=topics)
            case Api.DESCRIBE_TOPIC_PARTITIONS:
                begin = 0 if request.cursor is None else request.cursor.partition_index
                following = {"topic_name": "t", "partition_index": begin + 2}
                return {
                    "topics": [
                        {
                            "name": "t",
                            "topic_id": identity,
                            "partitions": [part(begin), part(begin + 1)],
                        }
                    ],
                    "next_cursor": following if begin < 4 else None,
                }
            case _:
                moving = {
                    "partition_index": 3,
                    "replicas": (1, 2, 3),
                    "adding_replicas": (3,),
                    "removing_replicas": (1,),
                }
                return {"topics": [{"name": "t", "partitions": [moving]}]}

    async def scenario(admin: Admin) -> None:
        (topic,) = await admin.described(await admin.topics())
        assert [each.number for each in topic.partitions] == [0, 1, 2, 3, 4, 5]
        assert topic.topic_id == identity
        moved = topic.partitions[3]
        expected = Move(replicas=brokers(1, 2, 3), adding=brokers(3), removing=brokers(1))
        assert moved.move == expected
        assert (moved.elr, moved.last_known_elr) == ((3,), ())
        # The replica that is being added is not missed; the same hole elsewhere is.
        under = [each.is_under_replicated for each in topic.partitions]
        assert under == [True, True, True, False, True, True]

    versions = {
        Api.METADATA: (1, 13),
        Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
        Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    }
    on_scripted_brokers(loop, versions, {1: script}, scenario)


def test_settings_with_their_sources(loop: VirtualLoop) -> None:
    def script(request: Any) -> Mapping[str, Any]:
        if request.__api_key__ == Api.METADATA:
            return metadata(1, controller=1)
        values = [("retention.ms", "5", 1), ("segment.ms", "7", 5), ("new.kind", "x", 99)]
        configs = [{"name": n, "value": v, "config_source": s} for n, v, s in values]
        gone = {"resource_name": "gone", "error_code": ErrorCode.unknown_topic_or_partition}
        return {"results": [{"resource_name": "t", "configs": configs}, gone]}

    async def scenario(admin: Admin) -> None:
        configs = await admin.topic_configs(["t", "gone"])
        assert configs is not None
        assert list(configs) == ["t"]
        assert {each.name: each.source for each in configs["t"].values()} == {
            "retention.ms": ConfigSource.TOPIC,
            "segment.ms": ConfigSource.DEFAULT,
            "new.kind": ConfigSource.UNKNOWN,
        }

    versions = {Api.METADATA: (1, 13), Api.DESCRIBE_CONFIGS: (1, 4)}
    on_scripted_brokers(loop, versions, {1: script}, scenario)


def test_a_broker_that_never_responds_times_out(loop: VirtualLoop) -> None:
    async def scenario(admin: Admin) -> None:
        with pytest.raises(TimedOut, match="b1:1 did not respond within 500 ms"):
            await admin.topics()

    on_scripted_brokers(loop, {Api.METADATA: (1, 13)}, {1: lambda _: None}, scenario)


def test_addresses() -> None:
    assert parse_bootstrap("a:1, b:65535,[::1]:9092") == [("a", 1), ("b", 65535), ("::1", 9092)]


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:x", "a:²"])
def test_texts_that_are_not_addresses(text: str) -> None:
    with pytest.raises(BadAddress, match="is not HOST:PORT"):
        parse_bootstrap(text)
