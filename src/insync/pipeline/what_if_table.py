"""What every policy at every limit would have done, per partition, per topic and over all.

What is true and what a rule would have done is defined in `oracle.py`. Fetch and append history is
taken as given: another rule changes verdicts, not traffic.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
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
    """In SQL: each part of an expression made in Python is several calls into the JVM, and each
    column that is added one by one makes Spark look at all of them again."""
    added = [F.expr(f"sum({name}) AS {name}") for name in COUNTS]
    in_order = F.expr("array_sort(flatten(collect_list(detection_ms))) AS detection_ms")
    made = {
        "detection_ms_p50": _nearest_rank(50),
        "detection_ms_p99": _nearest_rank(99),
        "below_resolution": f"lag_time_max_ms < {2 * asked.fetch_wait_max_ms}",
    }
    columns = [f"{made[name]} AS {name}" if name in made else name for name in WHAT_IF.names]
    return verdicts.groupBy(*KEY).agg(*added, in_order).selectExpr(*columns)


def _nearest_rank(percent: int) -> str:
    rank = f"(size(detection_ms) * {percent} + 99) div 100"
    return f"try_element_at(detection_ms, nullif(int({rank}), 0))"


class Replay:
    """A shard's verdicts: each partition's, and its share in those of its topic and of all."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def __call__(self, tables: shards.Tables) -> pa.Table:
        shard = events.shard(tables["fetches"], tables["appends"], tables["isr"], tables["stalls"])
        replayed = replay(shard, parameters(self._asked))
        return self._table(_groups(shard), replayed)

    def _table(self, groups: list[Group], replayed: Replayed) -> pa.Table:
        """Of all levels together: a column costs more than the few values it has."""
        summed = [_summed(replayed, group) for group in groups]
        verdicts = np.concatenate([of_level for of_level, _ in summed])
        levels = [group.level for group in groups for _ in group.topics]
        topics = [topic for group in groups for topic in group.topics]
        partitions = [partition for group in groups for partition in group.partitions]
        scenarios = self._asked.scenarios()
        each = len(scenarios)
        bounds = np.zeros(len(levels) * each + 1, np.int32)
        np.cumsum(verdicts[:, :, V_DELAYS].reshape(-1), out=bounds[1:])
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
    """The rows of one level: what they are named, and which of them each partition belongs to."""

    level: str
    topics: list[str | None]
    partitions: list[int | None]
    of_partition: Array | None = None  # each is its own


def _groups(shard: events.Shard) -> list[Group]:
    topics, of_topic = np.unique(shard.topics.astype(str), return_inverse=True)
    of_all = np.zeros(len(shard.partitions), np.int64)
    return [
        Group(PARTITION, shard.topics.tolist(), shard.partitions.tolist()),
        Group(TOPIC, topics.tolist(), [None] * len(topics), of_topic),
        Group(ALL, [None], [None], of_all),
    ]


def _summed(replayed: Replayed, group: Group) -> tuple[Array, Array]:
    """Verdicts and detection delays, the partitions of each row together."""
    verdicts, delays, row = replayed.verdicts, replayed.delays, group.of_partition
    if row is None:
        return verdicts, delays
    summed = np.zeros((len(group.topics), *verdicts.shape[1:]), np.int64)
    np.add.at(summed, row, verdicts)
    each = verdicts.shape[1]
    place = np.repeat(row, each) * each + np.tile(np.arange(each), len(row))
    of_delay = np.repeat(place, verdicts[:, :, V_DELAYS].reshape(-1))
    return summed, delays[np.argsort(of_delay, kind="stable")]
