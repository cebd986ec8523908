"""The replay of `oracle.py`, compiled: one partition's ordered events, every scenario in turn.

It does what `insync.rules` does, on rows of integers instead of frozen values; `tests/pipeline`
ties the two together, verdict by verdict. The state of a follower is a row of `f`, of the partition
a row of `g`; each function says which rule it is the twin of. Nothing here allocates per event.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from insync.pipeline.compiling import compiled
from insync.rules.append_times import RESOLUTION_PARTS
from insync.rules.settings import POLICY_NAMES
from insync.rules.stalls import STALL_MS_MIN, STALL_PARTS
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET

Array = Any  # numpy's, of int64 unless told otherwise

NEVER: Final = NEVER_MS
ALWAYS: Final = 2**62  # later than any time
UNKNOWN: Final = int(UNKNOWN_OFFSET)
NONE: Final = -(2**61)  # for a time or an offset that is not there

MESSAGES, LAG_BEGIN, CAUGHT_UP, TRUE_LAG, PENDING_READS = range(len(POLICY_NAMES))

# A scenario.
(
    P_POLICY, P_LIMIT, P_MESSAGES, P_HALF, P_HOLDS, P_WAIT, P_MINIMUM, P_IS_PLAIN, P_FIELDS,
) = range(9)  # fmt: skip

# An event: what, when, and the numbers of its row.
FETCH, APPEND, BEGAN, FAILED = 0, 1, 2, 3

# A follower: `rules.follower.Follower`, then what the replay itself keeps of it.
(
    F_END, F_FETCHED, F_LEADER_END, F_CAUGHT_UP, F_CAUGHT_UP_SERVED, F_SERVED, F_LAG_BEGAN,
    F_FORGIVEN, F_GRACED, F_HOLDS, F_IN, F_DUE, F_ENTRY,
    F_MISSING, F_TOLD, F_OVER_SINCE, F_MISSED,
    F_OUT_SINCE, F_EVICTED, F_DETECTION, F_PASSED, F_KEEPS_FETCHING, F_UNDER_MIN, F_LAST_FETCH,
    F_FIELDS,
) = range(25)  # fmt: skip

# The partition: the leader's log and watermark, what is known of its appends, and the time.
(
    G_NOW, G_END, G_WATERMARK, G_START, G_BEGAN, G_DRAINED, G_LEADER, G_MEMBERS,
    G_BLOCKED_SINCE, G_BLOCKED_COUNTED,
    G_ENTRIES, G_FIRST_ENTRY, G_SHIFT, G_STARTED, G_APPENDS, G_STALLED, G_STARTED_TAU, G_READS,
    G_DELAYS, G_FIELDS,
) = range(20)  # fmt: skip

# Verdicts, as `oracle.Verdicts` has them.
(
    V_SHRINKS, V_EXPANDS, V_FLAPS, V_OUT, V_FALSE, V_MISSED, V_MISSED_MS, V_UNDER_MIN,
    V_UNDER_MIN_FETCHING, V_WATERMARK_STALL, V_DELAYS, V_FIELDS,
) = range(12)  # fmt: skip


# When a follower is out: `rules.policy`, `rules.append_times`, `rules.eviction`.


@compiled
def first_past(f: Array, g: Array, entries: Array, who: int) -> int:
    if f[who, F_END] < g[G_START]:
        return g[G_STARTED] + g[G_SHIFT]
    at = max(f[who, F_ENTRY], g[G_FIRST_ENTRY])
    return entries[at, 2] + g[G_SHIFT]


@compiled
def leaves_at(f: Array, g: Array, p: Array, entries: Array, who: int) -> int:
    policy = p[P_POLICY]
    end = f[who, F_END]
    if policy == CAUGHT_UP:
        if end == g[G_END]:
            return ALWAYS
        since = f[who, F_CAUGHT_UP_SERVED] if p[P_HOLDS] else f[who, F_CAUGHT_UP]
        return since + p[P_LIMIT] + 1
    if policy == MESSAGES:
        if end != UNKNOWN and g[G_END] - end > p[P_MESSAGES]:
            return NEVER
        return f[who, F_FETCHED] + p[P_LIMIT] + 1
    if policy == LAG_BEGIN:
        since = f[who, F_FETCHED]
        if f[who, F_LAG_BEGAN] != NONE:
            since = min(since, f[who, F_LAG_BEGAN])
        return since + p[P_LIMIT] + 1
    if end >= g[G_END]:
        return ALWAYS
    since = first_past(f, g, entries, who)
    fetched = f[who, F_FETCHED]
    if p[P_HOLDS]:
        since = max(since, f[who, F_CAUGHT_UP_SERVED])
        fetched = f[who, F_SERVED]
    return min(since, fetched) + p[P_LIMIT] + 1


@compiled
def check_at(at: int, p: Array, first: int) -> int:
    """`rules.policy.half_period_check_at_ms`."""
    period = max(1, p[P_LIMIT] // 2)
    periods = -((first - at) // period)
    return first + max(0, periods) * period


@compiled
def set_due(f: Array, g: Array, p: Array, entries: Array, who: int) -> None:
    """When to look at this follower next: it leaves, or lets go of the watermark."""
    now = g[G_NOW]
    if who == g[G_LEADER]:
        f[who, F_DUE] = ALWAYS
        return
    if p[P_IS_PLAIN] and f[who, F_IN] and not f[who, F_GRACED]:  # as below, without its calls
        is_level = f[who, F_END] == g[G_END]
        f[who, F_DUE] = ALWAYS if is_level else max(f[who, F_CAUGHT_UP] + p[P_LIMIT] + 1, now)
        return
    if not f[who, F_IN]:
        at = ALWAYS
        if f[who, F_END] >= g[G_START]:
            at = leaves_at(f, g, p, entries, who)
        f[who, F_DUE] = at if at > now else ALWAYS
        return
    if p[P_HOLDS] and f[who, F_HOLDS] > 0:
        f[who, F_DUE] = ALWAYS
        return
    at = leaves_at(f, g, p, entries, who)
    if at != ALWAYS:
        if f[who, F_GRACED]:
            at = max(at, g[G_DRAINED] + p[P_WAIT])
        at = check_at(max(at, now + 1), p, g[G_BEGAN]) if p[P_HALF] else max(at, now)
    f[who, F_DUE] = at


@compiled
def set_all_due(f: Array, g: Array, p: Array, entries: Array) -> None:
    for who in range(f.shape[0]):
        set_due(f, g, p, entries, who)


# The watermark: `rules.membership`.


@compiled
def counts(f: Array, g: Array, p: Array, entries: Array, who: int) -> bool:
    """Whether the watermark waits for it: a member, or of the pseudo-ISR."""
    if f[who, F_IN]:
        return True
    return f[who, F_END] >= g[G_START] and g[G_NOW] < leaves_at(f, g, p, entries, who)


@compiled
def advance_watermark(f: Array, g: Array, p: Array, entries: Array) -> None:
    lowest = g[G_END]
    for who in range(f.shape[0]):
        if who == g[G_LEADER] or f[who, F_END] >= lowest:
            continue
        if f[who, F_IN] or counts(f, g, p, entries, who):
            lowest = f[who, F_END]
            if lowest <= g[G_WATERMARK]:
                return
    if lowest > g[G_WATERMARK]:
        g[G_WATERMARK] = lowest
        g[G_BLOCKED_SINCE] = NONE if lowest >= g[G_END] else g[G_NOW]


# Time, truth and episodes: `oracle._Partition` and `oracle._Term`.


@compiled
def time_passes(f: Array, g: Array, p: Array, v: Array, to: int) -> None:
    passed = to - g[G_NOW]
    g[G_NOW] = to
    if passed == 0 or g[G_MEMBERS] == f.shape[0]:
        return
    is_under = g[G_MEMBERS] < min(p[P_MINIMUM], f.shape[0])
    for who in range(f.shape[0]):
        if f[who, F_OUT_SINCE] != NONE:
            v[V_OUT] += passed
            if is_under and f[who, F_EVICTED]:
                f[who, F_UNDER_MIN] += passed
    if is_under:
        v[V_UNDER_MIN] += passed


@compiled
def passes_at(f: Array, g: Array, p: Array, taus: Array, who: int) -> int:
    if f[who, F_END] < g[G_START]:
        return g[G_STARTED_TAU] + g[G_STALLED] + p[P_LIMIT] + 1
    missing = f[who, F_MISSING]
    if missing >= g[G_APPENDS]:
        return ALWAYS
    return taus[missing] + g[G_STALLED] + p[P_LIMIT] + 1


@compiled
def passes(f: Array, g: Array, v: Array, delays: Array, who: int) -> None:
    if f[who, F_OUT_SINCE] != NONE and f[who, F_EVICTED] and not f[who, F_PASSED]:
        f[who, F_PASSED] = 1
        if g[G_DELAYS] < delays.shape[0]:
            delays[g[G_DELAYS]] = f[who, F_DETECTION]
        g[G_DELAYS] += 1  # past the end: the caller makes room and comes again
        v[V_DELAYS] += 1


@compiled
def tell(f: Array, g: Array, p: Array, v: Array, taus: Array, delays: Array, who: int) -> None:
    begin, until = f[who, F_TOLD], g[G_NOW]
    if until <= begin:
        return
    f[who, F_TOLD] = until
    over = max(begin, passes_at(f, g, p, taus, who))
    if over >= until:
        f[who, F_OVER_SINCE] = NONE
        f[who, F_MISSED] = 0
        return
    if over > begin or f[who, F_OVER_SINCE] == NONE:
        f[who, F_OVER_SINCE] = over
        f[who, F_MISSED] = 0
    if not f[who, F_IN]:
        f[who, F_MISSED] = 0
        passes(f, g, v, delays, who)
        return
    if not f[who, F_MISSED]:
        f[who, F_MISSED] = 1
        v[V_MISSED] += 1
    v[V_MISSED_MS] += until - over


@compiled
def is_silent(f: Array, g: Array, p: Array, who: int) -> bool:
    return g[G_NOW] - f[who, F_LAST_FETCH] > p[P_LIMIT]


@compiled
def close(f: Array, g: Array, p: Array, v: Array, who: int, has_returned: bool) -> None:
    since = f[who, F_OUT_SINCE]
    f[who, F_OUT_SINCE] = NONE
    if since == NONE or not f[who, F_EVICTED]:
        return
    if not f[who, F_PASSED]:
        v[V_FALSE] += 1
    if has_returned and g[G_NOW] - since <= p[P_LIMIT]:
        v[V_FLAPS] += 1
    if f[who, F_KEEPS_FETCHING] and not is_silent(f, g, p, who):
        v[V_UNDER_MIN_FETCHING] += f[who, F_UNDER_MIN]


@compiled
def leave(
    f: Array, g: Array, p: Array, v: Array, entries: Array, taus: Array, delays: Array
) -> None:
    """All whose deadline has come go together."""
    now = g[G_NOW]
    lowest, second, holder = g[G_END], g[G_END], g[G_LEADER]
    for who in range(f.shape[0]):
        if who != g[G_LEADER] and counts(f, g, p, entries, who):
            if f[who, F_END] < lowest:
                lowest, second, holder = f[who, F_END], lowest, who
            elif f[who, F_END] < second:
                second = f[who, F_END]
    is_anybody = False
    for who in range(f.shape[0]):
        if not f[who, F_IN] or f[who, F_DUE] > now:
            continue
        is_anybody = True
        if who == holder and lowest < second and g[G_BLOCKED_SINCE] != NONE:
            since = max(g[G_BLOCKED_SINCE], g[G_BLOCKED_COUNTED])
            v[V_WATERMARK_STALL] += max(0, now - since)
            g[G_BLOCKED_COUNTED] = now
        tell(f, g, p, v, taus, delays, who)
        v[V_SHRINKS] += 1
        f[who, F_IN] = -1  # leaves below: the others are judged before it is gone
        f[who, F_OUT_SINCE] = now
        f[who, F_EVICTED] = 1
        f[who, F_PASSED] = 0
        f[who, F_UNDER_MIN] = 0
        over_since = f[who, F_OVER_SINCE]
        f[who, F_DETECTION] = 0 if over_since == NONE else now - over_since
        f[who, F_KEEPS_FETCHING] = not is_silent(f, g, p, who)
        if passes_at(f, g, p, taus, who) <= now:
            passes(f, g, v, delays, who)
    if is_anybody:
        for who in range(f.shape[0]):
            if f[who, F_IN] == -1:
                f[who, F_IN] = 0
                g[G_MEMBERS] -= 1
        advance_watermark(f, g, p, entries)


@compiled
def look_until(
    f: Array, g: Array, p: Array, v: Array, entries: Array, taus: Array, delays: Array, until: int
) -> None:
    while True:
        due = ALWAYS
        for who in range(f.shape[0]):
            due = min(due, f[who, F_DUE])
        if due > until:
            return
        time_passes(f, g, p, v, due)
        advance_watermark(f, g, p, entries)
        leave(f, g, p, v, entries, taus, delays)
        set_all_due(f, g, p, entries)


# What happens: `rules.leadership`.


@compiled
def append(f: Array, g: Array, p: Array, entries: Array, taus: Array, end: int) -> None:
    now = g[G_NOW]
    if g[G_END] == g[G_WATERMARK]:
        g[G_BLOCKED_SINCE] = now
    if p[P_POLICY] == TRUE_LAG:
        note_append(f, g, p, entries, end)
    before = g[G_END]
    g[G_END] = end
    taus[g[G_APPENDS]] = now - g[G_STALLED]
    g[G_APPENDS] += 1
    # Held by a follower the watermark stays, unless that one is now too many messages behind.
    if g[G_WATERMARK] == before or p[P_POLICY] == MESSAGES:
        advance_watermark(f, g, p, entries)
    if p[P_POLICY] == CAUGHT_UP:  # only who was level, or is now, has another deadline
        for who in range(f.shape[0]):
            if f[who, F_END] == before or f[who, F_END] == end:
                set_due(f, g, p, entries, who)
    elif p[P_POLICY] != LAG_BEGIN:
        set_all_due(f, g, p, entries)


@compiled
def note_append(f: Array, g: Array, p: Array, entries: Array, end: int) -> None:
    """`AppendTimes.append`; an entry is its end, when it was opened, and its last append."""
    limit = p[P_LIMIT]
    resolution = max(1, limit // RESOLUTION_PARTS)
    at = g[G_NOW] - g[G_SHIFT]
    n = g[G_ENTRIES]
    if n > 0 and at - entries[n - 1, 1] < resolution:
        entries[n - 1, 0] = end
        entries[n - 1, 2] = at
    else:
        while g[G_FIRST_ENTRY] + 1 < n and at - entries[g[G_FIRST_ENTRY] + 1, 2] > limit:
            g[G_FIRST_ENTRY] += 1
        entries[n, 0] = end
        entries[n, 1] = at
        entries[n, 2] = at
        n += 1
        g[G_ENTRIES] = n
    for who in range(f.shape[0]):  # who lacked nothing lacks this
        if f[who, F_END] >= g[G_END] and f[who, F_END] < end:
            f[who, F_ENTRY] = n - 1


@compiled
def find_entry(f: Array, g: Array, entries: Array, who: int) -> None:
    """The first entry past its end; entries that were dropped are behind `G_FIRST_ENTRY`."""
    at, end = f[who, F_ENTRY], f[who, F_END]
    while at < g[G_ENTRIES] and entries[at, 0] <= end:
        at += 1
    while at > 0 and entries[at - 1, 0] > end:
        at -= 1
    f[who, F_ENTRY] = at


@compiled
def fetch(
    f: Array, g: Array, p: Array, v: Array, entries: Array, who: int, offset: int,
    leader_end: int, at: int, missing: int,
) -> None:  # fmt: skip
    """`Follower.on_fetch` and what follows from it."""
    now = g[G_NOW]
    previous = f[who, F_LEADER_END]
    at_end = offset >= leader_end
    at_previous = previous != NONE and offset >= previous
    proof = at if at_end else (f[who, F_FETCHED] if at_previous else NEVER)
    # Only who holds the watermark back moves it; who comes nearer moves it not at all.
    may_advance = f[who, F_END] <= g[G_WATERMARK] and offset != f[who, F_END]
    if offset < f[who, F_END] and at >= f[who, F_FETCHED]:  # its log went back
        f[who, F_CAUGHT_UP] = f[who, F_CAUGHT_UP_SERVED] = NEVER
        may_advance = True
    f[who, F_END] = offset
    f[who, F_MISSING] = missing
    f[who, F_CAUGHT_UP] = max(f[who, F_CAUGHT_UP], proof)
    if at_end or at_previous:
        f[who, F_CAUGHT_UP_SERVED] = max(f[who, F_CAUGHT_UP_SERVED], now)
    f[who, F_FETCHED] = max(f[who, F_FETCHED], at)
    f[who, F_LEADER_END] = leader_end if previous == NONE else max(leader_end, previous)
    f[who, F_SERVED] = max(f[who, F_SERVED], now)
    if at_end:
        f[who, F_LAG_BEGAN] = NONE
    elif f[who, F_LAG_BEGAN] == NONE:
        f[who, F_LAG_BEGAN] = at
    f[who, F_FORGIVEN] = 0
    if p[P_POLICY] == TRUE_LAG:
        find_entry(f, g, entries, who)
    if may_advance:
        advance_watermark(f, g, p, entries)
    is_in = f[who, F_IN]
    if not is_in:
        if f[who, F_OUT_SINCE] == NONE:
            f[who, F_OUT_SINCE] = now
            f[who, F_EVICTED] = 0
        elif is_silent(f, g, p, who):
            f[who, F_KEEPS_FETCHING] = 0
    f[who, F_LAST_FETCH] = now
    if (
        not is_in
        and offset >= g[G_WATERMARK]
        and offset >= g[G_START]
        and now < leaves_at(f, g, p, entries, who)
    ):
        v[V_EXPANDS] += 1
        close(f, g, p, v, who, True)
        f[who, F_IN] = 1
        g[G_MEMBERS] += 1
        advance_watermark(f, g, p, entries)
    set_due(f, g, p, entries, who)


@compiled
def later(at: int, shift: int, ended: int) -> int:
    return at if at == NEVER else min(at + shift, ended)


@compiled
def stalled(
    f: Array, g: Array, p: Array, v: Array, entries: Array, taus: Array, delays: Array,
    reads: Array, began: int, ended: int,
) -> None:  # fmt: skip
    """`Leadership.stalled`, and the same for the truth."""
    look_until(f, g, p, v, entries, taus, delays, max(g[G_NOW], began))
    if g[G_NOW] < began:
        time_passes(f, g, p, v, began)
    length = ended - began
    for who in range(f.shape[0]):
        if who == g[G_LEADER]:
            continue
        tell(f, g, p, v, taus, delays, who)
        f[who, F_TOLD] = ended
        f[who, F_GRACED] = began < leaves_at(f, g, p, entries, who)
        shift = min(length, max(0, p[P_LIMIT] - f[who, F_FORGIVEN]))
        for field in (F_FETCHED, F_CAUGHT_UP, F_CAUGHT_UP_SERVED, F_SERVED):
            f[who, field] = later(f[who, field], shift, ended)
        if f[who, F_LAG_BEGAN] != NONE:
            f[who, F_LAG_BEGAN] = later(f[who, F_LAG_BEGAN], shift, ended)
        f[who, F_FORGIVEN] += shift
        for read in range(g[G_READS]):
            if reads[read, 1] == who:
                reads[read, 2] = min(reads[read, 2] + shift, ended)
    newest = entries[g[G_ENTRIES] - 1, 2] if g[G_ENTRIES] > 0 else g[G_STARTED]
    g[G_SHIFT] += max(0, min(length, ended - (newest + g[G_SHIFT])))
    # What was appended after the stall was thought to begin moves no further than its end.
    latest = began - g[G_STALLED]
    index = g[G_APPENDS] - 1
    while index >= 0 and taus[index] > latest:
        taus[index] = latest
        index -= 1
    g[G_STARTED_TAU] = min(g[G_STARTED_TAU], latest)
    g[G_STALLED] += length
    g[G_DRAINED] = ended
    time_passes(f, g, p, v, ended)
    set_all_due(f, g, p, entries)


@compiled
def read_began(f: Array, g: Array, reads: Array, row: int, who: int, offset: int, at: int) -> None:
    holds = f[who, F_LEADER_END] != NONE and offset >= f[who, F_LEADER_END]
    read = g[G_READS]
    reads[read, 0], reads[read, 1], reads[read, 2], reads[read, 3] = row, who, at, holds
    f[who, F_HOLDS] += holds
    g[G_READS] += 1


@compiled
def read_ended(f: Array, g: Array, reads: Array, row: int, at: int) -> int:
    """When it was parsed, stalls not counted."""
    for read in range(g[G_READS]):
        if reads[read, 0] == row:
            at = reads[read, 2]
            f[reads[read, 1], F_HOLDS] -= reads[read, 3]
            g[G_READS] -= 1
            for rest in range(read, g[G_READS]):
                for field in range(4):
                    reads[rest, field] = reads[rest + 1, field]
            break
    return at


# One partition.


@compiled
def begin_epoch(f: Array, g: Array, p: Array, v: Array, leader: int, at: int, start: int) -> None:
    g[G_NOW] = at
    g[G_LEADER] = leader
    if not f[leader, F_IN]:
        f[leader, F_IN] = 1
        g[G_MEMBERS] += 1
        close(f, g, p, v, leader, False)
    g[G_END] = g[G_WATERMARK] = g[G_START] = start
    g[G_BEGAN] = g[G_STARTED] = g[G_STARTED_TAU] = g[G_BLOCKED_COUNTED] = at
    g[G_DRAINED] = NEVER
    g[G_BLOCKED_SINCE] = NONE
    g[G_ENTRIES] = g[G_FIRST_ENTRY] = g[G_SHIFT] = g[G_APPENDS] = g[G_STALLED] = g[G_READS] = 0
    for who in range(f.shape[0]):
        since = at if f[who, F_IN] else NEVER
        f[who, F_END] = UNKNOWN
        for field in (F_FETCHED, F_CAUGHT_UP, F_CAUGHT_UP_SERVED, F_SERVED):
            f[who, field] = since
        f[who, F_LEADER_END] = f[who, F_LAG_BEGAN] = f[who, F_OVER_SINCE] = NONE
        f[who, F_FORGIVEN] = f[who, F_GRACED] = f[who, F_HOLDS] = 0
        f[who, F_ENTRY] = f[who, F_MISSED] = 0
        f[who, F_MISSING] = 0
        f[who, F_TOLD] = at


@compiled
def replay(
    kinds: Array, times: Array, who: Array, offsets: Array, leader_ends: Array, ats: Array,
    rows: Array, missing: Array,
    epochs: Array,  # first event, past its last, leader, start offset, first stall, past its last
    stalls: Array,  # began, ended
    at_start: Array, p: Array, v: Array, f: Array, entries: Array, taus: Array, reads: Array,
    delays: Array, first_delay: int,
) -> int:  # fmt: skip
    """One scenario; returns where the next one's detection delays go."""
    g = np.zeros(G_FIELDS, np.int64)
    g[G_DELAYS] = first_delay
    f[:] = 0
    for one in range(f.shape[0]):
        f[one, F_IN] = at_start[one]
        f[one, F_OUT_SINCE] = NONE
        f[one, F_LAST_FETCH] = NEVER
        g[G_MEMBERS] += at_start[one]
    limit = p[P_LIMIT]
    for epoch in range(epochs.shape[0]):
        event, past, leader, start = (
            epochs[epoch, 0],
            epochs[epoch, 1],
            epochs[epoch, 2],
            epochs[epoch, 3],
        )
        begin_epoch(f, g, p, v, leader, times[event], start)
        set_all_due(f, g, p, entries)
        next_stall, past_stalls = epochs[epoch, 4], epochs[epoch, 5]
        while event < past:
            now = times[event]
            while next_stall < past_stalls and stalls[next_stall, 1] <= now:
                began, ended = stalls[next_stall, 0], stalls[next_stall, 1]
                length = stalls[next_stall, 2]
                if length >= STALL_MS_MIN and length * STALL_PARTS >= limit:
                    stalled(f, g, p, v, entries, taus, delays, reads, began, ended)
                next_stall += 1
            # Most events change nothing for anybody else: look first, call then.
            due = f[0, F_DUE]
            for one in range(1, f.shape[0]):
                due = min(due, f[one, F_DUE])
            if due <= now:
                look_until(f, g, p, v, entries, taus, delays, now)
            if g[G_MEMBERS] == f.shape[0]:
                g[G_NOW] = now
            elif now != g[G_NOW]:
                time_passes(f, g, p, v, now)
            kind, one = kinds[event], who[event]
            if kind == APPEND:
                if offsets[event] > g[G_END]:
                    append(f, g, p, entries, taus, offsets[event])
            elif kind == BEGAN:
                read_began(f, g, reads, rows[event], one, offsets[event], ats[event])
                set_due(f, g, p, entries, one)
            else:
                lacks = f[one, F_MISSING]
                if (
                    f[one, F_IN]
                    and f[one, F_OVER_SINCE] == NONE
                    and f[one, F_END] >= start
                    and (lacks >= g[G_APPENDS] or taus[lacks] + g[G_STALLED] + limit + 1 >= now)
                ):
                    f[one, F_TOLD] = max(f[one, F_TOLD], now)
                else:
                    tell(f, g, p, v, taus, delays, one)
                at = ats[event]
                if at != now or kind == FAILED:
                    at = read_ended(f, g, reads, rows[event], at)
                if kind == FETCH:
                    fetch(
                        f,
                        g,
                        p,
                        v,
                        entries,
                        one,
                        offsets[event],
                        leader_ends[event],
                        at,
                        missing[event],
                    )
                else:
                    set_due(f, g, p, entries, one)
            event += 1
        look_until(f, g, p, v, entries, taus, delays, g[G_NOW])
        for one in range(f.shape[0]):
            if one != leader:
                tell(f, g, p, v, taus, delays, one)
        if epoch + 1 < epochs.shape[0]:
            time_passes(f, g, p, v, max(g[G_NOW], times[epochs[epoch + 1, 0]]))
    for one in range(f.shape[0]):
        close(f, g, p, v, one, False)
    return g[G_DELAYS]
