"""What a data directory does in another thread than the loop's: flush, list, remove old files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

from insync.storage.checkpoints import Partition
from insync.storage.errors import DiskError, LogFailed, StorageRefusal
from insync.storage.log import Log
from insync.storage.offset_checkpoints import OffsetCheckpoints

logger = logging.getLogger(__name__)


class Upkeep:
    """Flushes the open logs, writes their inventories and removes their expired segments.

    - `_logs`: those that are open. The loop adds and removes some meanwhile.
    - `_working`: one thread at a time.
    - `_is_closed`: from then on the directory may be another process's, and nothing is written.
    """

    def __init__(self, logs: Mapping[Partition, Log], checkpoints: OffsetCheckpoints) -> None:
        self._logs = logs
        self._checkpoints = checkpoints
        self._working = Lock()
        self._is_closed = False

    def flush_due(self, now_ms: int) -> None:
        """Flush what waited long enough, and write how far logs need not be checked. Blocks.

        A log that fails stays as it is, and is reported when it is used.
        """
        try:
            self._flush_due(now_ms)
        finally:  # above all on a full disk
            self.remove_expired_segments()

    def _flush_due(self, now_ms: int) -> None:
        with self._working:
            if self._is_closed:
                return
            for log in list(self._logs.values()):
                try:
                    is_flushed = log.flush_if_due(now_ms)
                except StorageRefusal as refusal:
                    logger.warning("%s: not flushed: %s", log.path, refusal)
                    is_flushed = True  # as far as it is possible
                if is_flushed:
                    _write_inventory(log)
            self._write_recovery_points()

    def remove_expired_segments(self) -> None:
        """Remove the files of segments that retention took out of use. Blocks.

        What the disk refuses is tried again the next time.
        """
        for log in list(self._logs.values()):
            if not log.has_expired_files:
                continue
            with self._working:  # for one log at a time: a clean stop may wait for it
                if self._is_closed:
                    return
                try:
                    log.remove_expired_files()
                except DiskError as error:
                    if not log.has_failed:
                        logger.warning(
                            "%s: expired segments are not deleted: %s; trying again",
                            log.path,
                            error,
                        )

    def write_watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        with self._working:
            self._checkpoints.write_watermarks(watermarks)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Wait for what is under way, and let nothing else begin."""
        with self._working:
            self._is_closed = True
            yield

    def close_logs(self, write_clean_stop: Callable[[], None], failures: list[str]) -> list[str]:
        """Close every log. If nothing failed, let the next start believe it; return what failed."""
        for log in self._logs.values():
            try:
                log.close()
            except (DiskError, LogFailed) as error:
                failures.append(str(error))
        try:
            if not failures:
                self._write_recovery_points()
                write_clean_stop()
        except DiskError as error:
            failures.append(str(error))
        return failures

    def _write_recovery_points(self) -> None:
        points = {key: log.recovery_point for key, log in list(self._logs.items())}
        self._checkpoints.write_recovery_points(points)


def _write_inventory(log: Log) -> None:
    """List what is flushed; of a log that has failed, write only damage."""
    try:
        if log.has_failed:
            log.write_damage()
        else:
            log.write_inventory()
    except DiskError as error:
        if not log.has_failed:
            logger.warning("%s: segment-inventory is not written: %s", log.path, error)
