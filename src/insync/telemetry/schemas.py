"""The tables: the one contract between brokers, exported files and the pipeline.

Times are milliseconds since the epoch: a wall-clock anchor taken at the broker's start plus its
monotonic clock, so they are the integers the rules saw, moved by a constant, and never step back.
Readers ignore columns they do not know, refuse missing ones, and take null for "unknown".

- `fetches.seq` and `appends.seq` count the rows of one partition and leader epoch in the order in
  which they took effect. Row 0 of an epoch is an append of nothing: where and when it began.
- `isr.seq`, beyond the contract, is the number of those rows that the leader had seen before it
  learnt that the change was committed.
- `isr.reason` of a decision also says how long after its deadline the leader's loop came to it.
- `stalls.at_ms` is when the stall began.
- `throttle` has a row per side and second while something is throttled there; `at_ms` is when that
  second began. No limit is null. `bytes` are all that were counted, `exempt_bytes` those of
  in-sync replicas; `held_back_partitions` wait for the quota at the second's end;
  `replica_lag_bytes`, which only leaders know, is what throttled followers out of sync lack.
- `configs.scope` is `broker:ID`, or `broker:ID/topic:NAME` for what differs on a topic it leads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Type(Enum):
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    INT32_LIST = "list<int32>"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type
    is_time: bool = False  # recorded by the monotonic clock; the anchor is added on publication


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _table(name: str, *columns: Column) -> Table:
    return Table(name, columns)


def _time(name: str) -> Column:
    return Column(name, Type.INT64, is_time=True)


def _long(name: str) -> Column:
    return Column(name, Type.INT64)


def _id(name: str) -> Column:
    return Column(name, Type.INT32)


def _text(name: str) -> Column:
    return Column(name, Type.STRING)


FETCHES: Final = _table(
    "fetches",
    _time("at_ms"),
    _long("seq"),
    _text("topic"),
    _id("partition"),
    _id("leader"),
    _id("leader_epoch"),
    _id("follower"),
    _long("offset"),
    _long("leader_end_low"),
    _long("leader_end_high"),
    _long("high_watermark"),
    _long("log_start"),
    _long("bytes"),
    _long("read_ms"),
    # Of all that a row stands for, as far as their waits were over when it was published.
    _long("wait_ms"),
    _text("outcome"),
    Column("throttled", Type.BOOL),
    _long("repeats"),
    _time("last_at_ms"),
)
APPENDS: Final = _table(
    "appends",
    _time("at_ms"),
    _long("seq"),
    _text("topic"),
    _id("partition"),
    _id("leader"),
    _id("leader_epoch"),
    _long("base_offset"),
    _long("end_offset"),
    _long("bytes"),
)
ISR: Final = _table(
    "isr",
    _time("at_ms"),
    _time("decided_at_ms"),
    _text("decided_by"),
    _text("topic"),
    _id("partition"),
    _id("leader"),
    _id("leader_epoch"),
    _long("version"),
    Column("isr_before", Type.INT32_LIST),
    Column("isr_after", Type.INT32_LIST),
    _id("replica"),
    _text("change"),
    _text("reason"),
    _long("replica_end"),
    _long("leader_end"),
    _time("caught_up_at_ms"),
    _long("seq"),
)
ELECTIONS: Final = _table(
    "elections",
    _time("at_ms"),
    _text("topic"),
    _id("partition"),
    _id("leader_before"),
    _id("leader_after"),
    _id("leader_epoch"),
    _text("cause"),
)
STALLS: Final = _table("stalls", _time("at_ms"), _id("broker"), _long("stall_ms"))
THROTTLE: Final = _table(
    "throttle",
    _time("at_ms"),
    _id("broker"),
    _text("side"),
    _long("limit_bytes_per_s"),
    _long("bytes"),
    _long("exempt_bytes"),
    _long("held_back_partitions"),
    _long("replica_lag_bytes"),
    _long("bytes_in"),
)
CONFIGS: Final = _table("configs", _time("at_ms"), _text("scope"), _text("name"), _text("value"))

TABLES: Final = {
    table.name: table for table in (FETCHES, APPENDS, ISR, ELECTIONS, STALLS, THROTTLE, CONFIGS)
}

OK, ERROR, DIVERGING, CANCELLED = "ok", "error", "diverging", "cancelled"  # fetches.outcome
LEADER, CONTROLLER = "leader", "controller"  # isr.decided_by
SHRINK, EXPAND = "shrink", "expand"  # isr.change
REPLICAS_MOVED = "its replicas moved"  # elections.cause
_LATE: Final = "; decided {} ms after the deadline"  # in isr.reason
_LATE_PATTERN: Final = re.compile(_LATE.format(r"(\d+)"))
SESSION_ENDED, MOVED_AWAY, ELECTED = "its session ended", "moved away", "elected"  # isr.reason
TELEMETRY_TOPIC: Final = "__insync_telemetry"
MERGED_GAP_MS: Final = 100
"""Idle fetches further apart than the fetch wait and this are not one row."""


def late_words(late_ms: int) -> str:
    """What the reason of a decision says of a leader's loop that came to it late."""
    return _LATE.format(late_ms) if late_ms else ""


def late_ms_of(reason: str | None) -> int:
    """How late the loop of the leader was, by its own word."""
    told = _LATE_PATTERN.search(reason or "")
    return 0 if told is None else int(told[1])
