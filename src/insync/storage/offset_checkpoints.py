"""The checkpoints of high watermarks and recovery points, in Kafka's format.

They have no checksum, and names where topic ids are needed. What they say is limited by files that
have both: the replica checkpoint and the inventories.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock

from insync.storage.checkpoints import (
    RECOVERY_POINTS,
    WATERMARKS,
    Partition,
    read_offsets,
    write_offsets,
)
from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile, DiskError

logger = logging.getLogger(__name__)


class OffsetCheckpoints:
    """Both checkpoints of one data directory.

    - `_written` has what this process wrote last, by file name. A lock lets threads write in turns.
    - `_watermarks_at_start`: those that were there when the directory was opened, without those of
      logs that were created since.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._writing = Lock()
        self._written: dict[str, Mapping[Partition, int]] = {}
        self._watermarks_at_start: dict[Partition, int] = {}

    def read_at_start(self) -> dict[Partition, int]:
        """Read the watermarks, and return the recovery points."""
        self._watermarks_at_start = self.read_watermarks()
        return self._read(RECOVERY_POINTS)

    def read_watermarks(self) -> dict[Partition, int]:
        """Those last written; none of a file that cannot be read."""
        return self._read(WATERMARKS)

    def watermark_at_start(self, key: Partition) -> int:
        return self._watermarks_at_start.get(key, 0)

    def forget_watermark(self, key: Partition) -> int:
        """A new log has no watermark: that of an earlier namesake would make it look damaged."""
        known = dict(self._written.get(WATERMARKS, self._watermarks_at_start))
        self._watermarks_at_start.pop(key, None)
        watermark = known.pop(key, None)
        if watermark is not None:
            self.write_watermarks(known)
        return watermark or 0

    def write_watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        self._write(WATERMARKS, watermarks)

    def write_recovery_points(self, points: Mapping[Partition, int]) -> None:
        self._write(RECOVERY_POINTS, points)

    def _write(self, name: str, offsets: Mapping[Partition, int]) -> None:
        """Write them if they changed."""
        with self._writing:
            if self._written.get(name) != offsets:
                self._disk.write_atomic(f"{self._path}/{name}", write_offsets(offsets))
                self._written[name] = offsets

    def _read(self, name: str) -> dict[Partition, int]:
        try:
            return read_offsets(self._disk.read_all(f"{self._path}/{name}"))
        except DiskError:
            return {}
        except CorruptFile as error:
            logger.warning("%s/%s: ignored: %s", self._path, name, error)
            return {}
