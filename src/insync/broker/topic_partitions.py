"""DescribeTopicPartitions: topics a part at a time, each answer saying where the next begins."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.metadata.errors import BadTopicName
from insync.metadata.paths import checked_topic_name
from insync.wire.any_version import Values

PARTITIONS_MAX: Final = 2_000  # in one answer, whatever is asked: as Kafka's default


class TopicPartitions:
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def describe(self, request: Any, _version: int) -> Values:
        cursor = request.cursor
        names = sorted({each.name for each in request.topics} or self._view.topics)
        if cursor is not None:
            is_listed = not request.topics or cursor.topic_name in names
            if cursor.partition_index < 0 or not is_listed:
                asked = [each.name for each in request.topics] or [cursor.topic_name]
                return {"topics": [_refused(name, ErrorCode.invalid_request) for name in asked]}
            names = [name for name in names if name >= cursor.topic_name]
        left = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
        described: list[Values] = []
        for name in names:
            topic = self._view.topics.get(name)
            if topic is None:
                described.append(_refused(name, _why_unknown(name)))
                continue
            is_continued = cursor is not None and cursor.topic_name == name
            first = cursor.partition_index if is_continued else 0
            if left == 0:
                return _cut_short(described, name, first)
            last = min(topic.partitions, first + left)
            described.append(
                {
                    "name": name,
                    "topic_id": topic.topic_id,
                    "is_internal": name.startswith("__"),
                    "partitions": [self._partition(name, number) for number in range(first, last)],
                }
            )
            left -= max(0, last - first)
            if last < topic.partitions:
                return _cut_short(described, name, last)
        return {"topics": described, "next_cursor": None}

    def _partition(self, name: str, number: int) -> Values:
        state, live = self._view.states[name, number], self._view.live
        has_leader = state.leader is not None and state.leader in live
        return {
            "partition_index": number,
            "leader_id": state.leader if has_leader else -1,
            "leader_epoch": state.leader_epoch,
            "replica_nodes": state.replicas,
            "isr_nodes": state.isr,
            "eligible_leader_replicas": (),
            "last_known_elr": (),
            "offline_replicas": tuple(b for b in state.replicas if b not in live),
        }


def _cut_short(described: list[Values], name: str, partition: int) -> Values:
    return {
        "topics": described,
        "next_cursor": {"topic_name": name, "partition_index": partition},
    }


def _refused(name: str, code: ErrorCode) -> Values:
    return {"error_code": code, "name": name}


def _why_unknown(name: str) -> ErrorCode:
    try:
        checked_topic_name(name)
    except BadTopicName:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition
