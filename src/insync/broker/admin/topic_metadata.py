"""Metadata: brokers, topics and the leaders of partitions; it creates missing topics if allowed."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.admin.described_partition import (
    OfflineByPath,
    describe_partition,
    reported_offline,
)
from insync.broker.admin.topics import RequestedTopic, TopicRefused, Topics
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.server.describe_cluster import controller_id
from insync.broker.settings import Settings
from insync.wire.any_version import Values

TOPIC_ID_FROM_VERSION: Final = 12  # versions 10 and 11 have the field but ignore it (KAFKA-13270)


class Metadata:
    def __init__(
        self, view: ClusterView, topics: Topics, settings: Settings, cluster_id: str
    ) -> None:
        self._view = view
        self._topics = topics
        self._settings = settings
        self._cluster_id = cluster_id

    async def answer(self, request: Any) -> Values:
        await self._view.wait_until_current()
        requested = request.topics
        offline = reported_offline(self._view)
        if requested is None or (request.__version__ == 0 and not requested):
            described = [self._describe(name, offline) for name in sorted(self._view.topics)]
        else:
            may_create = getattr(request, "allow_auto_topic_creation", True)
            count_before = len(self._view.topics)
            described = [
                await self._find_or_create(topic, offline, may_create=may_create)
                for topic in requested
            ]
            if len(self._view.topics) > count_before:
                await self._topics.wait_until_propagated()
        return {
            "brokers": [
                {"node_id": b.broker, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._view.brokers.values()
            ],
            "cluster_id": self._cluster_id,
            "controller_id": controller_id(self._view),
            "topics": described,
        }

    async def _find_or_create(
        self, requested: Any, offline: OfflineByPath, *, may_create: bool
    ) -> Values:
        name: str | None = requested.name
        topic_id: UUID | None = getattr(requested, "topic_id", None)
        if name is None:
            if requested.__version__ < TOPIC_ID_FROM_VERSION:
                return {"error_code": ErrorCode.unsupported_version, "name": ""}
            name = self._view.topic_names.get(topic_id) if topic_id else None
            if name is None:
                return {
                    "error_code": ErrorCode.unknown_topic_id,
                    "topic_id": topic_id,
                    "name": None,
                }
        if name in self._view.topics:
            return self._describe(name, offline)
        if not may_create or not self._settings.broker.auto_create_topics_enable:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        try:
            await self._topics.create(RequestedTopic(name=name))
        except TopicRefused as refused:
            if refused.code is not ErrorCode.topic_already_exists:
                return {"error_code": refused.code, "name": name}
        return self._describe(name, offline)

    def _describe(self, name: str, offline: OfflineByPath) -> Values:
        topic = self._view.topics.get(name)
        if topic is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        return {
            "name": name,
            "topic_id": topic.topic_id,
            "is_internal": name.startswith("__"),
            "partitions": [
                self._describe_partition((name, number), offline)
                for number in range(topic.partitions)
            ],
        }

    def _describe_partition(self, key: TopicPartition, offline: OfflineByPath) -> Values:
        fields = describe_partition(self._view, key, offline)
        has_leader = fields["leader_id"] >= 0
        code = ErrorCode.none if has_leader else ErrorCode.leader_not_available
        return {"error_code": code, **fields}
