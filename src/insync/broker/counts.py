"""What a broker counts as it works: plain integers, bumped in one line where it happens."""

from __future__ import annotations


class Counts:
    """Since the process started; per request and partition, never per record."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "messages_in",
        "produce_failures",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0  # to consumers
        self.messages_in = 0
        self.produce_failures = 0  # partitions of requests
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
