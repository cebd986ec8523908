"""Stray logs: complete logs that the metadata store does not assign to this broker.

Their topic was deleted or moved away while the broker was down, or the store went back to a time
before the topic. The two look the same, so a stray is kept: renamed, never opened, and deleted when
`log.stray.retention.ms` is over or by an operator.

The name, `TOPIC-PARTITION.TIME-stray`, says when the log was set aside, in milliseconds of the wall
clock. The topic's id stays in `partition.metadata`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from insync.storage.checkpoints import Partition
from insync.storage.directory import LogDirectory
from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile, DiskError, StorageRefusal
from insync.storage.log_names import DELETED, STRAY_NAME
from insync.storage.partition_metadata import TOPIC_ID, read_topic_id

NEVER_MS: Final = -1

logger = logging.getLogger(__name__)


class NoSuchStray(StorageRefusal):
    """No stray log has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    name: str
    topic: str  # its beginning if it is very long
    partition: int
    set_aside_ms: int  # of the wall clock
    topic_id: UUID | None  # None: it cannot be read
    size_bytes: int


def find_strays(disk: Disk, path: str) -> list[Stray]:
    """The stray logs of a data directory, sorted by name. Needs no lock: no broker opens them."""
    strays = []
    for name in disk.list(path):
        match = STRAY_NAME.fullmatch(name)
        if match is not None:
            strays.append(
                Stray(
                    name=name,
                    topic=match[1],
                    partition=int(match[2]),
                    set_aside_ms=int(match[3]),
                    topic_id=_topic_id(disk, f"{path}/{name}"),
                    size_bytes=_size_bytes(disk, f"{path}/{name}"),
                )
            )
    return strays


def delete_stray(disk: Disk, path: str, name: str) -> None:
    """Remove a stray log for good."""
    if STRAY_NAME.fullmatch(name) is None or name not in disk.list(path):
        raise NoSuchStray(f"{path} has no stray log {name!r}; list them without --delete")
    # Renamed first: a broker that starts meanwhile brings back all of it or nothing, and removes
    # what this process may leave behind.
    doomed = f"{path}/{name}{DELETED}"
    disk.rename(f"{path}/{name}", doomed)
    disk.remove_tree(doomed)


def delete_expired_strays(disk: Disk, path: str, *, retention_ms: int, now_ms: int) -> None:
    """Remove the strays that were set aside longer ago than this. Blocks."""
    if retention_ms == NEVER_MS:
        return
    for stray in find_strays(disk, path):
        age_ms = now_ms - stray.set_aside_ms
        if age_ms > retention_ms:
            delete_stray(disk, path, stray.name)
            logger.info(
                "%s: deleted the stray log, %d bytes; it was set aside %d ms ago and"
                " log.stray.retention.ms is %d",
                stray.name,
                stray.size_bytes,
                age_ms,
                retention_ms,
            )


def bring_back_strays(
    directory: LogDirectory, disk: Disk, assigned: Mapping[Partition, UUID], *, now_ms: int
) -> None:
    """Use strays again whose topic id and partition the store assigns to this broker now.

    Of several, the one set aside last, and none if there is a log. The log is recovered in full,
    and its replica is what it would be if the broker had been down since.
    """
    partitions = {(topic_id, key[1]): key for key, topic_id in assigned.items()}
    strays = find_strays(disk, directory.path)
    for stray in sorted(strays, key=lambda each: -each.set_aside_ms):
        if stray.topic_id is None:
            continue
        key = partitions.get((stray.topic_id, stray.partition))
        if key is None or directory.topic_id_of(key) == stray.topic_id:
            continue
        if key in directory.unopened:
            continue  # what is in the place of the log may be newer
        try:
            log = directory.bring_back(stray.name, key, topic_id=stray.topic_id, now_ms=now_ms)
        except StorageRefusal as refusal:
            logger.warning("%s-%d: cannot bring %s back: %s", *key, stray.name, refusal)
            directory.count_as_damaged(key, f"{stray.name} cannot be brought back: {refusal}")
            del partitions[stray.topic_id, stray.partition]  # earlier ones lack what it has
            continue
        logger.warning(
            "%s-%d: brought the stray log %s back, because the metadata store assigns topic id %s"
            " to this broker again; %d bytes, log end offset %d",
            *key,
            stray.name,
            stray.topic_id,
            stray.size_bytes,
            log.end,
        )


def _topic_id(disk: Disk, path: str) -> UUID | None:
    try:
        return read_topic_id(disk.read_all(f"{path}/{TOPIC_ID}"))
    except (CorruptFile, DiskError):
        return None


def _size_bytes(disk: Disk, path: str) -> int:
    try:
        return sum(disk.file_size(f"{path}/{name}") for name in disk.list(path))
    except DiskError:
        return 0  # removed meanwhile, or not a folder
