"""Which replicas a data directory holds, noted outside their folders.

A folder that is gone says nothing of what was in it. So one small file per data directory names
each replica by topic, partition and topic id, with a high watermark: every record below it was
committed, and was in the log. A log that is missing, or ends below its noted watermark, has lost
committed records.

    0                                version
    3f2a9c01                         CRC-32 of the lines below, in hexadecimal
    TOPIC PARTITION TOPIC_ID HIGH_WATERMARK
"""

from __future__ import annotations

import errno
import logging
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from insync.storage.checkpoints import INT64_MAX, Partition
from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile, DiskError

HELD_REPLICAS: Final = "held-replicas-checkpoint"
VERSION: Final = "0"

logger = logging.getLogger(__name__)


class HeldReplica(NamedTuple):
    topic_id: UUID
    high_watermark: int


class HasEnd(Protocol):
    @property
    def end(self) -> int: ...


class HeldReplicas:
    """The notes of one data directory. Threads write them in turns.

    A noted high watermark is never above the end of an intact log: a truncation lowers it first.
    The note of a replica for which `is_kept` (it is damaged, or was not opened) stays as it is.
    """

    def __init__(self, disk: Disk, folder: str, *, is_kept: Callable[[Partition], bool]) -> None:
        self._disk = disk
        self._path = f"{folder}/{HELD_REPLICAS}"
        self._is_kept = is_kept
        self._writing = Lock()
        self._is_flushed = False
        self._ceilings: dict[Partition, int] = {}  # ends that truncations under way leave
        self.noted: dict[Partition, HeldReplica] = {}  # as on disk

    def read(self) -> None:
        try:
            self.noted = read_held(self._disk.read_all(self._path))
        except DiskError as error:
            # Without it a lost log would look like a new one: the disk may be readable later.
            if error.errno != errno.ENOENT:
                raise
        except CorruptFile as error:
            logger.warning("%s is not used: %s", self._path, error)

    def get(self, key: Partition) -> HeldReplica | None:
        return self.noted.get(key)

    def high_watermark_of(self, key: Partition, topic_id: UUID) -> int | None:
        """0 if the note is of another topic of that name; None if there is no note."""
        held = self.noted.get(key)
        if held is None:
            return None
        return held.high_watermark if held.topic_id == topic_id else 0

    def write(
        self,
        logs: Iterable[tuple[Partition, UUID, HasEnd]],
        high_watermark_of: Callable[[Partition], int | None],
        *,
        flush: bool,
    ) -> None:
        """Note these logs; one without a watermark (None) keeps the noted one."""
        with self._writing:
            noted = {key: held for key, held in self.noted.items() if self._is_kept(key)}
            for key, topic_id, log in logs:
                if key in noted:
                    continue
                ceiling = self._ceilings.get(key)  # before `end`, which the truncation lowers
                mark = high_watermark_of(key)
                if mark is None:
                    mark = self.high_watermark_of(key, topic_id) or 0
                mark = min(mark, log.end)
                noted[key] = HeldReplica(topic_id, mark if ceiling is None else min(mark, ceiling))
            self._replace(noted, flush=flush)

    def lower(self, key: Partition, end: int) -> None:
        """Note durably that the watermark is no higher than this."""
        with self._writing:
            self._lower(key, end)

    @contextmanager
    def lowered_before_truncation(self, key: Partition, end: int) -> Iterator[None]:
        """Lower the watermark to what the truncation leaves, until it is made and after it.

        Else a restart would take the truncation for damage.
        """
        with self._writing:
            self._ceilings[key] = end
            if not self._is_kept(key):
                try:
                    self._lower(key, end)
                except BaseException:
                    del self._ceilings[key]
                    raise
        try:
            yield
        finally:
            del self._ceilings[key]

    def _lower(self, key: Partition, end: int) -> None:
        held = self.noted.get(key)
        if held is not None and held.high_watermark > end:
            lowered = {**self.noted, key: held._replace(high_watermark=end)}
            self._replace(lowered, flush=True)

    def _replace(self, noted: dict[Partition, HeldReplica], *, flush: bool) -> None:
        if noted != self.noted:
            self._disk.write_atomic(self._path, write_held(noted))
            self.noted, self._is_flushed = noted, False
        if flush and noted and not self._is_flushed:
            self._disk.open(self._path).flush()
            self._is_flushed = True


def write_held(replicas: Mapping[Partition, HeldReplica]) -> bytes:
    body = "".join(
        f"{topic} {partition} {held.topic_id.hex} {held.high_watermark}\n"
        for (topic, partition), held in sorted(replicas.items())
    ).encode("ascii")
    return f"{VERSION}\n{crc32(body):08x}\n".encode("ascii") + body


def read_held(data: bytes) -> dict[Partition, HeldReplica]:
    version, _, rest = data.partition(b"\n")
    crc, _, body = rest.partition(b"\n")
    if version != VERSION.encode("ascii") or crc != f"{crc32(body):08x}".encode("ascii"):
        raise CorruptFile("held replicas of another version, or damaged")
    replicas = {}
    for line in body.decode("ascii").splitlines():
        topic, partition, topic_id, high_watermark = line.split(" ")
        assert int(high_watermark) <= INT64_MAX, "the CRC is right, so we wrote it"
        replicas[topic, int(partition)] = HeldReplica(UUID(hex=topic_id), int(high_watermark))
    return replicas
