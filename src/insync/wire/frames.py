"""Frames: a 4-byte length, then that many bytes.

Every byte is copied once, from the socket's chunk into its frame. A frame owns its memory, so that
a leader may write offsets into it, and grows only by received bytes: a claimed length allocates
nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from insync.rules.refusals import Refusal

FRAME_BYTES_MAX: Final = 104_857_600  # Kafka's socket.request.max.bytes
BATCH_BYTES_MAX: Final = FRAME_BYTES_MAX
"""The largest batch that a topic may allow: larger ones could not be replicated."""
REPLICATION_FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + (32 << 20)
"""A follower's response has at least one batch, beside what it says of every other partition."""
LENGTH_BYTES: Final = 4

_TLS_HANDSHAKE: Final = b"\x16\x03"
_TLS_ALERT: Final = b"\x15\x03"
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"PRI ")


class BadFrame(Refusal):
    """Received bytes that are not a frame with a request."""


class FrameBuffer:
    """Bytes in, complete frames out, however the bytes were split.

    After an invalid length no more bytes are accepted: complete frames before it are still
    returned, then every call raises.
    """

    __slots__ = ("_bytes_max", "_frame", "_missing", "_prefix", "_refusal", "_whole")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = frame_bytes_max
        self._whole: deque[memoryview] = deque()
        self._prefix = bytearray()  # of the next frame's length, when a chunk cut it in two
        self._frame = bytearray()
        self._missing = 0  # bytes that the current frame still needs; 0 between frames
        self._refusal: BadFrame | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes. `data` is not kept: its owner may reuse it."""
        chunk = memoryview(data)
        at, size = 0, len(chunk)
        while at < size and self._refusal is None:
            if self._missing == 0:
                at = self._read_length(chunk, at)
                continue
            end = min(at + self._missing, size)
            self._frame += chunk[at:end]
            self._missing -= end - at
            at = end
            if self._missing == 0:
                self._whole.append(memoryview(self._frame))
                self._frame = bytearray()

    def next_frame(self) -> memoryview | None:
        """The oldest complete frame without its length, writable by the caller; else None."""
        if self._whole:
            return self._whole.popleft()
        if self._refusal is not None:
            raise self._refusal
        return None

    def _read_length(self, chunk: memoryview, at: int) -> int:
        end = at + LENGTH_BYTES - len(self._prefix)
        self._prefix += chunk[at:end]
        if len(self._prefix) < LENGTH_BYTES:
            return len(chunk)
        length = int.from_bytes(self._prefix, "big", signed=True)
        if 0 < length <= self._bytes_max:
            self._missing = length
        else:
            self._refusal = BadFrame(_reason(bytes(self._prefix), length, self._bytes_max))
        self._prefix.clear()
        return end


def _reason(prefix: bytes, length: int, bytes_max: int) -> str:
    if prefix.startswith(_TLS_HANDSHAKE):
        return "the peer speaks TLS to a plaintext listener; set its security.protocol to PLAINTEXT"
    if prefix.startswith(_TLS_ALERT):
        return "the peer's listener speaks TLS; set security.protocol to SSL or SASL_SSL"
    if prefix in _HTTP_METHODS:
        return "the peer speaks HTTP; this is a listener for Kafka clients"
    return f"a frame of {length} bytes; allowed are 1 to {bytes_max}"
