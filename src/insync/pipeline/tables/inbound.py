"""What clients wrote by hour of the day, to each topic and to the partitions that a broker led.

Hours are of UTC. `inbound_bytes_per_s` is the mean over the recorded time of that hour, all days
together; `inbound_max_bytes_per_s` is the hour's rate on the day that had most. An hour of which
nothing was recorded has no row: it is not known, which is not zero. Time is recorded where any
partition has a fetch or an append in the same minute: followers fetch also where nothing is
written.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from insync.pipeline.local.dispatch import F

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
HOURS_OF_DAY: Final = 24
SECOND_MS: Final = 1_000

INBOUND: Final = StructType(
    [
        StructField("level", StringType()),  # topic, broker
        StructField("name", StringType()),
        StructField("hour", IntegerType()),  # of the day, UTC
        StructField("days", LongType()),  # that have this hour, or a part of it
        StructField("covered_ms", LongType()),
        StructField("bytes", LongType()),
        StructField("inbound_bytes_per_s", LongType()),
        StructField("inbound_max_bytes_per_s", LongType()),
    ]
)


def inbound(fetches: DataFrame, appends: DataFrame) -> DataFrame:
    """From telemetry tables; the schema is `INBOUND`."""
    hourly = bytes_by_hour(appends, "topic", "leader")
    covered = covered_hours(fetches, appends)
    levels = [_level(hourly, covered, *each) for each in (("topic", "topic"), ("broker", "leader"))]
    return levels[0].unionByName(levels[1]).to(INBOUND)


def bytes_by_hour(appends: DataFrame, *names: str) -> DataFrame:
    """`bytes` by these columns and `hour_at_ms`, the beginning of an hour of the record."""
    return appends.groupBy(*names, _beginning(F.col("at_ms"), HOUR_MS).alias("hour_at_ms")).agg(
        F.sum("bytes").alias("bytes")
    )


def covered_hours(fetches: DataFrame, appends: DataFrame) -> DataFrame:
    """`covered_ms` of each hour with rows. The first and the last minute count from and up to the
    first and the last row; no hour counts for less than a second."""
    times = fetches.select(F.explode(F.array("at_ms", "last_at_ms")).alias("at_ms")).unionByName(
        appends.select("at_ms")
    )
    minutes = times.groupBy(_beginning(F.col("at_ms"), MINUTE_MS).alias("from_ms")).agg(
        F.min("at_ms").alias("first_ms"), F.max("at_ms").alias("last_ms")
    )
    bounds = minutes.agg(F.min("first_ms").alias("begins_ms"), F.max("last_ms").alias("ends_ms"))
    from_ms = F.greatest("from_ms", "begins_ms")
    to_ms = F.least(F.col("from_ms") + MINUTE_MS, "ends_ms")
    return (
        minutes.crossJoin(F.broadcast(bounds))
        .groupBy(_beginning(F.col("from_ms"), HOUR_MS).alias("hour_at_ms"))
        .agg(F.greatest(F.sum(to_ms - from_ms), F.lit(SECOND_MS)).alias("covered_ms"))
    )


def per_second(bytes_: Column, covered_ms: Column) -> Column:
    """Rounded up: what is written seldom is more than nothing."""
    return F.ceil(bytes_ * SECOND_MS / covered_ms).cast(LongType())


def _level(hourly: DataFrame, covered: DataFrame, level: str, name: str) -> DataFrame:
    sums = hourly.groupBy(name, "hour_at_ms").agg(F.sum("bytes").alias("bytes"))
    every = sums.select(name).distinct().crossJoin(F.broadcast(covered))
    joined = every.join(sums, [name, "hour_at_ms"], "left")
    known = joined.withColumn("bytes", F.coalesce("bytes", F.lit(0)))
    return (
        known.groupBy(name, hour_of_day().alias("hour"))
        .agg(
            F.count("*").alias("days"),
            F.sum("covered_ms").alias("covered_ms"),
            F.sum("bytes").alias("bytes"),
            per_second(F.sum("bytes"), F.sum("covered_ms")).alias("inbound_bytes_per_s"),
            F.max(per_second(F.col("bytes"), F.col("covered_ms"))).alias("inbound_max_bytes_per_s"),
        )
        .select(F.lit(level).alias("level"), F.col(name).cast(StringType()).alias("name"), "*")
        .drop(*({name} - {"name"}))
    )


def hour_of_day() -> Column:
    return F.pmod(F.floor(F.col("hour_at_ms") / HOUR_MS), F.lit(HOURS_OF_DAY)).cast(IntegerType())


def _beginning(at_ms: Column, length_ms: int) -> Column:
    return (F.floor(at_ms / length_ms) * length_ms).cast(LongType())
