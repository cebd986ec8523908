"""The state of a replay as records of integers, and how a fetch changes a follower's.

Numba compiles `followers[number].end` to one load. So the replay has named fields, as `rules` has,
and allocates nothing per event.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from insync.pipeline.replay.compiling import inlined
from insync.rules.settings import POLICY_NAMES
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET

Array = Any  # a NumPy array, of int64 if nothing else is said
Record = Any  # one element of an array of records

NEVER: Final = NEVER_MS
ALWAYS: Final = 2**62  # later than any time
UNKNOWN: Final = int(UNKNOWN_OFFSET)
NONE: Final = -(2**61)  # a time or an offset that does not exist

MESSAGES, LAG_BEGIN, CAUGHT_UP, TRUE_LAG, PENDING_READS = range(len(POLICY_NAMES))

# Kinds of events: a fetch, an append, the begin of a slow read, and the end of one that failed.
FETCH, APPEND, BEGAN, FAILED = 0, 1, 2, 3

# Whether a replica counts. One that is not present is not waited for, and its time is not counted.
# NOT_SEEN: outside the ISR when the record began, and no fetch since. GONE: a reassignment removed
# it, and it has not fetched since.
PRESENT, NOT_SEEN, GONE = 0, 1, 2


def integers(*names: str) -> Any:
    """A record of int64 fields; `np.record` gives it attributes where Numba is off, in tests."""
    return np.dtype((np.record, np.dtype([(name, np.int64) for name in names], align=True)))


# Eight numbers: one line of the processor's cache.
EVENT: Final = integers(
    "time",
    "leader_end",  # the leader's end when it received the fetch
    "follower",  # by number
    "offset",  # of a fetch; of an append, the end after it
    "kind",
    "requested_at",  # when the request arrived
    "row",
    "missing",  # of a fetch, the first append of its epoch that it lacks, by number
)
EPOCH: Final = integers(
    "number", "leader", "start",
    "first_event", "past_event",
    "first_append", "past_append",  # among the partition's appends
    "first_stall", "past_stall",
    "first_mark", "last_mark",
    "first_minimum", "past_minimum",
)  # fmt: skip
SCENARIO: Final = integers(
    "policy", "limit_ms", "max_messages", "has_half_period_check", "holds_reads", "fetch_wait_ms",
)  # fmt: skip

# The first fields of a follower are facts. While it is in sync and its leader does not stall, they
# are the same under every policy: `rules.follower.Follower`.
_FACTS: Final = (
    "end", "fetched_at", "leader_end", "caught_up_at", "caught_up_served_at", "served_at",
    "lag_began_at",
    "missing",  # the first append of the epoch that it lacks, by number
    "judged_until",  # its true lag has been compared with the limit up to here
    "last_fetch_at",
)  # fmt: skip
FACTS: Final = integers(*_FACTS)
FOLLOWER: Final = integers(
    *_FACTS,
    "forgiven_ms", "has_grace",
    "held_by_reads",  # pending reads that keep it in sync (KIP-501)
    "in_isr",
    "due_at",  # when to look at it next
    "entry",  # the first entry of the append times past its end
    "over_since", "is_missed",  # true lag above the limit, while it is in the ISR
    "out_since", "is_evicted", "detection_ms", "has_passed", "keeps_fetching", "under_min_ms",
    "back_since",  # its first fetch since it was evicted
    "presence",
)  # fmt: skip
PARTITION: Final = integers(
    "now", "leader", "end", "watermark", "start",
    "began_at", "drained_at",
    "isr_size", "present", "known",  # numbers of replicas
    "blocked_since", "blocked_counted",
    "entries", "first_entry", "shift_ms", "started_at",  # of the append times
    "appends", "stalled_ms", "started_unstalled_at",
    "reads", "delays",
    "minimum", "past_minimum", "min_isr_max",  # min.insync.replicas in this epoch
)  # fmt: skip
VERDICTS: Final = integers(  # as in `what_if.Verdicts`
    "shrinks", "expands", "flaps", "out_ms", "false_evictions", "missed", "missed_ms",
    "under_min_ms", "under_min_fetching_ms", "watermark_stall_ms", "catch_up_ms",
    "acks_all_stall_ms", "acks_all_stall_ms_max", "delays",
)  # fmt: skip
DELAYS: Final = VERDICTS.names.index("delays")

# `rules.append_times`: appends that are close together share an entry.
ENTRY: Final = integers("end", "opened_at", "last_at")
READ: Final = integers("row", "follower", "requested_at", "is_holding")
STALL: Final = integers("began", "ended", "length")
MINIMUM: Final = integers("since", "min_isr")  # in force until the next one
MOVE: Final = integers("epoch", "replica")  # the first epoch without that replica


class History(NamedTuple):
    """What is recorded of one partition, in order, and the marks in it (`skip_index.py`)."""

    events: Array  # EVENT
    epochs: Array  # EPOCH
    append_at: Array
    append_ends: Array
    moves: Array  # MOVE
    stalls: Array  # STALL
    minimums: Array  # MINIMUM
    in_isr_at_start: Array
    marks: Array  # MARK
    facts: Array  # FACTS of every follower at every mark


class Replay(NamedTuple):
    """One partition under one scenario.

    A record is a pointer into an array, and does not keep it alive: the caller has to.
    """

    followers: Array  # FOLLOWER, by number
    partition: Record  # PARTITION
    scenario: Record  # SCENARIO
    verdicts: Record  # VERDICTS
    entries: Array  # ENTRY
    unstalled_at: Array  # times of the epoch's appends, less the stalls before
    reads: Array  # READ, those that are pending
    minimums: Array  # MINIMUM
    delays: Array  # detection delays of all partitions and scenarios


class Watermark(NamedTuple):
    offset: int
    blocked_since: int  # NONE: at the leader's end


@inlined
def apply_fetch(follower: Record, event: Record, requested_at: int) -> None:
    """`rules.follower.Follower.on_fetch`."""
    now, offset, leader_end = event.time, event.offset, event.leader_end
    previous = follower.leader_end
    at_end = offset >= leader_end
    at_previous = previous != NONE and offset >= previous
    proof = requested_at if at_end else (follower.fetched_at if at_previous else NEVER)
    if offset < follower.end and requested_at >= follower.fetched_at:  # its log went back
        follower.caught_up_at = NEVER
        follower.caught_up_served_at = NEVER
    follower.end = offset
    follower.missing = event.missing
    follower.caught_up_at = max(follower.caught_up_at, proof)
    if at_end or at_previous:
        follower.caught_up_served_at = max(follower.caught_up_served_at, now)
    follower.fetched_at = max(follower.fetched_at, requested_at)
    follower.leader_end = leader_end if previous == NONE else max(leader_end, previous)
    follower.served_at = max(follower.served_at, now)
    if at_end:
        follower.lag_began_at = NONE
    elif follower.lag_began_at == NONE:
        follower.lag_began_at = requested_at


@inlined
def begin_facts(follower: Record, now: int, since: int) -> None:
    """No follower has fetched in a new epoch yet; one in the ISR was caught up when it began."""
    follower.end = UNKNOWN
    follower.missing = 0
    follower.leader_end = NONE
    follower.lag_began_at = NONE
    follower.fetched_at = since
    follower.served_at = since
    follower.caught_up_at = since
    follower.caught_up_served_at = since
    follower.judged_until = now


@inlined
def copy_facts(source: Record, target: Record) -> None:
    target.end = source.end
    target.fetched_at = source.fetched_at
    target.leader_end = source.leader_end
    target.caught_up_at = source.caught_up_at
    target.caught_up_served_at = source.caught_up_served_at
    target.served_at = source.served_at
    target.lag_began_at = source.lag_began_at
    target.missing = source.missing
    target.judged_until = source.judged_until
    target.last_fetch_at = source.last_fetch_at


@inlined
def has_facts(follower: Record, facts: Record) -> bool:
    return (
        follower.end == facts.end
        and follower.fetched_at == facts.fetched_at
        and follower.leader_end == facts.leader_end
        and follower.caught_up_at == facts.caught_up_at
        and follower.caught_up_served_at == facts.caught_up_served_at
        and follower.served_at == facts.served_at
        and follower.lag_began_at == facts.lag_began_at
        and follower.missing == facts.missing
        and follower.judged_until == facts.judged_until
        and follower.last_fetch_at == facts.last_fetch_at
    )


@inlined
def is_long_stall(stall_ms: int, fetch_wait_ms: int) -> bool:
    """Longer than the record resolves; a shorter one is what replication takes."""
    return stall_ms > 2 * fetch_wait_ms


@inlined
def raise_watermark(watermark: Watermark, to: int, end: int, now: int) -> Watermark:
    """`to` is the lowest end of the replicas that the watermark waits for."""
    if to <= watermark.offset:
        return watermark
    return Watermark(to, NONE if to >= end else now)
