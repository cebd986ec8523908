"""CreateTopics."""

from __future__ import annotations

from typing import Any

from insync.broker.admin.topics import RequestedTopic, TopicRefused, Topics
from insync.wire.any_version import Values


class CreateTopics:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def answer(self, request: Any) -> Values:
        results = [
            await self._create(topic, validate_only=request.validate_only)
            for topic in request.topics
        ]
        await self._topics.wait_until_propagated()
        return {"topics": results}

    async def _create(self, topic: Any, *, validate_only: bool) -> Values:
        config = {c.name: c.value for c in topic.configs if c.value is not None}
        requested = RequestedTopic(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignment={a.partition_index: a.broker_ids for a in topic.assignments},
            config=config,
        )
        try:
            record = await self._topics.create(requested, validate_only=validate_only)
        except TopicRefused as refused:
            return refused.result(topic.name)
        return {
            "name": topic.name,
            "topic_id": record.topic_id,
            "num_partitions": record.partitions,
            "replication_factor": record.replication_factor,
            "configs": self._topics.effective_configs(config),
        }
