"""DescribeLogDirs: what lies in this broker's one log directory, and how large it is."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from insync.broker.replicas import Replicas
from insync.storage.errors import StorageRefusal
from insync.wire.any_version import Values


class LogDirs:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def describe(self, request: Any, _version: int) -> Values:
        held = self._replicas.held
        if request.topics is None:
            keys = sorted(held)
        else:
            asked = {(t.topic, number) for t in request.topics for number in t.partitions}
            keys = sorted(key for key in asked if key in held)
        topics: dict[str, list[Values]] = {}
        for key in keys:
            found = held[key]
            topics.setdefault(key[0], []).append(
                {
                    "partition_index": key[1],
                    "partition_size": found.log.size_bytes,
                    "offset_lag": max(0, found.leader_watermark - found.log.end),
                    "is_future_key": False,
                }
            )
        directory = self._replicas.directory
        described: dict[str, Any] = {
            "log_dir": directory.path,
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        try:
            described["usable_bytes"] = directory.free_bytes()
        except StorageRefusal:
            described["error_code"] = ErrorCode.kafka_storage_error
        return {"results": [described]}
