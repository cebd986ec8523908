"""A disk that delays and fails on demand, over any other disk.

One thread sets faults, and others read them: a tuple of them is never changed, only replaced.
While none is set, a call costs only one more call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock

from insync.storage.disk import Buffer, Disk, DiskFile, DiskLock
from insync.storage.errors import DiskError


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScope:
    """The files that a fault concerns: all, one topic's, or one partition's."""

    topic: str | None = None
    partition: int | None = None

    def includes(self, path: str) -> bool:
        if self.topic is None:
            return True
        number = r"\d+" if self.partition is None else str(self.partition)
        return re.search(rf"/{re.escape(self.topic)}-{number}(/[^/]*)?$", path) is not None


ALL_FILES = FaultScope()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReads:
    """Each read is delayed; waiting reads continue at once when the fault ends."""

    delay_ms: int
    scope: FaultScope = ALL_FILES
    is_over: Event = field(default_factory=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReads:
    errno: int
    scope: FaultScope = ALL_FILES


class FailedWrites:
    """Writes fail after so many more bytes.

    On a full disk files can still be removed, and writes that fit succeed. A broken one refuses
    every change from the first write that it refused.
    """

    def __init__(
        self,
        *,
        errno: int,
        after_bytes: int = 0,
        is_broken: bool = False,
        scope: FaultScope = ALL_FILES,
    ) -> None:
        self.errno = errno
        self.is_broken = is_broken
        self.scope = scope
        self._room_bytes = after_bytes
        self._lock = Lock()

    @property
    def room_bytes(self) -> int:
        return self._room_bytes

    def reserve_bytes(self, size: int) -> bool:
        """Whether these bytes still fit. A write succeeds whole or not at all."""
        with self._lock:
            if size > self._room_bytes:
                if self.is_broken:
                    self._room_bytes = 0
                return False
            self._room_bytes -= size
            return True


ReadFault = SlowReads | FailedReads


class DiskFaults:
    """The current faults of a disk."""

    def __init__(self) -> None:
        self.reads: tuple[ReadFault, ...] = ()
        self.writes: tuple[FailedWrites, ...] = ()

    def add(self, fault: ReadFault | FailedWrites) -> None:
        if isinstance(fault, FailedWrites):
            self.writes = (*self.writes, fault)
        else:
            self.reads = (*self.reads, fault)

    def heal(self) -> None:
        """End all faults; delayed reads continue at once."""
        reads, self.reads, self.writes = self.reads, (), ()
        for fault in reads:
            if isinstance(fault, SlowReads):
                fault.is_over.set()

    def would_block(self, path: str) -> bool:
        return any(isinstance(each, SlowReads) and each.scope.includes(path) for each in self.reads)

    def before_read(self, path: str) -> None:
        """Delay or fail as the faults say."""
        for fault in self.reads:
            if not fault.scope.includes(path):
                continue
            if isinstance(fault, SlowReads):
                fault.is_over.wait(fault.delay_ms / 1_000)
            else:
                raise DiskError(fault.errno, path)

    def before_write(self, path: str, size: int) -> None:
        for fault in self.writes:
            if fault.scope.includes(path) and not fault.reserve_bytes(size):
                raise DiskError(fault.errno, path)

    def before_change(self, path: str) -> None:
        """For a change that needs no space."""
        for fault in self.writes:
            if fault.is_broken and fault.room_bytes == 0 and fault.scope.includes(path):
                raise DiskError(fault.errno, path)


class FaultyFile:
    __slots__ = ("_faults", "_file", "_path")

    def __init__(self, file: DiskFile, path: str, faults: DiskFaults) -> None:
        self._file = file
        self._path = path
        self._faults = faults

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> int:
        if self._faults.writes:
            self._faults.before_write(self._path, sum(map(len, buffers)))
        return self._file.append(buffers)

    def read(self, position: int, size: int) -> Buffer:
        if self._faults.reads:
            self._faults.before_read(self._path)
        return self._file.read(position, size)

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        if self._faults.reads:
            if self._faults.would_block(self._path):
                return None
            self._faults.before_read(self._path)
        return self._file.read_nowait(position, size)

    def truncate(self, size: int) -> None:
        if self._faults.writes:
            self._faults.before_change(self._path)
        self._file.truncate(size)

    def flush(self) -> None:
        if self._faults.writes:
            self._faults.before_change(self._path)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    def __init__(self, disk: Disk, faults: DiskFaults) -> None:
        self._disk = disk
        self._faults = faults

    def open(self, path: str) -> FaultyFile:
        return FaultyFile(self._disk.open(path), path, self._faults)

    def create(self, path: str) -> FaultyFile:
        self._faults.before_change(path)
        return FaultyFile(self._disk.create(path), path, self._faults)

    def file_size(self, path: str) -> int:
        return self._disk.file_size(path)

    def read_all(self, path: str) -> bytes:
        self._faults.before_read(path)
        return self._disk.read_all(path)

    def read_tail(self, path: str, size: int) -> bytes:
        self._faults.before_read(path)
        return self._disk.read_tail(path, size)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._faults.before_write(path, len(data))
        self._disk.write_atomic(path, data)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def is_link(self, path: str) -> bool:
        return self._disk.is_link(path)

    def remove(self, path: str) -> None:
        self._change(path, self._disk.remove)

    def remove_tree(self, path: str) -> None:
        self._change(path, self._disk.remove_tree)

    def make_dirs(self, path: str) -> None:
        self._change(path, self._disk.make_dirs)

    def rename(self, path: str, to: str) -> None:
        self._faults.before_change(path)
        self._disk.rename(path, to)

    def _change(self, path: str, change: Callable[[str], None]) -> None:
        self._faults.before_change(path)
        change(path)

    def free_bytes(self, path: str) -> int:
        free = [each.room_bytes for each in self._faults.writes if each.scope.includes(path)]
        return min(self._disk.free_bytes(path), *free) if free else self._disk.free_bytes(path)

    def lock(self, path: str) -> DiskLock | None:
        return self._disk.lock(path)
