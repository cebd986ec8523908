"""The admin client of a cluster, Insync's or Apache Kafka's, with values instead of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.client.admin_connections import Connections, Refused
from insync.client.connection import Disconnected
from insync.rules.values import BrokerId
from insync.wire.any_version import Values
from insync.wire.apis import Api
from insync.wire.configs import Alteration, ConfigSource, Resource

TopicPartition = tuple[str, int]

PARTITIONS_PER_RESPONSE: Final = 2_000
NO_LEADER: Final = -1
UNCLEAN: Final = 1  # of election types


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    name: str
    value: str | None  # None: it is secret
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A value in force, or one that would be without those before it, and its source."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running reassignment: all replicas, and which of them are added and removed."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    number: int
    leader: BrokerId | None
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] | None = (
        None  # eligible leader replicas (KIP-966); None: not reported
    )
    last_known_elr: tuple[BrokerId, ...] | None = None
    move: Move | None = None

    @property
    def is_under_replicated(self) -> bool:
        """Without the replicas that a move is adding."""
        expected = len(self.replicas) - (len(self.move.adding) if self.move else 0)
        return len(self.isr) < expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    topic_id: UUID | None  # None: the broker is older than topic ids
    is_internal: bool
    partitions: tuple[Partition, ...]

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    number: BrokerId
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """-1: the cluster's default. An assignment sets both partitions and replicas."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] = ()
    config: Mapping[str, str] = field(default_factory=dict)


class Admin:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.close()

    @property
    def connections(self) -> Connections:
        return self._connections

    # Reading.

    async def brokers(self) -> list[Broker]:
        response = await self._connections.operation(lambda: self._connections.metadata([]))
        return [
            Broker(number=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in response.brokers
        ]

    async def topics(self, names: Sequence[str] | None = None) -> list[Topic]:
        """Every topic of the cluster, or those of these names that exist; sorted by name."""
        response = await self._connections.operation(lambda: self._connections.metadata(names))
        topics = [_topic(each) for each in response.topics if each.error_code is ErrorCode.none]
        return sorted(topics, key=lambda topic: topic.name)

    async def described(self, topics: Sequence[Topic]) -> list[Topic]:
        """The same topics with what Metadata does not have: moves, and eligible leader replicas."""
        moves = await self.moves()
        names = [topic.name for topic in topics]
        if names and await self._offers(Api.DESCRIBE_TOPIC_PARTITIONS):
            topics = await self._connections.operation(lambda: self._described(names))
        return [_with_moves(topic, moves) for topic in topics]

    async def _described(self, names: Sequence[str]) -> list[Topic]:
        described: dict[str, Topic] = {}
        cursor: Values | None = None
        while True:
            response = await self._connections.ask(
                Api.DESCRIBE_TOPIC_PARTITIONS,
                {
                    "topics": [{"name": name} for name in sorted(names)],
                    "response_partition_limit": PARTITIONS_PER_RESPONSE,
                    "cursor": cursor,
                },
            )
            for each in response.topics:
                if each.error_code is not ErrorCode.none:
                    continue  # deleted since it was listed
                page = _topic(each)
                before = described.get(page.name)
                earlier = () if before is None else before.partitions
                described[page.name] = replace(page, partitions=(*earlier, *page.partitions))
            if response.next_cursor is None:
                return [described[name] for name in sorted(described)]
            cursor = {
                "topic_name": response.next_cursor.topic_name,
                "partition_index": response.next_cursor.partition_index,
            }

    async def moves(self) -> dict[TopicPartition, Move]:
        """Every running reassignment; none if the broker cannot list them."""
        if not await self._offers(Api.LIST_PARTITION_REASSIGNMENTS):
            return {}

        async def attempt() -> Any:
            api, request = (
                Api.LIST_PARTITION_REASSIGNMENTS,
                {"topics": None, "timeout": self._timeout},
            )
            response = await self._connections.ask(api, request)
            if (
                response.error_code is ErrorCode.not_controller
            ):  # before KRaft only the controller knows
                response = await self._connections.ask_controller(api, request)
            _check(response, "reassignments")
            return response

        response = await self._connections.operation(attempt)
        return {
            (topic.name, each.partition_index): Move(
                replicas=each.replicas, adding=each.adding_replicas, removing=each.removing_replicas
            )
            for topic in response.topics
            for each in topic.partitions
        }

    async def topic_configs(
        self, names: Sequence[str], keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, ConfigValue]] | None:
        """Effective settings of each topic; None if the broker cannot describe them."""
        if not await self._offers(Api.DESCRIBE_CONFIGS):
            return None
        if not names:
            return {}
        resources = [
            {"resource_type": Resource.TOPIC, "resource_name": name, "configuration_keys": keys}
            for name in names
        ]

        async def attempt() -> Any:
            return await self._connections.ask(Api.DESCRIBE_CONFIGS, {"resources": resources})

        response = await self._connections.operation(attempt)
        configs = {}
        for result in response.results:
            if result.error_code is ErrorCode.unknown_topic_or_partition:
                continue  # deleted since it was listed
            _check(result, f"settings of topic '{result.resource_name}'")
            configs[result.resource_name] = {each.name: _config(each) for each in result.configs}
        return configs

    async def configs(
        self, kind: Resource, name: str, keys: Sequence[str] | None = None
    ) -> list[ConfigValue]:
        """Settings of a topic, of a broker (by its id), or (without a name) of all brokers."""
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        values = {"resources": [resource], "include_synonyms": True}

        response = await self._ask_owner(kind, name, Api.DESCRIBE_CONFIGS, values)
        return sorted(
            (_config(each) for result in response.results for each in result.configs),
            key=lambda each: each.name,
        )

    # Changing.

    async def alter_configs(
        self,
        kind: Resource,
        name: str,
        *,
        set_values: Mapping[str, str],
        deleted: Sequence[str] = (),
        validate_only: bool = False,
    ) -> str:
        """Set and delete settings, all or none; returns the broker's warnings."""
        configs = [
            *(
                {"name": n, "config_operation": Alteration.SET, "value": set_values[n]}
                for n in set_values
            ),
            *({"name": n, "config_operation": Alteration.DELETE, "value": None} for n in deleted),
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        values = {"resources": [resource], "validate_only": validate_only}

        response = await self._ask_owner(kind, name, Api.INCREMENTAL_ALTER_CONFIGS, values)
        return "; ".join(each.error_message for each in response.responses if each.error_message)

    async def _ask_owner(self, kind: Resource, name: str, api: Api, values: Values) -> Any:
        """Only a broker itself knows its own file, so requests about one go to it."""

        async def attempt() -> Any:
            if kind is Resource.BROKER and name:
                response = await self._connections.ask_broker(int(name), api, values)
            else:
                response = await self._connections.ask(api, values)
            results = response.results if api is Api.DESCRIBE_CONFIGS else response.responses
            for result in results:
                _check(result, f"settings of {name!r}")
            return response

        return await self._connections.operation(attempt)

    async def create_topic(self, topic: NewTopic) -> None:
        values = {
            "name": topic.name,
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "assignments": [
                {"partition_index": number, "broker_ids": tuple(replicas)}
                for number, replicas in enumerate(topic.assignment)
            ],
            "configs": [{"name": name, "value": value} for name, value in topic.config.items()],
        }
        await self._change(Api.CREATE_TOPICS, {"topics": [values]}, f"topic '{topic.name}'")

    async def grow_topic(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow it to `count` partitions; an assignment is of the new ones."""
        replicas = [{"broker_ids": tuple(each)} for each in assignment or ()]
        assignments = None if assignment is None else replicas
        values = {"name": name, "count": count, "assignments": assignments}
        change = {"topics": [values], "validate_only": False}
        await self._change(Api.CREATE_PARTITIONS, change, f"topic '{name}'")

    async def delete_topic(self, name: str) -> None:
        # Versions below 6 have the second form; each version uses the field it has.
        values = {"topics": [{"name": name}], "topic_names": (name,)}
        await self._change(Api.DELETE_TOPICS, values, f"topic '{name}'")

    async def elect_unclean(self, partitions: Sequence[tuple[str, int]]) -> dict[Any, str]:
        """Elect leaders that may lack records; returns why, for each that was refused."""
        by_topic: dict[str, list[int]] = {}
        for name, number in partitions:
            by_topic.setdefault(name, []).append(number)
        values = {
            "election_type": UNCLEAN,
            "topic_partitions": [
                {"topic": name, "partitions": tuple(numbers)} for name, numbers in by_topic.items()
            ],
            "timeout": self._timeout,
        }
        response = await self._connections.operation(
            lambda: self._connections.ask_controller(Api.ELECT_LEADERS, values)
        )
        return {
            (result.topic, each.partition_id): each.error_message or each.error_code.name
            for result in response.replica_election_results
            for each in result.partition_result
            if each.error_code not in (ErrorCode.none, ErrorCode.election_not_needed)
        }

    async def _change(self, api: Api, values: Values, what: str) -> None:
        is_response_lost = False

        async def attempt() -> None:
            nonlocal is_response_lost
            try:
                response = await self._connections.ask_controller(
                    api, {**values, "timeout": self._timeout}
                )
            except Disconnected:
                is_response_lost = True
                raise
            for result in _results(response):
                _check(result, what)

        try:
            await self._connections.operation(attempt)
        except Refused as refused:
            if is_response_lost:
                raise refused.after_lost_response() from None
            raise

    @property
    def _timeout(self) -> timedelta:
        """For the broker: less than this client waits, so that the broker reports the timeout."""
        return timedelta(milliseconds=self._connections.patience.request_ms * 9 // 10)

    async def _offers(self, api: Api) -> bool:
        return await self._connections.operation(lambda: self._connections.offers(api))


def _results(response: Any) -> Iterator[Any]:
    """The list of results of a response, whose field has different names."""
    for name in ("topics", "responses", "results"):
        yield from getattr(response, name, ())


def _check(result: Any, what: str) -> None:
    if result.error_code is not ErrorCode.none:
        raise Refused(result.error_code, getattr(result, "error_message", None) or what)


def _topic(values: Any) -> Topic:
    return Topic(
        name=values.name,
        topic_id=getattr(values, "topic_id", None),
        is_internal=values.is_internal,
        partitions=tuple(
            sorted(map(_partition, values.partitions), key=lambda partition: partition.number)
        ),
    )


def _partition(values: Any) -> Partition:
    return Partition(
        number=values.partition_index,
        leader=None if values.leader_id == NO_LEADER else values.leader_id,
        replicas=values.replica_nodes,
        isr=values.isr_nodes,
        offline=getattr(values, "offline_replicas", ()),
        elr=getattr(values, "eligible_leader_replicas", None),
        last_known_elr=getattr(values, "last_known_elr", None),
    )


def _with_moves(topic: Topic, moves: Mapping[TopicPartition, Move]) -> Topic:
    return replace(
        topic,
        partitions=tuple(
            replace(each, move=moves.get((topic.name, each.number))) for each in topic.partitions
        ),
    )


def _config(values: Any) -> ConfigValue:
    return ConfigValue(
        name=values.name,
        value=values.value,
        source=ConfigSource(values.config_source),
        is_read_only=values.read_only,
        is_sensitive=values.is_sensitive,
        synonyms=tuple(
            Synonym(name=each.name, value=each.value, source=ConfigSource(each.source))
            for each in values.synonyms
        ),
    )
