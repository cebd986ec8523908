"""A replay's state as rows of integers: which field is what, and what a fetch changes."""

from __future__ import annotations

from typing import Any, Final

from insync.pipeline.compiling import inlined
from insync.rules.settings import POLICY_NAMES
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET

Array = Any  # numpy's, of int64 unless told otherwise

NEVER: Final = NEVER_MS
ALWAYS: Final = 2**62  # later than any time
UNKNOWN: Final = int(UNKNOWN_OFFSET)
NONE: Final = -(2**61)  # for a time or an offset that is not there

MESSAGES, LAG_BEGIN, CAUGHT_UP, TRUE_LAG, PENDING_READS = range(len(POLICY_NAMES))

# An epoch: its number, its first event and past its last, its leader and the end it began with, its
# stalls, its appends among the partition's, its first mark and its last.
(
    O_EPOCH, O_EVENT, O_PAST, O_LEADER, O_START, O_STALL, O_PAST_STALLS, O_APPEND, O_PAST_APPENDS,
    O_MARK, O_LAST_MARK, O_FIELDS,
) = range(12)  # fmt: skip

# A scenario.
(
    P_POLICY, P_LIMIT, P_MESSAGES, P_HALF, P_HOLDS, P_WAIT, P_MINIMUM, P_FIELDS,
) = range(8)  # fmt: skip

# An event: what, when, and the numbers of its row.
FETCH, APPEND, BEGAN, FAILED = 0, 1, 2, 3

# A follower: `rules.follower.Follower`, then what the replay itself keeps of it. The first fields
# are facts: while it is in sync and nothing stalls, they are the same under every rule.
(
    F_END, F_FETCHED, F_LEADER_END, F_CAUGHT_UP, F_CAUGHT_UP_SERVED, F_SERVED, F_LAG_BEGAN,
    F_MISSING, F_TOLD, F_LAST_FETCH,
    F_FORGIVEN, F_GRACED, F_HOLDS, F_IN, F_DUE, F_ENTRY, F_OVER_SINCE, F_MISSED,
    F_OUT_SINCE, F_EVICTED, F_DETECTION, F_PASSED, F_KEEPS_FETCHING, F_UNDER_MIN,
    F_ABSENT, F_FIELDS,
) = range(26)  # fmt: skip
F_FACTS = F_FORGIVEN

# Why a follower is absent: nobody waits for it, nor counts its time. It has not been seen yet, and
# was not in sync when the record began; or it was moved away, and has not come again.
PRESENT, YET_TO_COME, GONE = 0, 1, 2

# The partition: the leader's log and watermark, what is known of its appends, and the time.
(
    G_NOW, G_END, G_WATERMARK, G_START, G_BEGAN, G_DRAINED, G_LEADER, G_MEMBERS, G_PRESENT, G_KNOWN,
    G_BLOCKED_SINCE, G_BLOCKED_COUNTED,
    G_ENTRIES, G_FIRST_ENTRY, G_SHIFT, G_STARTED, G_APPENDS, G_STALLED, G_STARTED_TAU, G_READS,
    G_DELAYS, G_FIELDS,
) = range(22)  # fmt: skip

# Verdicts, as `oracle.Verdicts` has them.
(
    V_SHRINKS, V_EXPANDS, V_FLAPS, V_OUT, V_FALSE, V_MISSED, V_MISSED_MS, V_UNDER_MIN,
    V_UNDER_MIN_FETCHING, V_WATERMARK_STALL, V_DELAYS, V_FIELDS,
) = range(12)  # fmt: skip


@inlined
def fetched(
    f: Array, one: int, now: int, at: int, offset: int, leader_end: int, missing: int
) -> None:
    """What a fetch tells of its follower: `rules.follower.Follower.on_fetch`."""
    previous = f[one, F_LEADER_END]
    at_end = offset >= leader_end
    at_previous = previous != NONE and offset >= previous
    proof = at if at_end else (f[one, F_FETCHED] if at_previous else NEVER)
    if offset < f[one, F_END] and at >= f[one, F_FETCHED]:  # its log went back
        f[one, F_CAUGHT_UP] = f[one, F_CAUGHT_UP_SERVED] = NEVER
    f[one, F_END] = offset
    f[one, F_MISSING] = missing
    f[one, F_CAUGHT_UP] = max(f[one, F_CAUGHT_UP], proof)
    if at_end or at_previous:
        f[one, F_CAUGHT_UP_SERVED] = max(f[one, F_CAUGHT_UP_SERVED], now)
    f[one, F_FETCHED] = max(f[one, F_FETCHED], at)
    f[one, F_LEADER_END] = leader_end if previous == NONE else max(leader_end, previous)
    f[one, F_SERVED] = max(f[one, F_SERVED], now)
    if at_end:
        f[one, F_LAG_BEGAN] = NONE
    elif f[one, F_LAG_BEGAN] == NONE:
        f[one, F_LAG_BEGAN] = at


@inlined
def begin_facts(f: Array, one: int, at: int, since: int) -> None:
    """Nobody has fetched in this epoch yet; who is in sync was caught up when it began."""
    f[one, F_END] = UNKNOWN
    f[one, F_MISSING] = 0
    f[one, F_LEADER_END] = f[one, F_LAG_BEGAN] = NONE
    f[one, F_FETCHED] = f[one, F_SERVED] = since
    f[one, F_CAUGHT_UP] = f[one, F_CAUGHT_UP_SERVED] = since
    f[one, F_TOLD] = at


@inlined
def raised(watermark: int, blocked_since: int, to: int, end: int, now: int) -> tuple[int, int]:
    """The watermark, and since when it has not moved: as far as the last that it waits for."""
    if to <= watermark:
        return watermark, blocked_since
    return to, (NONE if to >= end else now)
