"""One partition's events in order, from both tables: the input of `kernel.py`.

Each table's rows are ordered by merging their ascending runs. So ordered input costs one pass, and
any other input is ordered correctly as well. Duplicate rows are dropped, then the two tables are
merged, and the rows of a second leader of an epoch are dropped too, as are those of an epoch after
a later one began: time counts once. The same pass finds the epochs,
numbers the brokers and collects the appends, which saves three more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from insync.pipeline.replay.compiling import compiled, inlined, inner
from insync.pipeline.replay.state import ALWAYS, APPEND, BEGAN, EPOCH, EVENT, Array

NO_SEQ: Final = 2**62


class Rows(NamedTuple):
    """A table's events, a column for each field, as read where no conversion is needed.

    All columns are read-only: Numba would compile everything once more for writable ones.
    """

    epoch: Array  # 32 bits, as are brokers and rows
    time: Array
    seq: Array
    position: Array  # the leader's end that a fetch met; the base offset of an append
    follower: Array
    offset: Array
    kind: Array  # 8 bits
    requested_at: Array
    row: Array
    leader: Array


class ShardEvents(NamedTuple):
    """Both tables' events, partition after partition, and room for one partition in order."""

    fetches: Rows
    fetch_bounds: Array
    appends: Rows
    append_bounds: Array
    fetch_index: Array
    append_index: Array
    spare: Array
    runs: Array
    events: Array  # EVENT
    append_at: Array  # of every append that raises the end
    append_ends: Array
    ids: Array  # of brokers, by number


def with_room(
    fetches: Rows, fetch_bounds: Array, appends: Rows, append_bounds: Array, *, more_brokers: int
) -> ShardEvents:
    # One partition after the other uses the same room, which stays in the processor's caches.
    largest = int(np.max(np.diff(fetch_bounds + append_bounds), initial=0))
    room = np.empty((5, largest), np.int64)
    return ShardEvents(
        fetches, fetch_bounds, appends, append_bounds, room[0], room[1], room[2],
        np.empty(largest + 2, np.int64), np.empty(largest, EVENT), room[3], room[4],
        np.empty(2 * largest + more_brokers, np.int64),
    )  # fmt: skip


@inlined
def number_of(ids: Array, known: int, broker: int) -> tuple[int, int]:
    """A broker's number, and how many brokers have one now. There is room for all."""
    for at in range(known):
        if ids[at] == broker:
            return at, known
    ids[known] = broker
    return known, known + 1


class OrderedPartition(NamedTuple):
    """What else is known once a partition's events are in order."""

    epochs: Array  # EPOCH
    replicas: int
    replicas_at_start: int  # those that lead or fetch in the first epoch have the first numbers
    slow_reads: int


@compiled
def order_partition(shard: ShardEvents, code: int) -> OrderedPartition:
    """Fills `events`, `append_at`, `append_ends` and `ids` with a partition's."""
    fetches, appends, events, ids = shard.fetches, shard.appends, shard.events, shard.ids
    fetch_index, append_index = shard.fetch_index, shard.append_index
    append_at, append_ends = shard.append_at, shard.append_ends
    bounds = shard.fetch_bounds[code : code + 2]
    fetches_left, most = order_rows(fetches, bounds, fetch_index, shard.spare, shard.runs)
    bounds = shard.append_bounds[code : code + 2]
    appends_left, more = order_rows(appends, bounds, append_index, shard.spare, shard.runs)
    epochs = np.empty(most + more, EPOCH)
    epoch = epoch_number = leader = -1
    to = fetch = append = known = at_start = slow_reads = collected = end = 0
    while fetch < fetches_left or append < appends_left:
        # Which table comes next is decided once, because the processor predicts it badly.
        if fetch >= fetches_left or (
            append < appends_left
            and is_appended_before(appends, append_index[append], fetches, fetch_index[fetch])
        ):
            row = append_index[append]
            append += 1
            if appends.epoch[row] != epoch_number or epoch < 0:
                at_start = known if epoch == 0 else at_start
                epoch += 1
                epoch_number, leader = appends.epoch[row], appends.leader[row]
                end = appends.position[row]
                begin_epoch(epochs, epoch, epoch_number, end, to, collected)
                epochs[epoch].leader, known = number_of(ids, known, leader)
            elif appends.leader[row] != leader:
                continue
            event = events[to]
            event.time, event.kind = appends.time[row], APPEND
            event.offset, event.row = appends.offset[row], appends.row[row]
            if appends.offset[row] > end:
                end = appends.offset[row]
                append_at[collected], append_ends[collected] = appends.time[row], end
                collected += 1
        else:
            row = fetch_index[fetch]
            fetch += 1
            if fetches.epoch[row] != epoch_number or epoch < 0:
                at_start = known if epoch == 0 else at_start
                epoch += 1
                epoch_number, leader = fetches.epoch[row], fetches.leader[row]
                end = fetches.position[row]
                begin_epoch(epochs, epoch, epoch_number, end, to, collected)
                epochs[epoch].leader, known = number_of(ids, known, leader)
            elif fetches.leader[row] != leader:
                continue
            event = events[to]
            event.time, event.kind = fetches.time[row], fetches.kind[row]
            event.offset, event.row = fetches.offset[row], fetches.row[row]
            event.leader_end = fetches.position[row]
            event.requested_at = fetches.requested_at[row]
            event.follower, known = number_of(ids, known, fetches.follower[row])
            slow_reads += fetches.kind[row] == BEGAN
        to += 1
    if epoch >= 0:
        epochs[epoch].past_event, epochs[epoch].past_append = to, collected
        end_superseded(epochs[: epoch + 1], events, append_at)
    at_start = known if epoch <= 0 else at_start
    return OrderedPartition(epochs[: epoch + 1], known, at_start, slow_reads)


@inlined
def begin_epoch(
    epochs: Array, index: int, number: int, start: int, event: int, append: int
) -> None:
    """Also ends the epoch before."""
    if index > 0:
        epochs[index - 1].past_event, epochs[index - 1].past_append = event, append
    epoch = epochs[index]
    epoch.number, epoch.start = number, start
    epoch.first_event, epoch.first_append = event, append


@inner
def end_superseded(epochs: Array, events: Array, append_at: Array) -> None:
    """An epoch ends when a later one begins, though its leader may not have learnt of it yet."""
    followed_at = ALWAYS
    for index in range(len(epochs) - 1, -1, -1):
        epoch = epochs[index]
        began = events[epoch.first_event].time
        until = max(began, followed_at)
        while events[epoch.past_event - 1].time > until:
            epoch.past_event -= 1
        while epoch.past_append > epoch.first_append and append_at[epoch.past_append - 1] > until:
            epoch.past_append -= 1
        followed_at = min(followed_at, began)


@inlined
def precedes(rows: Rows, one: int, other: int) -> bool:
    """Of two rows of one table."""
    if rows.epoch[one] != rows.epoch[other]:
        return rows.epoch[one] < rows.epoch[other]
    if rows.time[one] != rows.time[other]:
        return rows.time[one] < rows.time[other]
    if (rows.kind[one] == BEGAN) != (rows.kind[other] == BEGAN):
        return rows.kind[other] == BEGAN  # in one millisecond, reads begin after others end
    if rows.seq[one] != rows.seq[other]:
        return rows.seq[one] < rows.seq[other]
    if rows.position[one] != rows.position[other]:
        return rows.position[one] < rows.position[other]
    if rows.follower[one] != rows.follower[other]:
        return rows.follower[one] < rows.follower[other]
    return rows.offset[one] < rows.offset[other]


@inlined
def is_appended_before(appends: Rows, append: int, fetches: Rows, fetch: int) -> bool:
    """If all of these are equal, the fetch comes first."""
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
def order_rows(
    rows: Rows, bounds: Array, index: Array, spare: Array, runs: Array
) -> tuple[int, int]:
    """Fills `index` with a partition's rows in order, without duplicates; returns their number, and
    an upper bound of the number of epochs."""
    size = bounds[1] - bounds[0]
    has_no_duplicates, epochs = sort_index(rows, bounds[0], bounds[1], index, spare, runs)
    return (size if has_no_duplicates else keep_first(rows, index, size)), epochs


@inner
def sort_index(
    rows: Rows, low: int, high: int, index: Array, spare: Array, runs: Array
) -> tuple[bool, int]:
    """Whether there can be no duplicates, and an upper bound of the number of epochs."""
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
                is_rising &= is_no_duplicate(rows, at, at - 1)
    runs[count] = size
    if count > 1:
        is_rising = False
        merge(rows, index, spare, runs, count)
    return is_rising, epochs


@inlined
def is_no_duplicate(rows: Rows, one: int, before: int) -> bool:
    """Whether the row is another than the one before it, as far as those two show."""
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
    """Of the rows with the same leader, epoch and `seq` only the first stays; returns the number of
    rows that stay."""
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
