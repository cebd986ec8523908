"""The partitions of this broker: created, led, followed and dropped as the metadata store says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice
from typing import TypeVar
from uuid import UUID

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.counters import Counters
from insync.broker.replication.in_sync import Rules
from insync.broker.replication.leader_driver import LeaderDriver
from insync.broker.replication.offline_replicas import OfflineReplicas
from insync.broker.replication.offline_reports import OfflineReports
from insync.broker.replication.pending_acks import OnVerdict
from insync.broker.replication.replica import Replica
from insync.broker.settings import Settings
from insync.broker.topic_settings import TopicSettingsCache
from insync.metadata import paths
from insync.metadata.store import MetadataStore
from insync.rules.acknowledgement import effective_min_isr
from insync.rules.leader_machine import BrokersChanged
from insync.rules.leadership import Rule
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import replicas_before_move
from insync.rules.stalls import Stall
from insync.rules.values import BrokerId, Incarnation
from insync.storage.directory import LogDirectory
from insync.storage.errors import StorageRefusal
from insync.storage.strays import NEVER_MS
from insync.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)
T = TypeVar("T")

AFTER_DRAINING_MS = 10
STORAGE_RETRY_MS = 500
DROPS_PER_TURN = 100  # ten milliseconds
CHANGES_PER_TURN = 50
CHANGES_PER_TURN_MS = 25  # well below a stall
CHECKPOINTED_PARTS = 2
"""A checkpoint lists every log: one is written when one log in so many is new, or no more come."""


class Replicas:
    """Every partition that this broker has a replica of, by topic and number.

    - `partitions` follows the view: a replica exists while the state of its partition names this
      broker, except while the disk refuses (tried again), while new replicas wait for their turn
      of the loop, and while deleted topics are dropped.
    - A term begins only if the state names this broker as leader, a controller has handled this
      incarnation (`may_lead`) and the log is whole (`offline`).
    - A replica does not lead and fetch at once.
    - States are applied in the broker's loop, one after another.
    """

    def __init__(
        self,
        *,
        broker: BrokerId,
        settings: Settings,
        topic_settings: TopicSettingsCache,
        store: MetadataStore,
        view: ClusterView,
        directory: LogDirectory,
        loop: BrokerLoop,
        wall_ms: Callable[[], int],
        recorder: Recorder | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self._topic_settings = topic_settings
        self.store = store
        self.view = view
        self.directory = directory
        self.loop = loop
        self.wall_ms = wall_ms  # like the timestamps in records: only says how old files are
        self.incarnation = Incarnation(-1)
        self.counters = Counters()
        self.partitions: dict[TopicPartition, Replica] = {}
        self.on_following: Callable[[Replica], None]  # set by the follower fetchers
        self.has_dropped = asyncio.Event()  # logs of dropped replicas wait to be deleted
        self.leading = LeaderDriver(
            broker=broker,
            store=store,
            view=view,
            loop=loop,
            partitions=self.partitions,
            silent_after_ms=self._silent_after_ms,
            recorder=recorder,
        )
        self.offline = OfflineReplicas(
            broker=broker,
            view=view,
            directory=directory,
            loop=loop,
            partitions=self.partitions,
            reports=OfflineReports(broker=broker, store=store),
            may_lead=self.may_lead,
            stop_replica=self._stop_replica,
        )
        self._recorder = recorder
        self._watermarks = directory.read_watermarks()
        loop.stall_listener = self
        self._refused: set[TopicPartition] = set()  # the disk refused; applied again later
        self._deleted: dict[TopicPartition, None] = {}  # their states are gone; to be dropped
        self._new: dict[TopicPartition, None] = {}  # to be created
        self._created: dict[TopicPartition, None] = {}  # without a role, not checkpointed yet
        self._checkpointed: dict[TopicPartition, None] = {}  # replicas that get their role next
        self._is_creating = False  # a later turn goes on with it
        self._to_lead: dict[TopicPartition, frozenset[BrokerId] | None] = {}  # with the ISR before
        self._is_beginning = False  # a later turn begins more terms
        self._undeleted: set[TopicPartition] = set()  # dropped; their logs are to be deleted
        self._rules = Rules()
        self._has_stopped = False  # nothing is created, led or dropped any more

    def _silent_after_ms(self) -> int:
        """After how long without a fetch a follower's broker may be gone."""
        settings = self.settings.broker
        return settings.replica_fetch_wait_max_ms + settings.broker_heartbeat_interval_ms

    def start(self, incarnation: Incarnation) -> None:
        """Apply every partition state, new replicas in turns, and follow changes from now on."""
        self.loop.run(self._start, incarnation)

    def _start(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.leading.registered(incarnation)
        self.offline.registered(incarnation)
        if self._on_change not in self.view.listeners:
            self.view.listeners.append(self._on_change)
        for key in sorted(self.view.states):
            if self._is_new(key):
                self._new[key] = None
            else:
                self._apply_state(key)
        for key in sorted(self.directory.logs.keys() - self.partitions.keys()):
            if key in self._undeleted:
                self._apply_state(key)  # the disk refused to delete it: not a stray
            else:
                self._set_aside(key)
        self.offline.forget_removed()
        self._checkpoint_new_logs()
        self._begin_terms()
        self.offline.report_changes()
        if not self._is_creating:
            self._create_new()

    def _is_new(self, key: TopicPartition) -> bool:
        """Whether the state gives this broker a replica that it has no log of."""
        directory = self.directory
        is_known = key in directory.logs or key in directory.unopened or key in directory.damaged
        return self.broker in self.view.states[key].replicas and not is_known

    def _set_aside(self, key: TopicPartition) -> None:
        """Keep a log that the store does not assign to this broker.

        The partition was deleted or moved away while this broker was down, or the store went back.
        """
        log, topic_id = self.directory.logs[key], self.directory.topic_ids[key]
        is_known = topic_id in self.view.topic_names
        stray = self.directory.set_aside(*key, now_ms=self.wall_ms())
        retention_ms = self.settings.broker.log_stray_retention_ms
        logger.warning(
            "%s-%d: set the log aside as %s, %d bytes: the metadata store %s; it is %s; to delete"
            " it now: insync strays --log-dir %s --delete %s",
            *key,
            stray,
            log.size_bytes,
            "has no replica of it on this broker" if is_known else f"has no topic id {topic_id}",
            "kept (log.stray.retention.ms=-1)"
            if retention_ms == NEVER_MS
            else f"deleted after log.stray.retention.ms={retention_ms}",
            self.directory.path,
            stray,
        )

    def leader_of(self, key: TopicPartition) -> Replica | None:
        """The replica, if this broker leads it and its session is alive."""
        replica = self.partitions.get(key)
        if replica is None or replica.term is None:
            return None
        # By the clock, not by the time of the callback: it may have blocked since.
        return replica if self.store.is_alive(self.loop.clock_ms()) else None

    def may_lead(self) -> bool:
        """Whether a state that names this broker means this incarnation of it.

        It may mean an earlier one, which may have written in its epoch what this one lost. Once a
        controller has handled this incarnation, every state that names the broker means this one.
        """
        if self.store.session != str(self.incarnation):
            return False  # the session is lost: the states are of the past
        seen = self.store.get(paths.broker_seen(self.broker))
        return seen is not None and int(seen.value) == self.incarnation

    # As the store changes.

    def _on_change(self, partitions: AbstractSet[TopicPartition], brokers: object) -> None:
        self.loop.run(self._apply_changes, partitions, brokers)

    def _apply_changes(self, partitions: AbstractSet[TopicPartition], brokers: object) -> None:
        if self._has_stopped:
            return
        for key in sorted(partitions):
            state = self.view.states.get(key)
            if state is None:
                self._deleted[key] = None
            elif self.broker in state.replicas and not self._has_replica(key):
                self._stop_earlier_topic(key)
                self._new[key] = None
            elif key not in self._created and key not in self._checkpointed:
                self._apply_state(key)
        self._begin_terms()
        self._drop_deleted()
        if not self._is_creating:
            self._create_new()
        if brokers:
            self._lead_what_waits()
            registered = self.view.incarnations
            for replica in self.partitions.values():
                if replica.term is not None and replica.term.registered != registered:
                    self.leading.report(replica, BrokersChanged(registered))

    def _drop_deleted(self) -> None:
        """Drop the replicas of deleted topics, some per turn of the loop: there may be thousands.

        Until then a replica is not served, because the view has no state of it.
        """
        if self._has_stopped:
            return
        for key in list(islice(self._deleted, DROPS_PER_TURN)):
            del self._deleted[key]
            if key not in self.view.states:  # else a topic of that name was created again
                self._apply_state(key)
        if self._deleted:
            asyncio.get_running_loop().call_soon(self.loop.run, self._drop_deleted)

    def _has_replica(self, key: TopicPartition) -> bool:
        """Whether there is a replica of the partition, of the topic that has the name now."""
        replica, topic = self.partitions.get(key), self.view.topics.get(key[0])
        return replica is not None and (topic is None or replica.topic_id == topic.topic_id)

    def _stop_earlier_topic(self, key: TopicPartition) -> None:
        """Serve no replica of an earlier topic of that name."""
        if key in self.partitions:
            with suppress(StorageRefusal):  # the log is deleted when the new one is created
                self._drop(key)

    def _create_new(self) -> None:
        """Create new replicas, some per turn of the loop: each makes a folder and several files.

        Until then this broker answers as one that has not read the state yet.

        A log is checkpointed before anything in it is committed. A checkpoint lists all logs, so
        one is written for many new logs, and the replicas get their roles after it.
        """
        if self._has_stopped:
            return
        try:
            self._create_some()
        finally:  # an error with one partition keeps no other from its turn
            self._is_creating = bool(self._new or self._created or self._checkpointed)
            if self._is_creating:
                asyncio.get_running_loop().call_soon(self.loop.run, self._create_new)

    def _create_some(self) -> None:
        end_ms = self.loop.clock_ms() + CHANGES_PER_TURN_MS
        for key, _ in self._some(self._new, end_ms):
            if self._create_replica(key):
                self._created[key] = None
        is_good_part = len(self._created) * CHECKPOINTED_PARTS >= len(self.partitions)
        if self._created and (is_good_part or not self._new):
            self._checkpoint_new_logs()
            self._checkpointed |= self._created
            self._created = {}
        for key, _ in self._some(self._checkpointed, end_ms):
            self._apply_state(key)
        self._begin_terms()

    def _some(
        self, waiting: dict[TopicPartition, T], end_ms: int
    ) -> Iterator[tuple[TopicPartition, T]]:
        """Remove what one turn deals with: at least one, so that every turn gets on."""
        for key in list(islice(waiting, CHANGES_PER_TURN)):
            if key in waiting:
                yield key, waiting.pop(key)
            if self.loop.clock_ms() >= end_ms:
                return

    def _create_replica(self, key: TopicPartition) -> bool:
        """Whether there is a new replica, which has no role yet."""
        state, topic = self.view.states.get(key), self.view.topics.get(key[0])
        if state is None or topic is None or self.broker not in state.replicas:
            return False  # it was deleted meanwhile
        try:
            self._ensure_replica(key, topic.topic_id)
        except StorageRefusal as refusal:
            self._apply_later(key, refusal)
            return False
        return True

    def _lead_what_waits(self) -> None:
        """Partitions that name this broker wait until a controller has handled its incarnation."""
        waiting = [
            replica.key
            for replica in self.partitions.values()
            if replica.leader == self.broker and replica.term is None
        ]
        if waiting and self.may_lead():
            for key in sorted(waiting):
                self._apply_state(key)
            self._begin_terms()

    def _apply_state(self, key: TopicPartition) -> None:
        """Lead, follow or drop the partition as its state says; retry if the disk refuses."""
        try:
            self._apply_state_now(key)
        except StorageRefusal as refusal:
            self._apply_later(key, refusal)

    def _apply_later(self, key: TopicPartition, refusal: StorageRefusal) -> None:
        logger.warning("%s-%d: %s; trying again in %d ms", *key, refusal, STORAGE_RETRY_MS)
        if key not in self._refused:
            self._refused.add(key)
            self.loop.call_later(STORAGE_RETRY_MS / 1_000, self._apply_state_again, key)

    def _apply_state_again(self, key: TopicPartition) -> None:
        self._refused.discard(key)
        if self._has_stopped:
            return
        if self.store.session is not None:  # else every state is applied with the next session
            self._apply_state(key)
            self._checkpoint_new_logs()
            self._begin_terms()

    def _apply_state_now(self, key: TopicPartition) -> None:
        state = self.view.states.get(key)
        topic = self.view.topics.get(key[0])
        if state is None or topic is None or self.broker not in state.replicas:
            self._drop(key)
            return
        self._apply_role(self._ensure_replica(key, topic.topic_id), state)

    def _ensure_replica(self, key: TopicPartition, topic_id: UUID) -> Replica:
        """The replica of this topic, with its log; created if it is not there."""
        replica = self.partitions.get(key)
        if replica is not None and replica.topic_id == topic_id:
            return replica
        self._drop(key)
        if self.directory.topic_ids.get(key, topic_id) != topic_id:
            self._set_aside(key)
        log = self.directory.create(*key, topic_id=topic_id, now_ms=self.wall_ms())
        watermark = self.directory.limit_watermark(key, topic_id, self._watermarks.get(key, 0))
        replica = Replica(
            key,
            topic_id,
            log,
            high_watermark=watermark,
            report=self.leading.report,
            loop=self.loop,
        )
        self.partitions[key] = replica
        self.offline.replace_unopened(key)
        return replica

    def _apply_role(self, replica: Replica, state: PartitionState) -> None:
        is_new_epoch, isr_before = state.leader_epoch != replica.epoch, replica.members
        replica.apply_state(state)
        settings = self._topic_settings.layers_of_topic(replica.key[0])
        self._apply_limits(replica, state, settings)
        self.offline.check_repaired(replica.key)
        is_elected = state.leader == self.broker and self.may_lead()
        if not is_elected or not (
            self.offline.can_lead(replica)
            or self._leads_alone(replica, state, is_new_epoch=is_new_epoch)
        ):
            if replica.is_leader:
                replica.end_term()
            self.on_following(replica)
            if state.leader == self.broker and len(state.isr) > 1:
                self.offline.request_election(replica.key)
            return
        if is_new_epoch or replica.term is None:
            replica.end_term()
            self.on_following(replica)
            self._to_lead.setdefault(replica.key, isr_before)
            return
        self.leading.read_state(replica)
        self.leading.remove_eligible_if_enough(replica, state)

    def _leads_alone(self, replica: Replica, state: PartitionState, *, is_new_epoch: bool) -> bool:
        """Whether no other replica can lead: one that was found damaged while it led leads on.

        It serves what it has, also to a replica that is added for that reason.
        """
        is_leading = replica.is_leader and not is_new_epoch and not replica.log.has_failed
        return is_leading and len(state.isr) == 1

    def _begin_terms(self) -> None:
        """Begin to lead what the states say, some partitions per turn of the loop.

        A term begins with a write to the disk, and after a failover or a start there are thousands
        to begin. Done in one turn, they would keep the heartbeat back until the session ends, and
        all would begin again. Until its turn a partition is neither led nor fetched.
        """
        if self._is_beginning:
            return
        self._begin_some_terms()

    def _begin_some_terms(self) -> None:
        if self._has_stopped:
            return
        end_ms = self.loop.clock_ms() + CHANGES_PER_TURN_MS
        try:
            for key, isr_before in self._some(self._to_lead, end_ms):
                try:
                    self._begin_term(key, isr_before)
                except StorageRefusal as refusal:
                    self._apply_later(key, refusal)
        finally:  # an error with one partition keeps no other from its turn
            self._is_beginning = bool(self._to_lead)
            if self._is_beginning:
                asyncio.get_running_loop().call_soon(self.loop.run, self._begin_some_terms)

    def _begin_term(self, key: TopicPartition, isr_before: frozenset[BrokerId] | None) -> None:
        replica, state = self.partitions.get(key), self.view.states.get(key)
        if replica is None or state is None or replica.is_leader:
            return
        if (state.leader, state.leader_epoch) != (self.broker, replica.epoch):
            return  # a later state, which is applied as well
        if not self.may_lead() or not self.offline.can_lead(replica):
            return
        settings = self._topic_settings.layers_of_topic(key[0])
        rule = self._rule(key[0], settings)
        self.leading.begin(replica, state, rule, isr_before, now_ms=self.loop.now_ms)
        self.on_following(replica)
        self.leading.remove_eligible_if_enough(replica, state)

    def _stop_replica(self, replica: Replica) -> None:
        """Neither lead nor fetch with a log that has failed."""
        replica.end_term()
        self.on_following(replica)

    def _drop(self, key: TopicPartition) -> None:
        self._created.pop(key, None)
        self._checkpointed.pop(key, None)
        self._to_lead.pop(key, None)
        replica = self.partitions.pop(key, None)
        if replica is not None:
            if replica.topic_id not in self.view.topic_names:
                self.leading.record_deletion(replica)
            replica.drop()
            self.on_following(replica)
            self.offline.withdraw_reports(key)
            self._undeleted.add(key)
        if key in self._undeleted:
            self.directory.delete(*key)  # if the disk refuses, `_apply_state` tries again
            self._undeleted.discard(key)
            self.has_dropped.set()

    def _checkpoint_new_logs(self) -> None:
        """Before anything in a new log is committed: else its loss would go unnoticed."""
        if self.directory.has_new_logs:
            try:
                self.directory.write_replica_checkpoint(flush=False)
            except StorageRefusal as refusal:
                logger.warning(
                    "held-replicas-checkpoint is not written: %s; trying again with the next"
                    " checkpoint",
                    refusal,
                )

    # Settings.

    def settings_changed(self, topics: AbstractSet[str] | None) -> None:
        """Apply the settings of these topics, or (None) of all, as they are now."""
        self.loop.run(self._apply_settings, topics)

    def _apply_settings(self, topics: AbstractSet[str] | None) -> None:
        self._rules = Rules()  # warnings about the new settings are logged again
        for replica in list(self.partitions.values()):
            state = self.view.states.get(replica.key)
            if state is None or (topics is not None and replica.key[0] not in topics):
                continue
            settings = self._topic_settings.layers_of_topic(replica.key[0])
            self._apply_limits(replica, state, settings)
            if replica.term is not None:
                rule = self._rule(replica.key[0], settings)
                self.leading.change_rule(replica, rule, now_ms=self.loop.now_ms)
                self.leading.remove_eligible_if_enough(replica, state)

    def _rule(self, topic: str, settings: Settings) -> Rule:
        rule = self._rules.of_topic(topic, settings, self.settings)
        return Rule(
            policy=rule.policy,
            fetch_wait_max_ms=settings.integer("replica.fetch.wait.max.ms"),
            process_time_max_ms=rule.process_time_max_ms,
            process_time_includes_stalls=rule.process_time_includes_stalls,
        )

    def _apply_limits(self, replica: Replica, state: PartitionState, settings: Settings) -> None:
        replica.apply_limits(
            min_isr=effective_min_isr(
                min_insync_replicas=settings.integer("min.insync.replicas"),
                # Replicas that a reassignment is still adding do not count yet: a topic of one
                # replica does not become unwritable because it gets a second.
                replication_factor=len(replicas_before_move(state)),
            ),
            batch_bytes_max=settings.integer("message.max.bytes"),
        )

    # Producers that wait.

    def await_commit(
        self, replica: Replica, last_offset: int, *, timeout_ms: int, on_verdict: OnVerdict
    ) -> None:
        """Report when every in-sync replica has this offset, or when the time is up."""
        if replica.term is None:
            on_verdict(None)
            return
        deadline_ms = self.loop.now_ms + max(0, timeout_ms)
        if replica.await_commit(last_offset, deadline_ms=deadline_ms, on_verdict=on_verdict):
            self._expire_acks_at(replica, deadline_ms)

    def _expire_acks_at(self, replica: Replica, deadline_ms: int) -> None:
        """One timer per partition with a producer that waits; it sets itself again."""
        delay_s = max(0, deadline_ms - self.loop.now_ms) / 1_000
        self.loop.call_later(delay_s, self._expire_acks, replica)

    def _expire_acks(self, replica: Replica) -> None:
        now_ms = self.loop.now_ms
        if self.loop.is_draining:
            self._expire_acks_at(replica, now_ms + AFTER_DRAINING_MS)
            return
        next_ms = replica.acks.expire(now_ms)
        if next_ms is not None:
            self._expire_acks_at(replica, next_ms)

    # Stalls of this broker.

    def on_stall(self, stall: Stall) -> None:
        """This broker did not run for a while. Whether it still leads comes first."""
        if self._recorder is not None:
            self._recorder.record_stall(stall)
        self.store.catch_up()
        if self.store.is_alive(stall.ended_at_ms):
            self.leading.on_stall(self.partitions.values(), stall)
        else:
            # Its followers have been silent to a leader that did not run: no deadline counts.
            self.end_terms()

    def on_drained(self) -> None:
        if self._recorder is not None:
            self._recorder.record_drain(now_ms=self.loop.now_ms)
        self.leading.on_drained(now_ms=self.loop.now_ms)

    # Files.

    def apply_retention(self, keys: Iterable[TopicPartition]) -> None:
        """Delete what is too old or too much, and is committed."""
        now_ms = self.wall_ms()
        for key in keys:
            replica = self.partitions.get(key)
            if replica is None:
                continue
            try:
                replica.log.apply_retention(now_ms, up_to=replica.high_watermark)
            except StorageRefusal as refusal:
                logger.warning("%s-%d: retention is not applied: %s", *replica.key, refusal)

    def checkpoint(self) -> None:
        """Write the watermarks if they changed. May run in another thread: too low does no harm."""
        watermarks = {key: replica.high_watermark for key, replica in list(self.partitions.items())}
        self.directory.write_watermarks(watermarks)
        try:
            self.directory.write_replica_checkpoint(self._high_watermark_of)
        except StorageRefusal as refusal:  # logs are flushed all the same
            logger.warning("held-replicas-checkpoint is not written: %s", refusal)

    def _high_watermark_of(self, key: TopicPartition) -> int | None:
        replica = self.partitions.get(key)
        return None if replica is None else replica.high_watermark

    # The end.

    def end_terms(self) -> None:
        """This broker's session is gone: it leads nothing until it has registered again."""
        self.loop.run(self._end_terms)

    def _end_terms(self) -> None:
        for replica in self.partitions.values():
            replica.end_term()

    async def stop(self) -> None:
        await self.leading.stop()
        await self.offline.stop()
        self._has_stopped = True
        self.end_terms()
