"""What a log had when this was last written: its segments, by size and by their first batch.

A start compares it with the files, so a segment that was removed, shortened, or replaced by another
partition's is noticed without reading the log. All that it lists is a lower bound:

- The log began at `start` or before. Retention writes a later start before it removes segments.
- A segment before the last one is complete: it has just this size and this end.
- The last one has at least the records below `end`, all flushed. More may have been appended, and
  more segments begun. A truncation writes a lower end before it removes records.

So a crash between the two leaves nothing that looks like damage. A start that finds damage writes
it durably before it removes anything: the next one would only find a shorter log.

`epochs` is a checksum of the leader epochs below `end`, which only retention and truncation change:
no CRC covers the epoch in a batch's header. Without an inventory a start goes by the segments'
seals alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from crc32c import crc32c

from insync.rules.epochs import EpochHistory
from insync.rules.values import Offset
from insync.storage.checkpoints import INT64_MAX, write_epochs
from insync.storage.errors import CorruptFile

INVENTORY: Final = "segment-inventory"
VERSION: Final = 0
UNKNOWN: Final = -1
REASON_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Why a log may lack acknowledged records, and the end it has to reach again to be whole."""

    reason: str
    up_to: int
    keep_to: int | None = None  # what a repair has to truncate to first; None: nothing is to go

    def joined_with(self, earlier: Damage | None) -> Damage:
        """This damage, with what is left to do of an earlier one."""
        if earlier is None:
            return self
        known = [each for each in (self.keep_to, earlier.keep_to) if each is not None]
        return Damage(
            reason=self.reason,
            up_to=max(self.up_to, earlier.up_to),
            keep_to=min(known, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    base: int
    end: int
    size: int  # UNKNOWN for the last one, unless the log was closed
    first_crc: int  # the CRC of its first batch; UNKNOWN if it had none


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    identity: str  # of the log: files of another one are not believed
    start: int
    segments: tuple[ListedSegment, ...] = ()
    epochs: int = UNKNOWN
    damage: Damage | None = None

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


class Listable(Protocol):
    """What an inventory lists of a segment."""

    base: int
    end: int
    size: int
    first_crc: int


def take_inventory(
    segments: Sequence[Listable],
    *,
    identity: str,
    start: int,
    flushed: int,
    epochs: EpochHistory,
    damage: Damage | None,
    closing: bool,
) -> Inventory:
    """The inventory of these segments, as far as they are flushed. `closing`: nothing follows."""
    kept = [each for each in segments if each.base <= flushed]
    active_base = kept[-1].base if kept else start
    return Inventory(
        identity=identity,
        start=start,
        segments=tuple(
            ListedSegment(
                base=each.base,
                end=each.end if each.base < active_base else max(flushed, each.base),
                size=each.size if each.base < active_base or closing else UNKNOWN,
                # A first batch that is about to go is not listed.
                first_crc=each.first_crc if max(flushed, each.end) > each.base else UNKNOWN,
            )
            for each in kept
        ),
        epochs=epochs_checksum(epochs, start=start, end=flushed),
        damage=damage,
    )


def epochs_checksum(history: EpochHistory, *, start: int, end: int) -> int:
    """Of the epochs of the records from `start` to before `end`."""
    return crc32c(write_epochs(history.truncate_start(Offset(start)).truncate_end(Offset(end))))


def write_inventory(inventory: Inventory) -> bytes:
    damage = inventory.damage
    lines = [
        f"{VERSION}",
        inventory.identity,
        f"{inventory.start} {inventory.epochs}",
        "" if damage is None else _damage_line(damage),
        *(f"{each.base} {each.end} {each.size} {each.first_crc}" for each in inventory.segments),
    ]
    data = "\n".join((*lines, "")).encode()
    return data + f"{crc32c(data)}\n".encode()


def read_inventory(data: bytes) -> Inventory:
    """The inventory in a file, of whatever log, or `CorruptFile`."""
    body, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    if not data.endswith(b"\n") or checksum != str(crc32c(body)).encode():
        raise CorruptFile("a segment inventory whose checksum does not match")
    version, identity, totals, damage, *rows = body.decode().removesuffix("\n").split("\n")
    if version != str(VERSION):
        raise CorruptFile(f"a segment inventory of version {version}")
    start, epochs = map(int, totals.split(" "))
    segments = []
    for row in rows:
        base, end, size, first_crc = map(int, row.split(" "))
        segments.append(ListedSegment(base=base, end=end, size=size, first_crc=first_crc))
    assert all(0 <= each.base <= each.end <= INT64_MAX for each in segments), "under a checksum"
    return Inventory(
        identity=identity,
        start=start,
        segments=tuple(segments),
        epochs=epochs,
        damage=_read_damage(damage) if damage else None,
    )


def _damage_line(damage: Damage) -> str:
    reason = " ".join(damage.reason.split())[:REASON_CHARACTERS_MAX]
    keep_to = UNKNOWN if damage.keep_to is None else damage.keep_to
    return f"{damage.up_to} {keep_to} {reason}"


def _read_damage(line: str) -> Damage:
    up_to, keep_to, reason = line.split(" ", 2)
    return Damage(
        reason=reason, up_to=int(up_to), keep_to=None if keep_to == str(UNKNOWN) else int(keep_to)
    )
