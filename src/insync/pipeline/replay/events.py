"""Telemetry tables as events, partition by partition.

An export has one partition's rows after the other's. Rows that are mixed are grouped by partition
with a counting sort. Each partition is ordered just before its replay (`ordering.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from insync.pipeline.io.columns import BadTables, check_columns
from insync.pipeline.replay.assignments import ASSIGNMENT_COLUMNS, Assigned, assigned
from insync.pipeline.replay.compiling import compiled, inlined, inner
from insync.pipeline.replay.ordering import NO_SEQ, Rows, ShardEvents, with_room
from insync.pipeline.replay.state import (
    APPEND,
    BEGAN,
    FAILED,
    FETCH,
    MINIMUM,
    MOVE,
    NEVER,
    NONE,
    Array,
)
from insync.telemetry.replay.histories import is_int32
from insync.telemetry.schemas import ISR, MIN_ISR, OK, REASSIGNMENT, RUN_BEGINS
from insync.telemetry.tables import with_optional_columns

SEQ_MAX: Final = 2**61
EVENTS_MAX: Final = 200_000_000  # of one shard: 20 GB
DENSE_MAX: Final = 1 << 22  # pairs of topic and number that are looked up in an array

FETCH_COLUMNS: Final = (
    "topic", "partition", "leader", "leader_epoch", "at_ms", "seq", "follower", "offset",
    "leader_end_low", "leader_end_high", "read_ms", "outcome", "repeats", "last_at_ms",
)  # fmt: skip
APPEND_COLUMNS: Final = (
    "topic", "partition", "leader", "leader_epoch", "at_ms", "seq", "base_offset", "end_offset",
)  # fmt: skip
ISR_COLUMNS: Final = (
    "topic", "partition", "at_ms", "leader_epoch", "version", "isr_before", "replica", "cause",
)  # fmt: skip
STALL_COLUMNS: Final = ("broker", "at_ms", "stall_ms")
CONFIG_COLUMNS: Final = ("at_ms", "scope", "name", "value")

COLUMNS: Final = {
    "fetches": FETCH_COLUMNS,
    "appends": APPEND_COLUMNS,
    "isr": ISR_COLUMNS,
    "assignments": ASSIGNMENT_COLUMNS,
    "stalls": STALL_COLUMNS,
    "configs": CONFIG_COLUMNS,
}


# Columns that make several events, or none, of one fetch.
X_READ_MS, X_IS_OK, X_REPEATS, X_LAST_AT = range(4)

_COLUMN_TYPES: Final = Rows(
    epoch=np.int32,
    time=np.int64,
    seq=np.int64,
    position=np.int64,
    follower=np.int32,
    offset=np.int64,
    kind=np.int8,
    requested_at=np.int64,
    row=np.int32,
    leader=np.int32,
)


class IsrChanges(NamedTuple):
    """What the replay needs of `isr` and `assignments`, partition after partition."""

    has_any: Array  # per partition
    first_bounds: Array
    first_members: Array  # of the ISR before the first change
    added_bounds: Array
    added: Array  # replicas that a reassignment added: not in the ISR at the start
    move_bounds: Array
    moves: Array  # the first epoch without a replica, and its broker; in order


class Minimums(NamedTuple):
    """min.insync.replicas over time, for each leader. Topics without a value of their own share
    the first group."""

    group: Array  # per partition
    bounds: Array  # per group
    rows: Array  # leader, since, value; in order
    default: int  # where nothing is recorded


@dataclass(frozen=True, slots=True)
class Shard:
    """The events of some partitions, and what else their replay needs."""

    topics: Array  # per partition
    partitions: Array
    events: ShardEvents
    changes: IsrChanges
    stalls: Array  # broker, began, length; in order
    minimums: Minimums


def shard(
    fetches: pa.Table,
    appends: pa.Table,
    isr: pa.Table | None,
    stalls: pa.Table | None,
    assignments: pa.Table | None = None,
    configs: pa.Table | None = None,
    *,
    min_insync_replicas: int | None = None,
) -> Shard:
    """`min_insync_replicas` is that of all topics; None: as `configs` recorded it."""
    check_columns("fetches", fetches.column_names, FETCH_COLUMNS)
    check_columns("appends", appends.column_names, APPEND_COLUMNS)
    topics, partitions, coded = codes([fetches, appends])
    fetched, fetch_codes = fetch_rows(fetches, coded[0])
    fetched, fetch_bounds = group_rows(len(partitions), fetched, fetch_codes)
    appended, append_bounds = group_rows(len(partitions), append_rows(appends), coded[1])
    changes = _changes(isr, assigned(assignments), topics, partitions)
    more_brokers = len(changes.first_members)
    events = with_room(fetched, fetch_bounds, appended, append_bounds, more_brokers=more_brokers)
    minimums = _minimums(None if min_insync_replicas else configs, topics, min_insync_replicas or 1)
    return Shard(topics, partitions, events, changes, _stalls(stalls), minimums)


def fetch_rows(fetches: pa.Table, code: Array) -> tuple[Rows, Array]:
    """The rows themselves where each is one event; nulls as the definition reads them."""
    leader_end = fetches["leader_end_low"]
    if leader_end.null_count:
        leader_end = pc.coalesce(leader_end, fetches["leader_end_high"])
    position, offset = numbers(leader_end, NONE), numbers(fetches["offset"])
    rows = _rows(fetches, FETCH, position, numbers(fetches["follower"]), offset)
    read_ms, repeats = numbers(fetches["read_ms"], 0), numbers(fetches["repeats"], 1)
    is_ok = are_ok(fetches["outcome"])
    is_each_one = is_ok.all() and read_ms.max(initial=0) <= 0 and repeats.max(initial=0) <= 1
    if is_each_one and are_all_usable(rows):
        return rows, code
    more = np.empty((4, len(code)), np.int64)
    more[X_READ_MS], more[X_IS_OK], more[X_REPEATS] = read_ms, is_ok, repeats
    more[X_LAST_AT] = numbers(fetches["last_at_ms"], NONE)
    count = count_events(rows, more)
    if count > EVENTS_MAX:
        raise BadTables(f"{count} fetches in {len(code)} rows: some `repeats` are wrong")
    return expand_rows(rows, more, code, count)


def append_rows(appends: pa.Table) -> Rows:
    base, end = numbers(appends["base_offset"]), numbers(appends["end_offset"])
    return _rows(appends, APPEND, base, np.zeros(appends.num_rows, np.int32), end)


def _rows(table: pa.Table, kind: int, position: Array, follower: Array, offset: Array) -> Rows:
    time, count = numbers(table["at_ms"]), table.num_rows
    rows = Rows(
        epoch=numbers(table["leader_epoch"]),
        time=time,
        seq=_seq(table["seq"]),
        position=position,
        follower=follower,
        offset=offset,
        kind=np.full(count, kind, np.int8),
        requested_at=time,
        row=np.arange(count, dtype=np.int32),
        leader=numbers(table["leader"]),
    )
    return _read_only(rows)


def _read_only(rows: Rows) -> Rows:
    """In the types that the replay is compiled for."""
    columns = {
        name: _narrowed(column, getattr(_COLUMN_TYPES, name))
        for name, column in rows._asdict().items()
    }
    for column in columns.values():
        column.setflags(write=False)
    return Rows(**columns)


def _narrowed(column: Array, kind: Any) -> Array:
    if not np.can_cast(column.dtype, kind):
        bounds = np.iinfo(kind)
        if column.min(initial=0) < bounds.min or column.max(initial=0) > bounds.max:
            raise BadTables("the number of a broker or an epoch needs more than 32 bits")
    return column.astype(kind, copy=False)


def are_ok(outcomes: pa.ChunkedArray) -> Array:
    """Whether each is OK; a single True if the column has no other outcome."""
    if pa.types.is_dictionary(outcomes.type):
        values = (value for chunk in outcomes.chunks for value in chunk.dictionary.to_pylist())
        if all(value in (OK, None) for value in values):
            return np.True_
        outcomes = outcomes.cast(outcomes.type.value_type)
    is_ok = pc.fill_null(pc.equal(outcomes, OK), fill_value=True)
    return _combined(is_ok).to_numpy(zero_copy_only=False)


def numbers(column: pa.ChunkedArray, null: int | None = None) -> Array:
    array = _combined(column)
    if array.null_count:
        if null is None:
            raise BadTables("a time, an epoch, a broker or an offset is null")
        array = pc.fill_null(_as_int64(array), null)
    elif not pa.types.is_integer(array.type) or pa.types.is_uint64(array.type):
        array = _as_int64(array)
    return array.to_numpy(zero_copy_only=False)


def _combined(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Without a copy if the column has one chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _as_int64(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadTables(f"a column of whole numbers has another type: {error}") from None


def _seq(column: pa.ChunkedArray) -> Array:
    seqs = numbers(column, NO_SEQ)
    present = numbers(column.drop_null()) if column.null_count else seqs
    if present.min(initial=0) < 0 or present.max(initial=0) >= SEQ_MAX:
        raise BadTables("a value of seq is negative or larger than any broker assigns")
    return seqs


def codes(tables: list[pa.Table]) -> tuple[Array, Array, list[Array]]:
    """Topic and partition by code, and the code of each row's partition."""
    columns = [_combined(table["topic"]) for table in tables]
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
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        at = 0
        for chunk in chunks:
            own = np.array(
                [names.setdefault(name, len(names)) for name in chunk.dictionary.to_pylist()],
                np.int64,
            )
            if len(own) > 1 or own.any():
                row[at : at + len(chunk)] += (own * wide)[
                    chunk.indices.to_numpy(zero_copy_only=False)
                ]
            at += len(chunk)
    topics = np.array([*names, ""], object)
    if len(names) * wide > DENSE_MAX:
        used, number = np.unique(np.concatenate(rows), return_inverse=True)
        first = len(rows[0])
        return topics[used // wide], used % wide, [number[:first], number[first:]]
    is_used = np.zeros(max(1, len(names)) * wide, np.bool_)
    for row in rows:
        mark_used(is_used, row)
    used = np.flatnonzero(is_used)
    number = np.empty(len(is_used), np.int64)
    number[used] = np.arange(len(used))
    for row in rows:
        renumber(row, number)
    return topics[used // wide], used % wide, rows


@compiled
def mark_used(is_used: Array, rows: Array) -> None:
    for row in rows:
        is_used[row] = True


@compiled
def renumber(rows: Array, number: Array) -> None:
    for at in range(len(rows)):
        rows[at] = number[rows[at]]


def _changes(
    isr: pa.Table | None,
    assigned_replicas: dict[tuple[str, int], Assigned],
    topics: Array,
    partitions: Array,
) -> IsrChanges:
    first: dict[tuple[str, int], tuple[tuple[int, int], list[int]]] = {}
    moved: dict[tuple[str, int], set[tuple[int, int]]] = {}
    if isr is not None:
        check_columns("isr", isr.column_names, ISR_COLUMNS, optional=ISR.optional)
        isr = with_optional_columns(ISR, isr)
        for row in isr.select(list(ISR_COLUMNS)).to_pylist():
            key = (row["topic"], row["partition"])
            rank = (row["leader_epoch"], row["version"] or 0)
            if key not in first or rank < first[key][0]:
                first[key] = (rank, row["isr_before"])
            if row["cause"] == REASSIGNMENT:
                moved.setdefault(key, set()).add((row["leader_epoch"], row["replica"]))
    has_any = np.zeros(len(partitions), np.bool_)
    bounds = np.zeros((3, len(partitions) + 1), np.int64)
    members: list[int] = []
    added: list[int] = []
    moves: list[tuple[int, int]] = []
    for at in range(len(partitions)):
        key = (topics[at], int(partitions[at]))
        if key in first:
            has_any[at] = True
            members += first[key][1]
        replicas = assigned_replicas.get(key, Assigned())
        added += sorted(replicas.added)
        moves += sorted(replicas.removed | moved.get(key, set()))
        bounds[:, at + 1] = len(members), len(added), len(moves)
    return IsrChanges(
        has_any,
        bounds[0],
        np.array(members, np.int64),
        bounds[1],
        np.array(added, np.int64),
        bounds[2],
        np.array(moves, np.int64).reshape(-1, 2),
    )


@compiled
def moves_of(changes: IsrChanges, code: int, ids: Array) -> Array:
    """The partition's moves, of the replicas that have a number."""
    low, high = changes.move_bounds[code], changes.move_bounds[code + 1]
    moves = np.empty(high - low, MOVE)
    count = 0
    for at in range(low, high):
        for number in range(len(ids)):
            if ids[number] == changes.moves[at, 1]:
                moves[count].epoch, moves[count].replica = changes.moves[at, 0], number
                count += 1
    return moves[:count]


def _stalls(stalls: pa.Table | None) -> Array:
    if stalls is None or not stalls.num_rows:
        return np.empty((0, 3), np.int64)
    check_columns("stalls", stalls.column_names, STALL_COLUMNS)
    rows = np.stack([numbers(stalls[name]) for name in STALL_COLUMNS], axis=1)
    return rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]


def _minimums(configs: pa.Table | None, topics: Array, default: int) -> Minimums:
    """At each moment the latest value of a topic in its leader's run, else the latest of its
    leader, else the default: as `recorded_settings.with_settings` does it in Spark."""
    settings: dict[int, dict[str, list[tuple[int, str]]]] = {}  # by leader and topic
    starts: dict[int, list[int]] = {}
    if configs is not None:
        check_columns("configs", configs.column_names, CONFIG_COLUMNS)
        names = pa.array([MIN_ISR, RUN_BEGINS])
        for row in configs.filter(pc.is_in(configs["name"], value_set=names)).to_pylist():
            broker, _, topic = row["scope"].partition("/topic:")
            leader = int(broker.removeprefix("broker:"))
            if row["name"] == MIN_ISR and not is_int32(row["value"]):
                continue
            if row["name"] == MIN_ISR:
                of_leader = settings.setdefault(leader, {})
                of_leader.setdefault(topic, []).append((row["at_ms"], row["value"]))
            elif not topic:
                starts.setdefault(leader, []).append(row["at_ms"])
    own = sorted({topic for of_leader in settings.values() for topic in of_leader if topic})
    rows: list[tuple[int, int, int]] = []
    bounds = [0]
    for topic in ("", *own):
        for leader, of_leader in sorted(settings.items()):
            scopes = [sorted(of_leader.get(scope, ())) for scope in dict.fromkeys((topic, ""))]
            started = starts.get(leader, [])
            times = {at_ms for values in scopes for at_ms, _ in values}
            for at_ms in sorted(times.union(started)):
                run_ms = max((each for each in started if each <= at_ms), default=NEVER)
                by_then = (
                    [
                        value
                        for since, value in values
                        if (run_ms if own else NEVER) <= since <= at_ms
                    ]
                    for own, values in zip((bool(topic), False), scopes, strict=False)
                )
                value = next((values[-1] for values in by_then if values), default)
                rows.append((leader, at_ms, int(value)))
        bounds.append(len(rows))
    group_of = {topic: number for number, topic in enumerate(own, start=1)}
    return Minimums(
        np.array([group_of.get(topic, 0) for topic in topics], np.int64),
        np.array(bounds, np.int64),
        np.array(rows, np.int64).reshape(-1, 3),
        default,
    )


@compiled
def minimums_of(minimums: Minimums, code: int, epochs: Array, ids: Array) -> Array:
    """The values that each epoch's leader recorded; before the first, the default."""
    group = minimums.group[code]
    low, high = minimums.bounds[group], minimums.bounds[group + 1]
    values = np.empty((high - low + 1) * len(epochs), MINIMUM)
    count = 0
    for index in range(len(epochs)):
        epoch = epochs[index]
        epoch.first_minimum = count
        values[count].since, values[count].min_isr = NEVER, minimums.default
        count += 1
        for at in range(low, high):
            if minimums.rows[at, 0] == ids[epoch.leader]:
                values[count].since = minimums.rows[at, 1]
                values[count].min_isr = minimums.rows[at, 2]
                count += 1
        epoch.past_minimum = count
    return values[:count]


@inner
def are_all_usable(rows: Rows) -> bool:
    for row in range(len(rows.position)):
        if rows.position[row] == NONE or rows.follower[row] == rows.leader[row]:
            return False
    return True


@inner
def count_events(rows: Rows, more: Array) -> int:
    count = 0
    for row in range(len(rows.position)):
        count += fetch_events(rows, more, row)
    return count


@inlined
def fetch_events(rows: Rows, more: Array, row: int) -> int:
    """The number of events of a row: 0 if it cannot be replayed, several if fetches were merged.

    Of merged fetches, at most one per millisecond counts.
    """
    if rows.position[row] == NONE or rows.follower[row] == rows.leader[row]:
        return 0
    if more[X_READ_MS, row] > 0:
        return 2
    if not more[X_IS_OK, row]:
        return 0
    took_ms = more[X_LAST_AT, row] - rows.requested_at[row]
    if more[X_REPEATS, row] <= 1 or took_ms <= 0:
        return 1
    return min(more[X_REPEATS, row], took_ms + 1)


def expand_rows(rows: Rows, more: Array, code: Array, count: int) -> tuple[Rows, Array]:
    """A slow read has a begin and an end; merged fetches are evenly spaced."""
    source = np.empty(count, np.int64)
    kind = np.empty(count, np.int8)
    time, requested_at = np.empty((2, count), np.int64)
    expand(rows, more, source, kind, time, requested_at)
    new = {"kind": kind, "time": time, "requested_at": requested_at}
    copied = {name: column[source] for name, column in rows._asdict().items() if name not in new}
    return _read_only(Rows(**copied, **new)), code[source]


@compiled
def expand(
    rows: Rows, more: Array, source: Array, kind: Array, time: Array, requested_at: Array
) -> None:
    to = 0
    for row in range(len(rows.time)):
        arrived, count = rows.requested_at[row], fetch_events(rows, more, row)
        for point in range(count):
            source[to], kind[to], time[to], requested_at[to] = row, FETCH, arrived, arrived
            if more[X_READ_MS, row] > 0:
                if point == 0:
                    kind[to] = BEGAN
                else:
                    time[to] = arrived + more[X_READ_MS, row]
                    kind[to] = FETCH if more[X_IS_OK, row] else FAILED
            elif count > 1:
                took_ms = more[X_LAST_AT, row] - arrived
                time[to] = requested_at[to] = arrived + took_ms * point // (count - 1)
            to += 1


def group_rows(count: int, rows: Rows, code: Array) -> tuple[Rows, Array]:
    """Rows by partition, and where each partition begins; an export is grouped already."""
    if is_ascending(code):
        return rows, np.searchsorted(code, np.arange(count + 1))
    index, bounds = grouping_index(count, code)
    return _read_only(Rows(*(column[index] for column in rows))), bounds


@compiled
def is_ascending(values: Array) -> bool:
    for at in range(1, len(values)):  # noqa: SIM110 - Numba does not compile all()
        if values[at] < values[at - 1]:
            return False
    return True


@compiled
def grouping_index(count: int, code: Array) -> tuple[Array, Array]:
    bounds = np.zeros(count + 1, np.int64)
    for row in range(len(code)):
        bounds[code[row] + 1] += 1
    for partition in range(count):
        bounds[partition + 1] += bounds[partition]
    next_index = bounds[:count].copy()
    index = np.empty(len(code), np.int64)
    for row in range(len(code)):
        index[next_index[code[row]]] = row
        next_index[code[row]] += 1
    return index, bounds
