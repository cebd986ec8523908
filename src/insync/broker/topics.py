"""Topics: created, grown and deleted as one step of the store each.

Any broker may make the step, since the store lets exactly one of two rivals win. Clients ask any
broker next, and many do not ask twice: whoever answers a change waits until the others have had the
time to learn of it (`known_everywhere`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.assignment import assign
from insync.broker.cluster_view import LEARNT_WITHIN_S, ClusterView
from insync.broker.in_sync import concerns_rule, rule_of
from insync.broker.settings import (
    TOPIC_SETTINGS,
    Settings,
    refuse_before_run_time,
    text_of,
)
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
PARTITIONS_MAX = 10_000  # of one topic: one step of the store makes, or deletes, them all
ATTEMPTS_MAX = 10


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
        self._changed_at_s = float("-inf")

    async def known_everywhere(self) -> None:
        """Until every broker has had the time to learn of what was changed here last."""
        since_s = asyncio.get_running_loop().time() - self._changed_at_s
        if since_s < LEARNT_WITHIN_S:
            await asyncio.sleep(LEARNT_WITHIN_S - since_s)

    async def create(self, wanted: Wanted, *, validate_only: bool = False) -> TopicRecord:
        try:
            path = paths.topic(wanted.name)
            refuse_before_run_time(wanted.config or {}, TOPIC_SETTINGS)
            settings = self._settings.for_topic(wanted.config or {})
            if concerns_rule(wanted.config or {}):
                rule_of(settings)
        except BadTopicName as refusal:
            raise TopicRefused(ErrorCode.invalid_topic_exception, str(refusal)) from None
        except BadSetting as refusal:
            raise TopicRefused(ErrorCode.invalid_config, str(refusal)) from None
        topic_id = UUID(int=self._random.getrandbits(128), version=4)
        record: TopicRecord | None = None

        def step() -> list[Operation]:
            nonlocal record
            if wanted.name in self._view.topics:
                raise TopicRefused(
                    ErrorCode.topic_already_exists, f"Topic '{wanted.name}' already exists."
                )
            assignment = self._assignment(wanted)
            record = TopicRecord(
                topic_id=topic_id,
                partitions=len(assignment),
                replication_factor=len(assignment[0]),
            )
            config = wanted.config or {}
            return [
                Create(path, record.encode()),
                Create(paths.topic_id(topic_id), wanted.name.encode()),
                *([Create(paths.topic_config(wanted.name), encode_config(config))] * bool(config)),
                *self._states(wanted.name, assignment, first=0),
            ]

        if validate_only:
            step()
        else:
            await self._commit(step)
        assert record is not None, "made by the step"
        return record

    async def grow(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Make it `count` partitions in all; an assignment names the replicas of the new ones."""

        def step() -> list[Operation]:
            topic, entry = self._known(name)
            more = count - topic.partitions
            if more <= 0:
                raise TopicRefused(
                    ErrorCode.invalid_partitions,
                    f"Topic '{name}' has {topic.partitions} partitions; {count} is no increase.",
                )
            _check_count(count)
            if assignment is not None and len(assignment) != more:
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment,
                    f"{more} partitions are new, but {len(assignment)} replica lists are given",
                )
            wanted = Wanted(
                name=name,
                partitions=more,
                replication_factor=topic.replication_factor,
                assignment=None if assignment is None else dict(enumerate(assignment)),
            )
            replicas = self._assignment(wanted, first=topic.partitions)
            if len(replicas[0]) != topic.replication_factor:
                raise TopicRefused(
                    ErrorCode.invalid_replica_assignment,
                    f"the partitions of '{name}' have {topic.replication_factor} replicas each",
                )
            grown = replace(topic, partitions=count)
            return [
                Write(entry.path, grown.encode(), entry.version),
                *self._states(name, replicas, first=topic.partitions),
            ]

        if validate_only:
            step()
        else:
            await self._commit(step)

    async def delete(self, name: str) -> None:
        def step() -> list[Operation]:
            topic, entry = self._known(name)
            config = paths.topic_config(name)
            return [
                # At this version: partitions that were added meanwhile would be left behind.
                Delete(entry.path, entry.version),
                Delete(paths.topic_id(topic.topic_id)),
                *(Delete(each.path) for each in self._store.under(paths.partitions(name))),
                Delete(config) if self._store.get(config) else CheckAbsent(config),
            ]

        await self._commit(step)

    def settings_of(self, overrides: Mapping[str, str]) -> list[Values]:
        """A topic's settings and where each comes from, as CreateTopics tells them."""
        effective = self._settings.for_topic(overrides)
        found: list[Values] = []
        for name, setting in sorted(TOPIC_SETTINGS.items()):
            source, value = effective.sources(setting.name)[0]
            found.append({"name": name, "value": text_of(value), "config_source": source})
        return found

    def _known(self, name: str) -> tuple[TopicRecord, Entry]:
        topic = self._view.topics.get(name)
        entry = None if topic is None else self._store.get(paths.topic(name))
        if topic is None or entry is None:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"no topic '{name}'")
        return topic, entry

    async def _commit(self, step: Callable[[], list[Operation]]) -> None:
        """Make the step, anew when another change came first: the view then includes that one."""
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
        """New partitions start with every living replica in sync, led by the preferred one."""
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
        # A leader that a controller has dealt with meanwhile would never be dealt with again.
        incarnations = self._view.incarnations
        return [
            *(Check(paths.broker_incarnation(incarnations[leader])) for leader in leaders),
            *step,
        ]

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
        _check_count(count)
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
        _check_count(len(assignment))
        replicas = [tuple(BrokerId(b) for b in assignment[n]) for n in sorted(assignment)]
        for each in replicas:
            try:
                check_target(each, known=self._view.live)
            except BadPlan as refusal:
                raise TopicRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None
        if len({len(each) for each in replicas}) > 1:
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment, "give every partition as many replicas"
            )
        return replicas


def _check_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise TopicRefused(
            ErrorCode.invalid_partitions, f"{count} partitions; 1 to {PARTITIONS_MAX} can be had"
        )
