"""Small text files in Kafka's checkpoint format: a version, a count, one line per entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from insync.rules.epochs import EpochHistory, EpochStart
from insync.rules.values import LeaderEpoch, Offset
from insync.storage.errors import CorruptFile

VERSION: Final = 0
INT64_MAX: Final = 2**63 - 1

EPOCHS: Final = "leader-epoch-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
"""Of directories without inventories: read at one start, and removed once an inventory has the
start. Nothing writes it: it has no checksum."""
WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"

Partition = tuple[str, int]


def write_epochs(history: EpochHistory) -> bytes:
    return _write(f"{entry.epoch} {entry.start}" for entry in history.entries)


def read_epochs(data: bytes) -> EpochHistory:
    entries = tuple(
        EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in _rows(data, integers=2)
    )
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start <= before.start:
            raise CorruptFile("leader epochs that do not grow")
    return EpochHistory(entries)


def write_offset(offset: int) -> bytes:
    return _write([str(offset)])


def read_offset(data: bytes) -> int:
    rows = list(_rows(data, integers=1))
    if len(rows) != 1:
        raise CorruptFile(f"{len(rows)} offsets where there is one")
    return rows[0][0]


def write_offsets(offsets: Mapping[Partition, int]) -> bytes:
    return _write(
        f"{topic} {partition} {offsets[topic, partition]}" for topic, partition in sorted(offsets)
    )


def read_offsets(data: bytes) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for line in _lines(data):
        topic, *numbers = line.split(" ")
        partition, offset = _integers(numbers, count=2)
        offsets[topic, partition] = offset
    return offsets


def _write(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "\n".join((str(VERSION), str(len(rows)), *rows, "")).encode("ascii")


def _rows(data: bytes, *, integers: int) -> list[list[int]]:
    return [_integers(line.split(" "), count=integers) for line in _lines(data)]


def _lines(data: bytes) -> list[str]:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptFile("a checkpoint that is not text") from error
    version, _, rest = text.partition("\n")
    count, _, body = rest.partition("\n")
    lines = body.splitlines()
    if version != str(VERSION) or count != str(len(lines)) or not text.endswith("\n"):
        raise CorruptFile("a checkpoint of another version, or incomplete")
    return lines


def _integers(words: list[str], *, count: int) -> list[int]:
    if len(words) != count or not all(word.isdigit() and len(word) < 20 for word in words):  # noqa: PLR2004
        raise CorruptFile("a checkpoint line that is not what it should be")
    values = [int(word) for word in words]
    if max(values) > INT64_MAX:
        raise CorruptFile("a checkpoint with a number beyond 64 bits")
    return values
