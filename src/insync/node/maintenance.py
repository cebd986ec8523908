"""What a broker does from time to time: checkpoints, retention, deletions, idle connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import SWEEPS_UNTIL_IDLE, Connections
from insync.broker.settings import Settings
from insync.storage.directory import LogDirectory
from insync.storage.errors import StorageRefusal

CHECKPOINT_INTERVAL_MS: Final = 5_000
DELETE_DELAY_S: Final = 1.0
"""Long enough that the replicas of one reassignment are deleted together."""

PARTITIONS_PER_TURN: Final = 100
"""Whose retention is applied before other callbacks of the event loop run."""

logger = logging.getLogger(__name__)


class Maintenance:
    """Loops that run until they are cancelled. Disk work runs in a thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        replicas: Replicas,
        directory: LogDirectory,
        connections: Connections,
        clock_ms: Callable[[], int],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
        write_metadata_checkpoint: Callable[[], None],
        delete_expired_strays: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._directory = directory
        self._connections = connections
        self._clock_ms = clock_ms
        self._in_thread = in_thread
        self._write_metadata_checkpoint = write_metadata_checkpoint
        self._delete_expired_strays = delete_expired_strays

    async def write_checkpoints(self) -> None:
        """Write down what is committed and flushed, so that the next start recovers little."""
        while True:
            flush_ms = self._settings.broker.log_flush_interval_ms
            await asyncio.sleep(min(CHECKPOINT_INTERVAL_MS, flush_ms) / 1_000)
            await self._run_in_thread(self._write_checkpoints)

    async def apply_retention(self) -> None:
        interval_s = self._settings.broker.log_retention_check_interval_ms / 1_000
        while True:
            await asyncio.sleep(interval_s)
            keys = list(self._replicas.partitions)
            for at in range(0, len(keys), PARTITIONS_PER_TURN):
                self._replicas.apply_retention(keys[at : at + PARTITIONS_PER_TURN])
                await asyncio.sleep(0)
            await self._run_in_thread(self._directory.remove_expired_segments)
            await self._run_in_thread(self._remove_deleted)
            await self._run_in_thread(self._delete_expired_strays)

    async def remove_dropped_logs(self) -> None:
        """Soon after a replica is dropped: operators move replicas away to free disk space."""
        while True:
            await self._replicas.has_dropped.wait()
            await asyncio.sleep(DELETE_DELAY_S)
            self._replicas.has_dropped.clear()
            await self._run_in_thread(self._remove_deleted)

    async def close_idle_connections(self) -> None:
        interval_ms = self._settings.broker.connections_max_idle_ms / SWEEPS_UNTIL_IDLE
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            self._connections.sweep()

    def _write_checkpoints(self) -> None:
        self._replicas.checkpoint()
        self._directory.flush_due(now_ms=self._clock_ms())
        self._write_metadata_checkpoint()

    def _remove_deleted(self) -> None:
        self._directory.remove_deleted()

    async def _run_in_thread(self, work: Callable[[], None]) -> None:
        """A disk error does not end the loop: the work is repeated the next time."""
        try:
            await self._in_thread(work)
        except StorageRefusal as refusal:
            logger.warning("maintenance: %s; trying again at the next run", refusal)
