"""Opening a log: what its files say after a clean stop, what its batches say after any other.

At every start each segment is compared with the log's inventory and with its neighbours, by size
and by its first batch. A segment that the inventory does not have yet needs a seal that fits; one
without is read through. After a clean stop the last segment's seal tells the rest, and no log is
read. After any other stop the last segment is read through and CRCs are checked from the recovery
point on, also in earlier segments; indexes, epochs and producers follow from what is kept.

What is not as it should be is set aside, and the log may be damaged (`segment_check`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from insync.rules.epochs import EpochHistory
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.checkpoints import (
    EPOCHS,
    INT64_MAX,
    LOG_START,
    read_epochs,
    read_offset,
)
from insync.storage.config import LogConfig
from insync.storage.disk import Disk
from insync.storage.errors import CorruptFile
from insync.storage.files import FilePool
from insync.storage.inventory import (
    INVENTORY,
    UNKNOWN,
    Damage,
    Inventory,
    epochs_checksum,
    read_inventory,
)
from insync.storage.inventory_file import InventoryFile
from insync.storage.producer_snapshots import SNAPSHOT, producers_at, sealed_producers
from insync.storage.producers import Producers
from insync.storage.segment import LOG, Segment, file_stem
from insync.storage.segment_check import DamageWriter, SegmentCheck
from insync.wire.batches import BatchHeader

logger = logging.getLogger(__name__)

_SEGMENT = re.compile(r"(\d{20})\.log")
_LEFT_OVER = re.compile(r"(\d{20})\.(?:index|timeindex|snapshot)(\.tmp)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A log as it was on disk."""

    segments: list[Segment]  # never empty
    start: int
    epochs: EpochHistory
    stored_epochs: EpochHistory  # as its checkpoint has them
    producers: Producers
    inventory: InventoryFile
    damage: Damage | None
    expired: list[Segment]  # wholly below the start: retention was about to remove them
    has_start_file: bool  # which earlier versions wrote
    recovery_point: int  # no more than is listed as flushed


def open_log(
    files: FilePool,
    path: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    high_watermark: int,
    identity: str,
) -> Opened:
    """Open the log in this folder, which is made if it is not there.

    A last segment that ends below `high_watermark` is checked with every CRC: damage seldom keeps
    to one batch. Whether the log is damaged because of it is for the caller to decide.
    """
    disk = files.disk
    disk.make_dirs(path)
    names = disk.list(path)
    inventory = _read_inventory(disk, path, names)
    foreign: Inventory | None = None
    if inventory is not None and inventory.identity != identity:
        inventory, foreign = None, inventory
    elif inventory is not None:
        # The recovery points' checkpoint may be older than a truncation; the inventory is not.
        recovery_point = min(recovery_point, inventory.end)
    base = 0 if inventory is None else inventory.start
    on_disk = _find_segments(files, path, names, config, now_ms=now_ms, base_if_empty=base)
    expired, segments = _split_at_start(on_disk, inventory)
    if not segments:  # the live ones are gone
        segments.append(_new_segment(files, path, config, base, now_ms=now_ms))
    start = _read_start(disk, path, names, segments[0].base, inventory)
    inventory_file = InventoryFile(disk, path, inventory)
    damage_writer = DamageWriter(inventory_file, Inventory(identity=identity, start=start))
    check = SegmentCheck(
        segments, inventory, damage_writer, clean=clean, recovery_point=recovery_point
    )
    check.check_complete_segments()
    is_head_sound = check.check_last_head()
    stored_epochs = _read_epochs(disk, path, names)
    heads = {base: head for base, head in check.heads.items() if base >= start}
    last = segments[-1]
    is_sealed = last.size == 0 or (clean and is_head_sound and last.read_seal())
    known = _known_epochs(stored_epochs, inventory, heads, end=last.end, clean=clean)
    if is_sealed:
        epochs = _read_epochs_after(known, segments, until=last.end)
        producers = sealed_producers(disk, path, segments, now_ms)
    else:
        batches = _LastBatches(disk, path, segments, known, now_ms=now_ms)
        epochs, producers = batches.recover(
            check_from=last.base if clean else recovery_point,
            expected_end=max(high_watermark, 0 if inventory is None else inventory.end),
            before_truncation=check.write_damage_of_last,
        )
    if last.size == 0:
        last.start_anew(now_ms)
    damage = check.find_damage(path)
    if foreign is not None:
        damage = _damage_of_foreign(path, identity, foreign, end=last.end).joined_with(damage)
    # What was deleted may also be lost. Then offsets up to the old start are assigned again.
    start = min(start, last.end)
    _remove_left_overs(disk, path, names, segments)
    return Opened(
        segments=segments,
        start=start,
        epochs=epochs.truncate_start(Offset(start)),
        stored_epochs=stored_epochs,
        producers=producers,
        inventory=inventory_file,
        damage=damage,
        expired=expired,
        has_start_file=LOG_START in names,
        recovery_point=recovery_point,
    )


def _damage_of_foreign(path: str, identity: str, foreign: Inventory, *, end: int) -> Damage:
    """Of a log whose inventory is another log's."""
    reason = f"its topic id is of {identity}, its segment inventory of {foreign.identity}"
    logger.error("%s: damaged: %s", path, reason)
    return Damage(reason=reason, up_to=end)


def with_epoch(history: EpochHistory, epoch: int, start: int) -> EpochHistory | None:
    """The history once a batch of `epoch` lies at `start`; None if that is impossible."""
    if epoch == history.latest or epoch < 0:
        return history
    if history.latest is not None and epoch < history.latest:
        # A leader's epoch is stored before it writes. If it wrote nothing, an older epoch's
        # records may still come to lie there.
        history = history.truncate_end(Offset(start))
        if history.latest is not None and epoch <= history.latest:
            return history if epoch == history.latest else None
    return history.assign(LeaderEpoch(epoch), Offset(start))


def _new_segment(
    files: FilePool, path: str, config: LogConfig, base: int, *, now_ms: int
) -> Segment:
    interval_bytes = config.index_interval_bytes
    return Segment.create(files, path, base, interval_bytes=interval_bytes, now_ms=now_ms)


def _find_segments(
    files: FilePool,
    path: str,
    names: list[str],
    config: LogConfig,
    *,
    now_ms: int,
    base_if_empty: int,
) -> list[Segment]:
    bases = [int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name))]
    bases = [base for base in bases if base <= INT64_MAX]
    interval_bytes = config.index_interval_bytes
    if not bases:
        return [_new_segment(files, path, config, base_if_empty, now_ms=now_ms)]
    segments = []
    for base, end in zip(bases, [*bases[1:], bases[-1]], strict=True):
        stem = file_stem(path, base)
        size = files.disk.file_size(stem + LOG)
        segment = Segment(files, stem, base, end=end, size=size, interval_bytes=interval_bytes)
        segments.append(segment)
    return segments


def _split_at_start(
    segments: list[Segment], inventory: Inventory | None
) -> tuple[list[Segment], list[Segment]]:
    """The segments wholly below the listed start of the log, and the others."""
    if inventory is None:
        return [], segments
    if inventory.segments:
        count = sum(segment.base < inventory.segments[0].base for segment in segments)
    else:
        count = sum(following.base <= inventory.start for following in segments[1:])
    return segments[:count], segments[count:]


@dataclass(frozen=True, slots=True)
class _KnownEpochs:
    """The epochs of the records below an offset."""

    history: EpochHistory
    up_to: int


def _known_epochs(
    stored: EpochHistory,
    inventory: Inventory | None,
    heads: dict[int, BatchHeader],
    *,
    end: int,
    clean: bool,
) -> _KnownEpochs:
    """How far the checkpoint of the epochs is believed. From there on the batch headers count.

    It is believed as far as the inventory has its checksum. Without an inventory it is believed
    after a clean stop, if it agrees with the first batch of every segment.
    """
    if inventory is not None and inventory.segments:
        is_known = inventory.epochs == epochs_checksum(
            stored, start=inventory.start, end=inventory.end
        )
        up_to = inventory.end if is_known else 0
    else:
        is_known = clean and all(
            head.leader_epoch in (UNKNOWN, stored.epoch_at(Offset(base)))
            for base, head in heads.items()
        )
        up_to = end if is_known else 0
    return _KnownEpochs(stored.truncate_end(Offset(up_to)), up_to)


def _read_epochs_after(known: _KnownEpochs, segments: list[Segment], *, until: int) -> EpochHistory:
    """The epochs of the records below `until`: those that are known, the rest from the batches."""
    history = known.history.truncate_end(Offset(until))
    for segment in segments:
        if segment.base < until and segment.end > known.up_to:
            for batch in segment.sound_batches():
                header = batch.header
                if header.base_offset >= known.up_to:
                    longer = with_epoch(history, header.leader_epoch, header.base_offset)
                    history = longer or history
    return history.truncate_end(Offset(until))


class _LastBatches:
    """The batches of the last segment, and the epochs and producers that follow from them.

    - `_epochs_before` are those up to the segment.
    - `_epochs` and `_producers` are those up to the last batch that was accepted.
    """

    def __init__(
        self, disk: Disk, path: str, segments: list[Segment], known: _KnownEpochs, *, now_ms: int
    ) -> None:
        self._disk = disk
        self._path = path
        self._segments = segments
        self._known = known
        self._now_ms = now_ms
        self._epochs_before = _read_epochs_after(known, segments, until=segments[-1].base)
        self._epochs = self._epochs_before
        self._producers = Producers()

    def recover(
        self, *, check_from: int, expected_end: int, before_truncation: Callable[[], None]
    ) -> tuple[EpochHistory, Producers]:
        """Recover the segment (`Segment.recover`); the log's epochs and producers up to its end."""
        self._segments[-1].recover(
            self._new_accept,
            check_from=check_from,
            expected_end=expected_end,
            before_truncation=before_truncation,
        )
        return self._epochs, self._producers

    def _new_accept(self) -> Callable[[BatchHeader], bool]:
        """Forget what was accepted, and accept from the beginning of the segment."""
        self._epochs = self._epochs_before
        self._producers = producers_at(
            self._disk, self._path, self._segments, len(self._segments) - 1, now_ms=self._now_ms
        )
        return self._accept

    def _accept(self, header: BatchHeader) -> bool:
        known, offset = self._known, header.base_offset
        if offset < known.up_to:
            expected = known.history.epoch_at(Offset(offset))
            if expected not in (None, header.leader_epoch):
                return False
        longer = with_epoch(self._epochs, header.leader_epoch, offset)
        if longer is None:
            return False
        self._epochs = longer
        self._producers.update(header, base_offset=offset, now_ms=self._now_ms)
        return True


def _read_start(
    disk: Disk, path: str, names: list[str], first_base: int, inventory: Inventory | None
) -> int:
    """From the inventory if there is one: it has a checksum, and a new start is written to it."""
    if inventory is not None:
        return max(first_base, inventory.start)
    if LOG_START not in names:
        return first_base
    try:
        return max(first_base, read_offset(disk.read_all(f"{path}/{LOG_START}")))
    except CorruptFile:
        return first_base


def _read_inventory(disk: Disk, path: str, names: list[str]) -> Inventory | None:
    if INVENTORY not in names:
        return None
    try:
        return read_inventory(disk.read_all(f"{path}/{INVENTORY}"))
    except CorruptFile as error:
        logger.warning("%s/%s is not used: %s", path, INVENTORY, error)
        return None


def _read_epochs(disk: Disk, path: str, names: list[str]) -> EpochHistory:
    if EPOCHS not in names:
        return EpochHistory()
    try:
        return read_epochs(disk.read_all(f"{path}/{EPOCHS}"))
    except CorruptFile:
        return EpochHistory()


def _remove_left_overs(disk: Disk, path: str, names: list[str], segments: list[Segment]) -> None:
    """Remove what an interrupted step left behind; files that are not ours stay."""
    bases = {segment.base for segment in segments}
    for name in names:
        match = _LEFT_OVER.fullmatch(name)
        # The last clean stop left a snapshot of the end, still true while nothing was appended.
        kept = bases | {segments[-1].end} if name.endswith(SNAPSHOT) else bases
        if match and (match[2] or int(match[1]) not in kept):
            disk.remove(f"{path}/{name}")
