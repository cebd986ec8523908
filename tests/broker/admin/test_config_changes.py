"""Settings changed by requests: a refusal changes nothing, and concurrent changes are all kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.admin import config_changes
from insync.broker.admin.alter_configs import AlterConfigs, IncrementalAlterConfigs
from insync.broker.admin.config_changes import ConfigChanges
from insync.broker.admin.config_resources import ConfigResources
from insync.broker.admin.describe_configs import DescribeConfigs
from insync.broker.admin.topics import RequestedTopic, Topics
from insync.broker.cluster_view import ClusterView
from insync.broker.settings import (
    BROKER_SETTINGS,
    SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    Settings,
)
from insync.metadata import paths
from insync.metadata.memory import MemoryStore, MemoryTree
from insync.metadata.records import BrokerRecord, decode_config, encode_config
from insync.metadata.store import Create
from insync.rules.values import BrokerId, Incarnation
from insync.wire.configs import Alteration, Resource

LAG, WAIT = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"
SET, DELETE, APPEND, SUBTRACT = Alteration
TOPIC, BROKER = Resource


class World:
    """Broker 1 with topic "t", and what it has stored."""

    def __init__(self, tree: MemoryTree, properties: dict[str, str] | None = None) -> None:
        self.tree = tree
        self.store = MemoryStore(tree, clock_ms=lambda: 0)
        self.settings = Settings(properties or {})

    async def start(self) -> None:
        await self.store.start()
        self.view = ClusterView(self.store)
        self.view.config_listeners.append(self._take)
        self._take(None)
        resources = ConfigResources(broker=BrokerId(1), view=self.view)
        changes = ConfigChanges(
            broker=BrokerId(1),
            resources=resources,
            store=self.store,
            view=self.view,
            settings=self.settings,
        )
        self.describe_configs = DescribeConfigs(resources, self.view, self.settings)
        self.alter_configs = AlterConfigs(changes)
        self.incremental_alter_configs = IncrementalAlterConfigs(changes)

    def _take(self, topics: object) -> None:
        if topics is None:
            known = self.view.broker_configs
            self.settings.change(own=known.get(BrokerId(1), {}), everyones=known.get(None, {}))

    def stored(self, path: str) -> dict[str, str] | None:
        entry = self.store.get(path)
        return None if entry is None else decode_config(entry.value)

    async def alter(
        self, kind: int, name: str, *changes: tuple[int, str, str | None], dry: bool = False
    ) -> tuple[ErrorCode, str]:
        requested = [
            SimpleNamespace(config_operation=operation, name=key, value=value)
            for operation, key, value in changes
        ]
        return await self._request(
            self.incremental_alter_configs.answer, kind, name, requested, dry=dry
        )

    async def replace(self, kind: int, name: str, **values: str) -> tuple[ErrorCode, str]:
        requested = [
            SimpleNamespace(name=key.replace("_", "."), value=value)
            for key, value in values.items()
        ]
        return await self._request(self.alter_configs.answer, kind, name, requested, dry=False)

    async def _request(
        self,
        how: Callable[[Any], Awaitable[Any]],
        kind: int,
        name: str,
        requested: Any,
        *,
        dry: bool,
    ) -> tuple[ErrorCode, str]:
        resource = SimpleNamespace(resource_type=kind, resource_name=name, configs=requested)
        answer = await how(SimpleNamespace(resources=[resource], validate_only=dry))
        (result,) = answer["responses"]
        return result.get("error_code", ErrorCode.none), result["error_message"] or ""


def play(
    scenario: Callable[[World], Awaitable[None]], *, properties: dict[str, str] | None = None
) -> None:
    async def whole() -> None:
        tree = MemoryTree()
        record = BrokerRecord(broker=BrokerId(1), incarnation=Incarnation(1), host="h", port=9)
        registered = Create(paths.broker_incarnation(1), b"")
        tree.step([Create(paths.broker_id(1), record.encode()), registered], None)
        world = World(tree, properties)
        await world.start()
        random = Random(1)  # noqa: S311
        topics = Topics(store=world.store, view=world.view, settings=world.settings, random=random)
        await topics.create(RequestedTopic(name="t", config={"retention.ms": "5000"}))
        await scenario(world)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "PROPAGATION_MAX_S", 0)


def test_incremental_changes_and_full_replacement() -> None:
    async def scenario(world: World) -> None:
        path = paths.topic_config("t")
        done = await world.alter(TOPIC, "t", (SET, "segment.bytes", " 2048 "))
        assert done == (ErrorCode.none, "")
        assert world.stored(path) == {"retention.ms": "5000", "segment.bytes": "2048"}
        await world.alter(TOPIC, "t", (DELETE, "retention.ms", None), (DELETE, LAG, None))
        assert world.stored(path) == {"segment.bytes": "2048"}
        assert (await world.replace(TOPIC, "t", retention_ms="7"))[0] is ErrorCode.none
        assert world.stored(path) == {"retention.ms": "7"}
        await world.alter(BROKER, "1", (SET, WAIT, "250"))
        await world.alter(BROKER, "", (SET, WAIT, "300"), (SET, LAG, "9000"))
        assert world.stored("/config/brokers/1") == {WAIT: "250"}
        assert world.stored("/config/brokers/<default>") == {WAIT: "300", LAG: "9000"}
        assert (world.settings.integer(WAIT), world.settings.integer(LAG)) == (250, 9_000)

    play(scenario)


REFUSED: dict[str, tuple[int, str, tuple[int, str, str | None], ErrorCode, str]] = {
    "unknown key": (TOPIC, "t", (SET, "retention", "1"), ErrorCode.invalid_config, "did you mean"),
    "unknown deleted": (TOPIC, "t", (DELETE, "zebra", None), ErrorCode.invalid_config, "zebra"),
    "a broker's": (TOPIC, "t", (SET, "node.id", "1"), ErrorCode.invalid_config, "no setting"),
    "range": (TOPIC, "t", (SET, "retention.ms", "-2"), ErrorCode.invalid_config, "between -1"),
    "absurd": (BROKER, "", (SET, LAG, "9" * 5_000), ErrorCode.invalid_config, "5000 digits"),
    "nonsense": (BROKER, "1", (SET, LAG, "soon"), ErrorCode.invalid_config, "whole number"),
    "no value": (TOPIC, "t", (SET, "retention.ms", None), ErrorCode.invalid_request, "no value"),
    "static": (BROKER, "1", (SET, "node.id", "7"), ErrorCode.invalid_config, "at start only"),
    "static for all": (BROKER, "", (SET, "listeners", "x"), ErrorCode.invalid_config, "at start"),
    "together": (BROKER, "1", (SET, WAIT, "30000"), ErrorCode.invalid_config, "below replica.lag"),
    "for all": (BROKER, "", (SET, LAG, "500"), ErrorCode.invalid_config, "below replica.lag"),
    "of a topic": (TOPIC, "t", (SET, LAG, "500"), ErrorCode.invalid_config, "below replica.lag"),
    "no list": (TOPIC, "t", (APPEND, "retention.ms", "1"), ErrorCode.invalid_config, "no list"),
    "list less": (TOPIC, "t", (SUBTRACT, "retention.ms", "1"), ErrorCode.invalid_config, "no list"),
    "operation": (TOPIC, "t", (9, "retention.ms", "1"), ErrorCode.invalid_request, "operation 9"),
    "topic": (
        TOPIC,
        "u",
        (SET, "retention.ms", "1"),
        ErrorCode.unknown_topic_or_partition,
        "no topic 'u'",
    ),
    "path": (
        TOPIC,
        "../brokers/1",
        (SET, "retention.ms", "1"),
        ErrorCode.unknown_topic_or_partition,
        "no topic",
    ),
    "broker": (BROKER, "2", (SET, LAG, "9000"), ErrorCode.invalid_request, "this is broker 1"),
    "no id": (BROKER, "one", (SET, LAG, "9000"), ErrorCode.invalid_request, "this is broker 1"),
    "type": (8, "1", (SET, LAG, "9000"), ErrorCode.invalid_request, "type 8"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(
    case: tuple[int, str, tuple[int, str, str | None], ErrorCode, str],
) -> None:
    kind, name, change, code, reason = case

    async def scenario(world: World) -> None:
        before = dict(world.store.snapshot())
        # Beside something that would be fine: all of it or nothing.
        fine = (SET, "min.insync.replicas", "2")
        result = await world.alter(kind, name, fine, change)
        assert result[0] is code
        assert reason in result[1]
        assert dict(world.store.snapshot()) == before

    play(scenario)


def test_kafkas_tool_removes_its_throttles() -> None:
    """It deletes three settings of a broker in one request; the third we never have."""
    rates = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
    third = "replica.alter.log.dirs.io.max.bytes.per.second"

    async def scenario(world: World) -> None:
        await world.alter(BROKER, "1", *((SET, name, "1000") for name in rates))
        assert world.stored("/config/brokers/1") == dict.fromkeys(rates, "1000")
        done = await world.alter(BROKER, "1", *((DELETE, name, None) for name in [*rates, third]))
        assert done == (ErrorCode.none, "")
        assert world.stored("/config/brokers/1") == {}
        result = await world.alter(BROKER, "1", (SET, third, "1000"))
        assert result[0] is ErrorCode.invalid_config

    play(scenario)


def test_validate_only_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        before = dict(world.store.snapshot())
        assert (await world.alter(BROKER, "", (SET, LAG, "9000"), dry=True))[0] is ErrorCode.none
        bad = await world.alter(BROKER, "", (SET, LAG, "9"), dry=True)
        assert bad[0] is ErrorCode.invalid_config
        assert dict(world.store.snapshot()) == before

    play(scenario)


def test_a_broker_may_not_contradict_what_a_topic_has() -> None:
    async def scenario(world: World) -> None:
        assert (await world.alter(TOPIC, "t", (SET, LAG, "1000")))[0] is ErrorCode.none
        for name in ("1", ""):
            result = await world.alter(BROKER, name, (SET, WAIT, "1000"))
            assert result[0] is ErrorCode.invalid_config
            assert result[1].startswith("topic t, by its own settings: replica.fetch.wait.max.ms")
        assert (await world.alter(BROKER, "1", (SET, WAIT, "999")))[0] is ErrorCode.none
        result = await world.alter(TOPIC, "t", (SET, LAG, "999"))
        assert result[0] is ErrorCode.invalid_config

    play(scenario)


def test_a_combination_is_checked_with_the_values_of_the_file() -> None:
    async def scenario(world: World) -> None:
        result = await world.alter(BROKER, "", (SET, LAG, "1500"))
        assert result[0] is ErrorCode.invalid_config
        assert "replica.fetch.wait.max.ms is 2000" in result[1]
        together = (SET, LAG, "1500"), (SET, WAIT, "100")
        assert (await world.alter(BROKER, "", *together))[0] is ErrorCode.none

    play(scenario, properties={WAIT: "2000"})


POLICY, FLAG = "replica.in.sync.policy", "follower.fetch.pending.reads.insync.enable"
PROCESS_TIME = "follower.fetch.process.time.max.ms"


@pytest.mark.parametrize("owner", ["1", ""])
def test_policies_that_contradict_the_flag(owner: str) -> None:
    async def scenario(world: World) -> None:
        for policy in ("messages", "lag-begin"):
            together = (SET, POLICY, policy), (SET, FLAG, "true")
            result = await world.alter(BROKER, owner, *together)
            assert result[0] is ErrorCode.invalid_config
            assert "has no meaning with" in result[1]
        contradiction = (SET, POLICY, "pending-reads"), (SET, FLAG, "false")
        result = await world.alter(BROKER, owner, *contradiction)
        assert result[0] is ErrorCode.invalid_config
        assert (await world.alter(BROKER, owner, (SET, FLAG, "true")))[0] is ErrorCode.none
        result = await world.alter(TOPIC, "t", (SET, POLICY, "messages"))
        assert result[0] is ErrorCode.invalid_config
        assert (await world.alter(TOPIC, "t", (SET, POLICY, "true-lag")))[0] is ErrorCode.none
        result = await world.alter(TOPIC, "t", (SET, POLICY, "sometimes"))
        assert result[0] is ErrorCode.invalid_config
        assert "use messages or lag-begin" in result[1]

    play(scenario)


def test_a_process_time_without_the_flag_gets_a_warning() -> None:
    async def scenario(world: World) -> None:
        result = await world.alter(BROKER, "1", (SET, PROCESS_TIME, "700"))
        assert result[0] is ErrorCode.none
        assert "is ignored" in result[1]
        assert world.stored("/config/brokers/1") == {PROCESS_TIME: "700"}
        assert await world.alter(BROKER, "1", (SET, FLAG, "true")) == (ErrorCode.none, "")

    play(scenario)


def test_a_setting_or_resource_named_twice_is_refused() -> None:
    async def scenario(world: World) -> None:
        result = await world.alter(BROKER, "1", (SET, LAG, "9000"), (SET, LAG, "9001"))
        assert result[0] is ErrorCode.invalid_request
        change = SimpleNamespace(config_operation=SET, name=LAG, value="9000")
        one = SimpleNamespace(resource_type=BROKER, resource_name="1", configs=[change])
        answer = await world.incremental_alter_configs.answer(
            SimpleNamespace(resources=[one, one], validate_only=False)
        )
        assert {each["error_code"] for each in answer["responses"]} == {ErrorCode.invalid_request}
        assert world.stored("/config/brokers/1") is None

    play(scenario)


def test_concurrent_changes_do_not_overwrite_each_other() -> None:
    async def scenario(world: World) -> None:
        world.tree.delay_ms = lambda: 5  # all have read before the first has written
        rivals = [
            world.alter(BROKER, "", (SET, name, "77"))
            for name in ("log.retention.ms", "log.retention.bytes", "min.insync.replicas")
        ]
        result = await asyncio.gather(*rivals)
        assert [code for code, _ in result] == [ErrorCode.none] * 3
        assert len(world.stored("/config/brokers/<default>") or {}) == 3

    play(scenario)


@pytest.mark.parametrize("is_back", [False, True])
def test_a_topic_deleted_meanwhile_leaves_no_settings_behind(
    is_back: bool,  # noqa: FBT001
) -> None:
    """A later topic of the same name does not get settings that were meant for the deleted one."""

    async def scenario(world: World) -> None:
        topics = Topics(
            store=world.store,
            view=world.view,
            settings=world.settings,
            random=Random(2),  # noqa: S311
        )
        await topics.create(RequestedTopic(name="u", config={"segment.bytes": "2048"}))
        delays = iter([50])  # the change of settings is under way while all else happens
        world.tree.delay_ms = lambda: next(delays, 0)
        altering = asyncio.ensure_future(world.alter(TOPIC, "u", (SET, "retention.ms", "1")))
        await asyncio.sleep(0)
        await topics.delete("u")
        if is_back:
            await topics.create(RequestedTopic(name="u", config={"flush.ms": "7"}))
        code, _ = await altering
        stored = world.stored(paths.topic_config("u"))
        if is_back:
            assert (code, stored) == (ErrorCode.none, {"flush.ms": "7", "retention.ms": "1"})
        else:
            assert (code, stored) == (ErrorCode.unknown_topic_or_partition, None)

    play(scenario)


def test_a_first_setting_of_a_topic_deleted_meanwhile() -> None:
    """Without earlier settings there is no version to conflict with, only the id of the topic."""

    async def scenario(world: World) -> None:
        topics = Topics(
            store=world.store,
            view=world.view,
            settings=world.settings,
            random=Random(2),  # noqa: S311
        )
        await topics.create(RequestedTopic(name="u"))
        delays = iter([50])
        world.tree.delay_ms = lambda: next(delays, 0)
        altering = asyncio.ensure_future(world.alter(TOPIC, "u", (SET, "retention.ms", "1")))
        await asyncio.sleep(0)
        await topics.delete("u")
        code, _ = await altering
        assert code is ErrorCode.unknown_topic_or_partition
        assert world.stored(paths.topic_config("u")) is None

    play(scenario)


def test_lists_grow_and_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Setting(name="a.list", default="", is_list=True, is_dynamic=True, doc="Items.")
    monkeypatch.setitem(SETTINGS, "a.list", row)
    monkeypatch.setitem(BROKER_SETTINGS, "a.list", row)
    monkeypatch.setitem(TOPIC_SETTINGS, "a.list", row)

    async def scenario(world: World) -> None:
        async def after(operation: int, value: str) -> str:
            assert (await world.alter(TOPIC, "t", (operation, "a.list", value)))[1] == ""
            return (world.stored(paths.topic_config("t")) or {})["a.list"]

        assert await after(APPEND, "0:1,0:2") == "0:1,0:2"
        assert await after(APPEND, "0:2,0:3") == "0:1,0:2,0:3"
        assert await after(SUBTRACT, "0:2,9:9") == "0:1,0:3"

    play(scenario)


# Describing settings.


def described(world: World, kind: int, name: str, **flags: Any) -> Any:
    keys = flags.pop("keys", None)
    resource = SimpleNamespace(resource_type=kind, resource_name=name, configuration_keys=keys)
    requested = {"include_synonyms": True, "include_documentation": True, **flags}
    twice = SimpleNamespace(resources=[resource, resource], **requested)
    (result,) = world.describe_configs.answer(twice, 4)["results"]
    return result


def test_a_topics_settings_and_where_they_come_from() -> None:
    async def scenario(world: World) -> None:
        await world.alter(BROKER, "", (SET, "log.retention.ms", "7000"))
        configs = {config["name"]: config for config in described(world, TOPIC, "t")["configs"]}
        assert set(configs) == set(TOPIC_SETTINGS)
        retention = configs["retention.ms"]
        assert (retention["value"], retention["config_source"]) == ("5000", 1)
        assert [(s["source"], s["name"], s["value"]) for s in retention["synonyms"]] == [
            (1, "retention.ms", "5000"),
            (3, "log.retention.ms", "7000"),
            (5, "log.retention.ms", "604800000"),
        ]
        assert retention["config_type"] == 5
        assert retention["documentation"] == SETTINGS["log.retention.ms"].doc
        assert configs["unclean.leader.election.enable"]["value"] == "false"
        assert not any(config["read_only"] for config in configs.values())

    play(scenario)


def test_a_brokers_settings_and_those_of_all() -> None:
    async def scenario(world: World) -> None:
        await world.alter(BROKER, "1", (SET, WAIT, "250"))
        await world.alter(BROKER, "", (SET, WAIT, "300"), (SET, LAG, "9000"))
        configs = {config["name"]: config for config in described(world, BROKER, "1")["configs"]}
        assert set(configs) == set(BROKER_SETTINGS)
        assert [(s["source"], s["value"]) for s in configs[WAIT]["synonyms"]] == [
            (2, "250"),
            (3, "300"),
            (4, "400"),
            (5, "500"),
        ]
        assert configs["node.id"]["read_only"]
        assert not configs[WAIT]["read_only"]
        everyones = described(world, BROKER, "")["configs"]
        assert [(config["name"], config["value"]) for config in everyones] == [
            (WAIT, "300"),
            (LAG, "9000"),
        ]
        assert {config["config_source"] for config in everyones} == {3}

    play(scenario, properties={WAIT: "400"})


def test_only_the_requested_settings_are_described() -> None:
    async def scenario(world: World) -> None:
        result = described(
            world, BROKER, "1", keys=[LAG], include_synonyms=False, include_documentation=False
        )
        (config,) = result["configs"]
        assert (config["name"], tuple(config["synonyms"]), config["documentation"]) == (
            LAG,
            (),
            None,
        )
        assert described(world, TOPIC, "u")["error_code"] is ErrorCode.unknown_topic_or_partition
        assert described(world, BROKER, "2")["error_code"] is ErrorCode.invalid_request
        assert described(world, 99, "2")["error_code"] is ErrorCode.invalid_request

    play(scenario)


def test_a_view_reports_whose_settings_changed() -> None:
    async def scenario(world: World) -> None:
        changes: list[Any] = []
        world.view.config_listeners.append(changes.append)
        await world.alter(TOPIC, "t", (SET, "retention.ms", "1"))
        await world.alter(BROKER, "1", (SET, WAIT, "250"))
        await world.store.commit(Create(paths.broker_config(7), encode_config({WAIT: "1"})))
        assert changes == [{"t"}, None, None]
        assert world.view.broker_configs == {1: {WAIT: "250"}, 7: {WAIT: "1"}}
        another = ClusterView(world.store)
        assert another.broker_configs == world.view.broker_configs

    play(scenario)
