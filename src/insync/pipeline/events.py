"""Tables to ordered events: what `kernel.py` replays, partition by partition.

Array come as they were exported: the partitions of one shard mixed, each nearly in order. They are
dealt out to their partitions by counting, and each partition's fetches and appends are put in order
by merging their ascending runs, so ordered input costs one pass and any other input is right as
well. What a second leader of an epoch tells and what was told before are left out on the way. Each
partition is put in order when its turn comes, in the room of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from insync.pipeline.compiling import compiled, inlined, inner
from insync.pipeline.state import APPEND, BEGAN, FAILED, FETCH, NONE, Array
from insync.rules.refusals import Refusal
from insync.telemetry.schemas import OK

NO_SEQ: Final = 2**62
SEQ_MAX: Final = 2**61
EVENTS_MAX: Final = 200_000_000  # of one shard: 20 GB
DENSE_MAX: Final = 1 << 22  # pairs of topic and number that are looked up in a plain array

FETCH_COLUMNS: Final = (
    "topic", "partition", "leader", "leader_epoch", "at_ms", "seq", "follower", "offset",
    "leader_end_low", "leader_end_high", "read_ms", "outcome", "repeats", "last_at_ms",
)  # fmt: skip
APPEND_COLUMNS: Final = (
    "topic", "partition", "leader", "leader_epoch", "at_ms", "seq", "base_offset", "end_offset",
)  # fmt: skip
ISR_COLUMNS: Final = ("topic", "partition", "leader_epoch", "version", "isr_before")
STALL_COLUMNS: Final = ("broker", "at_ms", "stall_ms")

COLUMNS: Final = {
    "fetches": FETCH_COLUMNS,
    "appends": APPEND_COLUMNS,
    "isr": ISR_COLUMNS,
    "stalls": STALL_COLUMNS,
}


# Events are a block of numbers, a row for each of these. Their order is that of the first of them:
# of a fetch and an append that are level in `POSITION`, the fetch is before.
(
    E_EPOCH,
    E_TIME,
    E_WHEN,  # within its millisecond: a read begins after what ends
    E_SEQ,
    E_POSITION,  # the leader's end that a fetch was judged by, an append's base offset
    E_WHO,  # a fetch's follower
    E_OFFSET,  # a fetch's, an append's end
    E_KIND,
    E_AT,  # when the request came
    E_ROW,
    E_LEADER,
    E_FIELDS,
) = range(12)

# Of a fetch, what more it may be than one event.
X_READ_MS, X_IS_OK, X_REPEATS, X_LAST_AT = range(4)


class BadTables(Refusal):
    """Tables that cannot be replayed."""


def check_columns(table: str, names: Any, needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in set(names)]
    if missing:
        raise BadTables(f"{table} has no column {', '.join(missing)}")


class Dealt(NamedTuple):
    """Both tables' events, which of them are whose, and room for one partition's in order."""

    fetches: Array
    fetch_index: Array
    fetch_bounds: Array
    appends: Array
    append_index: Array
    append_bounds: Array
    events: Array
    spare: Array
    runs: Array


@dataclass(frozen=True, slots=True)
class Shard:
    """The events of some partitions, with what else their replay needs."""

    topics: Array  # per partition
    partitions: Array
    dealt: Dealt
    isr_bounds: Array  # of the first isr_before in `isr_members`; empty: none
    isr_members: Array
    has_isr: Array
    stalls: Array  # broker, began, length; in order


def shard(
    fetches: pa.Table, appends: pa.Table, isr: pa.Table | None, stalls: pa.Table | None
) -> Shard:
    check_columns("fetches", fetches.column_names, FETCH_COLUMNS)
    check_columns("appends", appends.column_names, APPEND_COLUMNS)
    topics, partitions, coded = codes([fetches, appends])
    fetched, fetch_codes = fetch_rows(fetches, coded[0])
    appended = append_rows(appends)
    fetch_index, fetch_bounds = dealt_out(len(partitions), fetch_codes)
    append_index, append_bounds = dealt_out(len(partitions), coded[1])
    # One partition after the other: the room of one stays in the processor's caches.
    largest = int(np.max(np.diff(fetch_bounds + append_bounds), initial=0))
    dealt = Dealt(
        fetched, fetch_index, fetch_bounds, appended, append_index, append_bounds,
        np.empty((E_FIELDS, largest), np.int64), np.empty(largest, np.int64),
        np.empty(largest + 2, np.int64),
    )  # fmt: skip
    has_isr, isr_bounds, isr_members = _first_isr(isr, topics, partitions)
    return Shard(topics, partitions, dealt, isr_bounds, isr_members, has_isr, _stalls(stalls))


def fetch_rows(fetches: pa.Table, code: Array) -> tuple[Array, Array]:
    """One event per row, where rows are so simple; nulls as the oracle reads them."""
    is_ok = pc.fill_null(pc.equal(_plain(fetches["outcome"]), OK), fill_value=True)
    is_ok = is_ok.combine_chunks() if isinstance(is_ok, pa.ChunkedArray) else is_ok
    leader_end = fetches["leader_end_low"]
    if leader_end.null_count:
        leader_end = pc.coalesce(leader_end, fetches["leader_end_high"])
    rows = _rows(fetches, FETCH)
    rows[E_POSITION] = numbers(leader_end, NONE)
    rows[E_WHO] = numbers(fetches["follower"])
    rows[E_OFFSET] = numbers(fetches["offset"])
    read_ms, repeats = numbers(fetches["read_ms"], 0), numbers(fetches["repeats"], 1)
    are_ok = is_ok.to_numpy(zero_copy_only=False)
    is_each_one = are_ok.all() and not (read_ms > 0).any() and not (repeats > 1).any()
    if is_each_one and are_all_judged(rows):
        return rows, code
    more = np.empty((4, len(code)), np.int64)
    more[X_READ_MS], more[X_IS_OK], more[X_REPEATS] = read_ms, are_ok, repeats
    more[X_LAST_AT] = numbers(fetches["last_at_ms"], NONE)
    count = count_events(rows, more)
    if count > EVENTS_MAX:
        raise BadTables(f"{count} fetches in {len(code)} rows: some repeats cannot be true")
    return expanded(rows, more, code, count)


def append_rows(appends: pa.Table) -> Array:
    rows = _rows(appends, APPEND)
    rows[E_POSITION] = numbers(appends["base_offset"])
    rows[E_WHO] = 0
    rows[E_OFFSET] = numbers(appends["end_offset"])
    return rows


def _rows(table: pa.Table, kind: int) -> Array:
    """With what is the same for both."""
    rows = np.empty((E_FIELDS, table.num_rows), np.int64)
    rows[E_EPOCH] = numbers(table["leader_epoch"])
    rows[E_TIME] = rows[E_AT] = numbers(table["at_ms"])
    rows[E_WHEN] = 0
    rows[E_SEQ] = _seq(table["seq"])
    rows[E_KIND] = kind
    rows[E_ROW] = np.arange(table.num_rows)
    rows[E_LEADER] = numbers(table["leader"])
    return rows


def numbers(column: pa.ChunkedArray, null: int | None = None) -> Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        if null is None:
            raise BadTables("a time, an epoch, a broker or an offset is null")
        array = pc.fill_null(_whole(array), null)
    elif not pa.types.is_integer(array.type) or pa.types.is_uint64(array.type):
        array = _whole(array)
    return array.to_numpy(zero_copy_only=False)


def _whole(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadTables(f"a column of whole numbers is something else: {error}") from None


def _seq(column: pa.ChunkedArray) -> Array:
    found = numbers(column, NO_SEQ)
    if len(found) and (found.min() < 0 or found[found != NO_SEQ].max(initial=0) >= SEQ_MAX):
        raise BadTables("a number in seq is negative, or larger than any that was given out")
    return found


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def codes(tables: list[pa.Table]) -> tuple[Array, Array, list[Array]]:
    """Partitions by number, and the number of each row's partition."""
    columns = [table["topic"].combine_chunks() for table in tables]
    columns = [
        column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        for column in columns
    ]
    if any(column.null_count for column in columns):
        raise BadTables("a topic is null")
    rows = [numbers(table["partition"]).astype(np.int64) for table in tables]  # to write to
    if any(row.min(initial=0) < 0 for row in rows):
        raise BadTables("the number of a partition is negative")
    names: dict[str, int] = {}
    wide = 1 + max(int(row.max(initial=0)) for row in rows)
    for row, column in zip(rows, columns, strict=True):
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        at = 0
        for part in parts:
            own = np.array(
                [names.setdefault(name, len(names)) for name in part.dictionary.to_pylist()],
                np.int64,
            )
            if len(own) > 1 or own.any():
                row[at : at + len(part)] += (own * wide)[
                    part.indices.to_numpy(zero_copy_only=False)
                ]
            at += len(part)
    known = np.array([*names, ""], object)
    if len(names) * wide > DENSE_MAX:
        used, number = np.unique(np.concatenate(rows), return_inverse=True)
        first = len(rows[0])
        return known[used // wide], used % wide, [number[:first], number[first:]]
    is_used = np.zeros(max(1, len(names)) * wide, np.bool_)
    for row in rows:
        mark_used(is_used, row)
    used = np.flatnonzero(is_used)
    number = np.empty(len(is_used), np.int64)
    number[used] = np.arange(len(used))
    for row in rows:
        renumber(row, number)
    return known[used // wide], used % wide, rows


@compiled
def mark_used(is_used: Array, rows: Array) -> None:
    for row in rows:
        is_used[row] = True


@compiled
def renumber(rows: Array, number: Array) -> None:
    for at in range(len(rows)):
        rows[at] = number[rows[at]]


def _first_isr(
    isr: pa.Table | None, topics: Array, partitions: Array
) -> tuple[Array, Array, Array]:
    count = len(partitions)
    found: dict[tuple[str, int], tuple[tuple[int, int], list[int]]] = {}
    if isr is not None:
        check_columns("isr", isr.column_names, ISR_COLUMNS)
        for row in isr.select(list(ISR_COLUMNS)).to_pylist():
            key = (row["topic"], row["partition"])
            rank = (row["leader_epoch"], row["version"] or 0)
            if key not in found or rank < found[key][0]:
                found[key] = (rank, row["isr_before"])
    has_isr = np.zeros(count, np.bool_)
    bounds = np.zeros(count + 1, np.int64)
    members: list[int] = []
    for at in range(count):
        change = found.get((topics[at], int(partitions[at]))) if found else None
        if change is not None:
            has_isr[at] = True
            members += change[1]
        bounds[at + 1] = len(members)
    return has_isr, bounds, np.array(members, np.int64)


def _stalls(stalls: pa.Table | None) -> Array:
    if stalls is None or not stalls.num_rows:
        return np.empty((0, 3), np.int64)
    check_columns("stalls", stalls.column_names, STALL_COLUMNS)
    rows = np.stack([numbers(stalls[name]) for name in STALL_COLUMNS], axis=1)
    return rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]


@inner
def are_all_judged(rows: Array) -> bool:
    for row in range(rows.shape[1]):
        if rows[E_POSITION, row] == NONE or rows[E_WHO, row] == rows[E_LEADER, row]:
            return False
    return True


@inner
def count_events(rows: Array, more: Array) -> int:
    count = 0
    for row in range(rows.shape[1]):
        count += fetch_events(rows, more, row)
    return count


@inlined
def fetch_events(rows: Array, more: Array, row: int) -> int:
    """How many events a fetch is: none if it cannot be judged, several if it was merged.

    Of merged ones closer together than a millisecond, one in each counts.
    """
    if rows[E_POSITION, row] == NONE or rows[E_WHO, row] == rows[E_LEADER, row]:
        return 0
    if more[X_READ_MS, row] > 0:
        return 2
    if not more[X_IS_OK, row]:
        return 0
    took_ms = more[X_LAST_AT, row] - rows[E_AT, row]
    if more[X_REPEATS, row] <= 1 or took_ms <= 0:
        return 1
    return min(more[X_REPEATS, row], took_ms + 1)


@compiled
def expanded(rows: Array, more: Array, code: Array, count: int) -> tuple[Array, Array]:
    """A read that took time begins and ends; merged fetches came at even distances."""
    wide = np.empty((E_FIELDS, count), np.int64)
    codes = np.empty(count, np.int64)
    to = 0
    for row in range(rows.shape[1]):
        came, n = rows[E_AT, row], fetch_events(rows, more, row)
        for point in range(n):
            move(rows, row, wide, to)
            codes[to] = code[row]
            if more[X_READ_MS, row] > 0:
                if point == 0:
                    wide[E_WHEN, to] = 1
                    wide[E_KIND, to] = BEGAN
                else:
                    wide[E_TIME, to] = came + more[X_READ_MS, row]
                    wide[E_KIND, to] = FETCH if more[X_IS_OK, row] else FAILED
            elif n > 1:
                at = came + (more[X_LAST_AT, row] - came) * point // (n - 1)
                wide[E_TIME, to] = wide[E_AT, to] = at
            to += 1
    return wide, codes


@compiled
def dealt_out(count: int, code: Array) -> tuple[Array, Array]:
    """Each partition's rows, one partition after the other, and where each begins."""
    bounds = np.zeros(count + 1, np.int64)
    for row in range(len(code)):
        bounds[code[row] + 1] += 1
    for one in range(count):
        bounds[one + 1] += bounds[one]
    place = bounds[:count].copy()
    index = np.empty(len(code), np.int64)
    for row in range(len(code)):
        index[place[code[row]]] = row
        place[code[row]] += 1
    return index, bounds


@inlined
def precedes(rows: Array, one: int, other: int) -> bool:
    """Of the same kind."""
    for field in range(E_EPOCH, E_OFFSET + 1):
        if rows[field, one] != rows[field, other]:
            return rows[field, one] < rows[field, other]
    return False


@inlined
def is_appended_before(appends: Array, append: int, fetches: Array, fetch: int) -> bool:
    for field in range(E_EPOCH, E_POSITION + 1):
        if appends[field, append] != fetches[field, fetch]:
            return appends[field, append] < fetches[field, fetch]
    return False


@inner
def put_in_order(rows: Array, index: Array, low: int, high: int, spare: Array, runs: Array) -> None:
    """The ascending runs of index[low:high], merged."""
    count = 0
    for at in range(low, high):
        if at == low or precedes(rows, index[at], index[at - 1]):
            runs[count] = at
            count += 1
    runs[count] = high
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
                    spare[to - low] = index[left]
                    left += 1
                else:
                    spare[to - low] = index[right]
                    right += 1
            runs[merged] = start
            merged += 1
        runs[merged] = high
        count = merged
        for at in range(low, high):
            index[at] = spare[at - low]


@compiled
def in_order(dealt: Dealt, code: int) -> int:
    """A partition's events from both tables, merged into `dealt.events`; returns how many."""
    fetches, appends, events = dealt.fetches, dealt.appends, dealt.events
    fetch_index, append_index = dealt.fetch_index, dealt.append_index
    fetch, past_fetches = dealt.fetch_bounds[code], dealt.fetch_bounds[code + 1]
    append, past_appends = dealt.append_bounds[code], dealt.append_bounds[code + 1]
    put_in_order(fetches, fetch_index, fetch, past_fetches, dealt.spare, dealt.runs)
    put_in_order(appends, append_index, append, past_appends, dealt.spare, dealt.runs)
    to = first = 0  # of its epoch
    latest_fetch = latest_append = -1
    is_told_once = True
    while fetch < past_fetches or append < past_appends:
        is_append = fetch >= past_fetches or (
            append < past_appends
            and is_appended_before(appends, append_index[append], fetches, fetch_index[fetch])
        )
        if is_append:
            move(appends, append_index[append], events, to)
            append += 1
        else:
            move(fetches, fetch_index[fetch], events, to)
            fetch += 1
        if to == first or events[E_EPOCH, to] != events[E_EPOCH, first]:
            if not is_told_once:
                end = keep_first(events, first, to)
                move(events, to, events, end)
                to = end
            first = to
            latest_fetch = latest_append = -1
            is_told_once = True
        elif events[E_LEADER, to] != events[E_LEADER, first]:
            continue
        seq = events[E_SEQ, to]
        if seq != NO_SEQ:
            if is_append:
                is_told_once = is_told_once and seq > latest_append
                latest_append = seq
            else:
                is_told_once = is_told_once and seq > latest_fetch
                latest_fetch = seq
        to += 1
    return to if is_told_once else keep_first(events, first, to)


@inlined
def move(rows: Array, row: int, events: Array, to: int) -> None:
    for field in range(E_FIELDS):
        events[field, to] = rows[field, row]


@compiled
def keep_first(events: Array, low: int, high: int) -> int:
    """Of an epoch's rows with the same number only the first stays; returns where it ends now."""
    keys = np.empty(high - low, np.int64)
    for at in range(low, high):
        # A number and whether it is an append's; without one: its own key.
        if events[E_SEQ, at] == NO_SEQ:
            keys[at - low] = -1 - at
        else:
            keys[at - low] = 2 * events[E_SEQ, at] + (events[E_KIND, at] == APPEND)
    ordered = np.argsort(keys, kind="mergesort")
    is_kept = np.ones(high - low, np.bool_)
    first = ordered[0]
    for one in ordered:
        if keys[one] != keys[first]:
            first = one
        elif events[E_ROW, low + one] != events[E_ROW, low + first]:
            is_kept[one] = False
    to = low
    for at in range(low, high):
        if is_kept[at - low]:
            move(events, at, events, to)
            to += 1
    return to
