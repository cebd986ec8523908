"""AlterPartitionReassignments (KIP-455): start or cancel reassignments, each by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from insync.broker.admin.partition_steps import PartitionSteps, partition_result
from insync.broker.admin.reassignments import Reassignments
from insync.broker.cluster_view import PROPAGATION_MAX_S, TopicPartition
from insync.rules.partition_state import PartitionState
from insync.telemetry.schemas import REPLICAS_MOVED
from insync.wire.any_version import Values


class AlterPartitionReassignments:
    def __init__(self, steps: PartitionSteps, reassignments: Reassignments) -> None:
        self._steps = steps
        self._reassignments = reassignments

    async def answer(self, request: Any) -> Values:
        allows_factor_change = getattr(request, "allow_replication_factor_change", True)
        keys = [
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        targets = {
            (topic.name, partition.partition_index): partition.replicas
            for topic in request.topics
            for partition in topic.partitions
        }

        def new_state(key: TopicPartition) -> PartitionState:
            target = targets[key]
            if target is None:
                return self._reassignments.cancel(key)
            return self._reassignments.start(key, target, allows_factor_change=allows_factor_change)

        results = await self._steps.change(keys, new_state, REPLICAS_MOVED)
        # A client may ask another broker next, and does not expect the old state.
        await asyncio.sleep(PROPAGATION_MAX_S)
        return {
            "allow_replication_factor_change": allows_factor_change,
            "error_message": None,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [
                        partition_result("partition_index", number, results[topic.name, number])
                        for number in dict.fromkeys(
                            partition.partition_index for partition in topic.partitions
                        )
                    ],
                }
                for topic in request.topics
            ],
        }
