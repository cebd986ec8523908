"""Metadata: brokers, topics and the leaders of partitions; it creates missing topics if allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from insync.broker.admin.described_partition import (
    OfflineByPath,
    offline_replicas,
    reported_offline,
)
from insync.broker.admin.topics import RequestedTopic, TopicRefused, Topics
from insync.broker.cluster_view import ClusterView
from insync.broker.server.describe_cluster import controller_id
from insync.broker.settings import Settings
from insync.wire.any_version import Values
from insync.wire.metadata import MetadataPartition, write_metadata_partitions

TOPIC_ID_FROM_VERSION: Final = 12  # versions 10 and 11 have the field but ignore it (KAFKA-13270)
NO_LEADER: Final = -1


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
        version: int = request.__version__
        offline = reported_offline(self._view)
        if requested is None or (version == 0 and not requested):
            described = [
                self._describe(name, offline, version) for name in sorted(self._view.topics)
            ]
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
            return self._describe(name, offline, requested.__version__)
        if not may_create or not self._settings.broker.auto_create_topics_enable:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        try:
            await self._topics.create(RequestedTopic(name=name))
        except TopicRefused as refused:
            if refused.code is not ErrorCode.topic_already_exists:
                return {"error_code": refused.code, "name": name}
        return self._describe(name, offline, requested.__version__)

    def _describe(self, name: str, offline: OfflineByPath, version: int) -> Values:
        topic = self._view.topics.get(name)
        if topic is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name}
        return {
            "name": name,
            "topic_id": topic.topic_id,
            "is_internal": name.startswith("__"),
            "partitions": write_metadata_partitions(
                self._partitions(name, topic.partitions, offline), version
            ),
        }

    def _partitions(
        self, name: str, count: int, offline: OfflineByPath
    ) -> Iterator[MetadataPartition]:
        states, live = self._view.states, self._view.live
        for number in range(count):
            key = name, number
            state = states[key]
            leader = state.leader
            if leader is None or leader not in live:
                code, leader_id = ErrorCode.leader_not_available, NO_LEADER
            else:
                code, leader_id = ErrorCode.none, int(leader)
            offline_ids = offline_replicas(key, state, offline, live)
            yield MetadataPartition(
                code, number, leader_id, state.leader_epoch, state.replicas, state.isr, offline_ids
            )
