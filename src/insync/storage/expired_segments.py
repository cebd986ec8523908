"""Segments that retention took out of use and whose files are still on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from insync.storage.disk import Disk
from insync.storage.producer_snapshots import snapshot_path
from insync.storage.segment import Segment


class ExpiredSegments:
    """The expired segments of one log, the oldest first.

    They are removed in this order, and none after one that the disk refuses, so that what a restart
    finds has no gap. `_segments` is replaced, never changed: a thread keeps the list that it saw.
    The callers of `add` and `remove...` have the lock `files.changing`.
    """

    __slots__ = ("_disk", "_path", "_segments")

    def __init__(self, disk: Disk, path: str, segments: Sequence[Segment]) -> None:
        self._disk = disk
        self._path = path
        self._segments = list(segments)

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, segments: Iterable[Segment]) -> None:
        self._segments = [*self._segments, *segments]

    def remove_oldest(self, *, below: int | None) -> bool:
        """Remove the files of the oldest; False if there is none that ends at or before `below`."""
        if not self._segments or (below is not None and self._segments[0].end > below):
            return False
        oldest = self._segments[0]
        oldest.remove()
        self._disk.remove(snapshot_path(self._path, oldest.base))
        self._segments = self._segments[1:]
        return True

    def remove_all(self) -> None:
        while self.remove_oldest(below=None):
            pass

    def release(self) -> None:
        """Release files and memory, writing nothing."""
        for segment in self._segments:
            segment.release()
            segment.unload()
