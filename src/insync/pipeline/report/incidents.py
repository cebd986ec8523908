"""The table `incidents` on the page. A broker that stops takes hundreds of replicas out of sync:
the page shows that once, and its partitions below."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from insync.pipeline.local.dispatch import F, W
from insync.pipeline.tables.episodes import OPEN
from insync.pipeline.tables.incidents import with_broker_and_times

INCIDENTS_MAX: Final = 200
EPISODES_MAX: Final = 250  # on the page, in all
EPISODES_PER_INCIDENT: Final = 50

_SHOWN: Final = StructType(
    [
        StructField("incident", IntegerType()),
        StructField("of_broker", IntegerType()),
        StructField("of_cause", StringType()),
        StructField("first_ms", LongType()),
        StructField("last_ms", LongType()),  # null while it is open
    ]
)
_EPISODE: Final = (
    "topic", "partition", "follower", "leader", "began_at_ms", "left_at_ms", "rejoined_at_ms",
    "ending", "out_ms", "lag_ms", "lag_messages", "under_min_isr_ms", "leader_changes", "flaps",
    "kip501_would_hold",
)  # fmt: skip

Row = dict[str, Any]


def collect_incidents(incidents: DataFrame, episodes: DataFrame) -> list[Row]:
    """The worst incidents, each with all its partitions and its longest episodes."""
    worst_first = [
        F.col("ended_at_ms").isNull().desc(),
        F.col("duration_ms").desc(),
        F.col("partitions").desc(),
        F.col("broker"),
        F.col("cause"),
        F.col("began_at_ms"),
    ]
    rows = [row.asDict() for row in incidents.orderBy(*worst_first).limit(INCIDENTS_MAX).collect()]
    members = _members(rows, episodes)
    partitions: dict[int, dict[str, list[int]]] = defaultdict(dict)
    counts: dict[int, int] = defaultdict(int)
    by_topic = members.groupBy("incident", "topic").agg(
        F.collect_set("partition").alias("numbers"), F.count("*").alias("episodes")
    )
    for row in by_topic.orderBy("incident", "topic").collect():
        partitions[row["incident"]][row["topic"]] = sorted(row["numbers"])
        counts[row["incident"]] += row["episodes"]
    longest: dict[int, list[Row]] = defaultdict(list)
    for row in _longest(members).collect():
        longest[row["incident"]].append(row.asDict())
    return [
        row
        | {
            "members": partitions[number],
            "episodes": longest[number],
            "episode_count": counts[number],
        }
        for number, row in enumerate(rows)
    ]


def _members(rows: list[Row], episodes: DataFrame) -> DataFrame:
    """The episodes of these incidents."""
    key = ("broker", "cause", "began_at_ms", "ended_at_ms")
    keys = [(at, *(row[name] for name in key)) for at, row in enumerate(rows)]
    shown = episodes.sparkSession.createDataFrame(keys, _SHOWN)
    is_member = (
        (F.col("broker") == F.col("of_broker"))
        & (F.col("cause") == F.col("of_cause"))
        & (F.col("from_ms") >= F.col("first_ms"))
        & (F.coalesce(F.col("from_ms") <= F.col("last_ms"), F.lit(True)))  # noqa: FBT003
    )
    named = episodes.transform(with_broker_and_times)
    return named.join(F.broadcast(shown), is_member).drop(*_SHOWN.names[1:])


def _longest(members: DataFrame) -> DataFrame:
    order = [
        (F.col("ending") == OPEN).desc(),
        F.col("out_ms").desc_nulls_last(),
        F.col("topic"),
        F.col("partition"),
        F.col("from_ms"),
    ]
    rank = F.row_number().over(W.partitionBy("incident").orderBy(*order))
    return (
        members.withColumn("rank", rank)
        .where(F.col("rank") <= EPISODES_PER_INCIDENT)
        .orderBy("incident", "rank")
        .limit(EPISODES_MAX)
        .select("incident", *_EPISODE)
    )
