"""Periodic work goes on after a disk error, and dropped logs are deleted together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from insync.broker.settings import Settings
from insync.node.maintenance import CHECKPOINT_INTERVAL_MS, DELETE_DELAY_S, Maintenance
from insync.node.world import run_inline
from insync.sim.virtual_loop import VirtualLoop, virtual_time
from insync.storage.errors import DiskError


class Disk:
    """Stands for replicas and directory: it counts what is done, and fails on demand."""

    def __init__(self) -> None:
        self.has_dropped = asyncio.Event()
        self.partitions: dict[str, object] = {}
        self.is_broken = False
        self.checkpoints = self.flushes = self.removals = self.expirations = 0
        self.metadata_checkpoints = self.stray_deletions = 0

    def checkpoint(self) -> None:
        self.checkpoints += 1
        if self.is_broken:
            raise DiskError(5, "/logs")

    def flush_due(self, *, now_ms: int) -> None:
        assert now_ms >= 0
        self.flushes += 1

    def checkpoint_metadata(self) -> None:
        self.metadata_checkpoints += 1

    def delete_strays(self) -> None:
        self.stray_deletions += 1

    def remove_expired_segments(self) -> None:
        self.expirations += 1

    def remove_deleted(self) -> None:
        self.removals += 1
        if self.is_broken:
            raise DiskError(5, "/logs")


def maintenance_of(disk: Any, loop: VirtualLoop, **settings: str) -> Maintenance:
    nothing_open: Any = None
    return Maintenance(
        settings=Settings({name.replace("_", "."): text for name, text in settings.items()}),
        replicas=disk,
        directory=disk,
        connections=nothing_open,
        clock_ms=loop.clock_ms,
        in_thread=run_inline,
        write_metadata_checkpoint=disk.checkpoint_metadata,
        delete_expired_strays=disk.delete_strays,
    )


def test_checkpoints_go_on_after_a_disk_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        disk = Disk()
        task = loop.create_task(maintenance_of(disk, loop).write_checkpoints())
        await asyncio.sleep(CHECKPOINT_INTERVAL_MS / 1_000 + 0.1)
        assert (disk.checkpoints, disk.flushes) == (1, 1)
        disk.is_broken = True
        await asyncio.sleep(CHECKPOINT_INTERVAL_MS / 1_000)
        assert (disk.checkpoints, disk.flushes) == (2, 1)
        assert "/logs" in caplog.text
        disk.is_broken = False
        await asyncio.sleep(CHECKPOINT_INTERVAL_MS / 1_000)
        assert (disk.checkpoints, disk.flushes) == (3, 2)
        assert disk.metadata_checkpoints == 2
        task.cancel()

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_checkpoints_are_as_frequent_as_flushes() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        disk = Disk()
        maintenance = maintenance_of(disk, loop, log_flush_interval_ms="100")
        task = loop.create_task(maintenance.write_checkpoints())
        await asyncio.sleep(1.05)
        assert disk.flushes == 10
        task.cancel()

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_old_strays_are_deleted_where_retention_is_applied() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        disk = Disk()
        maintenance = maintenance_of(disk, loop, log_retention_check_interval_ms="100")
        task = loop.create_task(maintenance.apply_retention())
        await asyncio.sleep(0.35)
        assert disk.stray_deletions == 3
        assert disk.expirations == 3
        disk.is_broken = True
        await asyncio.sleep(0.1)
        assert disk.stray_deletions == 4
        task.cancel()

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))


def test_logs_that_are_dropped_together_are_deleted_together() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        disk = Disk()
        task = loop.create_task(maintenance_of(disk, loop).remove_dropped_logs())
        await asyncio.sleep(10)
        assert disk.removals == 0
        for _ in range(5):
            disk.has_dropped.set()
            await asyncio.sleep(DELETE_DELAY_S / 10)
        assert disk.removals == 0
        await asyncio.sleep(DELETE_DELAY_S)
        assert disk.removals == 1
        assert not disk.has_dropped.is_set()
        task.cancel()

    with virtual_time() as loop:
        loop.run_until_complete(scenario(loop))
