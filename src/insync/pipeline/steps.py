"""The pipeline's tables, one row each in STEPS: what it needs and how it is made.

What makes a table is imported when somebody asks for it: numba alone takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_EXPORTED_FILE: Final = re.compile(r"part-\d{5}\.parquet")

Options = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Inputs:
    """What a step may use: telemetry, the results of the steps before it, its own options."""

    spark: SparkSession
    folder: str  # where the telemetry lies
    telemetry: Mapping[str, DataFrame]
    results: dict[str, DataFrame] = field(default_factory=dict)

    def recorded(self, *names: str) -> dict[str, DataFrame]:
        return {name: self.telemetry[name] for name in names if name in self.telemetry}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    make: Callable[[Inputs, Options], DataFrame]
    needs: tuple[str, ...] = ()  # telemetry that must have rows
    shows: tuple[str, ...] = ()  # columns of the summary on the terminal; usually all
    where: str = "true"  # rows of the summary

    def summary(self, rows: DataFrame) -> DataFrame:
        shown = rows.where(self.where)
        return shown.select(*self.shows) if self.shows else shown


def _problems(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.problems_table import problems, problems_exported  # noqa: PLC0415

    if is_exported(inputs.folder):
        return problems_exported(inputs.spark, inputs.folder)
    return problems(inputs.telemetry["fetches"], inputs.telemetry["appends"])


def _lag(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.lag_table import lag, lag_exported  # noqa: PLC0415

    if is_exported(inputs.folder):
        return lag_exported(inputs.spark, inputs.folder, **options)
    return lag(inputs.telemetry["fetches"], inputs.telemetry["appends"], **options)


def _episodes(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.episodes_table import episodes  # noqa: PLC0415

    return episodes(
        **inputs.recorded("isr", "fetches", "appends", "elections", "stalls", "configs", "throttle")
    )


def _what_if(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.scenarios import Asked  # noqa: PLC0415
    from insync.pipeline.what_if_table import what_if, what_if_exported  # noqa: PLC0415

    asked = Asked(**options)
    if is_exported(inputs.folder):
        return what_if_exported(inputs.spark, inputs.folder, asked=asked)
    return what_if(**inputs.recorded("fetches", "appends", "isr", "stalls"), asked=asked)


def _recommendation(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.recommendation_table import Running, recommendation  # noqa: PLC0415

    names = {
        "policy": "replica.in.sync.policy",
        "lag_time_max_ms": "replica.lag.time.max.ms",
    }
    usual = Running()
    found = {name: _last_setting(inputs, setting) for name, setting in names.items()}
    running = Running(
        policy=found["policy"] or usual.policy,
        lag_time_max_ms=int(found["lag_time_max_ms"] or usual.lag_time_max_ms),
    )
    return recommendation(inputs.results["what_if"], running)


def _last_setting(inputs: Inputs, name: str) -> str | None:
    """As some broker had it last; those of single topics are not everybody's."""
    rows = inputs.telemetry["configs"].where(
        (F.col("name") == name) & ~F.col("scope").contains("/topic:")
    )
    last = rows.orderBy(F.col("at_ms").desc(), "scope").first()
    return None if last is None else str(last["value"])


def _throttle(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.throttle_table import throttle  # noqa: PLC0415

    return throttle(inputs.telemetry["throttle"], **options)


def _health(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.health_table import health  # noqa: PLC0415

    recorded = inputs.recorded("isr", "fetches", "appends", "elections", "stalls", "configs")
    made = inputs.results
    return health(made["episodes"], **recorded, lag=made.get("lag"), throttle=made.get("throttle"))


def is_exported(folder: str) -> bool:
    """Files split by partition and named alike in every table, which tasks can read themselves."""
    return any(_EXPORTED_FILE.fullmatch(path.name) for path in Path(folder, "fetches").glob("*"))


STEPS: Final[dict[str, Step]] = {
    "problems": Step(make=_problems),
    "lag": Step(make=_lag, needs=("fetches",)),
    "episodes": Step(
        make=_episodes,
        needs=("fetches",),
        shows=("topic", "partition", "follower", "cause", "ending", "out_ms", "reason"),
    ),
    "what_if": Step(
        make=_what_if,
        needs=("fetches",),
        shows=(
            "policy", "lag_time_max_ms", "lag_max_messages", "half_period_check", "shrinks",
            "flaps", "false_evictions", "missed", "detection_ms_p99", "under_min_isr_ms",
            "watermark_stall_ms",
        ),
        where="level = 'all'",
    ),
    "recommendation": Step(
        make=_recommendation,
        shows=("policy", "lag_max_messages", "half_period_check", "lag_time_max_ms", "reason"),
    ),
    "throttle": Step(make=_throttle, needs=("throttle",)),
    "health": Step(make=_health, needs=("fetches",)),
}  # fmt: skip
