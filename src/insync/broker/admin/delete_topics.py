"""DeleteTopics: by name, and from version 6 also by id."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.admin.topics import TopicRefused, Topics
from insync.broker.cluster_view import ClusterView
from insync.wire.any_version import Values

TOPIC_ID_FROM_VERSION: Final = 6


class DeleteTopics:
    def __init__(self, view: ClusterView, topics: Topics) -> None:
        self._view = view
        self._topics = topics

    async def answer(self, request: Any) -> Values:
        requested: list[tuple[str | None, UUID | None]]
        if request.__version__ >= TOPIC_ID_FROM_VERSION:
            requested = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            requested = [(name, None) for name in request.topic_names]
        results = [await self._delete(name, topic_id) for name, topic_id in requested]
        await self._topics.wait_until_propagated()
        return {"responses": results}

    async def _delete(self, name: str | None, topic_id: UUID | None) -> Values:
        name = name or (self._view.topic_names.get(topic_id) if topic_id else None)
        if name is None:
            return {"name": None, "topic_id": topic_id, "error_code": ErrorCode.unknown_topic_id}
        topic = self._view.topics.get(name)
        try:
            await self._topics.delete(name, topic_id)
        except TopicRefused as refused:
            return refused.result(name)
        return {"name": name, "topic_id": topic.topic_id if topic else None}
