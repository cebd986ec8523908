"""Lag, compiled: a follower's time as spans in which it lacks the same, cut into buckets.

In a span the lag in ms grows by one each millisecond; in messages and bytes it stays. So a bucket
is a few spans, and a percentile is found by counting the milliseconds at or below a value.

The end of each replica carries over from epoch to epoch: until it fetches in the new one, that is
the most that it can have.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from insync.pipeline.replay.compiling import compiled, inner
from insync.pipeline.replay.events import IsrChanges, moves_of
from insync.pipeline.replay.ordering import ShardEvents, order_partition
from insync.pipeline.replay.skip_index import first_missing
from insync.pipeline.replay.state import APPEND, FETCH, NONE, Array, Record, integers

# Columns of a row: four ranks (lowest, median, 99th percentile, highest) of each of three lags.
ROW_CODE, ROW_EPOCH, ROW_FOLLOWER, ROW_BUCKET, ROW_SAMPLES, ROW_LAGS = range(6)
RANKS: Final = 4
ROW_FIELDS: Final = ROW_LAGS + 3 * RANKS
LACKS_NOTHING: Final = 2**62

# A span: its length, the lag in ms at its begin, whether that grows, the lag in messages and bytes.
SPAN: Final = integers("length_ms", "lag_ms", "grows", "messages", "bytes")


class Buckets(NamedTuple):
    """Where rows go, and how they are cut."""

    length_ms: int
    rows: Array
    spans: Array  # SPAN, room for the longest epoch


class Appends(NamedTuple):
    """An epoch's appends: its start, their times, ends, all bytes before each, their number."""

    start: int
    at: Array
    ends: Array
    bytes_before: Array
    total: int


@compiled
def lag_of_partitions(
    shard: ShardEvents, changes: IsrChanges, bytes_of: Array, bucket_ms: int, rows: Array
) -> int:
    """Fills `rows` as far as they go; returns how many there are."""
    count = 0
    buckets = Buckets(bucket_ms, rows, np.empty(2 * len(shard.events) + 4, SPAN))
    for code in range(len(shard.fetch_bounds) - 1):
        ordered = order_partition(shard, code)
        ids = shard.ids[: ordered.replicas]
        moves = moves_of(changes, code, ids)
        last_ends = np.full(len(ids), NONE, np.int64)
        move = 0
        for index in range(len(ordered.epochs)):
            epoch = ordered.epochs[index]
            while move < len(moves) and moves[move].epoch <= epoch.number:
                last_ends[moves[move].replica] = NONE
                move += 1
            # Records past an epoch's start are not those that the leader has there.
            last_ends[:] = np.minimum(last_ends, epoch.start)
            first = count
            count = lag_of_epoch(shard, epoch, bytes_of, last_ends, buckets, count)
            for row in rows[min(first, len(rows)) : count]:
                row[ROW_CODE], row[ROW_EPOCH] = code, epoch.number
                row[ROW_FOLLOWER] = ids[row[ROW_FOLLOWER]]
    return count


@compiled
def lag_of_epoch(
    shard: ShardEvents, epoch: Record, bytes_of: Array, last_ends: Array, buckets: Buckets,
    count: int,
) -> int:  # fmt: skip
    """Rows of all replicas but the leader; leaves each one's last end in `last_ends`."""
    appends = appends_of_epoch(shard.events, epoch, bytes_of)
    for number in range(len(last_ends)):
        if number == epoch.leader:
            last_ends[number] = appends.ends[appends.total - 1] if appends.total else epoch.start
            continue
        count, last_ends[number] = lag_of_follower(
            shard.events[epoch.first_event : epoch.past_event], number, last_ends[number], appends,
            buckets, count,
        )  # fmt: skip
    return count


@compiled
def appends_of_epoch(events: Array, epoch: Record, bytes_of: Array) -> Appends:
    size = epoch.past_event - epoch.first_event
    at, ends = np.empty(size, np.int64), np.empty(size, np.int64)
    bytes_before = np.zeros(size + 1, np.int64)
    count, end = 0, epoch.start
    for index in range(epoch.first_event, epoch.past_event):
        event = events[index]
        if event.kind == APPEND and event.offset > end:
            end = event.offset
            at[count], ends[count] = event.time, end
            bytes_before[count + 1] = bytes_before[count] + bytes_of[event.row]
            count += 1
    return Appends(epoch.start, at, ends, bytes_before, count)


@compiled
def lag_of_follower(
    events: Array, number: int, offset: int, appends: Appends, buckets: Buckets, count: int
) -> tuple[int, int]:  # fmt: skip
    """A span ends at each event that changes what the follower lacks, and at a bucket's end."""
    bucket_ms, rows, spans = buckets.length_ms, buckets.rows, buckets.spans
    start = appends.start
    now = began = events[0].time
    missing = appended = open_spans = 0
    is_known, has_fetched = offset != NONE, False
    past = len(events)
    for index in range(past + 1):
        is_append = is_own_fetch = False
        until = events[past - 1].time + 1
        if index < past:
            event = events[index]
            is_append = event.kind == APPEND
            is_own_fetch = event.kind == FETCH and event.follower == number
            if not is_append and not is_own_fetch:
                continue
            until = event.time
        while is_known and now < until:
            stop = min(until, (now // bucket_ms + 1) * bucket_ms)
            since = LACKS_NOTHING
            if offset < start or not has_fetched:
                since = began
            elif missing < appended:
                since = appends.at[missing]
            end = appends.ends[appended - 1] if appended > 0 else start
            span = spans[open_spans]
            span.length_ms = stop - now
            span.lag_ms = 0 if since == LACKS_NOTHING else now - since
            span.grows = since != LACKS_NOTHING
            span.messages = max(0, end - offset)
            bytes_before = appends.bytes_before
            span.bytes = bytes_before[appended] - bytes_before[min(missing, appended)]
            open_spans += 1
            if stop % bucket_ms == 0 or (stop == until and index == past):
                if count < len(rows):
                    row = rows[count]
                    row[ROW_FOLLOWER], row[ROW_BUCKET] = number, now // bucket_ms * bucket_ms
                    summarise(spans[:open_spans], row)
                count += 1
                open_spans = 0
            now = stop
        if is_append:
            if appended < appends.total and events[index].offset == appends.ends[appended]:
                appended += 1
        elif is_own_fetch:
            offset = events[index].offset
            missing = first_missing(appends.ends[: appends.total], missing, offset)
            is_known = has_fetched = True
            now = until
    return count, offset


@inner
def summarise(spans: Array, row: Array) -> None:
    total_ms = 0
    for span in range(len(spans)):
        total_ms += spans[span].length_ms
    row[ROW_SAMPLES] = total_ms
    for lag in range(3):
        lowest, highest = LACKS_NOTHING, -1
        for span in range(len(spans)):
            first, last = values(spans[span], lag)
            lowest, highest = min(lowest, first), max(highest, last)
        at = ROW_LAGS + RANKS * lag
        row[at] = lowest
        row[at + 1] = ranked(spans, lag, (total_ms * 50 + 99) // 100, lowest, highest)
        row[at + 2] = ranked(spans, lag, (total_ms * 99 + 99) // 100, lowest, highest)
        row[at + 3] = highest


@inner
def values(span: Record, lag: int) -> tuple[int, int]:
    """The lowest and the highest lag in a span: 0 in ms, 1 in messages, 2 in bytes."""
    if lag == 0:
        return span.lag_ms, span.lag_ms + (span.length_ms - 1) * span.grows
    value = span.messages if lag == 1 else span.bytes
    return value, value


@inner
def ranked(spans: Array, lag: int, rank: int, lowest: int, highest: int) -> int:
    """The smallest value that `rank` milliseconds do not exceed."""
    while lowest < highest:
        middle = (lowest + highest) // 2
        below = 0
        for span in range(len(spans)):
            first, last = values(spans[span], lag)
            if last <= middle:
                below += spans[span].length_ms
            elif first <= middle:
                below += middle - first + 1
        if below >= rank:
            highest = middle
        else:
            lowest = middle + 1
    return lowest
