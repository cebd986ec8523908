"""Problems of the telemetry tables, counted: no row is dropped silently.

| problem                  | what becomes of those rows                                            |
|--------------------------|-----------------------------------------------------------------------|
| two leaders in one epoch | only those of the leader that was first are replayed                  |
| two leaders at once      | an epoch goes on for longer than leaders take to hear of a successor: |
|                          | rows after the successor's first are not replayed                     |
| a leader's clock is      | an epoch begins by more than a second before an earlier one: times    |
| behind                   | across the two are wrong, and no duration is below 0                  |
| seen twice               | a row counts once                                                     |
| a number given twice     | the topic was created again with its name, and no `assignments` say   |
|                          | when: of rows with one number the first is replayed                   |
| time runs backwards      | rows are replayed in the order of time, not in that of their numbers  |
| leader's end unknown     | such a fetch cannot be judged and is not replayed                     |
| a leader's own fetch     | not replayed                                                          |
| appends are missing      | the end that a fetch saw is past all appends of its epoch: lag is low |
| numbers are missing      | so many gaps: rows were dropped, and what is replayed is not quite it |
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline.io import shards
from insync.pipeline.replay import events
from insync.pipeline.replay.assignments import ASSIGNMENT_COLUMNS, by_creation
from insync.pipeline.replay.ordering import NO_SEQ
from insync.pipeline.replay.state import ALWAYS, NONE, Array
from insync.pipeline.tables.schemas import PROBLEMS

SUPERSEDED_WITHIN_MS: Final = 1_000
"""A leader goes on until it learns that another was elected."""
COLUMNS: Final = {
    "fetches": events.FETCH_COLUMNS,
    "appends": events.APPEND_COLUMNS,
    "assignments": ASSIGNMENT_COLUMNS,
}


def problems(
    fetches: DataFrame, appends: DataFrame, assignments: DataFrame | None = None
) -> DataFrame:
    """A row per partition and problem, from DataFrames of any source: `schemas.PROBLEMS`."""
    tables = {"fetches": fetches, "appends": appends}
    if assignments is not None:
        tables["assignments"] = assignments
    return shards.from_tables(tables, COLUMNS, count_problems, PROBLEMS)


def problems_exported(spark: SparkSession, folder: str | Path) -> DataFrame:
    return shards.from_export(spark, folder, COLUMNS, count_problems, PROBLEMS)


def count_problems(tables: shards.Tables) -> pa.Table:
    counted = pa.concat_tables(map(_of_topics, by_creation(tables)))
    key = ["topic", "partition", "problem"]
    summed = counted.group_by(key, use_threads=False).aggregate([("rows", "sum")])
    return summed.rename_columns(PROBLEMS.names).cast(to_arrow_schema(PROBLEMS))


def _of_topics(tables: shards.Tables) -> pa.Table:
    fetches, appends = tables["fetches"], tables["appends"]
    topics, partitions, (fetch_code, append_code) = events.codes([fetches, appends])
    leader_end = pc.coalesce(fetches["leader_end_low"], fetches["leader_end_high"])
    is_own = events.numbers(fetches["follower"]) == events.numbers(fetches["leader"])
    rows_of = {
        "leader's end unknown": fetch_code[events.numbers(leader_end, NONE) == NONE],
        "a leader's own fetch": fetch_code[is_own],
    }
    code = np.concatenate([fetch_code, append_code])
    epoch = _both(fetches, appends, "leader_epoch")
    ends = np.concatenate([events.numbers(leader_end, NONE), events.numbers(appends["end_offset"])])
    rows_of["appends are missing"] = fetch_code[_beyond_appends(code, epoch, ends, len(fetch_code))]
    leader = _both(fetches, appends, "leader")
    seq = _both(fetches, appends, "seq", NO_SEQ)
    read_ms = np.maximum(events.numbers(fetches["read_ms"], 0), 0)
    time = _both(fetches, appends, "at_ms") + np.concatenate(
        [read_ms, np.zeros(len(append_code), np.int64)]
    )
    kind = np.repeat([0, 1], [len(fetch_code), len(append_code)])
    rows_of["two leaders in one epoch"] = code[_of_a_second_leader(code, epoch, leader, time, seq)]
    rows_of["two leaders at once"] = code[_rows_after_superseded(code, epoch, time)]
    rows_of["a leader's clock is behind"] = code[_of_late_clocks(code, epoch, time)]
    order = np.lexsort((kind, time, seq, leader, epoch, code))
    order = order[seq[order] != NO_SEQ]
    before, after = order[:-1], order[1:]
    is_same = (code[before] == code[after]) & (epoch[before] == epoch[after])
    is_same &= leader[before] == leader[after]
    step = seq[after] - seq[before]
    is_alike = (time[before] == time[after]) & (kind[before] == kind[after])
    rows_of["seen twice"] = code[after[is_same & (step == 0) & is_alike]]
    rows_of["a number given twice"] = code[after[is_same & (step == 0) & ~is_alike]]
    # What a fetch session said of one follower is written down later than others' fetches of the
    # same time: only the rows of one follower, or of appends, are in the order of time.
    fetcher = np.concatenate(
        [events.numbers(fetches["follower"]), np.full(len(append_code), NONE, np.int64)]
    )
    by_fetcher = order[np.argsort(fetcher[order], kind="stable")]
    first, then = by_fetcher[:-1], by_fetcher[1:]
    goes_on = (fetcher[first] == fetcher[then]) & (code[first] == code[then])
    goes_on &= (epoch[first] == epoch[then]) & (leader[first] == leader[then])
    is_back = goes_on & (seq[first] < seq[then]) & (time[then] < time[first])
    rows_of["time runs backwards"] = code[then[is_back]]
    rows_of["numbers are missing"] = np.repeat(
        code[after], np.where(is_same, np.minimum(np.maximum(step - 1, 0), 1), 0)
    )
    return _counted(rows_of, topics, partitions)


def _both(fetches: pa.Table, appends: pa.Table, name: str, null: int | None = None) -> Array:
    return np.concatenate(
        [events.numbers(fetches[name], null), events.numbers(appends[name], null)]
    )


def _beyond_appends(code: Array, epoch: Array, ends: Array, fetches: int) -> Array:
    """Whether a fetch, which come first, saw the leader's end past all appends of its epoch.

    Only if it had moved there: where it stands still, the appends may be too old to be kept."""
    order = np.lexsort((epoch, code))
    is_first = _is_first(order, code, epoch)
    term = np.empty(len(order), np.int64)
    term[order] = np.cumsum(is_first) - 1
    lowest, appended = np.full(is_first.sum(), -NONE), np.full(is_first.sum(), NONE)
    seen, seen_in = ends[:fetches], term[:fetches]
    is_known = seen != NONE
    np.minimum.at(lowest, seen_in[is_known], seen[is_known])
    np.maximum.at(appended, term[fetches:], ends[fetches:])
    return (seen > lowest[seen_in]) & (seen > appended[seen_in])


def _of_a_second_leader(code: Array, epoch: Array, leader: Array, time: Array, seq: Array) -> Array:
    """Whether a row is of another leader than the first of its epoch."""
    order = np.lexsort((seq, time, epoch, code))
    is_first = _is_first(order, code, epoch)
    first = order[is_first][np.cumsum(is_first) - 1] if len(order) else order
    is_second = np.zeros(len(order), np.bool_)
    is_second[order] = leader[order] != leader[first]
    return is_second


def _rows_after_superseded(code: Array, epoch: Array, time: Array) -> Array:
    """Whether a row is of an epoch after which another had begun, and for long enough."""
    order = np.lexsort((time, epoch, code))
    is_first = _is_first(order, code, epoch)
    epochs = order[is_first]
    followed_at = np.full(len(epochs), ALWAYS, np.int64)
    for at in range(len(epochs) - 2, -1, -1):
        if code[epochs[at]] == code[epochs[at + 1]]:
            followed_at[at] = min(followed_at[at + 1], time[epochs[at + 1]])
    is_late = np.zeros(len(order), np.bool_)
    of_epoch = np.cumsum(is_first) - 1
    is_late[order] = time[order] - SUPERSEDED_WITHIN_MS > followed_at[of_epoch]
    return is_late


def _of_late_clocks(code: Array, epoch: Array, time: Array) -> Array:
    """Whether a row is of an epoch that begins before an earlier one did, and by long enough."""
    order = np.lexsort((time, epoch, code))
    is_first = _is_first(order, code, epoch)
    epochs = order[is_first]
    is_behind = np.zeros(len(epochs), np.bool_)
    latest = 0
    for at in range(1, len(epochs)):
        if code[epochs[at]] != code[epochs[at - 1]]:
            latest = at
            continue
        is_behind[at] = time[epochs[at]] + SUPERSEDED_WITHIN_MS < time[epochs[latest]]
        latest = at if time[epochs[at]] > time[epochs[latest]] else latest
    is_late = np.zeros(len(order), np.bool_)
    is_late[order] = is_behind[np.cumsum(is_first) - 1]
    return is_late


def _is_first(order: Array, code: Array, epoch: Array) -> Array:
    """Whether another epoch, or partition, begins here."""
    is_first = np.ones(len(order), np.bool_)
    before, after = order[:-1], order[1:]
    is_first[1:] = (code[before] != code[after]) | (epoch[before] != epoch[after])
    return is_first


def _counted(rows_of: dict[str, Array], topics: Array, partitions: Array) -> pa.Table:
    rows = []
    for problem, codes in rows_of.items():
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            rows.append(
                {
                    "topic": topics[code],
                    "partition": int(partitions[code]),
                    "problem": problem,
                    "rows": int(count),
                }
            )
    return pa.Table.from_pylist(rows, schema=to_arrow_schema(PROBLEMS))
