"""What storage refuses. A message says what to change; our own mistakes are `assert`s."""

from __future__ import annotations

import os
from errno import ELOOP

from insync.rules.refusals import Refusal


class StorageRefusal(Refusal):
    """An operation on the log files that cannot be done."""


class DiskError(StorageRefusal):
    """The disk failed or is full; `errno` says which."""

    def __init__(self, errno: int, path: str) -> None:
        advice = "check the disk, its space and its rights"
        if errno == ELOOP:
            advice = "log files are not opened through symbolic links; put the file itself there"
        super().__init__(f"{path}: {os.strerror(errno)}; {advice}")
        self.errno = errno
        self.path = path


class LogFailed(StorageRefusal):
    """An earlier failure left this log in a state only a restart can judge."""


class CorruptFile(StorageRefusal):
    """A checkpoint, snapshot or index that cannot be read."""


class OffsetOutOfOrder(StorageRefusal):
    """A replicated batch that does not begin where the log ends."""


class EpochWentBack(StorageRefusal):
    """A replicated batch of an older leader epoch than the records before it."""


class OffsetOutOfRange(StorageRefusal):
    """An offset that the log does not have (any more, or yet)."""


class OffsetOverflow(StorageRefusal):
    """Batches whose offsets reach beyond what the log, or one segment's index, can have."""


class OutOfOrderSequence(StorageRefusal):
    """An idempotent producer skipped a batch, or repeats one too old to be remembered."""


class ProducerFenced(StorageRefusal):
    """A newer epoch of this producer has written (INVALID_PRODUCER_EPOCH on the wire)."""


class BadLogName(StorageRefusal):
    """A topic name that cannot be a directory of its own."""


class WrongDirectory(StorageRefusal):
    """A data directory that belongs to another cluster or broker."""


class DirectoryInUse(StorageRefusal):
    """A data directory that another process uses."""


class DirectoryNotWritable(StorageRefusal):
    """A data directory in which nothing can be written."""
