"""DescribeTopicPartitions (KIP-966): topics in pages, each with a cursor to the next."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.admin.described_partition import (
    OfflineByPath,
    describe_partition,
    reported_offline,
)
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.metadata.errors import BadTopicName
from insync.metadata.paths import checked_topic_name
from insync.rules.values import BrokerId
from insync.wire.any_version import Values

PARTITIONS_MAX: Final = 2_000  # in one answer, whatever limit the client asks for; Kafka's default


class DescribeTopicPartitions:
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def answer(self, request: Any, _version: int) -> Values:
        cursor = request.cursor
        names = sorted({topic.name for topic in request.topics} or self._view.topics)
        if cursor is not None:
            is_listed = not request.topics or cursor.topic_name in names
            if cursor.partition_index < 0 or not is_listed:
                refused = [topic.name for topic in request.topics] or [cursor.topic_name]
                return {"topics": [_error(name, ErrorCode.invalid_request) for name in refused]}
            names = [name for name in names if name >= cursor.topic_name]
        remaining = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
        offline, live = reported_offline(self._view), self._view.live
        described: list[Values] = []
        for name in names:
            topic = self._view.topics.get(name)
            if topic is None:
                described.append(_error(name, _unknown_topic_code(name)))
                continue
            is_continued = cursor is not None and cursor.topic_name == name
            first = cursor.partition_index if is_continued else 0
            if remaining == 0:
                return _page(described, next_topic=name, next_partition=first)
            last = min(topic.partitions, first + remaining)
            described.append(
                {
                    "name": name,
                    "topic_id": topic.topic_id,
                    "is_internal": name.startswith("__"),
                    "partitions": [
                        self._describe_partition((name, number), offline, live)
                        for number in range(first, last)
                    ],
                }
            )
            remaining -= max(0, last - first)
            if last < topic.partitions:
                return _page(described, next_topic=name, next_partition=last)
        return {"topics": described, "next_cursor": None}

    def _describe_partition(
        self, key: TopicPartition, offline: OfflineByPath, live: frozenset[BrokerId]
    ) -> Values:
        return {
            **describe_partition(self._view, key, offline, live),
            "eligible_leader_replicas": self._view.states[key].eligible,
            "last_known_elr": (),
        }


def _page(described: list[Values], *, next_topic: str, next_partition: int) -> Values:
    return {
        "topics": described,
        "next_cursor": {"topic_name": next_topic, "partition_index": next_partition},
    }


def _error(name: str, code: ErrorCode) -> Values:
    return {"error_code": code, "name": name}


def _unknown_topic_code(name: str) -> ErrorCode:
    try:
        checked_topic_name(name)
    except BadTopicName:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition
