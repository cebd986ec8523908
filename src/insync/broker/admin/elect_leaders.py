"""ElectLeaders (KIP-460): preferred leader elections, and unclean ones on request.

An unclean election also takes a damaged replica, if no other can lead: the one with the longest
log.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.admin.partition_steps import MoveRefused, PartitionSteps, partition_result
from insync.broker.cluster_view import PROPAGATION_MAX_S, TopicPartition
from insync.metadata import paths
from insync.metadata.cooldowns import brokers_in_cooldown
from insync.metadata.handled_incarnations import electable_brokers, handled_incarnations
from insync.metadata.offline_replicas import damage_reports, offline_in
from insync.metadata.records import OfflineReplica
from insync.metadata.store import Delete, Operation
from insync.rules import election
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId
from insync.wire.any_version import Values

REQUESTED: Final = "requested by an operator"


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders:
    def __init__(self, steps: PartitionSteps) -> None:
        self._steps = steps

    async def answer(self, request: Any) -> Values:
        # Version 0 has no election type.
        election_type = getattr(request, "election_type", ElectionType.PREFERRED)
        if election_type not in set(ElectionType):
            return {"error_code": ErrorCode.invalid_request, "replica_election_results": ()}
        requested = request.topic_partitions
        keys = (
            sorted(self._steps.view.states)
            if requested is None
            else [(topic.topic, number) for topic in requested for number in topic.partitions]
        )
        elect = (
            self._elect_preferred
            if election_type == ElectionType.PREFERRED
            else self._elect_unclean
        )
        results = await self._steps.change(keys, elect, REQUESTED, self._accept_damage)
        await asyncio.sleep(PROPAGATION_MAX_S)
        by_topic: dict[str, list[Values]] = {}
        for (topic, number), refused in results.items():
            # A request for all partitions gets no result for those that need no election.
            is_needless = refused is not None and refused.code is ErrorCode.election_not_needed
            if requested is not None or not is_needless:
                by_topic.setdefault(topic, []).append(
                    partition_result("partition_id", number, refused)
                )
        return {
            "replica_election_results": [
                {"topic": topic, "partition_result": partitions}
                for topic, partitions in by_topic.items()
            ]
        }

    def _elect_preferred(self, key: TopicPartition) -> PartitionState:
        """Of a moving partition too, unlike the controller: the operator names the partition."""
        state, electable = self._steps.state_of(key), self._steps.electable_brokers(key)
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise MoveRefused(ErrorCode.election_not_needed, f"broker {preferred} leads already")
        if preferred not in electable:
            reason = "is not live"
        elif preferred not in state.isr:
            reason = "is not in sync"
        elif preferred in brokers_in_cooldown(self._steps.store, key):
            reason = "resigned this partition recently and is in its cool-down"
        else:
            return state.led_by(preferred)
        raise MoveRefused(
            ErrorCode.preferred_leader_not_available,
            f"broker {preferred} {reason}; nothing changed",
        )

    def _elect_unclean(self, key: TopicPartition) -> PartitionState:
        state, electable = self._steps.state_of(key), self._steps.electable_brokers(key)
        if state.leader is not None and state.leader in self._steps.view.live:
            raise MoveRefused(ErrorCode.election_not_needed, f"broker {state.leader} leads it")
        cooling = brokers_in_cooldown(self._steps.store, key)
        damaged = self._damage_of(key)
        elected = election.elect(
            state, live=electable, cooling=cooling, unclean=True, damaged=frozenset(damaged)
        )
        if elected.leader is None and damaged:
            # The longest log; of equal ones, the first replica.
            longest = max(
                (broker for broker in state.replicas if broker in damaged),
                key=lambda broker: damaged[broker].end,
            )
            elected = state.led_by(longest, isr=(longest,), eligible=())
        if elected.leader is None:
            raise MoveRefused(
                ErrorCode.eligible_leaders_not_available, "none of its replicas is live"
            )
        return elected

    def _damage_of(self, key: TopicPartition) -> dict[BrokerId, OfflineReplica]:
        """The damaged replicas that could lead if an operator wants it: their logs can be used."""
        steps = self._steps
        incarnations = steps.view.incarnations
        handled = electable_brokers(incarnations, handled_incarnations(steps.store))
        failed = offline_in(steps.store, key, incarnations).failed
        replicas = steps.state_of(key).replicas
        return {
            broker: report
            for broker, report in damage_reports(steps.store, key, incarnations).items()
            if broker in handled and broker in replicas and broker not in failed
        }

    def _accept_damage(self, key: TopicPartition, state: PartitionState) -> list[Operation]:
        """The step that elects a damaged replica ends its report: so its broker knows."""
        if state.leader is None or state.leader not in self._damage_of(key):
            return []
        return [Delete(paths.damaged_replica(*key, self._steps.view.incarnations[state.leader]))]
