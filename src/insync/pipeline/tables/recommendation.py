"""What to set, or why to leave it: one row, with the trade that speaks for it.

`advice.py` decides. Here Spark computes the numbers that it decides by: what each scenario of the
what-if table comes to, how much was recorded, and the settings in force.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline.local.dispatch import F
from insync.pipeline.tables.advice import (
    MIN_RECORD_MS,
    Advice,
    Outcome,
    Recorded,
    Running,
    TradeRow,
    advise,
)
from insync.pipeline.tables.running import running_settings
from insync.pipeline.tables.schemas import SCENARIO
from insync.telemetry.replay.scenario import Scenario

TRADE: Final = StructType(
    [
        StructField("role", StringType()),  # running, advised
        *SCENARIO,
        StructField("evictions", LongType()),
        StructField("false_evictions", LongType()),
        StructField("flaps", LongType()),
        StructField("acks_all_stall_ms_max", LongType()),  # the longest of any partition
        StructField("under_min_isr_ms_max", LongType()),  # of the partition longest below it
        StructField("harm_partition_ms", LongType()),  # summed over partitions
        StructField("is_below_floor", BooleanType()),
    ]
)

RECOMMENDATION: Final = StructType(
    [
        StructField("verdict", StringType(), nullable=False),  # too-short, keep, set
        StructField("reason", StringType(), nullable=False),
        *SCENARIO,  # what to set; the running one if nothing is to be set
        StructField("running_policy", StringType()),
        StructField("running_lag_time_max_ms", LongType()),
        StructField("apply_command", StringType()),
        StructField("revert_command", StringType()),
        StructField("covered_ms", LongType()),
        StructField("min_record_ms", LongType()),
        StructField("floor_ms", LongType()),
        StructField("silence_ms_p9999", LongType()),
        StructField("silence_ms_max", LongType()),
        StructField("statements", ArrayType(StringType())),
        StructField("trade", ArrayType(TRADE)),
    ]
)


def recommendation(
    what_if: DataFrame,
    record: DataFrame,
    configs: DataFrame | None = None,
    *,
    min_record_ms: int = MIN_RECORD_MS,
    is_apache_kafka: bool = False,
) -> DataFrame:
    """Of a what-if table and of the table `record`; `configs` says what was in force, without it
    the defaults were. The schema is `RECOMMENDATION`."""
    running = running_settings(configs, is_apache_kafka=is_apache_kafka)
    recorded = recorded_of(record)
    advice = advise(recorded, running, outcomes(what_if), min_record_ms=min_record_ms)
    row = _row(advice, recorded, running, min_record_ms)
    return what_if.sparkSession.createDataFrame([row], RECOMMENDATION)


def recorded_of(record: DataFrame) -> Recorded:
    row = record.first()
    if row is None or row["first_at_ms"] is None:
        return Recorded(covered_ms=0, span_ms=0)
    return Recorded(
        covered_ms=row["covered_ms"],
        span_ms=row["last_at_ms"] - row["first_at_ms"],
        idle_ms=max(0, row["recorded_ms"] - row["covered_ms"]),
        silences=row["silences"],
        silence_ms_p9999=row["silence_ms_p9999"],
        silence_ms_max=row["silence_ms_max"],
    )


def outcomes(what_if: DataFrame) -> list[Outcome]:
    """Sums are those of level `all`; the longest time below min ISR is that of one partition."""
    rule = [field.name for field in SCENARIO]

    def over_all(name: str) -> Column:
        return F.sum(F.when(F.col("level") == "all", F.col(name)))

    numbers = {
        "evictions": over_all("shrinks"),
        "false_evictions": over_all("false_evictions"),
        "flaps": over_all("flaps"),
        "acks_all_stall_ms_max": F.max("acks_all_stall_ms_max"),
        "acks_all_stall_partition_ms": over_all("acks_all_stall_ms"),
        "under_min_isr_ms_max": F.max(
            F.when(F.col("level") == "partition", F.col("under_min_isr_ms"))
        ),
        "under_min_isr_partition_ms": over_all("under_min_isr_ms"),
        "catch_up_partition_ms": over_all("catch_up_ms"),
    }
    is_resolved = ~F.max("below_resolution")
    rows = what_if.groupBy(*rule).agg(
        *(column.alias(name) for name, column in numbers.items()),
        is_resolved.alias("is_resolved"),
    )
    return [
        Outcome(
            scenario=Scenario(**{name: row[name] for name in rule}),
            **{name: row[name] or 0 for name in numbers},
            is_resolved=row["is_resolved"],
        )
        for row in rows.collect()
    ]


def _row(advice: Advice, recorded: Recorded, running: Running, min_record_ms: int) -> Any:
    facts = {
        "verdict": advice.verdict,
        "reason": advice.reason,
        **_of_scenario(advice.scenario),
        "running_policy": running.policy,
        "running_lag_time_max_ms": running.lag_time_max_ms,
        "apply_command": advice.apply_command,
        "revert_command": advice.revert_command,
        "covered_ms": recorded.covered_ms,
        "min_record_ms": min_record_ms,
        "floor_ms": advice.floor_ms,
        "silence_ms_p9999": recorded.silence_ms_p9999,
        "silence_ms_max": recorded.silence_ms_max,
        "statements": list(advice.statements),
        "trade": [_trade_row(row) for row in advice.trade],
    }
    return tuple(facts[name] for name in RECOMMENDATION.names)


def _trade_row(row: TradeRow) -> Any:
    outcome = row.outcome
    facts = {
        "role": row.role,
        **_of_scenario(outcome.scenario),
        "evictions": outcome.evictions,
        "false_evictions": outcome.false_evictions,
        "flaps": outcome.flaps,
        "acks_all_stall_ms_max": outcome.acks_all_stall_ms_max,
        "under_min_isr_ms_max": outcome.under_min_isr_ms_max,
        "harm_partition_ms": outcome.harm_partition_ms,
        "is_below_floor": row.is_below_floor,
    }
    return tuple(facts[name] for name in TRADE.names)


def _of_scenario(scenario: Scenario) -> dict[str, Any]:
    return {field.name: getattr(scenario, field.name) for field in SCENARIO}
