"""A disk whose process dies before a certain change."""

from __future__ import annotations

from insync.storage.disk import DiskFile
from insync.storage.memory_disk import MemoryDisk


class DyingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None
        self.on_truncate = lambda _: self._count()  # dies just after it

    def _count(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise DiedError
            self.changes_left -= 1

    def write_atomic(self, path: str, data: bytes) -> None:
        self._count()
        super().write_atomic(path, data)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def rename(self, path: str, to: str) -> None:
        self._count()
        super().rename(path, to)

    def create(self, path: str) -> DiskFile:
        self._count()
        return super().create(path)


class DiedError(Exception):
    pass
