"""Tables to ordered events: what `kernel.py` replays, partition by partition.

Rows come as they were exported: the partitions of one shard mixed, each nearly in order. They are
dealt out to their partitions by counting, and each partition's events are put in order by merging
its ascending runs, so ordered input costs one pass and any other input is right as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from insync.pipeline.compiling import compiled
from insync.pipeline.kernel import APPEND, BEGAN, FAILED, FETCH, NONE, Array
from insync.rules.refusals import Refusal
from insync.telemetry.schemas import OK

NO_SEQ: Final = 2**62

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

# An event's numbers. The first seven are its order; for an append `POSITION` is its base offset and
# `WHO` its end, for a fetch they are the leader's end it was judged by and its follower.
(
    E_EPOCH, E_TIME, E_WHEN, E_SEQ, E_POSITION, E_KIND, E_WHO, E_OFFSET, E_AT, E_ROW, E_LEADER,
    E_FIELDS,
) = range(12)  # fmt: skip
ORDER_FIELDS: Final = 8


class BadTables(Refusal):
    """Tables that cannot be replayed."""


def check_columns(table: str, names: Any, needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in set(names)]
    if missing:
        raise BadTables(f"{table} has no column {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Shard:
    """The events of some partitions, ordered, with what else their replay needs."""

    topics: Array  # per partition
    partitions: Array
    bounds: Array  # of each partition's events
    events: Array  # E_FIELDS columns
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
    count = len(partitions)
    # One long row per table; nulls as the oracle reads them.
    leader_end = pc.coalesce(fetches["leader_end_low"], fetches["leader_end_high"])
    at_ms = numbers(fetches["at_ms"])
    is_ok = pc.fill_null(pc.equal(_plain(fetches["outcome"]), OK), fill_value=True)
    events, bounds = deal_out(
        count,
        coded[0],
        numbers(fetches["leader_epoch"]),
        numbers(fetches["leader"]),
        at_ms,
        numbers(fetches["seq"], NO_SEQ),
        numbers(fetches["follower"]),
        numbers(fetches["offset"]),
        numbers(leader_end, NONE),
        numbers(fetches["read_ms"], 0),
        is_ok.to_numpy(zero_copy_only=False)
        if isinstance(is_ok, pa.Array)
        else is_ok.combine_chunks().to_numpy(zero_copy_only=False),
        numbers(fetches["repeats"], 1),
        numbers(fetches["last_at_ms"], NONE),
        coded[1],
        numbers(appends["leader_epoch"]),
        numbers(appends["leader"]),
        numbers(appends["at_ms"]),
        numbers(appends["seq"], NO_SEQ),
        numbers(appends["base_offset"]),
        numbers(appends["end_offset"]),
    )
    events = events[order(events, bounds)]
    has_isr, isr_bounds, isr_members = _first_isr(isr, topics, partitions)
    return Shard(
        topics, partitions, bounds, events, isr_bounds, isr_members, has_isr, _stalls(stalls)
    )


def numbers(column: pa.ChunkedArray, null: int | None = None) -> Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        if null is None:
            raise BadTables("a time, an epoch, a broker or an offset is null")
        array = pc.fill_null(array, null)
    numbers = array.to_numpy(zero_copy_only=False)
    return numbers if numbers.dtype == np.int64 else numbers.astype(np.int64)


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
    names: dict[str, int] = {}
    wide = 1
    for table in tables:
        if table.num_rows:
            wide = max(wide, pc.max(table["partition"]).as_py() + 1)
    rows = []
    for table, column in zip(tables, columns, strict=True):
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        topic = np.empty(table.num_rows, np.int64)
        at = 0
        for part in parts:
            own = np.array(
                [names.setdefault(name, len(names)) for name in part.dictionary.to_pylist()],
                np.int64,
            )
            indices = part.indices.to_numpy(zero_copy_only=False)
            topic[at : at + len(part)] = own[indices] if len(own) else 0
            at += len(part)
        rows.append(topic * wide + numbers(table["partition"]))
    is_used = np.zeros(max(1, len(names)) * wide, np.bool_)
    for row in rows:
        is_used[row] = True
    used = np.flatnonzero(is_used)
    number = np.empty(len(is_used), np.int64)
    number[used] = np.arange(len(used))
    known = np.array([*names, ""], object)
    return known[used // wide], used % wide, [number[row] for row in rows]


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


@compiled
def deal_out(
    count: int,
    fetch_code: Array, fetch_epoch: Array, fetch_leader: Array, fetch_at: Array, fetch_seq: Array,
    follower: Array, offset: Array, leader_end: Array, read_ms: Array, is_ok: Array,
    repeats: Array, last_at: Array,
    append_code: Array, append_epoch: Array, append_leader: Array, append_at: Array,
    append_seq: Array, base_offset: Array, end_offset: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Every event beside the others of its partition."""
    bounds = np.zeros(count + 1, np.int64)
    for row in range(len(fetch_code)):
        bounds[fetch_code[row] + 1] += fetch_events(
            fetch_at[row], fetch_leader[row], follower[row], leader_end[row], read_ms[row],
            is_ok[row], repeats[row], last_at[row],
        )  # fmt: skip
    for row in range(len(append_code)):
        bounds[append_code[row] + 1] += 1
    for code in range(count):
        bounds[code + 1] += bounds[code]
    events = np.empty((bounds[count], E_FIELDS), np.int64)
    place = bounds[:count].copy()
    for row in range(len(fetch_code)):
        n = fetch_events(
            fetch_at[row], fetch_leader[row], follower[row], leader_end[row], read_ms[row],
            is_ok[row], repeats[row], last_at[row],
        )  # fmt: skip
        if n == 0:
            continue
        at = fetch_at[row]
        to = place[fetch_code[row]]
        place[fetch_code[row]] += n
        for point in range(n):
            event = events[to + point]
            event[E_EPOCH] = fetch_epoch[row]
            event[E_SEQ] = fetch_seq[row]
            event[E_POSITION] = leader_end[row]
            event[E_WHO] = follower[row]
            event[E_OFFSET] = offset[row]
            event[E_ROW] = row
            event[E_LEADER] = fetch_leader[row]
            event[E_AT] = at
            event[E_TIME] = at
            event[E_WHEN] = 0
            event[E_KIND] = FETCH
            if read_ms[row] > 0:
                if point == 0:
                    event[E_WHEN] = 1
                    event[E_KIND] = BEGAN
                else:
                    event[E_TIME] = at + read_ms[row]
                    event[E_KIND] = FETCH if is_ok[row] else FAILED
            elif n > 1:
                event[E_TIME] = event[E_AT] = at + (last_at[row] - at) * point // (n - 1)
    for row in range(len(append_code)):
        event = events[place[append_code[row]]]
        place[append_code[row]] += 1
        event[E_EPOCH] = append_epoch[row]
        event[E_TIME] = event[E_AT] = append_at[row]
        event[E_WHEN] = 0
        event[E_SEQ] = append_seq[row]
        event[E_POSITION] = base_offset[row]
        event[E_KIND] = APPEND
        event[E_WHO] = end_offset[row]
        event[E_OFFSET] = 0
        event[E_ROW] = row
        event[E_LEADER] = append_leader[row]
    return events, bounds


@compiled
def fetch_events(
    at: int, leader: int, follower: int, leader_end: int, read_ms: int, is_ok: bool,
    repeats: int, last_at: int,
) -> int:  # fmt: skip
    """How many events a fetch is: none if it cannot be judged, several if it was merged.

    Of merged ones closer together than a millisecond, one in each counts.
    """
    if leader_end == NONE or follower == leader:
        return 0
    if read_ms > 0:
        return 2
    if not is_ok:
        return 0
    if repeats <= 1 or last_at <= at:
        return 1
    return min(repeats, last_at - at + 1)


@compiled
def precedes(events: Array, one: int, other: int) -> bool:
    """Kinds of a fetch rank as one: which it is shows in `E_WHEN`."""
    for field in range(ORDER_FIELDS):
        a, b = events[one, field], events[other, field]
        if field == E_KIND:
            a, b = a == APPEND, b == APPEND
        if a != b:
            return a < b
    return False


@compiled
def order(events: Array, bounds: Array) -> Array:
    """Where each event is found: the runs that are there, merged, partition by partition."""
    total = len(events)
    index = np.arange(total)
    spare = np.empty(total, np.int64)
    runs = np.empty(total + 2, np.int64)
    for code in range(len(bounds) - 1):
        low, high = bounds[code], bounds[code + 1]
        count = 0
        for at in range(low, high):
            if at == low or precedes(events, at, at - 1):
                runs[count] = at
                count += 1
        runs[count] = high
        while count > 1:
            merged = 0
            for run in range(0, count, 2):
                if run + 1 == count:
                    start, middle, end = runs[run], runs[run + 1], runs[run + 1]
                else:
                    start, middle, end = runs[run], runs[run + 1], runs[run + 2]
                left, right = start, middle
                for to in range(start, end):
                    if right >= end or (
                        left < middle and not precedes(events, index[right], index[left])
                    ):
                        spare[to] = index[left]
                        left += 1
                    else:
                        spare[to] = index[right]
                        right += 1
                runs[merged] = start
                merged += 1
            runs[merged] = high
            count = merged
            index[low:high] = spare[low:high]
    return index
