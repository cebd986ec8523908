"""PartitionBytesInRate of one partition: bytes that producers appended in the last seconds.

Two counters per partition, for the present window and the one before it. The part of the window
before that still lies within `WINDOW_MS` counts in proportion, so that an append and a reading cost
the same whatever happened, and nothing is swept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

WINDOW_MS: Final = 10_000
"""Long enough for producers that send a few batches per second, short enough to be of now."""

SECOND_MS: Final = 1_000


class BytesIn(NamedTuple):
    """What producers appended, and in how long; less than the window if the leader is new."""

    bytes: int
    over_ms: int

    @property
    def bytes_per_s(self) -> float:
        """In its first second, a leader counts as if it had led for a second."""
        return self.bytes * SECOND_MS / max(self.over_ms, SECOND_MS)


class InboundRate:
    __slots__ = ("_at_ms", "_bytes", "_bytes_before", "_has_window_before")

    def __init__(self, now_ms: int = 0) -> None:
        self.restart(now_ms)

    def restart(self, now_ms: int) -> None:
        """This broker leads the partition from now on."""
        self._at_ms = now_ms  # where the present window begins
        self._bytes = self._bytes_before = 0
        self._has_window_before = False

    def add(self, size_bytes: int, *, now_ms: int) -> None:
        windows = (now_ms - self._at_ms) // WINDOW_MS
        if windows > 0:
            self._bytes_before = self._bytes if windows == 1 else 0
            self._bytes = 0
            self._at_ms += windows * WINDOW_MS
            self._has_window_before = True
        self._bytes += size_bytes

    def read(self, now_ms: int) -> BytesIn:
        """Changes nothing."""
        windows, into_ms = divmod(now_ms - self._at_ms, WINDOW_MS)
        if windows == 0:
            if not self._has_window_before:
                return BytesIn(self._bytes, into_ms)
            present, before = self._bytes, self._bytes_before
        else:
            present, before = 0, self._bytes if windows == 1 else 0
        return BytesIn(present + before * (WINDOW_MS - into_ms) // WINDOW_MS, WINDOW_MS)
