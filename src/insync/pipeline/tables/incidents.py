"""Episodes of one broker with one cause that were at the same time are one incident.

A broker that freezes leaves the ISR of every partition that it has a replica of: hundreds of
episodes, one incident. Episodes belong to one incident if the times from their first causes to
their ends overlap, one with the next.

- `broker` is the one that the cause is about: the leader where its reads were slow, else the
  follower.
- `began_at_ms` is the first of the first causes, `ended_at_ms` the last of the ends, null while an
  episode is still open. `duration_ms` is the time between the two, or up to the record's end.
- `lag_ms_max` and `lag_messages_max` are the largest lags of its replicas, at the moment they left
  the ISR, and in the buckets of the table `lag`, if there is one, that begin in the incident.
- `summary` says it in a line.

Episodes of which neither begin nor end is known are left out.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from insync.pipeline.local.dispatch import F, W
from insync.pipeline.tables.partition_episodes import OPEN, SLOW_READS
from insync.pipeline.tables.texts import duration_text

SCHEMA: Final = StructType(
    [
        StructField("broker", IntegerType()),
        StructField("cause", StringType()),
        StructField("began_at_ms", LongType()),
        StructField("ended_at_ms", LongType()),
        StructField("duration_ms", LongType()),
        StructField("episodes", LongType()),
        StructField("open_episodes", LongType()),
        StructField("partitions", LongType()),
        StructField("topics", LongType()),
        StructField("lag_ms_max", LongType()),
        StructField("lag_messages_max", LongType()),
        StructField("summary", StringType()),
    ]
)
_BY_BROKER: Final = ("broker", "cause")
_REPLICA: Final = ("topic", "partition", "follower")


def incidents(episodes: DataFrame, lag: DataFrame | None = None) -> DataFrame:
    """`episodes` and `lag` are the pipeline's tables."""
    known = episodes.transform(with_broker_and_times).where("from_ms IS NOT NULL")
    known = known if lag is None else known.transform(lambda rows: with_largest_lag(rows, lag))
    return (
        known.transform(with_incident)
        .groupBy(*_BY_BROKER, "incident")
        .agg(
            F.min("from_ms").alias("began_at_ms"),
            F.max("to_ms").alias("last_ms"),
            F.count("*").alias("episodes"),
            F.count_if(F.col("ending") == OPEN).alias("open_episodes"),
            F.count_distinct("topic", "partition").alias("partitions"),
            F.count_distinct("topic").alias("topics"),
            F.max("lag_ms").alias("lag_ms_max"),
            F.max("lag_messages").alias("lag_messages_max"),
        )
        .withColumn("ended_at_ms", F.when(F.col("open_episodes") == 0, F.col("last_ms")))
        .withColumn("duration_ms", F.col("last_ms") - F.col("began_at_ms"))
        .withColumn("summary", _summary())
        .select(*SCHEMA.names)
        .to(SCHEMA)
    )


def with_broker_and_times(episodes: DataFrame) -> DataFrame:
    left_ms = F.coalesce("left_at_ms", "began_at_ms")
    to_ms = F.coalesce(left_ms + F.col("out_ms"), "rejoined_at_ms", left_ms)
    of_leader = F.col("cause") == SLOW_READS
    return (
        episodes.withColumn(
            "broker", F.when(of_leader, F.col("leader")).otherwise(F.col("follower"))
        )
        .withColumn("from_ms", F.coalesce("began_at_ms", "left_at_ms", "rejoined_at_ms"))
        .withColumn("to_ms", F.greatest(to_ms, "from_ms"))
    )


def with_largest_lag(episodes: DataFrame, lag: DataFrame) -> DataFrame:
    """The largest lag while it was out, where it is larger than when it left."""
    numbered = episodes.withColumn("id", F.monotonically_increasing_id())
    buckets = lag.select(
        *(F.col(name).alias(f"lag_{name}") for name in (*_REPLICA, "bucket_at_ms")),
        F.col("lag_ms_max").alias("bucket_lag_ms"),
        F.col("lag_messages_max").alias("bucket_lag_messages"),
    )
    same = [F.col(name) == F.col(f"lag_{name}") for name in _REPLICA]
    inside = F.col("lag_bucket_at_ms").between(F.col("from_ms"), F.col("to_ms"))
    largest = [
        F.max(F.greatest(name, f"bucket_{name}")).alias(name) for name in ("lag_ms", "lag_messages")
    ]
    others = [name for name in episodes.columns if name not in {"lag_ms", "lag_messages"}]
    met = numbered.join(buckets, [*same, inside], "left")
    first = [F.first(name).alias(name) for name in others]
    return met.groupBy("id").agg(*first, *largest).drop("id")


def with_incident(episodes: DataFrame) -> DataFrame:
    """A new one begins where all that began before have ended."""
    in_order = W.partitionBy(*_BY_BROKER).orderBy("from_ms", "to_ms")
    before = in_order.rowsBetween(W.unboundedPreceding, -1)
    so_far = in_order.rowsBetween(W.unboundedPreceding, W.currentRow)
    is_new = F.coalesce(F.col("from_ms") > F.max("to_ms").over(before), F.lit(True))  # noqa: FBT003
    return episodes.withColumn("is_new", is_new.cast(IntegerType())).withColumn(
        "incident", F.sum("is_new").over(so_far)
    )


def _summary() -> Column:
    """For example: broker 3 frozen: 205 partitions, 8.8 s."""
    partitions = F.when(F.col("partitions") == 1, "1 partition").otherwise(
        F.format_string("%d partitions", "partitions")
    )
    is_open = F.col("ended_at_ms").isNull()
    return F.concat(
        F.format_string("broker %d %s: ", "broker", "cause"),
        partitions,
        F.lit(", "),
        duration_text("duration_ms"),
        F.when(is_open, " so far").otherwise(""),
    )
