"""Which limit to set, and what it would cost: one row per policy, one of them the headline.

A limit is good if no follower was evicted falsely or flapped, and no time below min ISR came
from a follower that kept fetching. Per policy the smallest good limit replayed is recommended, of
those that the record can resolve: below that it shows no fault because it shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its common name
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from insync.pipeline.tables.schemas import SCENARIO

COSTS: Final = ("detection_ms_p99", "watermark_stall_ms", "under_min_isr_ms")
RULE: Final = ("policy", "lag_max_messages", "half_period_check")

RECOMMENDATION: Final = StructType(
    [
        SCENARIO[0],
        SCENARIO[2],
        SCENARIO[3],
        StructField("lag_time_max_ms", LongType()),  # null: no limit is good
        StructField("is_headline", BooleanType()),
        StructField("reason", StringType()),
        *(StructField(name, LongType()) for name in COSTS),
        *(
            StructField(f"running_{name}", LongType()) for name in COSTS
        ),  # null: it was not replayed
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The rule that was in force while this was recorded."""

    policy: str = "caught-up"
    lag_time_max_ms: int = 30_000
    is_apache_kafka: bool = False  # where `caught-up`, looked at every T/2, is all that can be set


def recommendation(what_if: DataFrame, running: Running | None = None) -> DataFrame:
    """Of a what-if table, by its level `all`; its schema is `RECOMMENDATION`."""
    running = running or Running()
    overall = what_if.where(F.col("level") == "all")
    is_good = (
        (F.col("false_evictions") == 0)
        & (F.col("flaps") == 0)
        & (F.col("under_min_isr_fetching_ms") == 0)
        & ~F.col("below_resolution")
    )
    smallest = Window.partitionBy(*RULE).orderBy(~F.col("is_good"), "lag_time_max_ms")
    chosen = (
        overall.withColumn("is_good", is_good)
        .withColumn("rank", F.row_number().over(smallest))
        .where(F.col("rank") == 1)
        .select(
            *RULE,
            "is_good",
            F.when(F.col("is_good"), F.col("lag_time_max_ms")).alias("lag_time_max_ms"),
            *(F.when(F.col("is_good"), F.col(name)).alias(name) for name in COSTS),
        )
    )
    # At most one row, for `messages` with several limits the smallest: a global aggregate.
    now = overall.where(
        (F.col("policy") == running.policy)
        & (F.col("lag_time_max_ms") == running.lag_time_max_ms)
        & (F.col("half_period_check") == running.is_apache_kafka)
    ).agg(*(F.min(name).alias(f"running_{name}") for name in COSTS))
    return (
        chosen.crossJoin(now)
        .withColumn("is_headline", _is_headline(running))
        .withColumn("reason", _reason())
        .select(*RECOMMENDATION.names)
    )


def _is_headline(running: Running) -> Column:
    is_eligible = F.col("is_good")
    if running.is_apache_kafka:
        is_eligible &= (F.col("policy") == "caught-up") & F.col("half_period_check")
    else:
        is_eligible &= ~F.col("half_period_check")
    best = Window.partitionBy().orderBy(
        ~is_eligible,
        "lag_time_max_ms",
        F.col("policy") != running.policy,
        "policy",
        F.col("lag_max_messages").asc_nulls_first(),
    )
    return is_eligible & (F.row_number().over(best) == 1)


def _reason() -> Column:
    good = F.format_string(
        "%d ms is the smallest limit replayed without a false eviction, a flap, or time below the "
        "minimum ISR while the follower kept fetching",
        F.col("lag_time_max_ms"),
    )
    return F.when(F.col("is_good"), good).otherwise(F.lit("no limit replayed is good"))
