"""Which replicas a data directory has, written outside their folders.

A folder that is gone says nothing of what was in it. So one small file per data directory names
each replica by topic, partition and topic id, with a high watermark: every record below it was
committed, and was in the log. A log that is missing, or ends below that watermark, has lost
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

REPLICA_CHECKPOINT: Final = "held-replicas-checkpoint"
VERSION: Final = "0"

logger = logging.getLogger(__name__)


class CheckpointedReplica(NamedTuple):
    topic_id: UUID
    high_watermark: int


class HasEnd(Protocol):
    @property
    def end(self) -> int: ...


class ReplicaCheckpoint:
    """The checkpoint of one data directory. Threads write it in turns.

    - `replicas` is what is on disk. A high watermark in it is never above the end of an intact log:
      a truncation lowers it first. A replica for which `is_kept` (it is damaged, or was not opened)
      stays as it is.
    - `_ceilings`: the ends that truncations under way leave.
    - `_is_flushed`: what is on disk would survive a loss of power.
    """

    def __init__(self, disk: Disk, folder: str, *, is_kept: Callable[[Partition], bool]) -> None:
        self._disk = disk
        self._path = f"{folder}/{REPLICA_CHECKPOINT}"
        self._is_kept = is_kept
        self._writing = Lock()
        self._is_flushed = False
        self._ceilings: dict[Partition, int] = {}
        self.replicas: dict[Partition, CheckpointedReplica] = {}

    def read(self) -> None:
        try:
            self.replicas = read_replicas(self._disk.read_all(self._path))
        except DiskError as error:
            # Without it a lost log would look like a new one: the disk may be readable later.
            if error.errno != errno.ENOENT:
                raise
        except CorruptFile as error:
            logger.warning("%s is not used: %s", self._path, error)

    def get(self, key: Partition) -> CheckpointedReplica | None:
        return self.replicas.get(key)

    def high_watermark_of(self, key: Partition, topic_id: UUID, *, default: int) -> int:
        """0 if the checkpoint has another topic of that name; `default` if it has none.

        Directories of earlier versions have no checkpoint.
        """
        replica = self.replicas.get(key)
        if replica is None:
            return default
        return replica.high_watermark if replica.topic_id == topic_id else 0

    def write(
        self,
        logs: Iterable[tuple[Partition, UUID, HasEnd]],
        high_watermark_of: Callable[[Partition], int | None],
        *,
        flush: bool,
    ) -> None:
        """Write these logs; one without a watermark (None) keeps the one that it has here."""
        with self._writing:
            replicas = {key: each for key, each in self.replicas.items() if self._is_kept(key)}
            for key, topic_id, log in logs:
                if key in replicas:
                    continue
                ceiling = self._ceilings.get(key)  # before `end`, which the truncation lowers
                mark = high_watermark_of(key)
                if mark is None:
                    mark = self.high_watermark_of(key, topic_id, default=0)
                mark = min(mark, log.end)
                mark = mark if ceiling is None else min(mark, ceiling)
                replicas[key] = CheckpointedReplica(topic_id, mark)
            self._replace(replicas, flush=flush)

    def lower(self, key: Partition, end: int) -> None:
        """Write durably that the watermark is no higher than this."""
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
        replica = self.replicas.get(key)
        if replica is not None and replica.high_watermark > end:
            lowered = {**self.replicas, key: replica._replace(high_watermark=end)}
            self._replace(lowered, flush=True)

    def _replace(self, replicas: dict[Partition, CheckpointedReplica], *, flush: bool) -> None:
        if replicas != self.replicas:
            self._disk.write_atomic(self._path, write_replicas(replicas))
            self.replicas, self._is_flushed = replicas, False
        if flush and replicas and not self._is_flushed:
            self._disk.open(self._path).flush()
            self._is_flushed = True


def write_replicas(replicas: Mapping[Partition, CheckpointedReplica]) -> bytes:
    body = "".join(
        f"{topic} {partition} {replica.topic_id.hex} {replica.high_watermark}\n"
        for (topic, partition), replica in sorted(replicas.items())
    ).encode("ascii")
    return f"{VERSION}\n{crc32(body):08x}\n".encode("ascii") + body


def read_replicas(data: bytes) -> dict[Partition, CheckpointedReplica]:
    version, _, rest = data.partition(b"\n")
    crc, _, body = rest.partition(b"\n")
    if version != VERSION.encode("ascii") or crc != f"{crc32(body):08x}".encode("ascii"):
        raise CorruptFile("a replica checkpoint of another version, or damaged")
    replicas = {}
    for line in body.decode("ascii").splitlines():
        topic, partition, topic_id, high_watermark = line.split(" ")
        assert int(high_watermark) <= INT64_MAX, "the CRC is right, so we wrote it"
        replicas[topic, int(partition)] = CheckpointedReplica(
            UUID(hex=topic_id), int(high_watermark)
        )
    return replicas
