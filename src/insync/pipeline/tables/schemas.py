"""The tables that the pipeline makes, as Spark schemas."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

SCENARIO: Final = (
    StructField("policy", StringType(), nullable=False),
    StructField("lag_time_max_ms", LongType(), nullable=False),
    StructField("lag_max_messages", LongType()),  # of `messages` only
    StructField("half_period_check", BooleanType(), nullable=False),
)

COUNTS: Final = (  # in the kernel's order
    "shrinks",
    "expands",
    "flaps",
    "out_of_sync_ms",
    "false_evictions",
    "missed",
    "missed_ms",
    "under_min_isr_ms",
    "under_min_isr_fetching_ms",
    "watermark_stall_ms",
    "catch_up_ms",
    "acks_all_stall_ms",
    "acks_all_stall_ms_max",
)
PEAKS: Final = ("acks_all_stall_ms_max",)  # of these the largest counts, the others are added up

LEVEL: Final = (
    StructField("level", StringType(), nullable=False),  # partition, topic or all
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
)

VERDICTS: Final = StructType(  # of one task, before they are added up
    [
        *LEVEL,
        *SCENARIO,
        *(StructField(name, LongType(), nullable=False) for name in COUNTS),
        StructField("detection_ms", ArrayType(LongType(), containsNull=False), nullable=False),
    ]
)

WHAT_IF: Final = StructType(
    [
        *LEVEL,
        *SCENARIO,
        *(StructField(name, LongType()) for name in COUNTS[:7]),
        StructField("detection_ms_p50", LongType()),  # null: no eviction was right
        StructField("detection_ms_p99", LongType()),
        StructField("under_min_isr_ms", LongType()),
        # The part of it from episodes in which the follower kept fetching.
        StructField("under_min_isr_fetching_ms", LongType()),
        StructField("watermark_stall_ms", LongType()),
        StructField("catch_up_ms", LongType()),  # of evicted followers, from their first fetch
        # All stalls of acks=all longer than the record resolves, however they ended.
        StructField("acks_all_stall_ms", LongType()),
        StructField("acks_all_stall_ms_max", LongType()),  # the longest of one partition
        StructField("below_resolution", BooleanType()),
    ]
)

LAG: Final = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("leader_epoch", IntegerType(), nullable=False),
        StructField("follower", IntegerType(), nullable=False),
        StructField("bucket_at_ms", LongType(), nullable=False),  # where it begins
        StructField("samples", LongType(), nullable=False),  # milliseconds of it that are known
        *(
            StructField(f"{what}_{rank}", LongType(), nullable=False)
            for what in ("lag_ms", "lag_messages", "lag_bytes")
            for rank in ("min", "p50", "p99", "max")
        ),
    ]
)

PROBLEMS: Final = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("problem", StringType(), nullable=False),
        StructField("rows", LongType(), nullable=False),
    ]
)
