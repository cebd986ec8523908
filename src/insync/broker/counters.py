"""Counters that the broker increments as it works: plain integers, because this is a hot path."""

from __future__ import annotations


class Counters:
    """Counted since the process started; per request and partition, not per record."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "damage_found",
        "messages_in",
        "produce_failures",
        "replication_bytes_in",
        "replication_bytes_out",
        "scrubbed_bytes",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0  # to consumers
        self.messages_in = 0
        self.produce_failures = 0  # partitions of requests
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.scrubbed_bytes = 0
        self.damage_found = 0  # segments in which a scrub found damage
