"""How far a broker had read the metadata store, kept with its logs.

A store that is restored from a backup, or that lost its newest steps with the power, is older than
what brokers did by it. A broker finds that by its own checkpoint: the newest step that it read,
and a fingerprint of that step, because a store that went back may have reached the revision again
by other steps. `meta.properties` says which cluster's store it is. A checksum is the last line:
with a fingerprint that the disk changed, the broker would refuse a store that did not go back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from insync.storage.disk import Disk
from insync.storage.errors import DiskError

FILE: Final = "metadata-checkpoint"
VERSION: Final = "1"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCheckpoint:
    revision: int
    fingerprint: str  # of the step that made this revision; empty if it is not known


def read_metadata_checkpoint(disk: Disk, path: str) -> MetadataCheckpoint | None:
    """The checkpoint in a data directory; None without one, or if it cannot be read."""
    try:
        text = disk.read_all(f"{path}/{FILE}").decode(errors="replace")
    except DiskError:
        return None
    body = text[: text.rfind("crc32c=")] if "crc32c=" in text else text
    fields = dict(line.split("=", 1) for line in body.splitlines() if "=" in line)
    revision = fields.get("revision", "")
    is_ours = fields.get("version") == VERSION and revision.isascii() and revision.isdigit()
    if not is_ours or text != _with_checksum(body):
        logger.warning(
            "%s/%s cannot be read and is not used: whether the metadata store went back is not"
            " checked at this start",
            path,
            FILE,
        )
        return None
    return MetadataCheckpoint(revision=int(revision), fingerprint=fields.get("fingerprint", ""))


def write_metadata_checkpoint(disk: Disk, path: str, checkpoint: MetadataCheckpoint) -> None:
    """Replace the checkpoint; after a loss of power it is the old one or the new one. Blocks."""
    text = (
        f"version={VERSION}\nrevision={checkpoint.revision}\nfingerprint={checkpoint.fingerprint}\n"
    )
    temporary = f"{path}/{FILE}.tmp"
    file = disk.create(temporary)
    file.append([_with_checksum(text).encode()])
    file.flush()
    file.close()
    disk.rename(temporary, f"{path}/{FILE}")


def _with_checksum(body: str) -> str:
    return f"{body}crc32c={crc32c(body.encode())}\n"
