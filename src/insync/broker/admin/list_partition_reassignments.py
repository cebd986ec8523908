"""ListPartitionReassignments (KIP-455): partitions that are moving."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.wire.any_version import Values


class ListPartitionReassignments:
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def answer(self, request: Any, _version: int) -> Values:
        """Of all partitions, or of those that the request names."""
        keys: Iterable[TopicPartition]
        if request.topics is None:
            keys = self._view.states
        else:
            keys = {
                (topic.name, number)
                for topic in request.topics
                for number in topic.partition_indexes
            }
        moving: dict[str, list[Values]] = {}
        for key in sorted(keys):
            state = self._view.states.get(key)
            if state is not None and state.is_moving:
                moving.setdefault(key[0], []).append(
                    {
                        "partition_index": key[1],
                        "replicas": state.replicas,
                        "adding_replicas": state.adding,
                        "removing_replicas": state.removing,
                    }
                )
        return {
            "error_message": None,
            "topics": [
                {"name": name, "partitions": partitions} for name, partitions in moving.items()
            ],
        }
