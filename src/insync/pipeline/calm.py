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
    F_LEADER_END,
    F_MISSING,
    F_SERVED,
    F_TOLD,
    FAILED,
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
    fetched,
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


@compiled
def mark(
    events: Array, who: Array, missing: Array, epochs: Array, append_at: Array, f: Array,
    stretch: int, least: Array, marks: Array, facts: Array,
) -> None:  # fmt: skip
    """Fills `marks` and the followers' `facts` at each; says in `epochs` which are whose.

    What stays within `least`, the smallest limits that are asked for, need not be told apart."""
    count = 0
    f[:, F_LAST_FETCH] = NEVER
    for epoch in range(len(epochs)):
        event, past = epochs[epoch, O_EVENT], epochs[epoch, O_PAST]
        leader, start = epochs[epoch, O_LEADER], epochs[epoch, O_START]
        base = epochs[epoch, O_APPEND]
        began = now = events[E_TIME, event]
        end = watermark = start
        blocked_since = NONE
        appends = reads = 0
        for one in range(len(f)):
            f[one, F_END] = UNKNOWN
            f[one, F_MISSING] = 0
            f[one, F_LEADER_END] = f[one, F_LAG_BEGAN] = NONE
            f[one, F_FETCHED] = f[one, F_SERVED] = f[one, F_TOLD] = began
            f[one, F_CAUGHT_UP] = f[one, F_CAUGHT_UP_SERVED] = began
        epochs[epoch, O_MARK] = count
        m = marks[count]
        note(m, facts[count], f, event, now, end, watermark, blocked_since, appends)
        while event < past:
            if event - m[M_EVENT] >= stretch and reads == 0:
                m[M_UNTIL] = now
                for one in range(len(f)):
                    if one != leader:
                        measure(m, f, one, now, end, start, began, appends, append_at, base, least)
                count += 1
                m = marks[count]
                note(m, facts[count], f, event, now, end, watermark, blocked_since, appends)
            now = events[E_TIME, event]
            kind, one = events[E_KIND, event], who[event]
            offset = events[E_OFFSET, event]
            if kind == APPEND:
                if offset > end:
                    for other in range(len(f)):
                        if f[other, F_END] == offset:  # ahead of what was told; level from now on
                            measure(
                                m, f, other, now, end, start, began, appends, append_at, base, least
                            )
                    before, end = end, offset
                    appends += 1
                    if watermark == before:
                        blocked_since = now
                        lowest = lowest_end(f, leader, end)
                        if lowest > watermark:
                            watermark = lowest
                            blocked_since = NONE if lowest >= end else now
            elif kind == BEGAN:
                reads += 1
            elif kind == FAILED:
                reads -= 1
                f[one, F_TOLD] = now
            else:
                at = events[E_AT, event]
                reads -= at != now
                measure(m, f, one, now, end, start, began, appends, append_at, base, least)
                held = f[one, F_END] <= watermark and f[one, F_END] != offset
                fetched(f, one, now, at, offset, events[E_POSITION, event], missing[event])
                f[one, F_TOLD] = f[one, F_LAST_FETCH] = now
                if held:
                    lowest = lowest_end(f, leader, end)
                    if lowest > watermark:
                        watermark = lowest
                        blocked_since = NONE if lowest >= end else now
            event += 1
        m[M_UNTIL] = now
        for one in range(len(f)):
            if one != leader:
                measure(m, f, one, now, end, start, began, appends, append_at, base, least)
        count += 1
        note(marks[count], facts[count], f, past, now, end, watermark, blocked_since, appends)
        epochs[epoch, O_LAST_MARK] = count
        count += 1


@inner
def note(
    m: Array, facts: Array, f: Array, event: int, now: int, end: int, watermark: int,
    blocked_since: int, appends: int,
) -> None:  # fmt: skip
    m[M_EVENT], m[M_NOW], m[M_END], m[M_WATERMARK] = event, now, end, watermark
    m[M_BLOCKED_SINCE], m[M_APPENDS] = blocked_since, appends
    for field in range(M_UNTIL, M_FIELDS):
        m[field] = -ALWAYS
    for one in range(len(f)):
        for field in range(F_FACTS):
            facts[one, field] = f[one, field]


@inlined
def measure(
    m: Array, f: Array, one: int, now: int, end: int, start: int, began: int, appends: int,
    append_at: Array, base: int, least: Array,
) -> None:  # fmt: skip
    """How near it came to leaving since its last fetch, by the measure of every rule."""
    own, caught_up_at = f[one, F_END], f[one, F_CAUGHT_UP]
    fetched_at = behind_since = f[one, F_FETCHED]
    if f[one, F_LAG_BEGAN] != NONE:
        behind_since = min(behind_since, f[one, F_LAG_BEGAN])
    m[M_LAG_BEGAN] = max(m[M_LAG_BEGAN], now - behind_since)
    lacking_since = ALWAYS
    if own < start:
        lacking_since = began
    elif f[one, F_MISSING] < appends:
        lacking_since = append_at[base + f[one, F_MISSING]]
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
def lowest_end(f: Array, leader: int, end: int) -> int:
    """How far the watermark goes if all are in sync."""
    lowest = end
    for one in range(len(f)):
        if one != leader:
            lowest = min(lowest, f[one, F_END])
    return lowest
