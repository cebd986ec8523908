"""How much was recorded, and how long healthy followers were silent: one row.

- **Recorded** is time with rows. A stretch of more than `GAP_MS` in which no partition has a fetch
  or an append is a gap. A row of merged fetches is recorded from its first fetch to its last.
- **Covered** is time with appends: as many minutes as have an append in any partition, and never
  more than was recorded. KAFKA-4485's lag is that of appends: without one no limit runs, so idle
  fetches say nothing about a limit.
- **A silence** lasts from one fetch of a follower, its read included, to its next one in the same
  leader epoch. It counts if the leader appended meanwhile: without that no limit is running. Stalls
  of the leader are taken off, as the rules do.
- **Healthy** is a follower that was caught up before the silence (KAFKA-4485) and is caught up
  again after it, and whose broker did not lose its session meanwhile: a restart is no silence.
- A topic that was created again (`assignments`) is another one, with silences of its own.
- Where rows were dropped (`seq` says so) nothing is known, and no silence is counted.

`silence_ms_p9999` is a nearest rank over all silences of healthy followers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline.io import shards
from insync.pipeline.local.dispatch import F, W
from insync.pipeline.replay import events
from insync.pipeline.replay.assignments import ASSIGNMENT_COLUMNS, by_creation
from insync.pipeline.replay.ordering import NO_SEQ
from insync.pipeline.replay.state import NONE, Array
from insync.telemetry.schemas import CONTROLLER, REASSIGNMENT, SHRINK

GAP_MS: Final = 10_000
MINUTE_MS: Final = 60_000  # a multiple of GAP_MS
LONG_MS: Final = 1_000  # a longer silence is kept with its place, shorter ones are counted
COLUMNS: Final = {
    "fetches": events.FETCH_COLUMNS,
    "appends": events.APPEND_COLUMNS,
    "stalls": events.STALL_COLUMNS,
    "assignments": ASSIGNMENT_COLUMNS,
}

_PLACE: Final = (
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("follower", IntegerType()),
)
PARTS: Final = StructType(  # of one task: spans with rows, and silences
    [
        *_PLACE,
        StructField("from_ms", LongType()),
        StructField("to_ms", LongType()),
        StructField("silence_ms", LongType()),  # null: a span with rows
        StructField("silences", LongType(), nullable=False),
        StructField("has_appends", BooleanType(), nullable=False),  # of a span
    ]
)
RECORD: Final = StructType(
    [
        StructField("first_at_ms", LongType()),
        StructField("last_at_ms", LongType()),
        StructField("covered_ms", LongType()),  # with appends
        StructField("recorded_ms", LongType()),  # with rows
        StructField("gaps", LongType()),
        StructField("silences", LongType()),  # of healthy followers
        StructField("silence_ms_p9999", LongType()),
        StructField("silence_ms_max", LongType()),
        # Where the longest was; unknown if it is shorter than a second.
        *(StructField(f"silence_{field.name}", field.dataType) for field in _PLACE),
        StructField("silence_began_at_ms", LongType()),
    ]
)


def record(
    fetches: DataFrame,
    appends: DataFrame,
    isr: DataFrame | None = None,
    stalls: DataFrame | None = None,
    assignments: DataFrame | None = None,
) -> DataFrame:
    """From DataFrames of any source; the schema is `RECORD`."""
    frames = {"fetches": fetches, "appends": appends, "stalls": stalls, "assignments": assignments}
    tables = {name: frame for name, frame in frames.items() if frame is not None}
    return _summed(shards.from_tables(tables, COLUMNS, parts_of, PARTS), isr)


def record_exported(
    spark: SparkSession, folder: str | Path, isr: DataFrame | None = None
) -> DataFrame:
    """From the folder that `insync telemetry export` wrote: several times faster."""
    return _summed(shards.from_export(spark, folder, COLUMNS, parts_of, PARTS), isr)


# The rows of one shard.


def parts_of(tables: shards.Tables) -> pa.Table:
    return pa.concat_tables(map(_of_topics, by_creation(tables)))


def _of_topics(tables: shards.Tables) -> pa.Table:
    fetches, appends = tables["fetches"], tables["appends"]
    topics, partitions, (fetch_code, append_code) = events.codes([fetches, appends])
    spans = _spans(fetches, appends)
    silences = _silences(fetches, appends, fetch_code, append_code, tables["stalls"])
    is_long = silences["silence_ms"] > LONG_MS
    lengths, counts = np.unique(silences["silence_ms"][~is_long], return_counts=True)
    code = silences["code"][is_long]
    columns = {
        "topic": [*[None] * (len(spans) + len(lengths)), *topics[code].tolist()],
        "partition": _padded(partitions[code], spans, lengths),
        "follower": _padded(silences["follower"][is_long], spans, lengths),
        "from_ms": [
            *spans[:, 0].tolist(), *[None] * len(lengths), *silences["from_ms"][is_long].tolist(),
        ],
        "to_ms": [
            *spans[:, 1].tolist(), *[None] * len(lengths), *silences["to_ms"][is_long].tolist(),
        ],
        "silence_ms": [
            *[None] * len(spans), *lengths.tolist(), *silences["silence_ms"][is_long].tolist(),
        ],
        "silences": [*[0] * len(spans), *counts.tolist(), *[1] * len(code)],
        "has_appends": [
            *(spans[:, 2] != 0).tolist(), *[False] * (len(lengths) + len(code)),
        ],
    }  # fmt: skip
    return pa.Table.from_pydict(columns, schema=to_arrow_schema(PARTS))


def _padded(values: Array, spans: Array, lengths: Array) -> list[int | None]:
    return [*[None] * (len(spans) + len(lengths)), *values.tolist()]


def _spans(fetches: pa.Table, appends: pa.Table) -> Array:
    """Per bucket of `GAP_MS`: the first and the last time of rows, and whether any appends."""
    begins, ends = _times(fetches)
    at = events.numbers(appends["at_ms"])
    # The row that begins an epoch is an append of nothing.
    adds = events.numbers(appends["end_offset"]) > events.numbers(appends["base_offset"])
    is_append = np.concatenate([np.zeros(len(begins), np.bool_), adds])
    begins, ends = np.concatenate([begins, at]), np.concatenate([ends, at])
    buckets, of_row = np.unique(begins // GAP_MS, return_inverse=True)
    spans = np.empty((len(buckets), 3), np.int64)
    spans[:, 0], spans[:, 1], spans[:, 2] = -NONE, NONE, 0
    np.minimum.at(spans[:, 0], of_row, begins)
    np.maximum.at(spans[:, 1], of_row, ends)
    np.maximum.at(spans[:, 2], of_row, is_append)
    return spans


def _times(fetches: pa.Table) -> tuple[Array, Array]:
    """When a row's first fetch began, and when its last one, or its read, ended."""
    begins = events.numbers(fetches["at_ms"]).astype(np.int64)
    read_ms = np.maximum(events.numbers(fetches["read_ms"], 0), 0)
    last = events.numbers(fetches["last_at_ms"], NONE)
    return begins, np.maximum(begins + read_ms, last)


def _silences(
    fetches: pa.Table, appends: pa.Table, fetch_code: Array, append_code: Array, stalls: pa.Table
) -> dict[str, Array]:
    """Of followers that were healthy before and after, as far as their own partition says."""
    leader_end = pc.coalesce(fetches["leader_end_low"], fetches["leader_end_high"])
    end, offset = events.numbers(leader_end, NONE), events.numbers(fetches["offset"])
    follower, leader = events.numbers(fetches["follower"]), events.numbers(fetches["leader"])
    epoch, seq = events.numbers(fetches["leader_epoch"]), events.numbers(fetches["seq"], NO_SEQ)
    begins, ends = _times(fetches)
    holes = _holes(fetches, appends, fetch_code, append_code)
    is_usable = events.are_ok(fetches["outcome"]) & (end != NONE) & (follower != leader)
    order = np.flatnonzero(is_usable)
    order = order[
        np.lexsort([column[order] for column in (seq, begins, follower, leader, epoch, fetch_code)])
    ]
    before, after = order[:-1], order[1:]
    is_same = np.ones(len(before), np.bool_)
    for column in (fetch_code, epoch, leader, follower):
        is_same &= column[before] == column[after]
    is_level = offset[order] >= end[order]
    is_caught_up = is_level.copy()
    is_caught_up[1:] |= is_same & (offset[after] >= end[before])
    is_counted = is_same & is_caught_up[:-1] & _is_caught_up_later(is_same, is_level, is_caught_up)
    is_counted &= (end[after] > end[before]) & (holes[after] == holes[before])
    first, then = before[is_counted], after[is_counted]
    from_ms, to_ms = ends[first], np.maximum(ends[first], begins[then])
    silence_ms = to_ms - from_ms - _stalled_ms(stalls, leader[first], from_ms, to_ms)
    return {
        "code": fetch_code[first],
        "follower": follower[first].astype(np.int64),
        "from_ms": from_ms,
        "to_ms": to_ms,
        "silence_ms": np.maximum(silence_ms, 0),
    }


def _is_caught_up_later(is_same: Array, is_level: Array, is_caught_up: Array) -> Array:
    """Whether the follower is level at its next fetch, or caught up at a later one: that the next
    one is past the end of the one before it says nothing of the time after the silence."""
    group = np.concatenate([[0], np.cumsum(~is_same)])
    position = np.arange(len(group))
    last = np.full(len(group), -1)
    np.maximum.at(last, group[is_caught_up], position[is_caught_up])
    return is_level[1:] | (last[group[:-1]] >= position[:-1] + 2)


def _holes(fetches: pa.Table, appends: pa.Table, fetch_code: Array, append_code: Array) -> Array:
    """Of each fetch, how many rows of its partition are known to be missing before it, about."""
    both = {
        name: np.concatenate(
            [events.numbers(fetches[name], NO_SEQ), events.numbers(appends[name], NO_SEQ)]
        )
        for name in ("leader_epoch", "leader", "seq")
    }
    code = np.concatenate([fetch_code, append_code])
    order = np.lexsort((both["seq"], both["leader"], both["leader_epoch"], code))
    before, after = order[:-1], order[1:]
    is_hole = both["seq"][after] - both["seq"][before] > 1
    is_hole &= both["seq"][after] != NO_SEQ
    for column in (code, both["leader_epoch"], both["leader"]):
        is_hole &= column[after] == column[before]
    holes = np.zeros(len(order), np.int64)
    holes[order[1:]] = np.cumsum(is_hole)
    return holes[: len(fetch_code)]


def _stalled_ms(stalls: pa.Table, leader: Array, from_ms: Array, to_ms: Array) -> Array:
    """How much of each span its leader stalled."""
    stalled_ms = np.zeros(len(leader), np.int64)
    rows = np.stack([events.numbers(stalls[name]) for name in events.STALL_COLUMNS], axis=1)
    for broker in np.unique(rows[:, 0]):
        own = np.unique(rows[rows[:, 0] == broker, 1:], axis=0)
        points = np.maximum.accumulate(np.stack([own[:, 0], own.sum(axis=1)], axis=1).reshape(-1))
        passed = np.cumsum(np.diff(points, prepend=points[0]) * (np.arange(len(points)) % 2))
        mine = leader == broker
        stalled_ms[mine] = np.interp(to_ms[mine], points, passed) - np.interp(
            from_ms[mine], points, passed
        )
    return stalled_ms


# All shards together.


def _summed(parts: DataFrame, isr: DataFrame | None) -> DataFrame:
    silences = parts.where("silence_ms IS NOT NULL")
    if isr is not None:
        silences = _without_restarts(silences, isr)
    covered = _covered(parts.where("silence_ms IS NULL"))
    return covered.crossJoin(_of_silences(silences)).select(*RECORD.names).to(RECORD)


def _covered(spans: DataFrame) -> DataFrame:
    """Rows of all partitions, less the gaps between them; and the minutes with appends."""
    in_buckets = spans.groupBy(F.floor(F.col("from_ms") / GAP_MS).alias("bucket")).agg(
        F.min("from_ms").alias("from_ms"),
        F.max("to_ms").alias("to_ms"),
        F.max("has_appends").alias("has_appends"),
    )
    so_far = W.partitionBy().orderBy("bucket").rowsBetween(W.unboundedPreceding, -1)
    gap_ms = F.col("from_ms") - F.max("to_ms").over(so_far)
    counted = in_buckets.withColumn("gap_ms", F.when(gap_ms > GAP_MS, gap_ms))
    span_ms = F.max("to_ms") - F.min("from_ms")
    minute = F.when(F.col("has_appends"), F.floor(F.col("from_ms") / MINUTE_MS))
    summed = counted.agg(
        F.min("from_ms").alias("first_at_ms"),
        F.max("to_ms").alias("last_at_ms"),
        F.coalesce(span_ms - F.coalesce(F.sum("gap_ms"), F.lit(0)), F.lit(0)).alias("recorded_ms"),
        (F.count_distinct(minute) * MINUTE_MS).alias("minutes_ms"),
        F.count("gap_ms").alias("gaps"),
    )
    return summed.withColumn("covered_ms", F.least("minutes_ms", "recorded_ms"))


def _without_restarts(silences: DataFrame, isr: DataFrame) -> DataFrame:
    """A broker that the controller removed from an ISR had lost its session."""
    is_end_of_session = (
        (F.col("decided_by") == CONTROLLER)
        & (F.col("change") == SHRINK)
        & ~_cause(isr).eqNullSafe(REASSIGNMENT)
    )
    ends = isr.where(is_end_of_session).select(
        F.col("replica").alias("follower"), F.col("at_ms").alias("ended_at_ms")
    )
    ended = ends.join(silences.select("follower", "from_ms", "to_ms"), "follower").where(
        F.col("ended_at_ms").between(F.col("from_ms"), F.col("to_ms"))
    )
    return silences.join(
        ended.select("follower", "from_ms", "to_ms").distinct(),
        ["follower", "from_ms", "to_ms"],
        "left_anti",
    )


def _cause(isr: DataFrame) -> Column:
    return F.col("cause") if "cause" in isr.columns else F.lit(None)


def _of_silences(silences: DataFrame) -> DataFrame:
    lengths = silences.groupBy("silence_ms").agg(F.sum("silences").alias("silences"))
    up_to = W.partitionBy().orderBy("silence_ms").rowsBetween(W.unboundedPreceding, 0)
    of_all = W.partitionBy()
    ranked = lengths.select(
        "silence_ms",
        "silences",
        F.sum("silences").over(up_to).alias("rank"),
        F.sum("silences").over(of_all).alias("total"),
    )
    in_rank = F.col("rank") * 10_000 >= F.col("total") * 9_999
    longest = F.max(F.struct("silence_ms", "from_ms", *(field.name for field in _PLACE)))
    place = silences.agg(longest.alias("longest")).select(
        F.col("longest.silence_ms").alias("silence_ms_max"),
        *(F.col(f"longest.{field.name}").alias(f"silence_{field.name}") for field in _PLACE),
        F.col("longest.from_ms").alias("silence_began_at_ms"),
    )
    counts = ranked.agg(
        F.coalesce(F.sum("silences"), F.lit(0)).alias("silences"),
        F.min(F.when(in_rank, F.col("silence_ms"))).alias("silence_ms_p9999"),
    )
    return counts.crossJoin(place)
