"""One partition's events in order, from both tables: what `kernel.py` replays.

Each table's rows are put in order by merging their ascending runs, so ordered input costs one pass
and any other input is right as well. What was told before is left out, then the two are merged, and
what a second leader of an epoch tells is left out too. On the way, epochs are found, brokers get
numbers and appends are collected, which saves three walks over the events.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from insync.pipeline.compiling import compiled, inlined, inner
from insync.pipeline.state import (
    APPEND,
    BEGAN,
    O_APPEND,
    O_EPOCH,
    O_EVENT,
    O_FIELDS,
    O_LEADER,
    O_PAST,
    O_PAST_APPENDS,
    O_START,
    Array,
)

NO_SEQ: Final = 2**62

# An event, in as many numbers as go into a line of the processor's cache.
(
    E_TIME,
    E_POSITION,  # the leader's end that a fetch was judged by
    E_WHO,  # its follower, by number
    E_OFFSET,  # a fetch's, an append's end
    E_KIND,
    E_AT,  # when the request came
    E_ROW,
    E_MISSING,  # of a fetch, the first append of its epoch that it lacks, by number; a replay's own
    E_FIELDS,
) = range(9)


class Rows(NamedTuple):
    """A table's events, a column for each field, as they were read where they were so simple.

    None may be written to: Numba would compile everything once more for those that may.
    """

    epoch: Array  # 32 bits, as are brokers and rows
    time: Array
    seq: Array
    position: Array  # of an append, its base offset
    who: Array
    offset: Array
    kind: Array  # 8 bits
    at: Array
    row: Array
    leader: Array


class Dealt(NamedTuple):
    """Both tables' events, one partition's after the other's, and room for one's in order."""

    fetches: Rows
    fetch_bounds: Array
    appends: Rows
    append_bounds: Array
    fetch_index: Array
    append_index: Array
    spare: Array
    runs: Array
    events: Array
    append_at: Array  # when, and the end after it, of every append that is new
    append_ends: Array
    ids: Array  # of brokers, by number


def dealt(
    fetches: Rows, fetch_bounds: Array, appends: Rows, append_bounds: Array, *, more_brokers: int
) -> Dealt:
    # One partition after the other: the room of one stays in the processor's caches.
    largest = int(np.max(np.diff(fetch_bounds + append_bounds), initial=0))
    room = np.empty((5, largest), np.int64)
    return Dealt(
        fetches, fetch_bounds, appends, append_bounds, room[0], room[1], room[2],
        np.empty(largest + 2, np.int64), np.empty((largest, E_FIELDS), np.int64), room[3], room[4],
        np.empty(2 * largest + more_brokers, np.int64),
    )  # fmt: skip


@inlined
def numbered(ids: Array, known: int, broker: int) -> tuple[int, int]:
    """A broker's number, and how many have one now; there is room for all."""
    for at in range(known):
        if ids[at] == broker:
            return at, known
    ids[known] = broker
    return known, known + 1


class Found(NamedTuple):
    """What was found in a partition's events, beside them."""

    epochs: Array
    brokers: int
    brokers_at_start: int  # those who lead or fetch in the first epoch come first
    slow_reads: int


@compiled
def in_order(dealt: Dealt, code: int) -> Found:
    """Fills the room with a partition's events."""
    fetches, appends, events, ids = dealt.fetches, dealt.appends, dealt.events, dealt.ids
    fetch_index, append_index = dealt.fetch_index, dealt.append_index
    append_at, append_ends = dealt.append_at, dealt.append_ends
    bounds = dealt.fetch_bounds[code : code + 2]
    fetches_left, most = told_once(fetches, bounds, fetch_index, dealt.spare, dealt.runs)
    bounds = dealt.append_bounds[code : code + 2]
    appends_left, more = told_once(appends, bounds, append_index, dealt.spare, dealt.runs)
    epochs = np.empty((most + more, O_FIELDS), np.int64)
    epoch = number = leader = -1
    to = fetch = append = known = at_start = slow_reads = collected = end = 0
    while fetch < fetches_left or append < appends_left:
        # All of either kind is in one place: whether it is the one or the other is hard to foresee
        # for the processor, and asked once.
        if fetch >= fetches_left or (
            append < appends_left
            and is_appended_before(appends, append_index[append], fetches, fetch_index[fetch])
        ):
            row = append_index[append]
            append += 1
            if appends.epoch[row] != number or epoch < 0:
                at_start = known if epoch == 0 else at_start
                epoch, number, leader = epoch + 1, appends.epoch[row], appends.leader[row]
                end = appends.position[row]
                known = begin_epoch(epochs, epoch, number, ids, known, leader, end, to, collected)
            elif appends.leader[row] != leader:
                continue
            events[to, E_TIME], events[to, E_KIND] = appends.time[row], APPEND
            events[to, E_OFFSET], events[to, E_ROW] = appends.offset[row], appends.row[row]
            if appends.offset[row] > end:
                end = appends.offset[row]
                append_at[collected], append_ends[collected] = appends.time[row], end
                collected += 1
        else:
            row = fetch_index[fetch]
            fetch += 1
            if fetches.epoch[row] != number or epoch < 0:
                at_start = known if epoch == 0 else at_start
                epoch, number, leader = epoch + 1, fetches.epoch[row], fetches.leader[row]
                end = fetches.position[row]
                known = begin_epoch(epochs, epoch, number, ids, known, leader, end, to, collected)
            elif fetches.leader[row] != leader:
                continue
            events[to, E_TIME], events[to, E_KIND] = fetches.time[row], fetches.kind[row]
            events[to, E_OFFSET], events[to, E_ROW] = fetches.offset[row], fetches.row[row]
            events[to, E_POSITION], events[to, E_AT] = fetches.position[row], fetches.at[row]
            events[to, E_WHO], known = numbered(ids, known, fetches.who[row])
            slow_reads += fetches.kind[row] == BEGAN
        to += 1
    if epoch >= 0:
        epochs[epoch, O_PAST], epochs[epoch, O_PAST_APPENDS] = to, collected
    return Found(epochs[: epoch + 1], known, known if epoch <= 0 else at_start, slow_reads)


@inlined
def begin_epoch(
    epochs: Array, epoch: int, number: int, ids: Array, known: int, leader: int, start: int,
    event: int, append: int,
) -> int:  # fmt: skip
    """Also where the one before ends; returns how many brokers have a number now."""
    if epoch > 0:
        epochs[epoch - 1, O_PAST], epochs[epoch - 1, O_PAST_APPENDS] = event, append
    epochs[epoch, O_EPOCH], epochs[epoch, O_START] = number, start
    epochs[epoch, O_EVENT], epochs[epoch, O_APPEND] = event, append
    epochs[epoch, O_LEADER], known = numbered(ids, known, leader)
    return known


@inlined
def precedes(rows: Rows, one: int, other: int) -> bool:
    """Of the same kind."""
    if rows.epoch[one] != rows.epoch[other]:
        return rows.epoch[one] < rows.epoch[other]
    if rows.time[one] != rows.time[other]:
        return rows.time[one] < rows.time[other]
    if (rows.kind[one] == BEGAN) != (rows.kind[other] == BEGAN):
        return rows.kind[other] == BEGAN  # within its millisecond: a read begins after what ends
    if rows.seq[one] != rows.seq[other]:
        return rows.seq[one] < rows.seq[other]
    if rows.position[one] != rows.position[other]:
        return rows.position[one] < rows.position[other]
    if rows.who[one] != rows.who[other]:
        return rows.who[one] < rows.who[other]
    return rows.offset[one] < rows.offset[other]


@inlined
def is_appended_before(appends: Rows, append: int, fetches: Rows, fetch: int) -> bool:
    """Where they are level in all of these, the fetch is before."""
    if appends.epoch[append] != fetches.epoch[fetch]:
        return appends.epoch[append] < fetches.epoch[fetch]
    if appends.time[append] != fetches.time[fetch]:
        return appends.time[append] < fetches.time[fetch]
    if fetches.kind[fetch] == BEGAN:
        return True
    if appends.seq[append] != fetches.seq[fetch]:
        return appends.seq[append] < fetches.seq[fetch]
    return appends.position[append] < fetches.position[fetch]


@compiled
def told_once(
    rows: Rows, bounds: Array, index: Array, spare: Array, runs: Array
) -> tuple[int, int]:
    """Fills `index` with a partition's rows in order; returns how many, and of how many epochs they
    are at most."""
    size = bounds[1] - bounds[0]
    is_each_new, epochs = put_in_order(rows, bounds[0], bounds[1], index, spare, runs)
    return (size if is_each_new else keep_first(rows, index, size)), epochs


@inner
def put_in_order(
    rows: Rows, low: int, high: int, index: Array, spare: Array, runs: Array
) -> tuple[bool, int]:
    """Whether none of them can have been told before, and the most epochs they can be of."""
    size, count, epochs = high - low, 0, min(1, high - low)
    is_rising = True
    for at in range(low, high):
        index[at - low] = at
        if at == low or precedes(rows, at, at - 1):
            runs[count] = at - low
            count += 1
        if at > low:
            if rows.epoch[at] != rows.epoch[at - 1]:
                epochs += 1
            else:
                is_rising &= is_another(rows, at, at - 1)
    runs[count] = size
    if count > 1:
        is_rising = False
        merge(rows, index, spare, runs, count)
    return is_rising, epochs


@inlined
def is_another(rows: Rows, one: int, before: int) -> bool:
    """Not the same row told twice, as far as the one before it tells."""
    if rows.seq[one] == NO_SEQ:
        return rows.seq[before] == NO_SEQ
    return rows.seq[one] > rows.seq[before] or rows.row[one] == rows.row[before]


@inner
def merge(rows: Rows, index: Array, spare: Array, runs: Array, count: int) -> None:
    size = runs[count]
    while count > 1:
        merged = 0
        for run in range(0, count, 2):
            start, middle = runs[run], runs[run + 1]
            end = middle if run + 1 == count else runs[run + 2]
            left, right = start, middle
            for to in range(start, end):
                if right >= end or (
                    left < middle and not precedes(rows, index[right], index[left])
                ):
                    spare[to] = index[left]
                    left += 1
                else:
                    spare[to] = index[right]
                    right += 1
            runs[merged] = start
            merged += 1
        runs[merged] = size
        count = merged
        for at in range(size):
            index[at] = spare[at]


@compiled
def keep_first(rows: Rows, index: Array, size: int) -> int:
    """Of the rows that a leader gave the same number in an epoch only the first stays; returns how
    many those are."""
    to = low = 0
    while low < size:
        high = low
        while high < size and rows.epoch[index[high]] == rows.epoch[index[low]]:
            high += 1
        own = index[low:high].copy()
        by_leader = np.argsort(rows.leader[own], kind="mergesort")
        ordered = by_leader[np.argsort(rows.seq[own[by_leader]], kind="mergesort")]
        is_kept = np.ones(high - low, np.bool_)
        first = own[ordered[0]]
        for at in ordered:
            one = own[at]
            if rows.seq[one] != rows.seq[first] or rows.leader[one] != rows.leader[first]:
                first = one
            elif rows.seq[one] != NO_SEQ:
                is_kept[at] = rows.row[one] == rows.row[first]
        for at in range(high - low):
            if is_kept[at]:
                index[to] = own[at]
                to += 1
        low = high
    return to
