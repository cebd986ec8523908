"""What every policy at every limit would have done, per partition, per topic and over all.

What is true and what a rule would have done is defined in `oracle.py`. Fetch and append history is
taken as given: another rule changes verdicts, not traffic.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema

from insync.pipeline import events, shards
from insync.pipeline.replay import Replayed, parameters, replay
from insync.pipeline.scenarios import Asked
from insync.pipeline.schemas import COUNTS, LEVEL, SCENARIO, VERDICTS, WHAT_IF
from insync.pipeline.state import V_DELAYS, Array

KEY = [field.name for field in (*LEVEL, *SCENARIO)]
PARTITION, TOPIC, ALL = "partition", "topic", "all"


def what_if(
    fetches: DataFrame,
    appends: DataFrame,
    isr: DataFrame | None = None,
    stalls: DataFrame | None = None,
    *,
    asked: Asked | None = None,
) -> DataFrame:
    """Of tables from anywhere; its schema is `schemas.WHAT_IF`."""
    asked = asked or Asked()
    given = {"fetches": fetches, "appends": appends, "isr": isr, "stalls": stalls}
    tables = {name: frame for name, frame in given.items() if frame is not None}
    verdicts = shards.from_tables(tables, events.COLUMNS, Replay(asked), VERDICTS)
    return _added_up(verdicts, asked)


def what_if_exported(
    spark: SparkSession, folder: str | Path, *, asked: Asked | None = None
) -> DataFrame:
    """Of the folder that `insync telemetry export` wrote: the same table, several times faster."""
    asked = asked or Asked()
    verdicts = shards.from_export(spark, folder, events.COLUMNS, Replay(asked), VERDICTS)
    return _added_up(verdicts, asked)


def _added_up(verdicts: DataFrame, asked: Asked) -> DataFrame:
    in_order = F.array_sort(F.flatten(F.collect_list("detection_ms")))
    is_below = F.col("lag_time_max_ms") < 2 * asked.fetch_wait_max_ms
    return (
        verdicts.groupBy(*KEY)
        .agg(*(F.sum(name).alias(name) for name in COUNTS), in_order.alias("detection_ms"))
        .withColumn("detection_ms_p50", _nearest_rank(50))
        .withColumn("detection_ms_p99", _nearest_rank(99))
        .withColumn("below_resolution", is_below)
        .select(*WHAT_IF.names)
    )


def _nearest_rank(percent: int) -> Column:
    count = F.size("detection_ms")
    rank = F.floor((count * percent + 99) / 100).cast("int")
    return F.when(count > 0, F.try_element_at("detection_ms", rank))


class Replay:
    """A shard's verdicts: each partition's, and its share in those of its topic and of all."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def __call__(self, tables: shards.Tables) -> pa.Table:
        shard = events.shard(tables["fetches"], tables["appends"], tables["isr"], tables["stalls"])
        replayed = replay(shard, parameters(self._asked))
        groups = _groups(shard)
        return pa.concat_tables(
            self._table(level, topics, partitions, _summed(replayed, group))
            for level, topics, partitions, group in groups
        )

    def _table(
        self,
        level: str,
        topics: list[str | None],
        partitions: list[int | None],
        summed: tuple[Array, Array],
    ) -> pa.Table:
        verdicts, delays = summed
        scenarios = self._asked.scenarios()
        groups, each = len(topics), len(scenarios)
        bounds = np.zeros(groups * each + 1, np.int32)
        np.cumsum(verdicts[:, :, V_DELAYS].reshape(-1), out=bounds[1:])
        repeated = np.repeat(np.arange(groups), each)
        turn = np.tile(np.arange(each), groups)
        columns = [
            pa.array([level] * (groups * each), pa.string()),
            pa.array(topics, pa.string()).take(pa.array(repeated)),
            pa.array(partitions, pa.int32()).take(pa.array(repeated)),
            pa.array([one.policy for one in scenarios]).take(pa.array(turn)),
            pa.array([one.lag_time_max_ms for one in scenarios], pa.int64()).take(pa.array(turn)),
            pa.array([one.lag_max_messages for one in scenarios], pa.int64()).take(pa.array(turn)),
            pa.array([one.half_period_check for one in scenarios]).take(pa.array(turn)),
            *(
                pa.array(np.ascontiguousarray(verdicts[:, :, at]).reshape(-1))
                for at in range(len(COUNTS))
            ),
            pa.ListArray.from_arrays(pa.array(bounds), pa.array(delays)),
        ]
        return pa.Table.from_arrays(columns, names=VERDICTS.names).cast(to_arrow_schema(VERDICTS))


Group = tuple[str, list[str | None], list[int | None], Array | None]


def _groups(shard: events.Shard) -> list[Group]:
    """Levels, what their rows are named, and which of them each partition belongs to."""
    topics, of_topic = np.unique(shard.topics.astype(str), return_inverse=True)
    of_all = np.zeros(len(shard.partitions), np.int64)
    return [
        (PARTITION, shard.topics.tolist(), shard.partitions.tolist(), None),
        (TOPIC, topics.tolist(), [None] * len(topics), of_topic),
        (ALL, [None], [None], of_all),
    ]


def _summed(replayed: Replayed, group: Array | None) -> tuple[Array, Array]:
    """Verdicts and detection delays, partitions of one group together."""
    verdicts, delays = replayed.verdicts, replayed.delays
    if group is None:
        return verdicts, delays
    count = int(group.max()) + 1 if len(group) else 1
    summed = np.zeros((count, *verdicts.shape[1:]), np.int64)
    np.add.at(summed, group, verdicts)
    each = verdicts.shape[1]
    place = np.repeat(group, each) * each + np.tile(np.arange(each), len(group))
    of_delay = np.repeat(place, verdicts[:, :, V_DELAYS].reshape(-1))
    return summed, delays[np.argsort(of_delay, kind="stable")]
