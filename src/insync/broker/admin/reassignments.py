"""The states in which a reassignment starts or is cancelled (KIP-455).

The controller completes reassignments.
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from insync.broker.admin.partition_steps import MoveRefused, PartitionSteps
from insync.broker.cluster_view import TopicPartition
from insync.broker.topic_settings import TopicSettingsCache
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.rules import reassignment
from insync.rules.partition_state import PartitionState
from insync.rules.refusals import BadPlan, NothingToCancel, WouldLoseData
from insync.rules.values import BrokerId


class Reassignments:
    def __init__(self, steps: PartitionSteps, topic_settings: TopicSettingsCache) -> None:
        self._steps = steps
        self._topic_settings = topic_settings

    def start(
        self, key: TopicPartition, target: Sequence[int], *, allows_factor_change: bool = True
    ) -> PartitionState:
        """The state of a partition that starts to move to these replicas."""
        state = self._steps.state_of(key)
        factor = len(reassignment.replicas_before_move(state))
        if not allows_factor_change and len(target) != factor:
            raise MoveRefused(
                ErrorCode.invalid_replication_factor,
                f"{len(target)} replicas instead of {factor}, but the request does not allow a "
                "change of the replication factor",
            )
        try:
            return reassignment.start(
                state,
                tuple(BrokerId(broker) for broker in target),
                known=self._steps.known_brokers,
                live=self._steps.electable_brokers(key),
                cooling=brokers_in_cooldown(self._steps.store, key),
            )
        except (BadPlan, WouldLoseData) as refusal:
            raise MoveRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None

    def cancel(self, key: TopicPartition) -> PartitionState:
        """The state of a partition whose move is cancelled."""
        state = self._steps.state_of(key)
        settings = self._topic_settings.of_topic(key[0])
        try:
            return reassignment.cancel(
                state,
                live=self._steps.electable_brokers(key),
                unclean=settings.unclean_leader_election_enable,
                cooling=brokers_in_cooldown(self._steps.store, key),
            )
        except NothingToCancel as refusal:
            raise MoveRefused(ErrorCode.no_reassignment_in_progress, str(refusal)) from None
        except WouldLoseData as refusal:
            raise MoveRefused(ErrorCode.invalid_replica_assignment, str(refusal)) from None
