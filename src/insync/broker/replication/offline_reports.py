"""How this broker reports replicas of its own that cannot lead.

A log that failed takes and serves nothing until a restart, and a damaged one has lost records. A
follower does not write partition states, and a follower that fetches nothing is never evicted from
an idle partition. So the broker creates a node of its own incarnation
(`metadata.offline_replicas`), and the controller acts on it: an in-sync replica takes over, and the
reported one leaves the ISR unless it is the last member.

A log that the disk refused to open at the start is reported as failed, too: it may have lost
nothing. The broker tries again, and replaces the report by what the log shows.

The report of a damaged replica is deleted by the step in which a leader lets the replica into the
ISR, or in which an operator elects it in spite of the damage.

A replica that has to truncate its log first reports that it may not join the ISR. Once that is in
the store and the replica is out of the ISR, no step can let it in, also none that was proposed
before: so it may truncate. It may join again when it has what it had before the truncation, because
a delayed fetch of that time may still reach the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from insync.broker.replication.replica import Replica
from insync.broker.replication.store_tasks import StoreTasks
from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded
from insync.metadata.records import OfflineReplica
from insync.metadata.store import Check, Create, Delete, Entry, MetadataStore, Operation, Write
from insync.rules.values import BrokerId, Incarnation

REASON_CHARACTERS_MAX: Final = 500

logger = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


class OfflineReports:
    def __init__(self, *, broker: BrokerId, store: MetadataStore) -> None:
        self._broker = broker
        self._store = store
        self._incarnation = Incarnation(-1)
        self._damaged: set[TopicPartition] = set()  # in the store since this incarnation's report
        self.unopened: set[TopicPartition] = set()  # reported as failed, perhaps, in this one
        self._reporting_unopened: set[TopicPartition] = set()  # the registration is on its way
        self._tasks = StoreTasks()

    def registered(self, incarnation: Incarnation) -> None:
        """Reports of an earlier incarnation ended with its session."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._damaged = {
                (name, partition)
                for entry in self._store.under(paths.DAMAGED_REPLICAS)
                for name, partition, reporter in [paths.offline_of(entry.path)]
                if reporter == incarnation
            }
            self.unopened, self._reporting_unopened = self._reporting_unopened, set()

    def failure_step(self, incarnation: Incarnation, replica: Replica) -> Operation:
        """Report a failed log, in a step that the caller makes."""
        report = OfflineReplica(
            topic_id=replica.topic_id,
            broker=self._broker,
            reason=(replica.log.failure or "")[:REASON_CHARACTERS_MAX],
            end=replica.log.end,
            high_watermark=replica.high_watermark,
        )
        return self._put(paths.failed_replica(*replica.key, incarnation), report)

    def _put(self, path: str, report: OfflineReplica) -> Operation:
        """Create the report, or replace one: a step that made it may have lost its answer."""
        entry = self._store.get(path)
        if entry is None:
            return Create(path, report.encode(), ephemeral=True)
        return Write(path, report.encode(), entry.version)

    def unopened_step(
        self, incarnation: Incarnation, key: TopicPartition, report: OfflineReplica
    ) -> Operation:
        """Report a log that could not be opened as failed, in a step that the caller makes."""
        self._reporting_unopened.add(key)
        return self._put(paths.failed_replica(*key, incarnation), report)

    def replace_unopened(
        self, key: TopicPartition, damage: OfflineReplica | None, *, on_done: Callable[[], None]
    ) -> None:
        """The log could be opened after all: withdraw its report, or report damage instead.

        Until that is done, `unopened` has it: the registration may be on its way that reports it.
        """
        if key not in self.unopened:
            return
        step: list[Operation] = [Delete(paths.failed_replica(*key, self._incarnation))]
        if damage is not None:
            step.append(self.damage_step(self._incarnation, key, damage))

        def forget() -> None:
            if self._store.get(paths.failed_replica(*key, self._incarnation)) is None:
                self.unopened.discard(key)
                self._note_damage(key)
                on_done()

        self._start(*step, on_done=forget)

    def damage_step(
        self, incarnation: Incarnation, key: TopicPartition, report: OfflineReplica
    ) -> Operation:
        """Report a damaged log, in a step that the caller makes."""
        return self._put(paths.damaged_replica(*key, incarnation), report)

    def report_failure(self, replica: Replica) -> None:
        """Report a log that has failed, if that is not reported yet."""
        entry = self._store.get(paths.failed_replica(*replica.key, self._incarnation))
        if entry is not None and OfflineReplica.decode(entry.value).topic_id == replica.topic_id:
            return
        self._start(
            self.failure_step(self._incarnation, replica),
            Check(paths.broker_incarnation(self._incarnation)),
            Check(paths.topic_id(replica.topic_id)),
        )

    def report_damage(self, key: TopicPartition, report: OfflineReplica) -> None:
        """Report damage that was found while the broker runs, once."""
        if key in self._damaged:
            return
        self._start(
            self.damage_step(self._incarnation, key, report),
            Check(paths.broker_incarnation(self._incarnation)),
            Check(paths.topic_id(report.topic_id)),
            on_done=lambda: self._note_damage(key),
        )

    def allow_joining(self, key: TopicPartition) -> None:
        """The replica has what it had before its log was truncated."""
        entry = self._report_of(key)
        report = None if entry is None else OfflineReplica.decode(entry.value)
        if entry is not None and report is not None and not report.may_join:
            value = replace(report, may_join=True).encode()
            self._start(Write(entry.path, value, entry.version))

    def forbid_joining(self, key: TopicPartition, report: OfflineReplica) -> bool:
        """Report that the replica may not join; return whether the store has that already."""
        entry = self._report_of(key)
        if entry is None:
            self.report_damage(key, report)
            return False
        if not OfflineReplica.decode(entry.value).may_join:
            return True
        self._start(Write(entry.path, report.encode(), entry.version))
        return False

    def touch_damage(self, key: TopicPartition) -> None:
        """Write the report again, so that the controller looks at the partition."""
        entry = self._report_of(key)
        if entry is not None:
            self._start(Write(entry.path, entry.value, entry.version))

    def withdraw(self, key: TopicPartition) -> None:
        """Delete the reports of a replica that this broker does not have any more."""
        self._damaged.discard(key)
        self.unopened.discard(key)
        incarnation = max(0, self._incarnation)
        for path in (
            paths.failed_replica(*key, incarnation),
            paths.damaged_replica(*key, incarnation),
        ):
            entry = self._store.get(path)
            if entry is not None:
                self._start(Delete(path, entry.version))

    def is_damage_over(self, key: TopicPartition) -> bool:
        """Whether a leader let the damaged replica into the ISR, or an operator elected it.

        The report was in the store, and either of these steps deletes it.
        """
        return key in self._damaged and self._report_of(key) is None

    def damage_ended(self, key: TopicPartition) -> None:
        self._damaged.discard(key)

    def _note_damage(self, key: TopicPartition) -> None:
        if self._report_of(key) is not None:
            self._damaged.add(key)

    def _report_of(self, key: TopicPartition) -> Entry | None:
        return self._store.get(paths.damaged_replica(*key, max(0, self._incarnation)))

    def _start(self, *operations: Operation, on_done: Callable[[], None] = lambda: None) -> None:
        """Make a step. `on_done` is called when it is made, or cannot be made as it is: it may
        have been made before, and the response was lost.
        """
        self._tasks.start_until_known(
            lambda: self._try_to_commit(operations, on_done),
            f"the report of {operations[0].path} could not be written",
        )

    async def _try_to_commit(
        self, operations: tuple[Operation, ...], on_done: Callable[[], None]
    ) -> bool:
        try:
            await self._store.commit(*operations)
        except SessionEnded:
            return True  # the next registration reports it
        except Conflict:
            pass  # made already, or the topic is gone
        on_done()
        return True

    async def stop(self) -> None:
        await self._tasks.stop()
