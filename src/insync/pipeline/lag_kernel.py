"""Lag, compiled: a follower's time as spans in which it lacks the same, cut into buckets.

In a span its lag in ms grows by one each millisecond, in messages and bytes it stays. So a bucket
is a few spans, and a percentile is found by asking how many milliseconds are at or below a value.
"""

from __future__ import annotations

import numpy as np

from insync.pipeline.calm import first_missing
from insync.pipeline.compiling import compiled, inner
from insync.pipeline.events import (
    E_EPOCH,
    E_KIND,
    E_OFFSET,
    E_POSITION,
    E_ROW,
    E_TIME,
    E_WHO,
    Dealt,
    in_order,
)
from insync.pipeline.replay import numbered
from insync.pipeline.state import APPEND, FETCH, Array

L_FIELDS = 17  # partition, epoch, follower, bucket, samples, and four ranks of each of three lags
LEVEL = 2**62  # of a span: nothing is lacking

# A span: how long, its lag in ms when it begins (and whether it grows), in messages, in bytes.
S_LENGTH, S_LAG, S_GROWS, S_MESSAGES, S_BYTES, S_FIELDS = range(6)


@compiled
def lag_of_partitions(dealt: Dealt, bytes_of: Array, bucket: int, rows: Array) -> int:
    """Fills `rows` as far as they go; returns how many there are."""
    count = 0
    events = dealt.events
    for code in range(len(dealt.fetch_bounds) - 1):
        past = in_order(dealt, code)
        low = 0
        while low < past:
            high = low
            while high < past and events[E_EPOCH, high] == events[E_EPOCH, low]:
                high += 1
            count = lag_of_epoch(events, low, high, bytes_of, bucket, code, rows, count)
            low = high
    return count


@compiled
def lag_of_epoch(
    events: Array, low: int, high: int, bytes_of: Array, bucket: int, code: int, rows: Array,
    count: int,
) -> int:  # fmt: skip
    # What was appended: when, the end after it, and all bytes before it.
    size = high - low
    at = np.empty(size + 1, np.int64)
    ends = np.empty(size + 1, np.int64)
    before = np.zeros(size + 2, np.int64)
    appends = 0
    start = end = events[E_POSITION, low]
    ids = np.empty(size, np.int64)
    known = 0
    last = events[E_TIME, high - 1]
    for event in range(low, high):
        if events[E_KIND, event] == APPEND:
            if events[E_OFFSET, event] > end:
                end = events[E_OFFSET, event]
                at[appends] = events[E_TIME, event]
                ends[appends] = end
                before[appends + 1] = before[appends] + bytes_of[events[E_ROW, event]]
                appends += 1
        elif events[E_KIND, event] == FETCH:
            _, known = numbered(ids, known, events[E_WHO, event])
    spans = np.empty((2 * size + 4, S_FIELDS), np.int64)
    for one in range(known):
        count = lag_of_follower(
            events, low, high, ids[one], at, ends, before, appends, start, last, bucket,
            code, spans, rows, count,
        )  # fmt: skip
    return count


@compiled
def lag_of_follower(
    events: Array, low: int, high: int, follower: int, at: Array, ends: Array, before: Array,
    appends: int, start: int, last: int, bucket: int, code: int, spans: Array, rows: Array,
    count: int,
) -> int:  # fmt: skip
    """Walks the events that change what it lacks; a span ends at each, and at a bucket's end."""
    began = events[E_TIME, low]
    now, offset, missing, done, n = 0, -1, 0, 0, 0
    is_known = False
    event = low
    while event <= high:
        kind = events[E_KIND, event] if event < high else FETCH
        is_mine = event < high and kind == FETCH and events[E_WHO, event] == follower
        if event < high and kind != APPEND and not is_mine:
            event += 1
            continue
        until = events[E_TIME, event] if event < high else last + 1
        while is_known and now < until:
            stop = min(until, (now // bucket + 1) * bucket)
            since = LEVEL
            if offset < start:
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
                    row[0], row[1], row[2] = code, events[E_EPOCH, low], follower
                    row[3] = now // bucket * bucket
                    summarise(spans[:n], row)
                count += 1
                n = 0
            now = stop
        if event == high:
            break
        if kind == APPEND:
            if done < appends and events[E_OFFSET, event] == ends[done]:
                done += 1
        elif is_mine:
            offset = events[E_OFFSET, event]
            missing = first_missing(ends[:appends], missing, offset)
            if not is_known:
                is_known = True
                now = until
        event += 1
    return count


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
