"""The replay of `oracle.py`, compiled: one partition's ordered events, every scenario in turn.

It does what `insync.rules` does, on rows of integers instead of frozen values; `tests/pipeline`
ties the two together, verdict by verdict. The state of a follower is a row of `f`, of the partition
a row of `g`; each function says which rule it is the twin of. Nothing here allocates per event.
"""

from __future__ import annotations

import numpy as np

from insync.pipeline.calm import (
    M_APPENDS,
    M_BLOCKED_SINCE,
    M_END,
    M_EVENT,
    M_NOW,
    M_UNTIL,
    M_WATERMARK,
    is_as_marked,
    stays_calm,
)
from insync.pipeline.compiling import compiled, inner
from insync.pipeline.ordering import (
    E_AT,
    E_KIND,
    E_MISSING,
    E_OFFSET,
    E_POSITION,
    E_ROW,
    E_TIME,
    E_WHO,
)
from insync.pipeline.state import (
    ALWAYS,
    APPEND,
    BEGAN,
    CAUGHT_UP,
    F_ABSENT,
    F_CAUGHT_UP,
    F_CAUGHT_UP_SERVED,
    F_DETECTION,
    F_DUE,
    F_END,
    F_ENTRY,
    F_EVICTED,
    F_FACTS,
    F_FETCHED,
    F_FORGIVEN,
    F_GRACED,
    F_HOLDS,
    F_IN,
    F_KEEPS_FETCHING,
    F_LAG_BEGAN,
    F_LAST_FETCH,
    F_LEADER_END,
    F_MISSED,
    F_MISSING,
    F_OUT_SINCE,
    F_OVER_SINCE,
    F_PASSED,
    F_SERVED,
    F_TOLD,
    F_UNDER_MIN,
    FAILED,
    FETCH,
    G_APPENDS,
    G_BEGAN,
    G_BLOCKED_COUNTED,
    G_BLOCKED_SINCE,
    G_DELAYS,
    G_DRAINED,
    G_END,
    G_ENTRIES,
    G_FIELDS,
    G_FIRST_ENTRY,
    G_KNOWN,
    G_LEADER,
    G_MEMBERS,
    G_NOW,
    G_PRESENT,
    G_READS,
    G_SHIFT,
    G_STALLED,
    G_START,
    G_STARTED,
    G_STARTED_TAU,
    G_WATERMARK,
    GONE,
    LAG_BEGIN,
    MESSAGES,
    NEVER,
    NONE,
    O_APPEND,
    O_EPOCH,
    O_EVENT,
    O_LAST_MARK,
    O_LEADER,
    O_MARK,
    O_PAST_STALLS,
    O_STALL,
    O_START,
    P_HALF,
    P_HOLDS,
    P_LIMIT,
    P_MESSAGES,
    P_MINIMUM,
    P_POLICY,
    P_WAIT,
    PRESENT,
    TRUE_LAG,
    UNKNOWN,
    V_DELAYS,
    V_EXPANDS,
    V_FALSE,
    V_FLAPS,
    V_MISSED,
    V_MISSED_MS,
    V_OUT,
    V_SHRINKS,
    V_UNDER_MIN,
    V_UNDER_MIN_FETCHING,
    V_WATERMARK_STALL,
    YET_TO_COME,
    Array,
    begin_facts,
    fetched,
    raised,
)
from insync.rules.append_times import RESOLUTION_PARTS
from insync.rules.stalls import STALL_MS_MIN, STALL_PARTS

# When a follower is out: `rules.policy`, `rules.append_times`, `rules.eviction`.


@inner
def first_past(f: Array, g: Array, entries: Array, who: int) -> int:
    if f[who, F_END] < g[G_START]:
        return g[G_STARTED] + g[G_SHIFT]
    at = max(f[who, F_ENTRY], g[G_FIRST_ENTRY])
    return entries[at, 2] + g[G_SHIFT]


@inner
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


@inner
def check_at(at: int, p: Array, first: int) -> int:
    """`rules.policy.half_period_check_at_ms`."""
    period = max(1, p[P_LIMIT] // 2)
    periods = -((first - at) // period)
    return first + max(0, periods) * period


@inner
def set_due(f: Array, g: Array, p: Array, entries: Array, who: int) -> None:
    """When to look at this follower next: it leaves, or lets go of the watermark."""
    now = g[G_NOW]
    if who == g[G_LEADER]:
        f[who, F_DUE] = ALWAYS
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


@inner
def set_all_due(f: Array, g: Array, p: Array, entries: Array) -> None:
    for who in range(f.shape[0]):
        set_due(f, g, p, entries, who)


# The watermark: `rules.membership`.


@inner
def counts(f: Array, g: Array, p: Array, entries: Array, who: int) -> bool:
    """Whether the watermark waits for it: a member, or of the pseudo-ISR."""
    if f[who, F_IN]:
        return True
    return f[who, F_END] >= g[G_START] and g[G_NOW] < leaves_at(f, g, p, entries, who)


@inner
def advance_watermark(f: Array, g: Array, p: Array, entries: Array) -> None:
    lowest = g[G_END]
    for who in range(f.shape[0]):
        if who == g[G_LEADER] or f[who, F_END] >= lowest:
            continue
        if f[who, F_IN] or counts(f, g, p, entries, who):
            lowest = f[who, F_END]
            if lowest <= g[G_WATERMARK]:
                return
    g[G_WATERMARK], g[G_BLOCKED_SINCE] = raised(
        g[G_WATERMARK], g[G_BLOCKED_SINCE], lowest, g[G_END], g[G_NOW]
    )


# Time, truth and episodes: `oracle._Partition` and `oracle._Term`.


@inner
def time_passes(f: Array, g: Array, p: Array, v: Array, to: int) -> None:
    passed = to - g[G_NOW]
    g[G_NOW] = to
    if passed == 0 or g[G_MEMBERS] == f.shape[0]:
        return
    is_under = g[G_MEMBERS] < min(p[P_MINIMUM], g[G_KNOWN])
    for who in range(f.shape[0]):
        if f[who, F_OUT_SINCE] != NONE:
            v[V_OUT] += passed
            if is_under and f[who, F_EVICTED]:
                f[who, F_UNDER_MIN] += passed
    if is_under:
        v[V_UNDER_MIN] += passed


@inner
def passes_at(f: Array, g: Array, p: Array, taus: Array, who: int) -> int:
    if f[who, F_END] < g[G_START]:
        return g[G_STARTED_TAU] + g[G_STALLED] + p[P_LIMIT] + 1
    missing = f[who, F_MISSING]
    if missing >= g[G_APPENDS]:
        return ALWAYS
    return taus[missing] + g[G_STALLED] + p[P_LIMIT] + 1


@inner
def passes(f: Array, g: Array, v: Array, delays: Array, who: int) -> None:
    if f[who, F_OUT_SINCE] != NONE and f[who, F_EVICTED] and not f[who, F_PASSED]:
        f[who, F_PASSED] = 1
        if g[G_DELAYS] < delays.shape[0]:
            delays[g[G_DELAYS]] = f[who, F_DETECTION]
        g[G_DELAYS] += 1  # past the end: the caller makes room and comes again
        v[V_DELAYS] += 1


@inner
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


@inner
def is_silent(f: Array, g: Array, p: Array, who: int) -> bool:
    return g[G_NOW] - f[who, F_LAST_FETCH] > p[P_LIMIT]


@inner
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


@inner
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


@inner
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


@inner
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


@inner
def note_append(f: Array, g: Array, p: Array, entries: Array, end: int) -> None:
    note_entry(g, p, entries, g[G_NOW] - g[G_SHIFT], end)
    for who in range(f.shape[0]):  # who lacked nothing lacks this
        if f[who, F_END] >= g[G_END] and f[who, F_END] < end:
            f[who, F_ENTRY] = g[G_ENTRIES] - 1


@inner
def note_entry(g: Array, p: Array, entries: Array, at: int, end: int) -> None:
    """`AppendTimes.append`; an entry is its end, when it was opened, and its last append."""
    limit = p[P_LIMIT]
    resolution = max(1, limit // RESOLUTION_PARTS)
    n = g[G_ENTRIES]
    if n > 0 and at - entries[n - 1, 1] < resolution:
        entries[n - 1, 0] = end
        entries[n - 1, 2] = at
        return
    while g[G_FIRST_ENTRY] + 1 < n and at - entries[g[G_FIRST_ENTRY] + 1, 2] > limit:
        g[G_FIRST_ENTRY] += 1
    entries[n, 0] = end
    entries[n, 1] = at
    entries[n, 2] = at
    g[G_ENTRIES] = n + 1


@inner
def find_entry(f: Array, g: Array, entries: Array, who: int) -> None:
    """The first entry past its end; entries that were dropped are behind `G_FIRST_ENTRY`."""
    at, end = f[who, F_ENTRY], f[who, F_END]
    while at < g[G_ENTRIES] and entries[at, 0] <= end:
        at += 1
    while at > 0 and entries[at - 1, 0] > end:
        at -= 1
    f[who, F_ENTRY] = at


@inner
def fetch(
    f: Array, g: Array, p: Array, v: Array, entries: Array, who: int, offset: int,
    leader_end: int, at: int, missing: int,
) -> None:  # fmt: skip
    """`Follower.on_fetch` and what follows from it."""
    now = g[G_NOW]
    # Only who holds the watermark back moves it; who comes nearer moves it not at all.
    went_on = offset != f[who, F_END]
    may_advance = went_on and (f[who, F_END] <= g[G_WATERMARK] or offset < f[who, F_END])
    fetched(f, who, now, at, offset, leader_end, missing)
    f[who, F_FORGIVEN] = 0
    if p[P_POLICY] == TRUE_LAG:
        find_entry(f, g, entries, who)
    if may_advance:
        advance_watermark(f, g, p, entries)
    is_in = f[who, F_IN]
    if not is_in:
        is_seen(f, g, who)
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


@inner
def later(at: int, shift: int, ended: int) -> int:
    return at if at == NEVER else min(at + shift, ended)


@inner
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
    advance_watermark(f, g, p, entries)
    set_all_due(f, g, p, entries)


@inner
def read_began(f: Array, g: Array, reads: Array, row: int, who: int, offset: int, at: int) -> None:
    holds = f[who, F_LEADER_END] != NONE and offset >= f[who, F_LEADER_END]
    read = g[G_READS]
    reads[read, 0], reads[read, 1], reads[read, 2], reads[read, 3] = row, who, at, holds
    f[who, F_HOLDS] += holds
    g[G_READS] += 1


@inner
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


@inner
def begin_epoch(f: Array, g: Array, p: Array, v: Array, leader: int, start: int) -> None:
    at = g[G_NOW]
    g[G_LEADER] = leader
    if not f[leader, F_IN]:
        is_seen(f, g, leader)
        f[leader, F_IN] = 1
        g[G_MEMBERS] += 1
        close(f, g, p, v, leader, False)
    g[G_END] = g[G_WATERMARK] = g[G_START] = start
    g[G_BEGAN] = g[G_STARTED] = g[G_STARTED_TAU] = g[G_BLOCKED_COUNTED] = at
    g[G_DRAINED] = NEVER
    g[G_BLOCKED_SINCE] = NONE
    g[G_ENTRIES] = g[G_FIRST_ENTRY] = g[G_SHIFT] = g[G_APPENDS] = g[G_STALLED] = g[G_READS] = 0
    for who in range(f.shape[0]):
        begin_facts(f, who, at, at if f[who, F_IN] else NEVER)
        f[who, F_OVER_SINCE] = NONE
        f[who, F_FORGIVEN] = f[who, F_GRACED] = f[who, F_HOLDS] = 0
        f[who, F_ENTRY] = f[who, F_MISSED] = 0


@inner
def goes(f: Array, g: Array, p: Array, v: Array, who: int) -> None:
    """It was moved away: no verdict."""
    close(f, g, p, v, who, False)
    g[G_MEMBERS] -= f[who, F_IN]
    g[G_PRESENT] -= f[who, F_ABSENT] == PRESENT
    g[G_KNOWN] -= f[who, F_ABSENT] != GONE
    f[who, F_IN], f[who, F_ABSENT] = 0, GONE


@inner
def is_seen(f: Array, g: Array, who: int) -> None:
    g[G_PRESENT] += f[who, F_ABSENT] != PRESENT
    g[G_KNOWN] += f[who, F_ABSENT] == GONE
    f[who, F_ABSENT] = PRESENT


@inner
def are_all_in(g: Array, p: Array) -> bool:
    """And are enough: then the time that passes is nobody's, as long as nobody leaves."""
    return g[G_MEMBERS] == g[G_PRESENT] and g[G_MEMBERS] >= min(p[P_MINIMUM], g[G_KNOWN])


@inner
def resume(
    f: Array, g: Array, p: Array, entries: Array, taus: Array, mark: Array, facts: Array,
    append_at: Array, append_ends: Array, base: int,
) -> None:  # fmt: skip
    """Take up the state at a mark, all having been in sync up to it."""
    for who in range(f.shape[0]):
        for field in range(F_FACTS):
            f[who, field] = facts[who, field]
    for index in range(g[G_APPENDS], mark[M_APPENDS]):
        taus[index] = append_at[base + index]
        if p[P_POLICY] == TRUE_LAG:
            note_entry(g, p, entries, append_at[base + index], append_ends[base + index])
    g[G_NOW], g[G_END], g[G_WATERMARK] = mark[M_NOW], mark[M_END], mark[M_WATERMARK]
    g[G_BLOCKED_SINCE], g[G_APPENDS] = mark[M_BLOCKED_SINCE], mark[M_APPENDS]
    if p[P_POLICY] == TRUE_LAG:
        for who in range(f.shape[0]):
            find_entry(f, g, entries, who)
    set_all_due(f, g, p, entries)


@inner
def next_that_counts(stalls: Array, at: int, past: int, limit: int) -> int:
    while at < past:
        length = stalls[at, 2]
        if length >= STALL_MS_MIN and length * STALL_PARTS >= limit:
            return at
        at += 1
    return past


@compiled
def replay(
    events: Array, epochs: Array, marks: Array, facts: Array, append_at: Array, append_ends: Array,
    moves: Array,  # the first epoch without a replica, and which; in order
    stalls: Array,  # began, ended, length
    at_start: Array, p: Array, v: Array, f: Array, entries: Array, taus: Array, reads: Array,
    delays: Array, first_delay: int,
) -> int:  # fmt: skip
    """One scenario; returns where the next one's detection delays go."""
    g = np.zeros(G_FIELDS, np.int64)
    g[G_DELAYS], g[G_KNOWN] = first_delay, f.shape[0]
    f[:] = 0
    for one in range(f.shape[0]):
        f[one, F_IN] = at_start[one]
        f[one, F_OUT_SINCE] = NONE
        f[one, F_LAST_FETCH] = NEVER
        f[one, F_ABSENT] = PRESENT if at_start[one] else YET_TO_COME
        g[G_MEMBERS] += at_start[one]
    g[G_PRESENT] = g[G_MEMBERS]
    limit = p[P_LIMIT]
    move = 0
    for epoch in range(epochs.shape[0]):
        leader, base = epochs[epoch, O_LEADER], epochs[epoch, O_APPEND]
        g[G_NOW] = events[epochs[epoch, O_EVENT], E_TIME]
        while move < moves.shape[0] and moves[move, 0] <= epochs[epoch, O_EPOCH]:
            goes(f, g, p, v, moves[move, 1])
            move += 1
        begin_epoch(f, g, p, v, leader, epochs[epoch, O_START])
        set_all_due(f, g, p, entries)
        past_stalls = epochs[epoch, O_PAST_STALLS]
        stall = next_that_counts(stalls, epochs[epoch, O_STALL], past_stalls, limit)
        has_stalled, has_skipped = False, False
        is_calm = are_all_in(g, p)
        last_mark = epochs[epoch, O_LAST_MARK]
        for mark in range(epochs[epoch, O_MARK], last_mark):
            stalled_at = stalls[stall, 1] if stall < past_stalls else ALWAYS
            if is_calm and marks[mark, M_UNTIL] < stalled_at and stays_calm(marks[mark], p):
                has_skipped = True
                continue
            if has_skipped:
                resume(
                    f, g, p, entries, taus, marks[mark], facts[mark], append_at, append_ends, base
                )
                has_skipped = False
            for event in range(marks[mark, M_EVENT], marks[mark + 1, M_EVENT]):
                now = events[event, E_TIME]
                while stall < past_stalls and stalls[stall, 1] <= now:
                    began, ended = stalls[stall, 0], stalls[stall, 1]
                    stalled(f, g, p, v, entries, taus, delays, reads, began, ended)
                    has_stalled = True
                    stall = next_that_counts(stalls, stall + 1, past_stalls, limit)
                happen(events, event, f, g, p, v, entries, taus, reads, delays)
            is_calm = (
                not has_stalled
                and are_all_in(g, p)
                and is_as_marked(f, g, marks[mark + 1], facts[mark + 1])
            )
        if has_skipped:
            resume(
                f, g, p, entries, taus, marks[last_mark], facts[last_mark], append_at,
                append_ends, base,
            )  # fmt: skip
        look_until(f, g, p, v, entries, taus, delays, g[G_NOW])
        for one in range(f.shape[0]):
            if one != leader:
                tell(f, g, p, v, taus, delays, one)
        if epoch + 1 < epochs.shape[0]:
            time_passes(f, g, p, v, max(g[G_NOW], events[epochs[epoch + 1, O_EVENT], E_TIME]))
    for one in range(f.shape[0]):
        close(f, g, p, v, one, False)
    return g[G_DELAYS]


@inner
def happen(
    events: Array, event: int, f: Array, g: Array, p: Array, v: Array, entries: Array, taus: Array,
    reads: Array, delays: Array,
) -> None:  # fmt: skip
    now, one = events[event, E_TIME], events[event, E_WHO]
    look_until(f, g, p, v, entries, taus, delays, now)
    time_passes(f, g, p, v, now)
    kind = events[event, E_KIND]
    if kind == APPEND:
        if events[event, E_OFFSET] > g[G_END]:
            append(f, g, p, entries, taus, events[event, E_OFFSET])
        return
    if kind == BEGAN:
        read_began(
            f, g, reads, events[event, E_ROW], one, events[event, E_OFFSET], events[event, E_AT]
        )
        set_due(f, g, p, entries, one)
        return
    tell(f, g, p, v, taus, delays, one)
    at = events[event, E_AT]
    if at != now or kind == FAILED:
        at = read_ended(f, g, reads, events[event, E_ROW], at)
    if kind == FETCH:
        fetch(
            f, g, p, v, entries, one, events[event, E_OFFSET], events[event, E_POSITION], at,
            events[event, E_MISSING],
        )  # fmt: skip
    else:
        set_due(f, g, p, entries, one)
