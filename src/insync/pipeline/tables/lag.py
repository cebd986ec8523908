"""How far each follower was behind, by KAFKA-4485's definition, in buckets of time.

A replica lags by X ms if its end is where the leader's end was X ms ago: its lag at a moment is
the time since the first append of this epoch that it lacks, 0 if it lacks nothing; what it lacks
from before the epoch counts from the epoch's first event. In messages its lag is the leader's end
less its own; in bytes, the appends of this epoch that it lacks, one that it has in part counted
whole.

A follower is known once it has fetched or led, until it is removed (`assignments` and `isr` say so;
without these tables no follower is removed). In an epoch in which it has not fetched yet, a known
one is behind since the epoch's first event, as in a what-if. Its lag in messages is then from the
end it was last seen with, a former leader's being the last end it led with, or from the lowest
start of the epochs since: whatever it has beyond that is not what the leader has there. In bytes it
is all that this epoch appended.

An epoch ends when a later one begins, also for a leader that goes on recording. A topic that was
created again under its name (`assignments.topic_id`) is another one, with followers of its own.

Every millisecond counts once, from a follower's first fetch, or the first event of an epoch in
which it is known, to the epoch's last event: `samples` says how many a bucket has, and percentiles
are nearest ranks over them. A leader's stalls are not subtracted: this table says what the lag was,
not why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline.io import shards
from insync.pipeline.replay import events
from insync.pipeline.replay.assignments import ASSIGNMENT_COLUMNS, by_creation
from insync.pipeline.replay.lag_kernel import ROW_FIELDS, lag_of_partitions
from insync.pipeline.tables.schemas import LAG
from insync.rules.refusals import BadSetting

BUCKET_MS: Final = 10_000
COLUMNS: Final = {
    "fetches": events.FETCH_COLUMNS,
    "appends": (*events.APPEND_COLUMNS, "bytes"),
    "isr": events.ISR_COLUMNS,
    "assignments": ASSIGNMENT_COLUMNS,
}


def lag(
    fetches: DataFrame,
    appends: DataFrame,
    isr: DataFrame | None = None,
    assignments: DataFrame | None = None,
    *,
    bucket_ms: int = BUCKET_MS,
) -> DataFrame:
    """From DataFrames of any source; the schema is `schemas.LAG`."""
    frames = {"fetches": fetches, "appends": appends, "isr": isr, "assignments": assignments}
    tables = {name: frame for name, frame in frames.items() if frame is not None}
    return shards.from_tables(tables, COLUMNS, Lag(bucket_ms), LAG)


def lag_exported(
    spark: SparkSession, folder: str | Path, *, bucket_ms: int = BUCKET_MS
) -> DataFrame:
    """From the folder that `insync telemetry export` wrote."""
    return shards.from_export(spark, folder, COLUMNS, Lag(bucket_ms), LAG)


class Lag:
    """The rows of one shard."""

    def __init__(self, bucket_ms: int) -> None:
        if bucket_ms < 1:
            raise BadSetting(f"a bucket of {bucket_ms} ms; it must be at least 1 ms")
        self._bucket_ms = bucket_ms

    def __call__(self, tables: shards.Tables) -> pa.Table:
        return pa.concat_tables(map(self._of_topics, by_creation(tables)))

    def _of_topics(self, tables: shards.Tables) -> pa.Table:
        appends = tables["appends"]
        shard = events.shard(tables["fetches"], appends, tables["isr"], None, tables["assignments"])
        bytes_of = events.numbers(appends["bytes"], 0).astype(np.int64)
        rows = np.empty((0, ROW_FIELDS), np.int64)
        needed = 1_024
        while needed > len(rows):
            rows = np.empty((needed, ROW_FIELDS), np.int64)
            needed = lag_of_partitions(shard.events, shard.changes, bytes_of, self._bucket_ms, rows)
        filled = rows[:needed]
        code = filled[:, 0]
        columns = [
            pa.array(shard.topics.tolist(), pa.string()).take(pa.array(code)),
            pa.array(shard.partitions, pa.int64()).take(pa.array(code)),
            *(pa.array(np.ascontiguousarray(filled[:, at])) for at in range(1, ROW_FIELDS)),
        ]
        return pa.Table.from_arrays(columns, names=LAG.names).cast(to_arrow_schema(LAG))
