"""Logs that are in their place and could not be opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from insync.storage.checkpoints import Partition


class UnopenedLog(NamedTuple):
    topic_id: UUID | None  # None: it could not be read
    recovery_point: int


class UnopenedLogs:
    """The unopened logs of one data directory.

    - `_logs` has every log that is being opened, or was not opened. While one is there, a clean
      stop is impossible: what is past its recovery point is not verified yet.
    - `reasons`, a part of them: those that the disk refused, and why. They may be opened later.
    """

    def __init__(self) -> None:
        self._logs: dict[Partition, UnopenedLog] = {}
        self.reasons: dict[Partition, str] = {}

    def __contains__(self, key: Partition) -> bool:
        return key in self._logs

    def get(self, key: Partition) -> UnopenedLog | None:
        return self._logs.get(key)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._logs)

    def put(self, key: Partition, topic_id: UUID | None, *, recovery_point: int) -> None:
        self._logs[key] = UnopenedLog(topic_id, recovery_point)

    def refuse(self, key: Partition, reason: str) -> None:
        """The disk refused to open it."""
        assert key in self._logs, "only a log that is being opened can be refused"
        self.reasons[key] = reason

    def remove(self, key: Partition) -> None:
        """It was opened, or something else is in its place."""
        self._logs.pop(key, None)
        self.reasons.pop(key, None)
