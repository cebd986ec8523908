"""What every policy at every limit would have done, per partition, per topic and over all.

`insync.telemetry.replay.what_if` defines what is true and what a policy would have done. Fetches
and appends are taken as recorded: another policy changes verdicts, not traffic.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline.io import shards
from insync.pipeline.local.dispatch import F
from insync.pipeline.replay import events
from insync.pipeline.replay.assignments import by_creation
from insync.pipeline.replay.driver import Replayed, parameters, replay
from insync.pipeline.replay.state import DELAYS, Array
from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.schemas import COUNTS, LEVEL, PEAKS, SCENARIO, VERDICTS, WHAT_IF
from insync.telemetry.schemas import MIN_ISR, RUN_BEGINS

KEY = [field.name for field in (*LEVEL, *SCENARIO)]
PARTITION, TOPIC, ALL = "partition", "topic", "all"


def what_if(  # noqa: PLR0917 - one for each table
    fetches: DataFrame,
    appends: DataFrame,
    isr: DataFrame | None = None,
    stalls: DataFrame | None = None,
    assignments: DataFrame | None = None,
    configs: DataFrame | None = None,
    *,
    grid: WhatIfGrid | None = None,
) -> DataFrame:
    """From DataFrames of any source; the schema is `schemas.WHAT_IF`."""
    grid = grid or WhatIfGrid()
    frames = {"fetches": fetches, "appends": appends, "isr": isr, "stalls": stalls}
    frames["assignments"] = assignments
    tables = {name: frame for name, frame in frames.items() if frame is not None}
    if configs is not None:
        tables["configs"] = configs.where(F.col("name").isin(MIN_ISR, RUN_BEGINS))
    verdicts = shards.from_tables(tables, events.COLUMNS, Replay(grid), VERDICTS)
    return _summed_levels(verdicts, grid)


def what_if_exported(
    spark: SparkSession, folder: str | Path, *, grid: WhatIfGrid | None = None
) -> DataFrame:
    """From the folder that `insync telemetry export` wrote: several times faster."""
    grid = grid or WhatIfGrid()
    verdicts = shards.from_export(spark, folder, events.COLUMNS, Replay(grid), VERDICTS)
    return _summed_levels(verdicts, grid)


def _summed_levels(verdicts: DataFrame, grid: WhatIfGrid) -> DataFrame:
    """In SQL that both engines execute: an expression built in Python costs several calls into the
    JVM per term, and Spark analyses all columns again for each one that is added."""
    added = [
        F.expr(f"CAST({'max' if n in PEAKS else 'sum'}({n}) AS BIGINT) AS {n}") for n in COUNTS
    ]
    in_order = F.expr("array_sort(flatten(collect_list(detection_ms))) AS detection_ms")
    made = {
        "detection_ms_p50": _nearest_rank(50),
        "detection_ms_p99": _nearest_rank(99),
        "below_resolution": f"lag_time_max_ms < {2 * grid.fetch_wait_max_ms}",
    }
    columns = [f"{made[name]} AS {name}" if name in made else name for name in WHAT_IF.names]
    return verdicts.groupBy(*KEY).agg(*added, in_order).selectExpr(*columns)


def _nearest_rank(percent: int) -> str:
    rank = f"CAST(floor((size(detection_ms) * {percent} + 99) / 100) AS INT)"
    return f"try_element_at(detection_ms, nullif({rank}, 0))"


class Replay:
    """The verdicts of one shard: per partition, per topic and over all its partitions."""

    def __init__(self, grid: WhatIfGrid) -> None:
        self._grid = grid

    def __call__(self, tables: shards.Tables) -> pa.Table:
        return pa.concat_tables(map(self._of_topics, by_creation(tables)))

    def _of_topics(self, tables: shards.Tables) -> pa.Table:
        shard = events.shard(
            **{name: tables[name] for name in events.COLUMNS},
            min_insync_replicas=self._grid.min_insync_replicas,
        )
        replayed = replay(shard, parameters(self._grid))
        return self._table(_groups(shard), replayed)

    def _table(self, groups: list[Group], replayed: Replayed) -> pa.Table:
        """All levels in one table: a column costs more than its few values."""
        summed = [_summed(replayed, group) for group in groups]
        verdicts = np.concatenate([of_level for of_level, _ in summed])
        levels = [group.level for group in groups for _ in group.topics]
        topics = [topic for group in groups for topic in group.topics]
        partitions = [partition for group in groups for partition in group.partitions]
        scenarios = self._grid.scenarios()
        each = len(scenarios)
        bounds = np.zeros(len(levels) * each + 1, np.int32)
        np.cumsum(verdicts[:, :, DELAYS].reshape(-1), out=bounds[1:])
        repeated = pa.array(np.repeat(np.arange(len(levels)), each))
        turn = pa.array(np.tile(np.arange(each), len(levels)))
        columns = [
            pa.array(levels, pa.string()).take(repeated),
            pa.array(topics, pa.string()).take(repeated),
            pa.array(partitions, pa.int32()).take(repeated),
            pa.array([one.policy for one in scenarios]).take(turn),
            pa.array([one.lag_time_max_ms for one in scenarios], pa.int64()).take(turn),
            pa.array([one.lag_max_messages for one in scenarios], pa.int64()).take(turn),
            pa.array([one.half_period_check for one in scenarios]).take(turn),
            *(
                pa.array(np.ascontiguousarray(verdicts[:, :, at]).reshape(-1))
                for at in range(len(COUNTS))
            ),
            pa.ListArray.from_arrays(bounds, np.concatenate([delays for _, delays in summed])),
        ]
        return pa.Table.from_arrays(columns, names=VERDICTS.names).cast(_schema())


@cache
def _schema() -> pa.Schema:
    return to_arrow_schema(VERDICTS)


class Group(NamedTuple):
    """The rows of one level: their names, and the row of each partition."""

    level: str
    topics: list[str | None]
    partitions: list[int | None]
    of_partition: Array | None = None  # None: each partition is its own row


def _groups(shard: events.Shard) -> list[Group]:
    topics, of_topic = np.unique(shard.topics.astype(str), return_inverse=True)
    of_all = np.zeros(len(shard.partitions), np.int64)
    return [
        Group(PARTITION, shard.topics.tolist(), shard.partitions.tolist()),
        Group(TOPIC, topics.tolist(), [None] * len(topics), of_topic),
        Group(ALL, [None], [None], of_all),
    ]


def _summed(replayed: Replayed, group: Group) -> tuple[Array, Array]:
    """Verdicts and detection delays, summed over the partitions of each row."""
    verdicts, delays, row = replayed.verdicts, replayed.delays, group.of_partition
    if row is None:
        return verdicts, delays
    summed = np.zeros((len(group.topics), *verdicts.shape[1:]), np.int64)
    np.add.at(summed, row, verdicts)
    for peak in (COUNTS.index(name) for name in PEAKS):
        summed[:, :, peak] = 0
        np.maximum.at(summed[:, :, peak], row, verdicts[:, :, peak])
    each = verdicts.shape[1]
    index = np.repeat(row, each) * each + np.tile(np.arange(each), len(row))
    of_delay = np.repeat(index, verdicts[:, :, DELAYS].reshape(-1))
    return summed, delays[np.argsort(of_delay, kind="stable")]
