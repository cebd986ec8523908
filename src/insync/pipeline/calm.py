"""Stretches of a partition's life in which a rule finds nothing to do, and which are left out.

What a fetch tells of its follower is the same under every rule; only who is in sync differs. So
while all are in sync, the state at any moment follows from the traffic alone. `mark` walks a
partition once: every few events it notes that state, and how far each rule's measure went until the
next such mark. A replay in which all are in sync goes from mark to mark as long as the measure
stays within its limit, takes up the state where it does not, and walks on from there (`kernel.py`).

Who is absent is not waited for: one that was moved away, or has yet to come. A stretch in which it
comes is walked through.

Only a stall moves times by an amount that depends on the limit. From one that counts to the end of
its epoch nothing is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from insync.pipeline.compiling import compiled, inlined, inner
from insync.pipeline.ordering import (
    E_AT,
    E_KIND,
    E_MISSING,
    E_OFFSET,
    E_POSITION,
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
    F_END,
    F_FACTS,
    F_FETCHED,
    F_LAG_BEGAN,
    F_LAST_FETCH,
    F_MISSING,
    F_OVER_SINCE,
    F_TOLD,
    FETCH,
    G_BLOCKED_SINCE,
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
    O_PAST,
    O_PAST_APPENDS,
    O_START,
    P_HOLDS,
    P_LIMIT,
    P_MESSAGES,
    P_POLICY,
    PRESENT,
    UNKNOWN,
    YET_TO_COME,
    Array,
    begin_facts,
    fetched,
    raised,
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
    """Of all that are in sync: whether everything is as if they had always been."""
    if g[G_WATERMARK] != mark[M_WATERMARK] or g[G_BLOCKED_SINCE] != mark[M_BLOCKED_SINCE]:
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
    events: Array, epochs: Array, append_at: Array, append_ends: Array, f: Array, stretch: int,
    least: Array, at_start: Array, moves: Array, marks: Array, facts: Array,
) -> None:  # fmt: skip
    """Fills `marks` and the followers' `facts` at each; says in `epochs` which are whose, and in
    `events` what each fetch lacks.

    What stays within `least`, the smallest limits that are asked for, need not be told apart."""
    count = move = 0
    f[:, F_LAST_FETCH] = NEVER
    f[:, F_ABSENT] = np.where(at_start, PRESENT, YET_TO_COME)
    for epoch in range(len(epochs)):
        event, past = epochs[epoch, O_EVENT], epochs[epoch, O_PAST]
        own = slice(epochs[epoch, O_APPEND], epochs[epoch, O_PAST_APPENDS])
        append_times, ends = append_at[own], append_ends[own]
        leader, start = epochs[epoch, O_LEADER], epochs[epoch, O_START]
        began = events[event, E_TIME]
        now, end, watermark, blocked_since = began, start, start, NONE
        appends = reads = 0
        while move < len(moves) and moves[move, 0] <= epochs[epoch, O_EPOCH]:
            f[moves[move, 1], F_ABSENT] = GONE
            move += 1
        f[leader, F_ABSENT] = PRESENT
        for one in range(len(f)):
            begin_facts(f, one, began, began if f[one, F_ABSENT] == PRESENT else NEVER)
        epochs[epoch, O_MARK] = count
        m = marks[count]
        note(m, facts[count], f, event, now, end, watermark, blocked_since, appends)
        next_mark = event + stretch
        while event < past:
            if event >= next_mark and reads == 0:
                m[M_UNTIL] = now
                lacked = Lacked(append_times, appends, start, began)
                measure_all(m, f, leader, now, end, lacked, least)
                count += 1
                m = marks[count]
                note(m, facts[count], f, event, now, end, watermark, blocked_since, appends)
                next_mark = event + stretch
            now = events[event, E_TIME]
            kind = events[event, E_KIND]
            if kind == FETCH:
                one = events[event, E_WHO]
                offset, at = events[event, E_OFFSET], events[event, E_AT]
                lacked = Lacked(append_times, appends, start, began)
                if f[one, F_ABSENT] == PRESENT:
                    measure(m, f, one, now, end, lacked, least)
                else:  # whether it is in sync is for each rule to say
                    f[one, F_ABSENT], m[M_LACKING] = PRESENT, ALWAYS
                reads -= at != now
                held_it = f[one, F_END] <= watermark and f[one, F_END] != offset
                missing = first_missing(ends, f[one, F_MISSING], offset)
                events[event, E_MISSING] = missing
                fetched(f, one, now, at, offset, events[event, E_POSITION], missing)
                f[one, F_TOLD] = f[one, F_LAST_FETCH] = now
                if held_it:
                    lowest = lowest_end(f, leader, end)
                    watermark, blocked_since = raised(watermark, blocked_since, lowest, end, now)
            elif kind == APPEND:
                offset = events[event, E_OFFSET]
                if offset > end:
                    lacked = Lacked(append_times, appends, start, began)
                    for one in range(len(f)):
                        if f[one, F_END] == offset:  # ahead of what was told; level from now on
                            measure(m, f, one, now, end, lacked, least)
                    is_free = watermark == end
                    end = offset
                    appends += 1
                    if is_free:
                        lowest = lowest_end(f, leader, end)
                        watermark, blocked_since = raised(watermark, now, lowest, end, now)
            elif kind == BEGAN:
                reads += 1
            else:
                one = events[event, E_WHO]
                reads -= 1
                f[one, F_TOLD] = now
                if f[one, F_ABSENT] != PRESENT:
                    m[M_LACKING] = ALWAYS
            event += 1
        m[M_UNTIL] = now
        measure_all(m, f, leader, now, end, Lacked(append_times, appends, start, began), least)
        count += 1
        note(marks[count], facts[count], f, past, now, end, watermark, blocked_since, appends)
        epochs[epoch, O_LAST_MARK] = count
        count += 1


class Lacked(NamedTuple):
    """What a follower may lack: appends by number, those of before the epoch since it began."""

    append_times: Array
    appends: int
    start: int
    began: int


@inlined
def first_missing(ends: Array, near: int, offset: int) -> int:
    """The first append that ends past an offset."""
    while near < len(ends) and ends[near] <= offset:
        near += 1
    while near > 0 and ends[near - 1] > offset:
        near -= 1
    return near


@inner
def note(
    m: Array, facts: Array, f: Array, event: int, now: int, end: int, watermark: int,
    blocked_since: int, appends: int,
) -> None:  # fmt: skip
    m[M_EVENT], m[M_NOW], m[M_END], m[M_APPENDS] = event, now, end, appends
    m[M_WATERMARK], m[M_BLOCKED_SINCE] = watermark, blocked_since
    for field in range(M_UNTIL, M_FIELDS):
        m[field] = -ALWAYS
    for one in range(len(f)):
        for field in range(F_FACTS):
            facts[one, field] = f[one, field]


@inner
def measure_all(
    m: Array, f: Array, leader: int, now: int, end: int, lacked: Lacked, least: Array
) -> None:
    """Where a stretch ends."""
    for one in range(len(f)):
        if one != leader and f[one, F_ABSENT] == PRESENT:
            measure(m, f, one, now, end, lacked, least)


@inlined
def measure(m: Array, f: Array, one: int, now: int, end: int, lacked: Lacked, least: Array) -> None:
    """How near it came to leaving since its last fetch, by the measure of every rule."""
    own, caught_up_at = f[one, F_END], f[one, F_CAUGHT_UP]
    fetched_at = behind_since = f[one, F_FETCHED]
    if f[one, F_LAG_BEGAN] != NONE:
        behind_since = min(behind_since, f[one, F_LAG_BEGAN])
    m[M_LAG_BEGAN] = max(m[M_LAG_BEGAN], now - behind_since)
    lacking_since = ALWAYS
    if own < lacked.start:
        lacking_since = lacked.began
    elif f[one, F_MISSING] < lacked.appends:
        lacking_since = lacked.append_times[f[one, F_MISSING]]
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
    for one in range(len(f)):
        if one != leader and f[one, F_ABSENT] == PRESENT:
            end = min(end, f[one, F_END])
    return end
