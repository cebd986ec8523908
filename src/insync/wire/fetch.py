"""Fetch, versions 4 to 18, hand-written for speed: consumers and followers depend on it."""

from __future__ import annotations

from insync.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch,
    write_fetch_request,
)
from insync.wire.fetch_response import (
    JOIN_BYTES_MAX,
    FetchedPartition,
    FetchResponse,
    buffers_size,
    read_fetch_response,
    write_fetch_response,
)

__all__ = [
    "JOIN_BYTES_MAX",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchedPartition",
    "buffers_size",
    "read_fetch",
    "read_fetch_response",
    "write_fetch_request",
    "write_fetch_response",
]
