"""Records for plans: rows of telemetry, as few as say what was written, fetched and assigned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15T00:00:00Z
HOURS = 24

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def append(topic: str, partition: int, leader: int, at_ms: int, base: int, **more: Any) -> Row:
    return {
        "at_ms": at_ms, "seq": base, "topic": topic, "partition": partition, "leader": leader,
        "leader_epoch": 1, "base_offset": base, "end_offset": base + 1, "bytes": 1_000,
    } | more  # fmt: skip


def fetch(topic: str, partition: int, leader: int, follower: int, at_ms: int, **more: Any) -> Row:
    return {
        "at_ms": at_ms, "seq": 0, "topic": topic, "partition": partition, "leader": leader,
        "leader_epoch": 1, "follower": follower, "offset": 0, "leader_end_low": 0,
        "leader_end_high": 0, "high_watermark": 0, "log_start": 0, "bytes": 0, "read_ms": 0,
        "wait_ms": 0, "outcome": "ok", "throttled": False, "repeats": 1, "last_at_ms": at_ms,
    } | more  # fmt: skip


def assignment(topic: str, partition: int, replicas: Sequence[int], **more: Any) -> Row:
    return {
        "at_ms": MIDNIGHT_MS, "topic": topic, "partition": partition,
        "leader": replicas[0] if replicas else None, "leader_epoch": 1, "version": 1,
        "topic_id": f"id-{topic}", "replicas": list(replicas), "adding": [], "removing": [],
    } | more  # fmt: skip


def config(broker: int, name: str, value: str, at_ms: int = MIDNIGHT_MS) -> Row:
    return {"at_ms": at_ms, "scope": f"broker:{broker}", "name": name, "value": value}


PARTITIONS = 6
QUIET_HOUR = 4


def rate(hour: int) -> int:
    """Bytes per second to each partition of `orders`: least at 4 h, most at 16 h."""
    return 1_000 * (1 + min((hour - QUIET_HOUR) % HOURS, (QUIET_HOUR - hour) % HOURS))


def uneven_day() -> Tables:
    """A day in which `orders` is written to brokers 1 and 2, and broker 3 has only an idle topic.

    An append per hour has the bytes of all of it; a fetch per minute says that time was recorded.
    """
    appends = [
        append(
            "orders", partition, 1, MIDNIGHT_MS + hour * HOUR_MS + 1_000, hour, seq=hour + 1,
            bytes=rate(hour) * 3_600,
        )
        for partition in range(PARTITIONS)
        for hour in range(HOURS)
    ]  # fmt: skip
    fetches = [
        fetch("idle", 0, 3, 2, MIDNIGHT_MS + minute * MINUTE_MS) for minute in range(HOURS * 60 + 1)
    ]
    last_ms = MIDNIGHT_MS + DAY_MS
    fetches += [fetch("orders", partition, 1, 2, last_ms) for partition in range(PARTITIONS)]
    assigned = [assignment("orders", partition, (1, 2)) for partition in range(PARTITIONS)]
    return {
        "appends": appends,
        "fetches": fetches,
        "assignments": [*assigned, assignment("idle", 0, (3, 2))],
    }
