"""Opening a log: what its files say after a clean stop, what its batches say after any other.

After a clean stop the last segment's seal tells all there is to know and no log is read. After a
crash the batches are the truth. The last segment is read through, CRCs are checked from the
recovery point on, and the log ends before the first batch that is not whole and right; indexes,
epochs and producers follow from what is kept. Earlier segments were complete when the next was
begun, so a seal that fits is believed; one without is read through as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from insync.rules.epochs import EpochHistory
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.checkpoints import (
    EPOCHS,
    INT64_MAX,
    LOG_START,
    read_epochs,
    read_offset,
    write_offset,
)
from insync.storage.config import LogConfig
from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile, DiskError
from insync.storage.files import FilePool
from insync.storage.producers import Producers
from insync.storage.segment import LOG, Segment, file_stem
from insync.wire.batches import BatchHeader

SNAPSHOT: Final = ".snapshot"

_SEGMENT = re.compile(r"(\d{20})\.log")
_LEFT_OVER = re.compile(r"(\d{20})\.(?:index|timeindex|snapshot)(\.tmp)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A log as found on disk."""

    segments: list[Segment]  # never empty
    start: int
    epochs: EpochHistory
    stored_epochs: EpochHistory  # as its checkpoint has them
    producers: Producers


def open_log(
    files: FilePool,
    path: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
) -> Opened:
    files.disk.make_dirs(path)
    names = files.disk.list(path)
    segments = _find_segments(files, path, names, config, now_ms)
    if not clean:
        _drop_after_damage(segments)
    last = segments[-1]
    start = _read_start(files.disk, path, names, segments[0].base)
    epochs = stored_epochs = _read_epochs(files.disk, path, names)
    if last.size == 0 or (clean and last.read_seal()):
        epochs = epochs.cut_end(Offset(last.end))
        if not epochs.entries:
            epochs = epochs_of(segments)
        producers = _sealed_producers(files.disk, path, segments, now_ms)
    else:
        epochs = epochs.cut_end(Offset(last.base))
        if not epochs.entries:
            epochs = epochs_of(segments[:-1])
        producers = producers_at(files.disk, path, segments, len(segments) - 1, now_ms=now_ms)
        epochs = _recover_last(last, epochs, producers, now_ms=now_ms, check_from=recovery_point)
    if last.size == 0:
        last.start_anew(now_ms)
    if start > last.end:
        # What was deleted is also lost: offsets up to the old start will be given out again.
        start = last.end
        files.disk.write_atomic(f"{path}/{LOG_START}", write_offset(start))
    _sweep(files.disk, path, names, segments)
    return Opened(
        segments=segments,
        start=start,
        epochs=epochs.cut_start(Offset(start)),
        stored_epochs=stored_epochs,
        producers=producers,
    )


def with_epoch(history: EpochHistory, epoch: int, start: int) -> EpochHistory | None:
    """The history once a batch of `epoch` lies at `start`; None if that is impossible."""
    if epoch == history.latest or epoch < 0:
        return history
    if history.latest is not None and epoch < history.latest:
        # A leader notes its epoch before it writes. If it wrote nothing, an older epoch's
        # records may still come to lie there.
        history = history.cut_end(Offset(start))
        if history.latest is not None and epoch <= history.latest:
            return history if epoch == history.latest else None
    return history.assign(LeaderEpoch(epoch), Offset(start))


def epochs_of(segments: list[Segment]) -> EpochHistory:
    """The epochs as the batches tell them: for a log whose checkpoint is lost."""
    history = EpochHistory()
    for segment in segments:
        for found in segment.sound_batches():
            history = (
                with_epoch(history, found.header.leader_epoch, found.header.base_offset) or history
            )
    return history


def producers_at(
    disk: Disk, path: str, segments: list[Segment], number: int, *, now_ms: int
) -> Producers:
    """The producers as they were when a segment began: from the nearest snapshot before it."""
    first = number
    while (producers := _snapshot(disk, path, segments, first)) is None:
        first -= 1
    for segment in segments[first:number]:
        note_producers(producers, segment, now_ms=now_ms)
    return producers


def note_producers(
    producers: Producers, segment: Segment, *, now_ms: int, until: int | None = None
) -> None:
    for found in segment.sound_batches(until=until):
        producers.note(found.header, base_offset=found.header.base_offset, now_ms=now_ms)


def _snapshot(disk: Disk, path: str, segments: list[Segment], number: int) -> Producers | None:
    try:
        return Producers.from_bytes(disk.read_all(snapshot_path(path, segments[number].base)))
    except (CorruptFile, DiskError):
        if number == 0:
            return Producers()
    before = segments[number - 1]
    if not before.is_summarised:
        before.read_seal()
    return Producers() if before.producers == 0 else None


def snapshot_path(path: str, offset: int) -> str:
    return file_stem(path, offset) + SNAPSHOT


def _sealed_producers(disk: Disk, path: str, segments: list[Segment], now_ms: int) -> Producers:
    last = segments[-1]
    if last.size and last.producers == 0:
        return Producers()
    try:
        return Producers.from_bytes(disk.read_all(snapshot_path(path, last.end)))
    except (CorruptFile, DiskError):
        producers = producers_at(disk, path, segments, len(segments) - 1, now_ms=now_ms)
        note_producers(producers, last, now_ms=now_ms)
        return producers


def _find_segments(
    files: FilePool, path: str, names: list[str], config: LogConfig, now_ms: int
) -> list[Segment]:
    bases = [int(found[1]) for name in names if (found := _SEGMENT.fullmatch(name))]
    bases = [base for base in bases if base <= INT64_MAX]
    interval_bytes = config.index_interval_bytes
    if not bases:
        return [Segment.create(files, path, 0, interval_bytes=interval_bytes, now_ms=now_ms)]
    segments = []
    for base, end in zip(bases, [*bases[1:], bases[-1]], strict=True):
        stem = file_stem(path, base)
        size = files.disk.file_size(stem + LOG)
        segment = Segment(files, stem, base, end=end, size=size, interval_bytes=interval_bytes)
        segments.append(segment)
    return segments


def _drop_after_damage(segments: list[Segment]) -> None:
    """End the log at the first segment that does not reach the next one."""
    for number, (segment, following) in enumerate(pairwise(segments)):
        if segment.read_seal() and segment.end == following.base:
            continue
        segment.recover(lambda _: True, check_from=segment.base)
        if segment.end != following.base:
            for later in reversed(segments[number + 1 :]):
                later.remove()
            del segments[number + 1 :]
            return
        segment.unload()


def _recover_last(
    last: Segment, epochs: EpochHistory, producers: Producers, *, now_ms: int, check_from: int
) -> EpochHistory:
    history = epochs

    def accept(header: BatchHeader) -> bool:
        nonlocal history
        longer = with_epoch(history, header.leader_epoch, header.base_offset)
        if longer is None:
            return False
        history = longer
        producers.note(header, base_offset=header.base_offset, now_ms=now_ms)
        return True

    last.recover(accept, check_from=check_from)
    return history


def _read_start(disk: Disk, path: str, names: list[str], first_base: int) -> int:
    if LOG_START not in names:
        return first_base
    try:
        return max(first_base, read_offset(disk.read_all(f"{path}/{LOG_START}")))
    except CorruptFile:
        return first_base


def _read_epochs(disk: Disk, path: str, names: list[str]) -> EpochHistory:
    if EPOCHS not in names:
        return EpochHistory()
    try:
        return read_epochs(disk.read_all(f"{path}/{EPOCHS}"))
    except CorruptFile:
        return EpochHistory()


def _sweep(disk: Disk, path: str, names: list[str], segments: list[Segment]) -> None:
    """Remove what an interrupted step left behind; files that are not ours stay."""
    bases = {segment.base for segment in segments}
    for name in names:
        found = _LEFT_OVER.fullmatch(name)
        # The last clean stop left a snapshot of the end, still true while nothing was appended.
        kept = bases | {segments[-1].end} if name.endswith(SNAPSHOT) else bases
        if found and (found[2] or int(found[1]) not in kept):
            disk.remove(f"{path}/{name}")
