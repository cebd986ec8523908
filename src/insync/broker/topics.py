"""Topics: created, grown and deleted as one step of the store each.

Any broker may make the step, since the store lets exactly one of two rivals win. A topic that was
created is in every broker's view before its creation is answered, as far as this broker can tell:
clients ask any broker for it next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.assignment import assign
from insync.broker.cluster_view import ClusterView
from insync.broker.settings import Settings
from insync.metadata import paths
from insync.metadata.errors import BadTopicName, Conflict
from insync.metadata.records import TopicRecord, encode_config, encode_state
from insync.metadata.store import Create, Delete, MetadataStore, Operation, Write
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import check_target
from insync.rules.refusals import BadPlan, BadSetting
from insync.rules.values import BrokerId, LeaderEpoch

REPLICATION_FACTOR_DEFAULT = 3
PARTITIONS_MAX = 10_000  # of one topic: one step of the store makes them all


class TopicRefused(Exception):
    """What a client is told when its topic cannot be had as asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A topic as somebody asked for it; -1 and nothing leave it to the broker."""

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

    async def create(self, wanted: Wanted, *, validate_only: bool = False) -> TopicRecord:
        try:
            path = paths.topic(wanted.name)
            self._settings.for_topic(wanted.config or {})
        except BadTopicName as refusal:
            raise TopicRefused(ErrorCode.invalid_topic_exception, str(refusal)) from None
        except BadSetting as refusal:
            raise TopicRefused(ErrorCode.invalid_config, str(refusal)) from None
        if wanted.name in self._view.topics:
            raise TopicRefused(
                ErrorCode.topic_already_exists, f"Topic '{wanted.name}' already exists."
            )
        assignment = self._assignment(wanted)
        record = TopicRecord(
            topic_id=UUID(int=self._random.getrandbits(128), version=4),
            partitions=len(assignment),
            replication_factor=len(assignment[0]),
        )
        if validate_only:
            return record
        step: list[Operation] = [
            Create(path, record.encode()),
            Create(paths.topic_id(record.topic_id), wanted.name.encode()),
        ]
        if wanted.config:
            step.append(Create(paths.topic_config(wanted.name), encode_config(wanted.config)))
        step += self._states(wanted.name, assignment, first=0)
        try:
            await self._store.commit(*step)
        except Conflict:
            raise TopicRefused(
                ErrorCode.topic_already_exists, f"Topic '{wanted.name}' already exists."
            ) from None
        return record

    async def grow(self, name: str, count: int, assignment: Sequence[Sequence[int]] | None) -> None:
        topic = self._view.topics.get(name)
        entry = self._store.get(paths.topic(name)) if topic is not None else None
        if topic is None or entry is None:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"no topic '{name}'")
        more = count - topic.partitions
        if more <= 0:
            raise TopicRefused(
                ErrorCode.invalid_partitions,
                f"Topic '{name}' has {topic.partitions} partitions; {count} is not an increase.",
            )
        wanted = Wanted(
            name=name,
            partitions=more,
            replication_factor=topic.replication_factor,
            assignment=None if assignment is None else dict(enumerate(assignment)),
        )
        replicas = self._assignment(wanted, first=topic.partitions)
        grown = replace(topic, partitions=count)
        try:
            await self._store.commit(
                Write(entry.path, grown.encode(), entry.version),
                *self._states(name, replicas, first=topic.partitions),
            )
        except Conflict:
            raise TopicRefused(
                ErrorCode.request_timed_out, "another change came first; try again"
            ) from None

    async def delete(self, name: str) -> None:
        topic = self._view.topics.get(name)
        if topic is None:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"no topic '{name}'")
        step: list[Operation] = [
            Delete(paths.topic(name)),
            Delete(paths.topic_id(topic.topic_id)),
        ]
        step += [Delete(entry.path) for entry in self._store.under(paths.partitions(name))]
        if name in self._view.topic_configs:
            step.append(Delete(paths.topic_config(name)))
        try:
            await self._store.commit(*step)
        except Conflict:
            raise TopicRefused(
                ErrorCode.request_timed_out, "another change came first; try again"
            ) from None

    def _states(
        self, name: str, assignment: Sequence[tuple[BrokerId, ...]], *, first: int
    ) -> list[Operation]:
        """New partitions start with every living replica in sync, led by the preferred one."""
        live = self._view.live
        step: list[Operation] = []
        for number, replicas in enumerate(assignment, start=first):
            isr = tuple(broker for broker in replicas if broker in live) or replicas[:1]
            leader = isr[0] if isr[0] in live else None
            state = PartitionState(
                replicas=replicas, isr=isr, leader=leader, leader_epoch=LeaderEpoch(0)
            )
            step.append(Create(paths.partition_state(name, number), encode_state(state)))
        return step

    def _assignment(self, wanted: Wanted, *, first: int = 0) -> list[tuple[BrokerId, ...]]:
        if wanted.assignment:
            return self._given_assignment(wanted.assignment)
        racks = {broker: record.rack for broker, record in self._view.brokers.items()}
        count = wanted.partitions
        if count == -1:
            count = self._settings.integer("num.partitions")
        factor = wanted.replication_factor
        if factor == -1:
            factor = self._settings.integer("default.replication.factor")
        if factor == -1:
            factor = min(REPLICATION_FACTOR_DEFAULT, len(racks))
        if not 1 <= count <= PARTITIONS_MAX:
            raise TopicRefused(
                ErrorCode.invalid_partitions, f"{count} partitions; 1 to {PARTITIONS_MAX}"
            )
        if not 1 <= factor <= len(racks):
            raise TopicRefused(
                ErrorCode.invalid_replication_factor,
                f"replication factor {factor}, but {len(racks)} brokers are alive",
            )
        begin = first + self._random.randrange(len(racks))
        return assign(racks, count=count, factor=factor, first=begin)

    def _given_assignment(
        self, assignment: Mapping[int, Sequence[int]]
    ) -> list[tuple[BrokerId, ...]]:
        if sorted(assignment) != list(range(len(assignment))):
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment, "number the partitions from 0 without gaps"
            )
        replicas = [tuple(BrokerId(b) for b in assignment[n]) for n in sorted(assignment)]
        for each in replicas:
            try:
                check_target(each, known=self._view.live)
            except BadPlan as refusal:
                raise TopicRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None
        return replicas
