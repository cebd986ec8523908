"""The settings of one log, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
NEVER: Final = 2**63 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`UNLIMITED` retention keeps everything."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    retention_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = DAY_MS
    flush_messages: int = NEVER  # an append that makes this many unflushed waits for the disk
    flush_ms: int = NEVER  # how long appended records may stay unflushed

    @property
    def flushes_every_append(self) -> bool:
        """Whether a record is visible to others only once it is flushed."""
        return self.flush_messages <= 1
