"""Which files and indexes stay open: the lately used ones, and no more.

Nothing here closes a file. The pool forgets it, and the last reader that lets go closes it:
a read in another thread never meets a descriptor that was closed, or worse, reused.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import Final, Protocol

from insync.storage.disk import Disk, DiskFile

FILES_OPEN_MAX: Final = 512
"""Half of the usual limit of 1024 descriptors: the other half is for connections."""

INDEXES_LOADED_MAX: Final = 16
"""Sealed segments whose indexes stay in memory: up to 5 MB each at 1 GiB a segment."""


class Loaded(Protocol):
    def unload(self) -> None: ...


class FilePool:
    """The open files and loaded indexes of all logs in one data directory."""

    __slots__ = ("_files", "_files_max", "_loaded", "_updating", "changing", "disk", "loading")

    def __init__(self, disk: Disk, *, files_max: int = FILES_OPEN_MAX) -> None:
        self.disk = disk
        self.loading = Lock()  # an index is loaded by one thread at a time
        self.changing = Lock()  # while records of a log are removed, or its inventory is written
        self._updating = Lock()  # for a moment, never while anything is read
        self._files_max = files_max
        self._files: OrderedDict[str, DiskFile] = OrderedDict()
        self._loaded: OrderedDict[Loaded, None] = OrderedDict()

    def get(self, path: str) -> DiskFile:
        file = self._files.get(path)
        if file is None:
            return self._keep_open(path, self.disk.open(path))
        with suppress(KeyError):  # another thread may just have made room; we have the file
            self._files.move_to_end(path)
        return file

    def create(self, path: str) -> DiskFile:
        return self._keep_open(path, self.disk.create(path))

    def _keep_open(self, path: str, file: DiskFile) -> DiskFile:
        self._files[path] = file
        while len(self._files) > self._files_max:
            self._files.popitem(last=False)
        return file

    def flush(self, path: str) -> None:
        """Flush a file, which does not stay open. Blocks, so it runs in another thread: an open
        file could take the place of a new one of the same name.
        """
        (self._files.get(path) or self.disk.open(path)).flush()

    def forget(self, path: str) -> None:
        self._files.pop(path, None)

    def keep_loaded(self, segment: Loaded) -> None:
        """Count a sealed segment's index as in memory; the longest unused one goes."""
        with self._updating:
            self._loaded[segment] = None
            self._loaded.move_to_end(segment)
            while len(self._loaded) > INDEXES_LOADED_MAX:
                self._loaded.popitem(last=False)[0].unload()

    def forget_loaded(self, segment: Loaded) -> None:
        with self._updating:
            self._loaded.pop(segment, None)

    @property
    def open_count(self) -> int:
        return len(self._files)
