"""Stretches of a partition's life in which a rule finds nothing to do, and which are left out.

What a fetch tells of its follower is the same under every rule; only who is in sync differs. So
while all are in sync, the state at any moment follows from the traffic alone. `mark` walks a
partition once: every few events it notes that state, and how far each rule's measure went until the
next such mark. A replay in which all are in sync goes from mark to mark as long as the measure
stays within its limit, takes up the state where it does not, and walks on from there (`kernel.py`).

Only a stall moves times by an amount that depends on the limit. From one that counts to the end of
its epoch nothing is left out.
"""

from __future__ import annotations

import numpy as np

from insync.pipeline.compiling import compiled, inlined, inner
from insync.pipeline.events import E_AT, E_KIND, E_OFFSET, E_POSITION, E_TIME
from insync.pipeline.state import (
    ALWAYS,
    APPEND,
    BEGAN,
    CAUGHT_UP,
    F_CAUGHT_UP,
    F_CAUGHT_UP_SERVED,
    F_END,
    F_FACTS,
    F_FETCHED,
    F_LAG_BEGAN,
    F_LAST_FETCH,
    F_MISSING,
    F_OVER_SINCE,
    F_TOLD,
    FAILED,
    G_APPENDS,
    G_BEGAN,
    G_BLOCKED_SINCE,
    G_END,
    G_FIELDS,
    G_LEADER,
    G_MEMBERS,
    G_NOW,
    G_READS,
    G_START,
    G_WATERMARK,
    LAG_BEGIN,
    MESSAGES,
    NEVER,
    NONE,
    O_APPEND,
    O_EVENT,
    O_LAST_MARK,
    O_LEADER,
    O_MARK,
    O_PAST,
    O_START,
    P_HOLDS,
    P_LIMIT,
    P_MESSAGES,
    P_POLICY,
    UNKNOWN,
    Array,
    begin_facts,
    fetched,
    raise_watermark,
)

STRETCH = 128  # events; a mark costs about as much as ten

# A mark: its event, the state before it, and the longest that was measured until the next mark.
(
    M_EVENT, M_NOW, M_END, M_WATERMARK, M_BLOCKED_SINCE, M_APPENDS,
    M_UNTIL, M_CAUGHT_UP, M_CAUGHT_UP_SERVED, M_LAG_BEGAN, M_SILENT, M_MESSAGES, M_TRUE_LAG,
    M_LACKING, M_FIELDS,
) = range(15)  # fmt: skip


@inner
def stays_calm(mark: Array, p: Array) -> bool:
    """Whether nobody leaves, and nobody is missed, if all are in sync here."""
    limit = p[P_LIMIT]
    if mark[M_LACKING] > limit:
        return False
    policy = p[P_POLICY]
    if policy == CAUGHT_UP:
        measured = mark[M_CAUGHT_UP_SERVED] if p[P_HOLDS] else mark[M_CAUGHT_UP]
    elif policy == MESSAGES:
        if mark[M_MESSAGES] > p[P_MESSAGES]:
            return False
        measured = mark[M_SILENT]
    elif policy == LAG_BEGIN:
        measured = mark[M_LAG_BEGAN]
    else:
        measured = mark[M_TRUE_LAG]  # not coarser than the rule's own: never longer
    return measured <= limit


@inner
def is_as_marked(f: Array, g: Array, mark: Array, facts: Array) -> bool:
    """Whether all are in sync, and everything is as if they had always been."""
    if g[G_MEMBERS] != f.shape[0] or g[G_WATERMARK] != mark[M_WATERMARK]:
        return False
    if g[G_BLOCKED_SINCE] != mark[M_BLOCKED_SINCE]:
        return False
    for who in range(f.shape[0]):
        if f[who, F_OVER_SINCE] != NONE:
            return False
        for field in range(F_FACTS):  # who began an epoch out of sync was never caught up in it
            if f[who, field] != facts[who, field]:
                return False
    return True


@compiled
def mark(
    events: Array, who: Array, missing: Array, epochs: Array, append_at: Array, f: Array,
    stretch: int, least: Array, marks: Array, facts: Array,
) -> None:  # fmt: skip
    """Fills `marks` and the followers' `facts` at each; says in `epochs` which are whose.

    What stays within `least`, the smallest limits that are asked for, need not be told apart."""
    g = np.zeros(G_FIELDS, np.int64)
    count = 0
    f[:, F_LAST_FETCH] = NEVER
    for epoch in range(len(epochs)):
        event, past = epochs[epoch, O_EVENT], epochs[epoch, O_PAST]
        append_times = append_at[epochs[epoch, O_APPEND] :]
        g[G_NOW] = g[G_BEGAN] = events[E_TIME, event]
        g[G_LEADER] = epochs[epoch, O_LEADER]
        g[G_END] = g[G_WATERMARK] = g[G_START] = epochs[epoch, O_START]
        g[G_BLOCKED_SINCE] = NONE
        g[G_APPENDS] = g[G_READS] = 0
        for one in range(len(f)):
            begin_facts(f, one, g[G_BEGAN], g[G_BEGAN])
        epochs[epoch, O_MARK] = count
        m = marks[count]
        note(m, facts[count], f, g, event)
        while event < past:
            if event - m[M_EVENT] >= stretch and g[G_READS] == 0:
                measure_all(m, f, g, append_times, least)
                count += 1
                m = marks[count]
                note(m, facts[count], f, g, event)
            g[G_NOW] = events[E_TIME, event]
            kind, one = events[E_KIND, event], who[event]
            if kind == APPEND:
                appended(m, f, g, append_times, least, events[E_OFFSET, event])
            elif kind == BEGAN:
                g[G_READS] += 1
            elif kind == FAILED:
                g[G_READS] -= 1
                f[one, F_TOLD] = g[G_NOW]
            else:
                measure(m, f, g, append_times, least, one)
                offset, at = events[E_OFFSET, event], events[E_AT, event]
                g[G_READS] -= at != g[G_NOW]
                held_it = f[one, F_END] <= g[G_WATERMARK] and f[one, F_END] != offset
                fetched(f, one, g[G_NOW], at, offset, events[E_POSITION, event], missing[event])
                f[one, F_TOLD] = f[one, F_LAST_FETCH] = g[G_NOW]
                if held_it:
                    raise_watermark(g, lowest_end(f, g))
            event += 1
        measure_all(m, f, g, append_times, least)
        count += 1
        note(marks[count], facts[count], f, g, past)
        epochs[epoch, O_LAST_MARK] = count
        count += 1


@inlined
def appended(m: Array, f: Array, g: Array, append_times: Array, least: Array, end: int) -> None:
    if end <= g[G_END]:
        return
    for one in range(len(f)):
        if f[one, F_END] == end:  # ahead of what was told; level from now on
            measure(m, f, g, append_times, least, one)
    is_free = g[G_WATERMARK] == g[G_END]
    g[G_END] = end
    g[G_APPENDS] += 1
    if is_free:
        g[G_BLOCKED_SINCE] = g[G_NOW]
        raise_watermark(g, lowest_end(f, g))


@inner
def note(m: Array, facts: Array, f: Array, g: Array, event: int) -> None:
    m[M_EVENT], m[M_NOW], m[M_END] = event, g[G_NOW], g[G_END]
    m[M_WATERMARK], m[M_BLOCKED_SINCE] = g[G_WATERMARK], g[G_BLOCKED_SINCE]
    m[M_APPENDS] = g[G_APPENDS]
    for field in range(M_UNTIL, M_FIELDS):
        m[field] = -ALWAYS
    for one in range(len(f)):
        for field in range(F_FACTS):
            facts[one, field] = f[one, field]


@inner
def measure_all(m: Array, f: Array, g: Array, append_times: Array, least: Array) -> None:
    """Where a stretch ends."""
    m[M_UNTIL] = g[G_NOW]
    for one in range(len(f)):
        if one != g[G_LEADER]:
            measure(m, f, g, append_times, least, one)


@inlined
def measure(m: Array, f: Array, g: Array, append_times: Array, least: Array, one: int) -> None:
    """How near it came to leaving since its last fetch, by the measure of every rule."""
    now, end = g[G_NOW], g[G_END]
    own, caught_up_at = f[one, F_END], f[one, F_CAUGHT_UP]
    fetched_at = behind_since = f[one, F_FETCHED]
    if f[one, F_LAG_BEGAN] != NONE:
        behind_since = min(behind_since, f[one, F_LAG_BEGAN])
    m[M_LAG_BEGAN] = max(m[M_LAG_BEGAN], now - behind_since)
    lacking_since = ALWAYS
    if own < g[G_START]:
        lacking_since = g[G_BEGAN]
    elif f[one, F_MISSING] < g[G_APPENDS]:
        lacking_since = append_times[f[one, F_MISSING]]
    # Nobody is served or fetches last before it was caught up: mostly this is all there is to see.
    if now - min(caught_up_at, lacking_since) <= least[P_LIMIT] and end - own <= least[P_MESSAGES]:
        return
    m[M_LACKING] = max(m[M_LACKING], now - lacking_since)
    m[M_SILENT] = max(m[M_SILENT], now - fetched_at)
    if own != end:
        m[M_CAUGHT_UP] = max(m[M_CAUGHT_UP], now - caught_up_at)
        m[M_CAUGHT_UP_SERVED] = max(m[M_CAUGHT_UP_SERVED], now - f[one, F_CAUGHT_UP_SERVED])
    if own != UNKNOWN:
        m[M_MESSAGES] = max(m[M_MESSAGES], end - own)
    if own < end:
        m[M_TRUE_LAG] = max(m[M_TRUE_LAG], now - min(lacking_since, fetched_at))


@inlined
def lowest_end(f: Array, g: Array) -> int:
    """How far the watermark goes if all are in sync."""
    lowest = g[G_END]
    for one in range(len(f)):
        if one != g[G_LEADER]:
            lowest = min(lowest, f[one, F_END])
    return lowest
