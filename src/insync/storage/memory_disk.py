"""A disk in memory, for simulations: it outlives the processes that use it, as a disk does.

`crash` is the death of the process: its handles and locks are gone, every written byte is there
(the page cache survives), except that the last append may be torn. `lose_power` is the death of
the machine: appended bytes that were never flushed are gone too.

Faults are switched on and off: `is_full` (nothing fits), `fails_reads` and `fails_flushes` (EIO),
`fails_appends` (EIO), `lies_about_flushes` (a flush that only a loss of power shows to be none),
`is_cold` (nothing is in memory, so a read that must not block says that it would), and `on_append`,
which is called for each append with the bytes that have arrived so far and may not return.

A failed flush is as Linux has it: the bytes stay readable, count as written, and a later flush
succeeds without writing them. Only a truncation and another append bring them to the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from insync.storage.disk import Buffer, DiskFile, DiskLock
from insync.storage.errors import DiskError

UNLIMITED: Final = 1 << 62
SECTOR_BYTES: Final = 512
STALE_CHANCE: Final = 0.3
HOLE_CHANCE: Final = 0.2


@dataclass(slots=True)
class _Replaced:
    """The file that an atomic write replaced; None if there was none."""

    content: _Content | None


class _Content:
    __slots__ = ("data", "flushed", "lost_from", "replaced")

    def __init__(self, data: bytes = b"") -> None:
        # What the name meant before a rename that is not flushed yet; None: nothing else.
        self.replaced: _Replaced | None = None
        self.data = bytearray(data)
        self.flushed = len(data)
        self.lost_from: int | None = (
            None  # where the bytes begin that a failed flush left unwritten
        )

    def durable_size(self) -> int:
        return self.flushed if self.lost_from is None else min(self.flushed, self.lost_from)


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
        if self._disk.fails_appends:
            raise DiskError(errno.EIO, self._path)
        data = b"".join(buffers)
        room = self._disk.room_bytes()
        if self._disk.on_append is not None:
            half = int(len(data) * self._disk.torn_part)
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
        if self._content.lost_from is not None and size <= self._content.lost_from:
            self._content.lost_from = None
        self.size = size
        if self._disk.on_truncate is not None:
            self._disk.on_truncate(self._path)

    def flush(self) -> None:
        self._check()
        content = self._content
        if self._disk.fails_flushes:
            if content.flushed < len(content.data):
                content.lost_from = content.durable_size()
            raise DiskError(errno.EIO, self._path)
        if not self._disk.lies_about_flushes:
            content.flushed = len(content.data)
            self._disk.flush_names(self._path)

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
        self.unreadable_names: set[str] = set()  # files that cannot be read at once (EIO)
        self.fails_flushes = False
        self.fails_appends = False
        self.lies_about_flushes = False
        self.torn_part = 0.5  # of an append that has arrived when `on_append` is called
        self.is_cold = False
        self.on_append: Callable[[str], None] | None = None
        self.on_truncate: Callable[[str], None] | None = None  # called after a file was truncated
        self.life = 0
        self.locks: dict[str, MemoryLock] = {}
        self.last_append: tuple[_Content, int] | None = None
        self._lives = count(1)
        self._unflushed_names: dict[str, dict[str, None]] = {}  # by folder, of atomic writes
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

    def lose_power(self, random: Random | None = None) -> None:
        """The machine dies: appended bytes that were not flushed are gone.

        With `random`, a part of them may be there, with holes of zeros; and a rename that was not
        flushed may not have happened.
        """
        self.crash()
        for path in sorted(self._files):
            content = self._files[path]
            replaced, content.replaced = content.replaced, None
            if random is not None and replaced is not None and random.random() < STALE_CHANCE:
                self._undo_rename(path, replaced)
                continue
            durable = content.durable_size()
            kept = durable
            if random is not None and content.lost_from is None and durable < len(content.data):
                kept = random.randint(durable, len(content.data))
                _make_holes(content.data, durable, kept, random)
            del content.data[kept:]
            content.flushed, content.lost_from = len(content.data), None

    def _undo_rename(self, path: str, replaced: _Replaced) -> None:
        if replaced.content is None:
            del self._files[path]
            self._unlink(path)
        else:
            self._files[path] = replaced.content
            replaced.content.replaced = None

    def flush_names(self, path: str) -> None:
        """Make the names in a file's folder survive, as its flush does."""
        folder = path.rpartition("/")[0]
        for name in self._unflushed_names.pop(folder, ()):
            content = self._files.get(f"{folder}/{name}")
            if content is not None:
                content.replaced = None

    def stop_lying(self) -> None:
        """Flush for good what flushes only claimed to: no later loss of power takes it."""
        if self.lies_about_flushes:
            self.lies_about_flushes = False
            self.write_back()

    def flushed_bytes(self, path: str) -> int:
        """How much of a file was flushed, as far as flushes do not lie."""
        content = self._content(path)
        return len(content.data) if self.lies_about_flushes else content.flushed

    def write_back(self) -> None:
        """Write what was appended and renamed so far, as a kernel does sooner or later."""
        if not self.lies_about_flushes:
            self._unflushed_names.clear()
            for content in self._files.values():
                content.flushed, content.replaced = len(content.data), None

    # What happens to files of a stopped process

    def paths(self) -> list[str]:
        return sorted(self._files)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Change bytes behind the file's back, within its size."""
        content = self._files[path].data
        content[position : position + len(data)] = data[: max(0, len(content) - position)]

    def cut(self, path: str, size: int) -> None:
        content = self._files[path]
        del content.data[size:]
        content.flushed = min(content.flushed, size)

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
        if path.rpartition("/")[2] in self.unreadable_names:
            raise DiskError(errno.EIO, path)
        return bytes(self._content(path).data)

    def read_tail(self, path: str, size: int) -> bytes:
        data = self._content(path).data
        return bytes(data[max(0, len(data) - size) :])

    def write_atomic(self, path: str, data: bytes) -> None:
        if len(data) > self.room_bytes():
            raise DiskError(errno.ENOSPC, path)
        self._link(path)
        content = _Content(data)
        before = self._files.get(path)
        if before is not None and before.replaced is not None:
            content.replaced = before.replaced  # the name was not flushed since
        else:
            content.replaced = _Replaced(before)
        self._files[path] = content
        folder, _, name = path.rpartition("/")
        self._unflushed_names.setdefault(folder, {})[name] = None

    def list(self, path: str) -> list[str]:
        if path in self._files:
            raise DiskError(errno.ENOTDIR, path)
        if path not in self._directories:
            raise DiskError(errno.ENOENT, path)
        return sorted(self._directories[path])

    def is_link(self, path: str) -> bool:  # noqa: ARG002 (there are no links here)
        return False

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


def _make_holes(data: bytearray, start: int, end: int, random: Random) -> None:
    """Some sectors of an append that was under way have not arrived."""
    for position in range(start, end, SECTOR_BYTES):
        if random.random() < HOLE_CHANCE:
            size = min(SECTOR_BYTES, end - position)
            data[position : position + size] = bytes(size)
