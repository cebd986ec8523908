"""Takes a leader's proposed ISR changes to the metadata store.

A change is one conditional write of the partition state. If its outcome is not known the write is
tried again under the same condition, so that it is made at most once. What became of it is read
from the partition state, as every change is: the leader stays on its maximal ISR until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView
from insync.broker.replication.replica import Replica
from insync.broker.replication.store_tasks import StoreTasks
from insync.metadata import paths
from insync.metadata.errors import Conflict, SessionEnded
from insync.metadata.records import OfflineReplica, encode_state
from insync.metadata.store import Check, CheckAbsent, Delete, MetadataStore, Operation, Write
from insync.rules import isr as isr_rules
from insync.rules.eligible import eligible_after
from insync.rules.isr import IsrChange
from insync.rules.leadership import Leadership
from insync.rules.values import Incarnation


class IsrCommits:
    """The changes of this broker's partitions that are on their way to the store."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        loop: BrokerLoop,
        on_refusal: Callable[[Replica, IsrChange], None],
        on_later_state: Callable[[Replica], None],
    ) -> None:
        self.incarnation = Incarnation(-1)  # of this broker; set when it has registered
        self._store = store
        self._view = view
        self._loop = loop
        self._on_refusal = on_refusal
        self._on_later_state = on_later_state
        self._tasks = StoreTasks()

    def commit(self, replica: Replica, proposal: Leadership) -> None:
        """Begin to write the ISR that this state proposes."""
        # A change that stays pending would stop the high watermark for good.
        self._start(
            lambda: self._try_to_commit(replica, proposal),
            replica,
            "an ISR change could not be written",
        )

    def remove_eligible(self, replica: Replica) -> None:
        """Begin to write that no replica outside the ISR is eligible: acks=all waits for it."""
        self._start(
            lambda: self._try_to_remove_eligible(replica),
            replica,
            "eligible replicas could not be removed",
        )

    def _start(self, attempt: Callable[[], Awaitable[bool]], replica: Replica, what: str) -> None:
        topic, partition = replica.key
        self._tasks.start_until_known(attempt, f"{topic}-{partition}: {what}")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _try_to_remove_eligible(self, replica: Replica) -> bool:
        """Whether there is nothing left to do."""
        path = paths.partition_state(*replica.key)
        state = self._view.states.get(replica.key)
        if replica.term is None or state is None or not state.eligible:
            return True
        if state.leader_epoch != replica.term.epoch:
            return True
        try:
            await self._store.commit(
                Write(
                    path,
                    encode_state(replace(state, eligible=())),
                    self._view.versions[replica.key],
                ),
                Check(paths.broker_incarnation(self.incarnation)),
                Check(paths.topic_id(replica.topic_id)),
            )
        except Conflict as conflict:
            return conflict.path != path  # else by the state as it is now
        except SessionEnded:
            pass
        return True

    async def _try_to_commit(self, replica: Replica, proposal: Leadership) -> bool:
        """Whether the outcome is known."""
        change = proposal.isr
        assert not isinstance(change, isr_rules.Stable), "nothing is proposed"
        if replica.term is None or replica.term.isr != change:
            return True
        if self._view.versions.get(replica.key) != change.version:
            self._loop.run(self._on_later_state, replica)  # which settles the change
            return True
        operations = self.operations(replica, proposal)
        if operations is None:
            self._loop.run(self._on_refusal, replica, change)
            return True
        try:
            await self._store.commit(*operations)
        except Conflict as conflict:
            # Another state is read from the view. If the state is as it was, a broker or the
            # topic is gone, and the change can never be made.
            if conflict.path != paths.partition_state(*replica.key):
                self._loop.run(self._on_refusal, replica, change)
        except SessionEnded:
            pass  # this broker leads nothing until it has registered again
        return True

    def operations(self, replica: Replica, proposal: Leadership) -> list[Operation] | None:
        """The conditional write; None if it can no longer succeed.

        Its conditions: the version of the partition state, this broker's own registration, that
        of the broker that joins, that its log has not failed and has not been found damaged, and
        the topic's id.
        """
        change = proposal.isr
        state = self._view.states.get(replica.key)
        if state is None or state.leader_epoch != proposal.epoch:
            return None
        isr = isr_rules.proposed(change)
        kept = tuple(broker for broker in state.isr if broker in isr)
        joining = tuple(broker for broker in sorted(isr) if broker not in kept)
        checks: list[Operation] = [
            Check(paths.broker_incarnation(self.incarnation)),
            Check(paths.topic_id(replica.topic_id)),
        ]
        for broker in joining:
            incarnation = proposal.followers[broker].incarnation
            if self._view.incarnations.get(broker) != incarnation:
                return None
            checks.append(Check(paths.broker_incarnation(incarnation)))
            checks.append(CheckAbsent(paths.failed_replica(*replica.key, incarnation)))
            path = paths.damaged_replica(*replica.key, incarnation)
            damage = self._store.get(path)
            if damage is None:
                checks.append(CheckAbsent(path))
            elif not OfflineReplica.decode(damage.value).may_join:
                return None
            else:  # it has everything again: from now on it may lead, too
                checks.append(Delete(path, damage.version))
        path = paths.partition_state(*replica.key)
        eligible = eligible_after(state, isr, min_isr=replica.min_isr)
        value = encode_state(replace(state, isr=(*kept, *joining), eligible=eligible))
        return [Write(path, value, change.version), *checks]
