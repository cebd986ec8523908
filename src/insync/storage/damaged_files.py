"""Log files, or ends of them, that were taken out of use because they are damaged.

They stay beside the log as `*.log.damaged`, for the operator, and are deleted with the partition.
"""

from __future__ import annotations

import errno
from typing import Final

from insync.storage.disk import Disk, DiskFile
from insync.storage.errors import DiskError
from insync.storage.scan import WHOLE_WINDOW_BYTES

DAMAGED: Final = ".log.damaged"

KEPT_ASIDE_MAX: Final = 8
"""Of one segment; then the last of them is replaced."""


def copy_aside(disk: Disk, stem: str, file: DiskFile, position: int) -> None:
    """Copy what a log file has from `position` on."""
    aside = disk.create(name_aside(disk, stem))
    while data := file.read(position, WHOLE_WINDOW_BYTES):
        aside.append((data,))
        position += len(data)


def name_aside(disk: Disk, stem: str) -> str:
    """A name for damaged bytes: what was set aside before, perhaps the last copy, stays there."""
    first = stem + DAMAGED
    names = [first, *(f"{first}.{number}" for number in range(2, KEPT_ASIDE_MAX + 1))]
    return next((name for name in names if not _exists(disk, name)), names[-1])


def _exists(disk: Disk, path: str) -> bool:
    try:
        disk.file_size(path)
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
