"""CreatePartitions: more partitions for topics that exist."""

from __future__ import annotations

from typing import Any

from insync.broker.admin.topics import TopicRefused, Topics
from insync.wire.any_version import Values


class CreatePartitions:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def answer(self, request: Any) -> Values:
        results = [
            await self._add_partitions(topic, validate_only=request.validate_only)
            for topic in request.topics
        ]
        await self._topics.wait_until_propagated()
        return {"results": results}

    async def _add_partitions(self, topic: Any, *, validate_only: bool) -> Values:
        assignment = (
            None
            if topic.assignments is None
            else [partition.broker_ids for partition in topic.assignments]
        )
        try:
            await self._topics.add_partitions(
                topic.name, topic.count, assignment, validate_only=validate_only
            )
        except TopicRefused as refused:
            return refused.result(topic.name)
        return {"name": topic.name}
