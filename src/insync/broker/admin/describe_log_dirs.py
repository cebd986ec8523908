"""DescribeLogDirs: the logs in this broker's one log directory, and their sizes."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from insync.broker.replication.replicas import Replicas
from insync.storage.errors import StorageRefusal
from insync.wire.any_version import Values


class DescribeLogDirs:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def answer(self, request: Any, _version: int) -> Values:
        replicas = self._replicas.partitions
        if request.topics is None:
            keys = sorted(replicas)
        else:
            requested = {
                (topic.topic, number) for topic in request.topics for number in topic.partitions
            }
            keys = sorted(key for key in requested if key in replicas)
        topics: dict[str, list[Values]] = {}
        for key in keys:
            replica = replicas[key]
            topics.setdefault(key[0], []).append(
                {
                    "partition_index": key[1],
                    "partition_size": replica.log.size_bytes,
                    "offset_lag": max(0, replica.leader_watermark - replica.log.end),
                    "is_future_key": False,
                }
            )
        directory = self._replicas.directory
        result: dict[str, Any] = {
            "log_dir": directory.path,
            "topics": [
                {"name": name, "partitions": partitions} for name, partitions in topics.items()
            ],
        }
        try:
            result["usable_bytes"] = directory.free_bytes()
        except StorageRefusal:
            result["error_code"] = ErrorCode.kafka_storage_error
        return {"results": [result]}
