"""A disk in memory, for simulations: it outlives the processes that use it, as a disk does.

`crash` is the death of the process: its handles and locks are gone, every written byte is there
(the page cache survives), except that the last append may be torn. `lose_power` is the death of
the machine: appended bytes that were never flushed are gone too.

Faults are switched on and off: `is_full` (nothing fits), `fails_reads` (EIO), `is_cold` (nothing
is in memory, so a read that must not block says that it would), and `on_append`, which is told of
each append with the bytes that have arrived so far and may not return.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from insync.storage.disk import Buffer, DiskFile, DiskLock
from insync.storage.errors import DiskError

UNLIMITED: Final = 1 << 62


class _Content:
    __slots__ = ("data", "flushed")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.flushed = len(data)


class MemoryFile:
    """A handle. It dies with the process that opened it."""

    __slots__ = ("_content", "_disk", "_life", "_path", "size")

    def __init__(self, disk: MemoryDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._life = disk.life
        self.size = len(content.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        room = self._disk.room_bytes()
        if self._disk.on_append is not None:
            half = len(data) // 2
            self._content.data[self.size :] = data[: min(room, half)]
            self._disk.on_append(self._path)
        self._content.data[self.size :] = data[:room]
        if room < len(data):
            raise DiskError(errno.ENOSPC, self._path)
        self._disk.last_append = (self._content, self.size)
        self.size += len(data)
        return len(data)

    def read(self, position: int, size: int) -> Buffer:
        self._check()
        if self._disk.fails_reads:
            raise DiskError(errno.EIO, self._path)
        return bytes(self._content.data[position : position + size])

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None if self._disk.is_cold else self.read(position, size)

    def truncate(self, size: int) -> None:
        self._check()
        del self._content.data[size:]
        self._content.flushed = min(self._content.flushed, size)
        self.size = size

    def flush(self) -> None:
        self._check()
        self._content.flushed = len(self._content.data)

    def close(self) -> None:
        self._life = -1

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise DiskError(errno.EBADF, self._path)


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        if self._disk.locks.get(self._path) is self:
            del self._disk.locks[self._path]


class MemoryDisk:
    def __init__(self, *, capacity_bytes: int = UNLIMITED) -> None:
        self.capacity_bytes = capacity_bytes
        self.is_full = False
        self.fails_reads = False
        self.is_cold = False
        self.on_append: Callable[[str], None] | None = None
        self.life = 0
        self.locks: dict[str, MemoryLock] = {}
        self.last_append: tuple[_Content, int] | None = None
        self._lives = count(1)
        self._files: dict[str, _Content] = {}
        self._directories: dict[str, set[str]] = {"": set()}

    # What happens to disks

    def crash(self, *, torn_at: int | None = None) -> None:
        """The process dies; with `torn_at`, after only so many bytes of its last append."""
        if torn_at is not None and self.last_append is not None:
            content, began = self.last_append
            del content.data[began + torn_at :]
        self.last_append = None
        self.life = next(self._lives)
        self.locks.clear()

    def lose_power(self) -> None:
        """The machine dies: appended bytes that nobody flushed are gone."""
        self.crash()
        for content in self._files.values():
            del content.data[content.flushed :]

    def room_bytes(self) -> int:
        if self.is_full:
            return 0
        if self.capacity_bytes == UNLIMITED:
            return UNLIMITED  # summing on every append would cost a simulation dearly
        return max(0, self.capacity_bytes - sum(len(c.data) for c in self._files.values()))

    # What processes do with them

    def open(self, path: str) -> DiskFile:
        return MemoryFile(self, path, self._content(path))

    def create(self, path: str) -> DiskFile:
        if path in self._directories:
            raise DiskError(errno.EISDIR, path)
        self._link(path)
        content = self._files[path] = _Content()
        return MemoryFile(self, path, content)

    def file_size(self, path: str) -> int:
        return len(self._content(path).data)

    def read_all(self, path: str) -> bytes:
        return bytes(self._content(path).data)

    def read_tail(self, path: str, size: int) -> bytes:
        data = self._content(path).data
        return bytes(data[max(0, len(data) - size) :])

    def write_atomic(self, path: str, data: bytes) -> None:
        if len(data) > self.room_bytes():
            raise DiskError(errno.ENOSPC, path)
        self._link(path)
        self._files[path] = _Content(data)

    def list(self, path: str) -> list[str]:
        if path in self._files:
            raise DiskError(errno.ENOTDIR, path)
        if path not in self._directories:
            raise DiskError(errno.ENOENT, path)
        return sorted(self._directories[path])

    def remove(self, path: str) -> None:
        if self._files.pop(path, None) is not None:
            self._unlink(path)

    def remove_tree(self, path: str) -> None:
        for name in tuple(self._directories.get(path, ())):
            below = f"{path}/{name}"
            if below in self._directories:
                self.remove_tree(below)
            else:
                self.remove(below)
        if self._directories.pop(path, None) is not None:
            self._unlink(path)

    def make_dirs(self, path: str) -> None:
        if path in self._files:
            raise DiskError(errno.EEXIST, path)
        if path not in self._directories:
            parent, _, _ = path.rpartition("/")
            if parent in self._files:
                raise DiskError(errno.ENOTDIR, path)
            self.make_dirs(parent)
            self._link(path)
            self._directories[path] = set()

    def rename(self, path: str, to: str) -> None:
        if path in self._files:
            content = self._files.pop(path)
            self._unlink(path)
            self._link(to)
            self._files[to] = content
        elif path in self._directories:
            if self._directories.get(to):
                raise DiskError(errno.ENOTEMPTY, to)
            self.make_dirs(to)
            for name in sorted(self._directories[path]):
                self.rename(f"{path}/{name}", f"{to}/{name}")
            del self._directories[path]
            self._unlink(path)
        else:
            raise DiskError(errno.ENOENT, path)

    def free_bytes(self, path: str) -> int:
        if path not in self._directories and path not in self._files:
            raise DiskError(errno.ENOENT, path)
        return self.room_bytes()

    def lock(self, path: str) -> DiskLock | None:
        if path in self.locks:
            return None
        if path not in self._files:
            self._link(path)
            self._files[path] = _Content()
        lock = self.locks[path] = MemoryLock(self, path)
        return lock

    def _content(self, path: str) -> _Content:
        if path not in self._files:
            raise DiskError(errno.EISDIR if path in self._directories else errno.ENOENT, path)
        return self._files[path]

    def _link(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._directories:
            raise DiskError(errno.ENOTDIR if parent in self._files else errno.ENOENT, path)
        self._directories[parent].add(name)

    def _unlink(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._directories[parent].discard(name)
