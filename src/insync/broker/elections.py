"""ElectLeaders: leadership back to the preferred replica, or to whoever is left (KIP-460)."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import LEARNT_WITHIN_S, TopicPartition
from insync.broker.reassignments import MoveRefused, PartitionSteps
from insync.metadata.cooling import cooling_for
from insync.rules import election
from insync.rules.partition_state import PartitionState
from insync.wire.any_version import Values

ASKED_FOR: Final = "an operator asked for it"


class Kind(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Elections:
    def __init__(self, steps: PartitionSteps) -> None:
        self._steps = steps

    async def elect(self, request: Any) -> Values:
        kind = getattr(request, "election_type", Kind.PREFERRED)  # version 0 knows no other
        if kind not in set(Kind):
            return {"error_code": ErrorCode.invalid_request, "replica_election_results": ()}
        asked = request.topic_partitions
        keys = (
            sorted(self._steps.view.states)
            if asked is None
            else [(each.topic, number) for each in asked for number in each.partitions]
        )
        after = self._preferred if kind == Kind.PREFERRED else self._unclean
        results = await self._steps.change(keys, after, ASKED_FOR)
        await asyncio.sleep(LEARNT_WITHIN_S)
        told: dict[str, list[Values]] = {}
        for (topic, number), refused in results.items():
            # Who asks about all is told of what was done, and of what could not be.
            is_needless = refused is not None and refused.code is ErrorCode.election_not_needed
            if asked is not None or not is_needless:
                told.setdefault(topic, []).append(
                    {
                        "partition_id": number,
                        "error_code": ErrorCode.none if refused is None else refused.code,
                        "error_message": None if refused is None else refused.message,
                    }
                )
        return {
            "replica_election_results": [
                {"topic": topic, "partition_result": parts} for topic, parts in told.items()
            ]
        }

    def _preferred(self, key: TopicPartition) -> PartitionState:
        """A moving partition too: whoever asks by name means it."""
        state, live = self._steps.state_of(key), self._steps.dealt_with
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise MoveRefused(ErrorCode.election_not_needed, f"broker {preferred} leads already")
        if preferred not in live:
            why = "is not there"
        elif preferred not in state.isr:
            why = "is not in sync"
        elif preferred in cooling_for(self._steps.store, key):
            why = "resigned lately, and would again"
        else:
            return state.led_by(preferred)
        raise MoveRefused(
            ErrorCode.preferred_leader_not_available, f"broker {preferred} {why}; nothing changed"
        )

    def _unclean(self, key: TopicPartition) -> PartitionState:
        state, live = self._steps.state_of(key), self._steps.dealt_with
        if state.leader is not None and state.leader in self._steps.view.live:
            raise MoveRefused(ErrorCode.election_not_needed, f"broker {state.leader} leads it")
        cooling = cooling_for(self._steps.store, key)
        elected = election.elect(state, live=live, cooling=cooling, unclean=True)
        if elected.leader is None:
            raise MoveRefused(
                ErrorCode.eligible_leaders_not_available, "none of its replicas is there"
            )
        return elected
