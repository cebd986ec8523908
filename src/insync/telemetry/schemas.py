"""The tables: the one contract between brokers, exported files and the pipeline.

Times are milliseconds since the epoch: a wall-clock anchor taken at the broker's start plus its
monotonic clock, so they are the integers the rules saw, moved by a constant, and never step back.
Readers ignore columns they do not know and take null for "unknown". They refuse missing columns,
except those that `is_optional` marks: tables of earlier versions lack them, and all is unknown.

- `fetches.seq` and `appends.seq` count the rows of one partition and leader epoch in the order in
  which they took effect. Row 0 of an epoch is an append of nothing: where and when it began.
- `isr.seq`, beyond the contract, is the number of those rows that the leader had seen before it
  learnt that the change was committed.
- `isr.reason` is a sentence for people. Programs read `cause`, one of `CAUSES`, and `late_ms`: how
  much later than its deadline the leader's loop came to an eviction. Only evictions by the leader
  have a deadline; `late_ms` of other changes is null.
- `isr_events` has what `isr` has not: the ISR with which an epoch `began`, every change that the
  leader `proposed`, and that the store `refused` it or a later version of the partition state
  `superseded` it. A change that was committed is in `isr`. `number` counts the rows of one
  partition and leader epoch; `version` is the version of the partition state that the change
  builds on; `seq` and `late_ms` are as in `isr`.
- `assignments` has the replicas of a partition, in order of preference, when a leader begins a term
  and whenever they change. A replica that is no longer in `replicas` was removed by a reassignment,
  or by the cancellation of the one that was `adding` it; a removal begins an epoch. No replicas:
  the topic was deleted. Another `topic_id`: the topic was created again under its name, and its
  epochs, versions and offsets begin again.
- `stalls.at_ms` is when the stall began. `drained_at_ms` is when the broker had read what waited in
  its sockets meanwhile: until then no follower is due to leave the ISR. Stalls in quick succession
  have one such time.
- `throttle` has a row per side and second while something is throttled there; `at_ms` is when that
  second began. No limit is null. `bytes` are all that were counted, `exempt_bytes` those of
  in-sync replicas; `held_back_partitions` wait for the quota at the second's end;
  `replica_lag_bytes`, which only leaders know, is what throttled followers out of sync lack.
- `configs.scope` is `broker:ID`, or `broker:ID/topic:NAME` for what differs on a topic it leads.
  A broker records all its own settings when it starts, and then what changes: a row of `node.id`
  begins a run of it. A topic's value holds within its run: where the next one has none, it does not
  differ any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from insync.rules.policy import Limit


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
    is_optional: bool = False  # tables of earlier versions do not have it


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def optional(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_optional)


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
    Column("cause", Type.STRING, is_optional=True),
    Column("late_ms", Type.INT64, is_optional=True),
)
ISR_EVENTS: Final = _table(
    "isr_events",
    _time("at_ms"),
    _text("topic"),
    _id("partition"),
    _id("leader"),
    _id("leader_epoch"),
    _long("number"),
    _text("event"),
    _long("version"),
    Column("isr_before", Type.INT32_LIST),
    Column("isr_after", Type.INT32_LIST),
    _long("late_ms"),
    _long("seq"),
)
ASSIGNMENTS: Final = _table(
    "assignments",
    _time("at_ms"),
    _text("topic"),
    _id("partition"),
    _id("leader"),
    _id("leader_epoch"),
    _long("version"),
    _text("topic_id"),
    Column("replicas", Type.INT32_LIST),
    Column("adding", Type.INT32_LIST),
    Column("removing", Type.INT32_LIST),
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
STALLS: Final = _table(
    "stalls",
    _time("at_ms"),
    _id("broker"),
    _long("stall_ms"),
    Column("drained_at_ms", Type.INT64, is_time=True, is_optional=True),
)
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
    table.name: table
    for table in (
        *(FETCHES, APPENDS, ISR, ISR_EVENTS, ASSIGNMENTS),
        *(ELECTIONS, STALLS, THROTTLE, CONFIGS),
    )
}

OK, ERROR, DIVERGING, CANCELLED = "ok", "error", "diverging", "cancelled"  # fetches.outcome
LEADER, CONTROLLER = "leader", "controller"  # isr.decided_by; "controller" is not the leader
SHRINK, EXPAND = "shrink", "expand"  # isr.change
MIN_ISR = "min.insync.replicas"  # configs.name
INT32_MAX = 2**31 - 1
RUN_BEGINS = "node.id"  # configs.name that a broker records once, when it starts
BEGAN, PROPOSED = "began", "proposed"  # isr_events.event
REFUSED, SUPERSEDED = "refused", "superseded"
REPLICAS_MOVED = "its replicas moved"  # elections.cause
LAG_TIME, LAG_MESSAGES = Limit.LAG_TIME.value, Limit.LAG_MESSAGES.value
FETCH_SILENCE = Limit.FETCH_SILENCE.value
CAUGHT_UP = "caught-up"
BROKER_GONE, BROKER_FROZEN = "broker-gone", "broker-frozen"
REPLICA_OFFLINE = "replica-offline"
REASSIGNMENT, ELECTED = "reassignment", "elected"
CAUSES: Final = {
    LAG_TIME: "shrink by the leader: behind for T, as the policy counts that",
    LAG_MESSAGES: "shrink by the leader: lacks more than replica.lag.max.messages",
    FETCH_SILENCE: "shrink by the leader: no fetch for T",
    CAUGHT_UP: "expand by the leader: nothing keeps the follower out any more",
    BROKER_GONE: "shrink not proposed by the leader: the session of the replica's broker ended",
    BROKER_FROZEN: "as broker-gone, and the broker's process lived: only its heartbeat had stopped",
    REPLICA_OFFLINE: "shrink not proposed by the leader: the replica's log failed or is damaged",
    REASSIGNMENT: "shrink not proposed by the leader: a reassignment removed the replica",
    ELECTED: "expand not proposed by the leader: a replica outside the ISR became leader",
}
"""The values of `isr.cause`, and null. T is `replica.lag.time.max.ms`."""
TELEMETRY_TOPIC: Final = "__insync_telemetry"
MERGED_GAP_MS: Final = 100
"""Idle fetches further apart than the fetch wait and this are not one row."""
