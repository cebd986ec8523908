"""Replicas of this broker that cannot lead: their logs failed, are damaged, or cannot be opened.

What a replica lacks is known from its log and from what the directory noted of it. `OfflineReports`
writes that to the store, where the controller acts on it. A damaged replica is whole again when a
leader has let it into the ISR, or when an operator elected it in spite of the damage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.replication.offline_reports import OfflineReports
from insync.broker.replication.replica import Replica
from insync.metadata.records import OfflineReplica
from insync.metadata.store import Operation
from insync.rules.values import BrokerId, Incarnation
from insync.storage.directory import LogDirectory

logger = logging.getLogger(__name__)


class OfflineReplicas:
    """Reports of failed and damaged logs, and the decision that a replica is whole again.

    A replica in `directory.damaged`, or whose log has failed, does not lead. Only `_end_damage`
    declares a damaged log whole. `LogDirectory` itself forgets damage with the log that it was of
    (deleted, or of an earlier topic id), and checks again a log that it could not open before.
    """

    def __init__(
        self,
        *,
        broker: BrokerId,
        view: ClusterView,
        directory: LogDirectory,
        loop: BrokerLoop,
        partitions: Mapping[TopicPartition, Replica],
        reports: OfflineReports,
        may_lead: Callable[[], bool],
        stop_replica: Callable[[Replica], None],
    ) -> None:
        self._broker = broker
        self._view = view
        self._directory = directory
        self._loop = loop
        self._partitions = partitions
        self._reports = reports
        self._may_lead = may_lead
        self._stop_replica = stop_replica  # it neither leads nor fetches
        self._event_loop = asyncio.get_running_loop()
        directory.on_failure = self._notice_failure

    # With each registration.

    def registered(self, incarnation: Incarnation) -> None:
        self._reports.registered(incarnation)

    def forget_removed(self) -> None:
        """Forget damage of replicas that this broker does not have any more."""
        for key, reason in sorted(self._directory.damaged.items()):
            if self._report_of(key, reason) is None:
                self._directory.forget_damage(key)

    def report_changes(self) -> None:
        """Report what changed while the registration was under way."""
        for key in sorted(self._reports.unopened & self._partitions.keys()):
            self.replace_unopened(key)
        for key, replica in sorted(self._partitions.items()):
            if replica.log.has_failed:
                self._on_failure(key)

    def steps(self, incarnation: Incarnation) -> list[Operation]:
        """What to report of this broker's replicas in the step that registers it."""
        steps: list[Operation] = []
        for key, reason in sorted(self._directory.damaged.items()):
            report = self._report_of(key, reason)
            if report is not None:
                steps.append(self._reports.damage_step(incarnation, key, report))
                lost = report.high_watermark - report.end
                logger.warning(
                    "%s-%d: the log is damaged: %s;%s it does not lead until it has fetched what it"
                    " lost from another replica",
                    *key,
                    reason,
                    f" it lost {lost} committed records;" if lost > 0 else "",
                )
        for key, reason in sorted(self._directory.unopened.items()):
            report = self._report_of(key, reason)
            if report is not None:
                steps.append(self._reports.unopened_step(incarnation, key, report))
        steps += [
            self._reports.failure_step(incarnation, replica)
            for _, replica in sorted(self._partitions.items())
            if replica.log.has_failed
        ]
        return steps

    def _report_of(self, key: TopicPartition, reason: str) -> OfflineReplica | None:
        """None if this broker has no replica of that partition any more."""
        topic, state = self._view.topics.get(key[0]), self._view.states.get(key)
        held, log = self._directory.replica_checkpoint.get(key), self._directory.logs.get(key)
        if topic is None or state is None or self._broker not in state.replicas:
            return None
        is_same = log is not None and self._directory.topic_ids[key] == topic.topic_id
        if held is not None and held.topic_id != topic.topic_id and not is_same:
            return None
        return OfflineReplica(
            topic_id=topic.topic_id,
            broker=self._broker,
            reason=reason,
            end=log.end if log is not None and is_same else 0,
            high_watermark=0 if held is None else held.high_watermark,
            may_join=log is None or log.damage is None or log.damage.keep_to is None,
        )

    def replace_unopened(self, key: TopicPartition) -> None:
        """A log that the disk refused to open is open: report what it shows, if anything."""
        reason = self._directory.damaged.get(key)
        damage = None if reason is None else self._report_of(key, reason)
        # A failure since then is not reported while the earlier report is there.
        report_failure = partial(self._loop.run, self._on_failure, key)
        self._reports.replace_unopened(key, damage, on_done=report_failure)

    # Damage that is found while the broker runs, and its end.

    def report_damage(self, key: TopicPartition) -> None:
        """Tell the controller of damage that was found while this broker runs."""
        report = self._report_of(key, self._directory.damaged[key])
        if report is not None:
            self._reports.report_damage(key, report)

    def forbid_joining(self, key: TopicPartition) -> bool:
        """Whether the store keeps the damaged replica out of the ISR; else ask it to."""
        report = self._report_of(key, self._directory.damaged[key])
        return report is not None and self._reports.forbid_joining(key, report)

    def can_lead(self, replica: Replica) -> bool:
        """Whether the log is whole, or an operator elected the replica in spite of the damage."""
        if replica.log.has_failed:
            return False
        if replica.key not in self._directory.damaged:
            return True
        if not self._reports.is_damage_over(replica.key):
            return False
        self._end_damage(replica.key)
        logger.warning(
            "%s-%d: the damaged replica was elected, and leads; its log ends at offset %d",
            *replica.key,
            replica.log.end,
        )
        return True

    def _end_damage(self, key: TopicPartition) -> None:
        self._directory.end_damage(key)
        self._reports.damage_ended(key)

    def check_repaired(self, key: TopicPartition) -> None:
        """A damaged replica that another leader has let into the ISR has all committed records."""
        replica, state = self._partitions.get(key), self._view.states.get(key)
        if replica is None or state is None:
            return
        if key not in self._directory.damaged or replica.log.has_failed:
            return
        damage = replica.log.damage
        if damage is not None and damage.keep_to is not None:
            return  # still to be truncated
        is_member = self._broker in state.isr and self._may_lead()
        if is_member and self._reports.is_damage_over(key):
            self._end_damage(key)
            logger.info("%s-%d: the damaged log is whole again, and in sync", *key)

    def request_election(self, key: TopicPartition) -> None:
        """This broker cannot lead, and another member of the ISR can since it joined."""
        if key in self._directory.damaged:
            self._reports.touch_damage(key)

    def withdraw_reports(self, key: TopicPartition) -> None:
        """The partition was deleted or moved away: another topic may get its name."""
        self._reports.withdraw(key)

    def allow_joining(self, key: TopicPartition) -> None:
        """The replica has what it had before its log was truncated."""
        self._reports.allow_joining(key)

    def _notice_failure(self, key: TopicPartition) -> None:
        """A log failed, in any thread."""
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._loop.run, self._on_failure, key)

    def _on_failure(self, key: TopicPartition) -> None:
        """Stop to lead or to follow with a failed log, and let the controller know."""
        replica = self._partitions.get(key)
        if replica is None or not replica.log.has_failed:
            return
        logger.error(
            "%s-%d: the log failed: %s; this replica does not lead or fetch and leaves the ISR;"
            " restart the broker once the disk is in order",
            *key,
            replica.log.failure,
        )
        self._stop_replica(replica)
        self._reports.report_failure(replica)

    async def stop(self) -> None:
        await self._reports.stop()
