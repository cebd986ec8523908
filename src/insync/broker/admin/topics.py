"""Topics: creating, growing and deleting one is a single step of the store.

Any broker may make the step, since the store lets exactly one of two rival steps win. A client may
ask another broker next, and many do not retry. So the broker that answers a change first waits
until all brokers have had time to learn of it (`wait_until_propagated`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.admin.assignment import assign
from insync.broker.cluster_view import PROPAGATION_MAX_S, ClusterView
from insync.broker.replication.in_sync import concerns_rule, rule_of
from insync.broker.settings import Settings
from insync.broker.settings_table import TOPIC_SETTINGS, refuse_before_run_time, text_of
from insync.metadata import paths
from insync.metadata.errors import BadTopicName, Conflict, Unavailable
from insync.metadata.records import TopicRecord, encode_config, encode_state
from insync.metadata.store import (
    Check,
    CheckAbsent,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    Write,
)
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import check_target
from insync.rules.refusals import BadPlan, BadSetting
from insync.rules.values import BrokerId, LeaderEpoch
from insync.wire.any_version import Values

REPLICATION_FACTOR_DEFAULT = 3
PARTITIONS_MAX = 10_000  # of one topic; one step of the store creates or deletes all of them
ATTEMPTS_MAX = 10


class TopicRefused(Exception):
    """The error that answers a request to create, grow or delete a topic."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def result(self, name: str) -> Values:
        """The result of this topic in an answer."""
        return {"name": name, "error_code": self.code, "error_message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic to create. For -1 and None the broker chooses."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, Sequence[int]] | None = None
    config: Mapping[str, str] | None = None


class Topics:
    def __init__(
        self, *, store: MetadataStore, view: ClusterView, settings: Settings, random: Random
    ) -> None:
        self._store = store
        self._view = view
        self._settings = settings
        self._random = random
        self._changed_at_s = float("-inf")

    async def wait_until_propagated(self) -> None:
        """Wait until every broker has had time to learn of the last change made here."""
        since_s = asyncio.get_running_loop().time() - self._changed_at_s
        if since_s < PROPAGATION_MAX_S:
            await asyncio.sleep(PROPAGATION_MAX_S - since_s)

    async def create(
        self, requested: RequestedTopic, *, validate_only: bool = False
    ) -> TopicRecord:
        config = requested.config or {}
        try:
            path = paths.topic(requested.name)
            refuse_before_run_time(config, TOPIC_SETTINGS)
            settings = self._settings.for_topic(config)
            if concerns_rule(config):
                rule_of(settings)
        except BadTopicName as refusal:
            raise TopicRefused(ErrorCode.invalid_topic_exception, str(refusal)) from None
        except BadSetting as refusal:
            raise TopicRefused(ErrorCode.invalid_config, str(refusal)) from None
        topic_id = UUID(int=self._random.getrandbits(128), version=4)
        record: TopicRecord | None = None

        def step() -> list[Operation]:
            nonlocal record
            if requested.name in self._view.topics:
                raise TopicRefused(
                    ErrorCode.topic_already_exists, f"Topic '{requested.name}' already exists."
                )
            assignment = self._assignment(requested)
            record = TopicRecord(
                topic_id=topic_id,
                partitions=len(assignment),
                replication_factor=len(assignment[0]),
            )
            return [
                Create(path, record.encode()),
                Create(paths.topic_id(topic_id), requested.name.encode()),
                *(
                    [Create(paths.topic_config(requested.name), encode_config(config))]
                    if config
                    else []
                ),
                *self._states(requested.name, assignment, first=0),
            ]

        if validate_only:
            step()
        else:
            await self._commit(step)
        assert record is not None, "the step sets it"
        return record

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Grow the topic to `count` partitions; `assignment` has the replicas of the new ones."""

        def step() -> list[Operation]:
            topic, entry = self._find(name)
            added = count - topic.partitions
            if added <= 0:
                raise TopicRefused(
                    ErrorCode.invalid_partitions,
                    f"Topic '{name}' has {topic.partitions} partitions; {count} is no increase.",
                )
            _check_count(count)
            if assignment is not None and len(assignment) != added:
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment,
                    f"{added} partitions are new, but there are {len(assignment)} replica lists",
                )
            requested = RequestedTopic(
                name=name,
                partitions=added,
                replication_factor=topic.replication_factor,
                assignment=None if assignment is None else dict(enumerate(assignment)),
            )
            replicas = self._assignment(requested, first=topic.partitions)
            if len(replicas[0]) != topic.replication_factor:
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment,
                    f"the partitions of '{name}' have {topic.replication_factor} replicas each",
                )
            grown = replace(topic, partitions=count)
            return [
                Write(entry.path, grown.encode(), entry.version),
                Check(paths.topic_id(topic.topic_id)),  # not of a topic created again meanwhile
                *self._states(name, replicas, first=topic.partitions),
            ]

        if validate_only:
            step()
        else:
            await self._commit(step)

    async def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """Delete the topic; with an id only that one, not another that got its name meanwhile."""

        def step() -> list[Operation]:
            topic, entry = self._find(name)
            if topic_id is not None and topic.topic_id != topic_id:
                raise TopicRefused(ErrorCode.unknown_topic_id, f"no topic with id {topic_id}")
            config = paths.topic_config(name)
            return [
                # At this version, because partitions added meanwhile would be left behind.
                Delete(entry.path, entry.version),
                Delete(paths.topic_id(topic.topic_id)),
                *(Delete(state.path) for state in self._store.under(paths.partitions(name))),
                Delete(config) if self._store.get(config) else CheckAbsent(config),
            ]

        await self._commit(step)

    def effective_configs(self, overrides: Mapping[str, str]) -> list[Values]:
        """A topic's settings and the source of each, as in an answer to CreateTopics."""
        effective = self._settings.for_topic(overrides)
        configs: list[Values] = []
        for name, setting in sorted(TOPIC_SETTINGS.items()):
            source, value = effective.sources(setting.name)[0]
            configs.append({"name": name, "value": text_of(value), "config_source": source})
        return configs

    def _find(self, name: str) -> tuple[TopicRecord, Entry]:
        topic = self._view.topics.get(name)
        entry = None if topic is None else self._store.get(paths.topic(name))
        if topic is None or entry is None:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"no topic '{name}'")
        return topic, entry

    async def _commit(self, step: Callable[[], list[Operation]]) -> None:
        """Commit the step. If another change came first, repeat: the view then includes it."""
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._store.commit(*step())
            except Conflict:
                continue
            except Unavailable as unavailable:
                raise TopicRefused(ErrorCode.request_timed_out, str(unavailable)) from None
            self._changed_at_s = asyncio.get_running_loop().time()
            return
        raise TopicRefused(ErrorCode.request_timed_out, "other changes kept coming first")

    def _states(
        self, name: str, assignment: Sequence[tuple[BrokerId, ...]], *, first: int
    ) -> list[Operation]:
        """New partitions start with every live replica in sync, led by the first of them."""
        live = self._view.live
        step: list[Operation] = []
        leaders: dict[BrokerId, None] = {}
        for number, replicas in enumerate(assignment, start=first):
            isr = tuple(broker for broker in replicas if broker in live) or replicas[:1]
            leader = isr[0] if isr[0] in live else None
            state = PartitionState(
                replicas=replicas, isr=isr, leader=leader, leader_epoch=LeaderEpoch(0)
            )
            step.append(Create(paths.partition_state(name, number), encode_state(state)))
            if leader is not None:
                leaders[leader] = None
        # If a leader died meanwhile, the controller may have handled its death already and would
        # never look at these partitions. So the leaders must still be the same incarnations.
        incarnations = self._view.incarnations
        return [
            *(Check(paths.broker_incarnation(incarnations[leader])) for leader in leaders),
            *step,
        ]

    def _assignment(
        self, requested: RequestedTopic, *, first: int = 0
    ) -> list[tuple[BrokerId, ...]]:
        if requested.assignment:
            return self._requested_assignment(requested.assignment)
        racks = {broker: record.rack for broker, record in self._view.brokers.items()}
        count = requested.partitions
        if count == -1:
            count = self._settings.broker.num_partitions
        factor = requested.replication_factor
        if factor == -1:
            factor = self._settings.broker.default_replication_factor
        if factor == -1:
            factor = min(REPLICATION_FACTOR_DEFAULT, len(racks))
        _check_count(count)
        if not 1 <= factor <= len(racks):
            raise TopicRefused(
                ErrorCode.invalid_replication_factor,
                f"replication factor {factor}, but {len(racks)} brokers are live",
            )
        begin = first + self._random.randrange(len(racks))
        return assign(racks, count=count, factor=factor, first=begin)

    def _requested_assignment(
        self, assignment: Mapping[int, Sequence[int]]
    ) -> list[tuple[BrokerId, ...]]:
        if sorted(assignment) != list(range(len(assignment))):
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment, "number the partitions from 0 without gaps"
            )
        _check_count(len(assignment))
        replicas = [tuple(BrokerId(b) for b in assignment[n]) for n in sorted(assignment)]
        for target in replicas:
            try:
                check_target(target, known=self._view.live)
            except BadPlan as refusal:
                raise TopicRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None
        if len({len(target) for target in replicas}) > 1:
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment,
                "give every partition the same number of replicas",
            )
        return replicas


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise TopicRefused(
            ErrorCode.invalid_partitions, f"{count} partitions; a topic has 1 to {PARTITIONS_MAX}"
        )
