"""What an administrator asks a cluster, ours or Apache Kafka, in values instead of messages."""

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

PARTITIONS_PER_ANSWER: Final = 2_000
NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    name: str
    value: str | None  # None: not told, because it is secret
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A value that counts, or would if those before it were gone, and where it comes from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A reassignment under way: all replicas, and which of them come and go."""

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
    elr: tuple[BrokerId, ...] | None = None  # eligible to lead (KIP-966); None: not told
    last_known_elr: tuple[BrokerId, ...] | None = None
    move: Move | None = None

    @property
    def is_under_replicated(self) -> bool:
        """Replicas that a move is still adding are not missed yet."""
        wanted = len(self.replicas) - (len(self.move.adding) if self.move else 0)
        return len(self.isr) < wanted


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
    """-1 and nothing leave it to the cluster; an assignment says it all."""

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

    # What is there.

    async def brokers(self) -> list[Broker]:
        answer = await self._connections.operation(lambda: self._connections.metadata([]))
        return [
            Broker(number=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in answer.brokers
        ]

    async def topics(self) -> list[Topic]:
        """Every topic that the cluster tells of, by name."""
        answer = await self._connections.operation(lambda: self._connections.metadata(None))
        found = [_topic(each) for each in answer.topics if each.error_code is ErrorCode.none]
        return sorted(found, key=lambda topic: topic.name)

    async def described(self, topics: Sequence[Topic]) -> list[Topic]:
        """The same topics with what Metadata does not tell: moves, and who is eligible to lead."""
        moves = await self.moves()
        names = [topic.name for topic in topics]
        if names and await self._offers(Api.DESCRIBE_TOPIC_PARTITIONS):
            topics = await self._connections.operation(lambda: self._described(names))
        return [_with_moves(topic, moves) for topic in topics]

    async def _described(self, names: Sequence[str]) -> list[Topic]:
        found: dict[str, Topic] = {}
        cursor: Values | None = None
        while True:
            answer = await self._connections.ask(
                Api.DESCRIBE_TOPIC_PARTITIONS,
                {
                    "topics": [{"name": name} for name in sorted(names)],
                    "response_partition_limit": PARTITIONS_PER_ANSWER,
                    "cursor": cursor,
                },
            )
            for each in answer.topics:
                if each.error_code is not ErrorCode.none:
                    continue  # deleted since it was listed
                part = _topic(each)
                before = found.get(part.name)
                known = () if before is None else before.partitions
                found[part.name] = replace(part, partitions=(*known, *part.partitions))
            if answer.next_cursor is None:
                return [found[name] for name in sorted(found)]
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }

    async def moves(self) -> dict[TopicPartition, Move]:
        """Every reassignment under way; none where the broker cannot tell."""
        if not await self._offers(Api.LIST_PARTITION_REASSIGNMENTS):
            return {}

        async def attempt() -> Any:
            api, asked = (
                Api.LIST_PARTITION_REASSIGNMENTS,
                {"topics": None, "timeout": self._timeout},
            )
            answer = await self._connections.ask(api, asked)
            if answer.error_code is ErrorCode.not_controller:  # before KRaft only that one knows
                answer = await self._connections.ask_controller(api, asked)
            _check(answer, "reassignments")
            return answer

        answer = await self._connections.operation(attempt)
        return {
            (topic.name, each.partition_index): Move(
                replicas=each.replicas, adding=each.adding_replicas, removing=each.removing_replicas
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]] | None:
        """Each topic's effective settings; None where the broker cannot tell."""
        if not await self._offers(Api.DESCRIBE_CONFIGS):
            return None
        if not names:
            return {}
        resources = [
            {"resource_type": Resource.TOPIC, "resource_name": name, "configuration_keys": None}
            for name in names
        ]

        async def attempt() -> Any:
            return await self._connections.ask(Api.DESCRIBE_CONFIGS, {"resources": resources})

        answer = await self._connections.operation(attempt)
        found = {}
        for result in answer.results:
            if result.error_code is ErrorCode.unknown_topic_or_partition:
                continue  # deleted since it was listed
            _check(result, f"settings of topic '{result.resource_name}'")
            found[result.resource_name] = {each.name: _config(each) for each in result.configs}
        return found

    async def configs(self, kind: Resource, name: str) -> list[ConfigValue]:
        """All settings of a topic, of a broker (by its id), or (without a name) of all brokers."""
        asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        values = {"resources": [asked], "include_synonyms": True}

        async def attempt() -> Any:
            answer = await self._ask_owner(kind, name, Api.DESCRIBE_CONFIGS, values)
            for result in answer.results:
                _check(result, f"settings of {name!r}")
            return answer

        answer = await self._connections.operation(attempt)
        return sorted(
            (_config(each) for result in answer.results for each in result.configs),
            key=lambda each: each.name,
        )

    # What is to be.

    async def alter_configs(
        self,
        kind: Resource,
        name: str,
        *,
        given: Mapping[str, str],
        deleted: Sequence[str] = (),
        validate_only: bool = False,
    ) -> str:
        """Set some and delete some, all or none; returns what the broker warns of."""
        configs = [
            *({"name": n, "config_operation": Alteration.SET, "value": given[n]} for n in given),
            *({"name": n, "config_operation": Alteration.DELETE, "value": None} for n in deleted),
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        values = {"resources": [resource], "validate_only": validate_only}

        async def attempt() -> str:
            answer = await self._ask_owner(kind, name, Api.INCREMENTAL_ALTER_CONFIGS, values)
            for result in answer.responses:
                _check(result, f"settings of {name!r}")
            return "; ".join(each.error_message for each in answer.responses if each.error_message)

        return await self._connections.operation(attempt)

    async def _ask_owner(self, kind: Resource, name: str, api: Api, values: Values) -> Any:
        """A broker alone knows its own file, so questions about one go to it."""
        if kind is Resource.BROKER and name:
            return await self._connections.ask_broker(int(name), api, values)
        return await self._connections.ask(api, values)

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
        """Make it `count` partitions in all; an assignment is of the new ones."""
        replicas = [{"broker_ids": tuple(each)} for each in assignment or ()]
        given = None if assignment is None else replicas
        values = {"name": name, "count": count, "assignments": given}
        change = {"topics": [values], "validate_only": False}
        await self._change(Api.CREATE_PARTITIONS, change, f"topic '{name}'")

    async def delete_topic(self, name: str) -> None:
        # Versions below 6 know the second form; each version takes the field it has.
        values = {"topics": [{"name": name}], "topic_names": (name,)}
        await self._change(Api.DELETE_TOPICS, values, f"topic '{name}'")

    async def _change(self, api: Api, values: Values, what: str) -> None:
        is_answer_lost = False

        async def attempt() -> None:
            nonlocal is_answer_lost
            try:
                answer = await self._connections.ask_controller(
                    api, {**values, "timeout": self._timeout}
                )
            except Disconnected:
                is_answer_lost = True
                raise
            for result in _results(answer):
                _check(result, what)

        try:
            await self._connections.operation(attempt)
        except Refused as refused:
            if is_answer_lost:
                raise refused.after_lost_answer() from None
            raise

    @property
    def _timeout(self) -> timedelta:
        """What the broker may take: less than we wait, so that it is the one to say so."""
        return timedelta(milliseconds=self._connections.patience.request_ms * 9 // 10)

    async def _offers(self, api: Api) -> bool:
        return await self._connections.operation(lambda: self._connections.offers(api))


def _results(answer: Any) -> Iterator[Any]:
    """The one list of results that every answer to a change has, whatever it calls it."""
    for name in ("topics", "responses", "results"):
        yield from getattr(answer, name, ())


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
        leader=None if values.leader_id == NOBODY else values.leader_id,
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
