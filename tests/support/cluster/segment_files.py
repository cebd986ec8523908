"""A second opinion on log files: reads segments and checkpoints by hand, knowing none of our code.

Of a batch only this matters here: bytes 0-8 are its first offset, 8-12 its length from byte 12 on,
23-27 its last offset's distance from the first.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple


class StoredBatch(NamedTuple):
    first: int
    next: int
    data: bytes


def stored_batches(folder: Path) -> list[StoredBatch]:
    """Every whole batch in a partition's folder, its segments taken as one file."""
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    batches, at = [], 0
    while at + 61 <= len(data):
        first, length = struct.unpack_from(">qi", data, at)
        (last_delta,) = struct.unpack_from(">i", data, at + 23)
        if at + 12 + length > len(data):
            break
        batches.append(StoredBatch(first, first + last_delta + 1, data[at : at + 12 + length]))
        at += 12 + length
    return batches


def log_start(folder: Path) -> int:
    """Where the log begins: at its first segment's name, or later if a checkpoint says so."""
    first = min(int(path.stem) for path in folder.glob("*.log"))
    checkpoint = folder / "log-start-offset-checkpoint"
    return max(first, int(checkpoint.read_text().split()[-1])) if checkpoint.exists() else first


def checkpointed(data_dir: Path, name: str) -> dict[str, int]:
    """Offsets by folder name, from one of the checkpoints of a data directory."""
    path = data_dir / name
    if not path.exists():
        return {}
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


def watermarks(data_dir: Path) -> dict[str, int]:
    return checkpointed(data_dir, "replication-offset-checkpoint")


def check_identical(folders: list[Path], *, up_to: int) -> int:
    """The replicas hold the same bytes from the highest log start on; returns how many."""
    start = max(log_start(folder) for folder in folders)
    contents = []
    for folder in folders:
        stored = stored_batches(folder)
        kept = [each for each in stored if start <= each.first and each.next <= up_to]
        offset = start
        for each in kept:
            assert each.first == offset, f"{folder} has a hole at {offset}"
            offset = each.next
        assert offset == up_to, f"{folder} ends at {offset}, below the watermark {up_to}"
        contents.append(b"".join(each.data for each in kept))
    for folder, content in zip(folders, contents, strict=True):
        assert content == contents[0], f"{folder} and {folders[0]} differ"
    return len(contents[0])
