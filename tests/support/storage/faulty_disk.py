"""A disk that fails at a certain change, and whose unflushed changes a loss of power takes back.

As on a file system with a journal: names, and the sizes of truncated files, reach the disk in the
order of the changes, and the flush of any file brings all of them there. A loss of power takes
back the newest ones. A flush that fails is reported once: the bytes stay readable until the machine
loses power, and a later flush succeeds without writing them, as on Linux.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from insync.storage.disk import Buffer, DiskFile
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk, MemoryFile, _Content
from support.storage.dying_disk import DiedError

NO_LOSS_CHANCE: Final = 0.3
"""How often a loss of power takes back no change of a name."""


class FaultKind(Enum):
    NONE = "none"
    DIES = "dies"  # the process is killed before the change; half of an append is there
    FULL = "full"  # nothing that takes room is accepted
    EIO = "eio"  # any change is refused

    def __repr__(self) -> str:
        return str(self)


class Change(Enum):
    WRITE = "write"
    CREATE = "create"
    APPEND = "append"
    REMOVE = "remove"
    RENAME = "rename"
    TRUNCATE = "truncate"
    FLUSH = "flush"


TAKES_ROOM: Final = frozenset({Change.WRITE, Change.CREATE, Change.APPEND})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at a change of the disk that it concerns, the first one having number 0.

    `persists` refuses every later change of the step too. If the process dies, or its log fails,
    it is killed; with `power_seed` the machine loses power.
    """

    kind: FaultKind
    at_change: int = 0
    persists: bool = False
    power_seed: int | None = None


NO_FAULT: Final = Fault(kind=FaultKind.NONE)


class FaultyDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.refused_changes: set[Change] = set()  # of the last step
        self.refused_files: set[str] = set()  # whose last write or flush was refused
        self.has_lost_bytes = False  # in the last loss of power, because a flush had failed
        self._fault = NO_FAULT
        self._changes_left = 0
        self._is_renaming = False
        self._undo: list[Callable[[], None]] = []  # for each change that is not durable
        self._unflushed: set[_Content] = set()  # of atomic writes
        self._lost: set[_Content] = set()  # of atomic writes, by a flush that failed

    def begin_step(self, fault: Fault) -> None:
        self._fault, self._changes_left = fault, fault.at_change
        self.refused_changes = set()

    def end_step(self) -> None:
        self._fault = NO_FAULT

    def is_of_removed_file(self, path: str, file: DiskFile) -> bool:
        assert isinstance(file, FaultyFile)
        return self._files.get(path) is not file.content

    def meet_fault(self, change: Change, path: str) -> None:
        """Count a change that is about to be made; die or refuse it if that is its fault."""
        fault = self._fault
        if fault.kind is FaultKind.NONE:
            return
        if fault.kind is FaultKind.FULL and change not in TAKES_ROOM:
            return
        if self._changes_left:
            self._changes_left -= 1
            return
        if fault.kind is FaultKind.DIES:
            raise DiedError  # and again at the next change: it stays dead
        if not fault.persists:
            self._fault = NO_FAULT
        self.refused_changes.add(change)
        self.refused_files.add(path)
        raise DiskError(errno.ENOSPC if fault.kind is FaultKind.FULL else errno.EIO, path)

    # Changes

    def open(self, path: str) -> DiskFile:
        return FaultyFile(self, path, self._content(path))

    def create(self, path: str) -> DiskFile:
        self.meet_fault(Change.CREATE, path)
        self._remember_names()
        super().create(path)
        return self.open(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.meet_fault(Change.WRITE, path)
        self.refused_files.discard(path)
        self._remember_names()
        super().write_atomic(path, data)
        content = self._files[path]
        content.replaced = None  # the names are kept here
        self._unflushed.add(content)

    def remove(self, path: str) -> None:
        self.meet_fault(Change.REMOVE, path)
        if path in self._files:
            self._remember_names()
        super().remove(path)

    def rename(self, path: str, to: str) -> None:
        if self._is_renaming:  # a folder: its files go with it
            super().rename(path, to)
            return
        self.meet_fault(Change.RENAME, path)
        self._remember_names()
        self._is_renaming = True
        super().rename(path, to)
        self._is_renaming = False

    # Flushes, and losses of power

    def remember_size(self, content: _Content) -> None:
        data, flushed, lost_from = bytes(content.data), content.flushed, content.lost_from

        def undo() -> None:
            content.data[:] = data
            content.flushed, content.lost_from = flushed, lost_from

        self._undo.append(undo)

    def _remember_names(self) -> None:
        files = dict(self._files)
        directories = {path: set(names) for path, names in self._directories.items()}

        def undo() -> None:
            self._files, self._directories = files, directories

        self._undo.append(undo)

    def flush_names(self, path: str) -> None:  # noqa: ARG002 - the journal has the names of all
        self._undo.clear()
        self._unflushed.clear()

    def lose_unflushed(self, content: _Content) -> None:
        """A flush of this file has failed."""
        if content in self._unflushed:
            self._lost.add(content)

    def lose_power(self, random: Random | None = None) -> None:
        if random is not None and random.random() > NO_LOSS_CHANCE:
            kept = random.randint(0, len(self._undo))
            for undo in reversed(self._undo[kept:]):
                undo()
        self._undo.clear()
        self._unflushed.clear()
        contents = set(self._files.values())
        self.has_lost_bytes = any(each.lost_from is not None for each in contents)
        for content in contents & self._lost:
            self.has_lost_bytes = True
            content.data.clear()
        self._lost.clear()
        super().lose_power(random)


class FaultyFile(MemoryFile):
    @property
    def content(self) -> _Content:
        return self._content

    @property
    def _faulty(self) -> FaultyDisk:
        assert isinstance(self._disk, FaultyDisk)
        return self._disk

    def append(self, buffers: Sequence[Buffer]) -> int:
        try:
            self._faulty.meet_fault(Change.APPEND, self._path)
        except (DiedError, DiskError):
            data = b"".join(buffers)
            self._content.data[self.size :] = data[: len(data) // 2]
            raise
        return super().append(buffers)

    def truncate(self, size: int) -> None:
        self._faulty.meet_fault(Change.TRUNCATE, self._path)
        self._faulty.remember_size(self._content)
        super().truncate(size)

    def flush(self) -> None:
        disk = self._faulty
        try:
            disk.meet_fault(Change.FLUSH, self._path)
        except DiskError:
            disk.lose_unflushed(self._content)
            disk.fails_flushes = True
        try:
            super().flush()
        finally:
            disk.fails_flushes = False
