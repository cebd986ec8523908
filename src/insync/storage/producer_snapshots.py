"""The producers of a log, kept in a snapshot where a segment begins or a clean stop ended.

Without a usable snapshot they are learned again from the batches since the last one.
"""

from __future__ import annotations

from typing import Final

from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile, DiskError
from insync.storage.producers import Producers
from insync.storage.segment import Segment, file_stem

SNAPSHOT: Final = ".snapshot"


def producers_at(
    disk: Disk, path: str, segments: list[Segment], number: int, *, now_ms: int
) -> Producers:
    """The producers as they were when a segment began: from the nearest snapshot before it."""
    first = number
    while (producers := _snapshot(disk, path, segments, first)) is None:
        first -= 1
    for segment in segments[first:number]:
        learn_producers(producers, segment, now_ms=now_ms)
    return producers


def learn_producers(
    producers: Producers, segment: Segment, *, now_ms: int, until: int | None = None
) -> None:
    for batch in segment.sound_batches(until=until):
        producers.update(batch.header, base_offset=batch.header.base_offset, now_ms=now_ms)


def _snapshot(disk: Disk, path: str, segments: list[Segment], number: int) -> Producers | None:
    try:
        return Producers.from_bytes(disk.read_all(snapshot_path(path, segments[number].base)))
    except (CorruptFile, DiskError):
        if number == 0:
            return Producers()
    before = segments[number - 1]
    if not before.is_summarised:
        before.read_seal()
    return Producers() if before.summary.producers == 0 else None


def snapshot_path(path: str, offset: int) -> str:
    return file_stem(path, offset) + SNAPSHOT


def sealed_producers(disk: Disk, path: str, segments: list[Segment], now_ms: int) -> Producers:
    """The producers at the end of a log whose last segment is sealed."""
    last = segments[-1]
    if last.size and last.summary.producers == 0:
        return Producers()
    try:
        return Producers.from_bytes(disk.read_all(snapshot_path(path, last.end)))
    except (CorruptFile, DiskError):
        producers = producers_at(disk, path, segments, len(segments) - 1, now_ms=now_ms)
        learn_producers(producers, last, now_ms=now_ms)
        return producers
