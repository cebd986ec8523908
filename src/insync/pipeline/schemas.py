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
)

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
        StructField("detection_ms_p50", LongType()),  # null: nobody was rightly evicted
        StructField("detection_ms_p99", LongType()),
        StructField("under_min_isr_ms", LongType()),
        # The part of it from episodes in which the follower kept fetching.
        StructField("under_min_isr_fetching_ms", LongType()),
        StructField("watermark_stall_ms", LongType()),
        StructField("below_resolution", BooleanType()),
    ]
)
