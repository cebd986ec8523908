"""Logs that were taken out of use by another name: deleted ones and strays."""

from __future__ import annotations

from collections.abc import Iterable

from insync.storage.checkpoints import Partition
from insync.storage.disk import Disk
from insync.storage.log_names import (
    DELETED,
    DELETED_NAME,
    NAME_KEPT_CHARACTERS,
    STRAY,
    log_name,
)


class RenamedLogs:
    """Gives logs of one data directory names that no other file there has.

    - `_next_number` is above that of every deleted log.
    - `_strays` has the name of every stray that is there; perhaps of some that were removed.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._next_number = 0
        self._strays: set[str] = set()

    def learn(self, names: Iterable[str]) -> None:
        """Know the names that are taken when the directory is opened."""
        for name in names:
            if (deleted := DELETED_NAME.fullmatch(name)) is not None:
                self._next_number = max(self._next_number, int(deleted[1]) + 1)
            elif name.endswith(STRAY):
                self._strays.add(name)

    def rename_to_deleted(self, key: Partition) -> None:
        # A new number each time, so that thousands of logs are moved without listing the directory.
        number, self._next_number = self._next_number, self._next_number + 1
        name = log_name(*key)
        deleted = f"{name[:NAME_KEPT_CHARACTERS]}.{number}{DELETED}"
        self._disk.rename(f"{self._path}/{name}", f"{self._path}/{deleted}")

    def rename_to_stray(self, key: Partition, now_ms: int) -> str:
        """The name of the stray, which says when it was set aside."""
        name, kept = log_name(*key), f"{key[0][:NAME_KEPT_CHARACTERS]}-{key[1]}"
        while (stray := f"{kept}.{now_ms}{STRAY}") in self._strays:
            now_ms += 1
        self._disk.rename(f"{self._path}/{name}", f"{self._path}/{stray}")
        self._strays.add(stray)
        return stray

    def remove_deleted(self) -> int:
        """Remove the deleted logs from the disk; return how many there were. Blocks."""
        deleted = [name for name in self._disk.list(self._path) if name.endswith(DELETED)]
        for name in deleted:
            self._disk.remove_tree(f"{self._path}/{name}")
        return len(deleted)
