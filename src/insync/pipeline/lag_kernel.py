"""Lag, compiled: a follower's time as spans in which it lacks the same, cut into buckets.

In a span its lag in ms grows by one each millisecond, in messages and bytes it stays. So a bucket
is a few spans, and a percentile is found by asking how many milliseconds are at or below a value.

What each replica held last goes on from epoch to epoch: until it fetches in the new one, that is
all it can have.
"""

from __future__ import annotations

import numpy as np

from insync.pipeline.calm import first_missing
from insync.pipeline.compiling import compiled, inner
from insync.pipeline.events import Changes, moves_of
from insync.pipeline.ordering import (
    E_KIND,
    E_OFFSET,
    E_ROW,
    E_TIME,
    E_WHO,
    Dealt,
    in_order,
)
from insync.pipeline.state import (
    APPEND,
    FETCH,
    NONE,
    O_EPOCH,
    O_EVENT,
    O_LEADER,
    O_PAST,
    O_START,
    Array,
)

L_FIELDS = 17  # partition, epoch, follower, bucket, samples, and four ranks of each of three lags
LEVEL = 2**62  # of a span: nothing is lacking

# A span: how long, its lag in ms when it begins (and whether it grows), in messages, in bytes.
S_LENGTH, S_LAG, S_GROWS, S_MESSAGES, S_BYTES, S_FIELDS = range(6)


@compiled
def lag_of_partitions(
    dealt: Dealt, changes: Changes, bytes_of: Array, bucket: int, rows: Array
) -> int:
    """Fills `rows` as far as they go; returns how many there are."""
    count = 0
    events = dealt.events
    for code in range(len(dealt.fetch_bounds) - 1):
        found = in_order(dealt, code)
        ids = dealt.ids[: found.brokers]
        moves = moves_of(changes, code, ids)
        held = np.full(len(ids), NONE, np.int64)
        move = 0
        for epoch in found.epochs:
            while move < len(moves) and moves[move, 0] <= epoch[O_EPOCH]:
                held[moves[move, 1]] = NONE
                move += 1
            # What it has beyond an epoch's start is not what the leader has there.
            held[:] = np.minimum(held, epoch[O_START])
            count = lag_of_epoch(events, epoch, ids, held, bytes_of, bucket, code, rows, count)
    return count


@compiled
def lag_of_epoch(
    events: Array, epoch: Array, ids: Array, held: Array, bytes_of: Array, bucket: int, code: int,
    rows: Array, count: int,
) -> int:  # fmt: skip
    """Of all but its leader; leaves in `held` what each has in the end."""
    low, high = epoch[O_EVENT], epoch[O_PAST]
    # What was appended: when, the end after it, and all bytes before it.
    size = high - low
    at = np.empty(size + 1, np.int64)
    ends = np.empty(size + 1, np.int64)
    before = np.zeros(size + 2, np.int64)
    appends = 0
    start = end = epoch[O_START]
    last = events[high - 1, E_TIME]
    for event in range(low, high):
        if events[event, E_KIND] == APPEND and events[event, E_OFFSET] > end:
            end = events[event, E_OFFSET]
            at[appends] = events[event, E_TIME]
            ends[appends] = end
            before[appends + 1] = before[appends] + bytes_of[events[event, E_ROW]]
            appends += 1
    spans = np.empty((2 * size + 4, S_FIELDS), np.int64)
    for one in range(len(ids)):
        if one == epoch[O_LEADER]:
            held[one] = end
            continue
        found, held[one] = lag_of_follower(
            events, low, high, one, held[one], at, ends, before, appends, start, last, bucket,
            spans, rows[min(count, len(rows)) :],
        )  # fmt: skip
        for row in rows[min(count, len(rows)) : count + found]:
            row[0], row[1], row[2] = code, epoch[O_EPOCH], ids[one]
        count += found
    return count


@compiled
def lag_of_follower(
    events: Array, low: int, high: int, follower: int, held: int, at: Array, ends: Array,
    before: Array, appends: int, start: int, last: int, bucket: int, spans: Array, rows: Array,
) -> tuple[int, int]:  # fmt: skip
    """Walks the events that change what it lacks; a span ends at each, and at a bucket's end."""
    now = began = events[low, E_TIME]
    offset, missing, done, n, count = held, 0, 0, 0, 0
    is_known, has_fetched = held != NONE, False
    event = low
    while event <= high:
        kind = events[event, E_KIND] if event < high else FETCH
        is_mine = event < high and kind == FETCH and events[event, E_WHO] == follower
        if event < high and kind != APPEND and not is_mine:
            event += 1
            continue
        until = events[event, E_TIME] if event < high else last + 1
        while is_known and now < until:
            stop = min(until, (now // bucket + 1) * bucket)
            since = LEVEL
            if offset < start or not has_fetched:
                since = began
            elif missing < done:
                since = at[missing]
            end = ends[done - 1] if done > 0 else start
            span = spans[n]
            span[S_LENGTH] = stop - now
            span[S_LAG] = 0 if since == LEVEL else now - since
            span[S_GROWS] = since != LEVEL
            span[S_MESSAGES] = max(0, end - offset)
            span[S_BYTES] = before[done] - before[min(missing, done)]
            n += 1
            if stop % bucket == 0 or (stop == until and event == high):
                if count < len(rows):
                    row = rows[count]
                    row[3] = now // bucket * bucket
                    summarise(spans[:n], row)
                count += 1
                n = 0
            now = stop
        if event == high:
            break
        if kind == APPEND:
            if done < appends and events[event, E_OFFSET] == ends[done]:
                done += 1
        elif is_mine:
            offset = events[event, E_OFFSET]
            missing = first_missing(ends[:appends], missing, offset)
            is_known = has_fetched = True
            now = until
        event += 1
    return count, offset


@inner
def summarise(spans: Array, row: Array) -> None:
    total = 0
    for span in range(len(spans)):
        total += spans[span, S_LENGTH]
    row[4] = total
    for lag in range(3):
        lowest, highest = 2**62, -1
        for span in range(len(spans)):
            first, final = values(spans, span, lag)
            lowest, highest = min(lowest, first), max(highest, final)
        row[5 + 4 * lag] = lowest
        row[6 + 4 * lag] = ranked(spans, lag, (total * 50 + 99) // 100, lowest, highest)
        row[7 + 4 * lag] = ranked(spans, lag, (total * 99 + 99) // 100, lowest, highest)
        row[8 + 4 * lag] = highest


@inner
def values(spans: Array, span: int, lag: int) -> tuple[int, int]:
    """The lowest and the highest in a span."""
    if lag == 0:
        first = spans[span, S_LAG]
        return first, first + (spans[span, S_LENGTH] - 1) * spans[span, S_GROWS]
    value = spans[span, S_MESSAGES] if lag == 1 else spans[span, S_BYTES]
    return value, value


@inner
def ranked(spans: Array, lag: int, rank: int, lowest: int, highest: int) -> int:
    """The smallest value that `rank` milliseconds do not exceed."""
    while lowest < highest:
        middle = (lowest + highest) // 2
        below = 0
        for span in range(len(spans)):
            first, final = values(spans, span, lag)
            if final <= middle:
                below += spans[span, S_LENGTH]
            elif first <= middle:
                below += middle - first + 1
        if below >= rank:
            highest = middle
        else:
            lowest = middle + 1
    return lowest
