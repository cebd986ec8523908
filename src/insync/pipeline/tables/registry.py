"""The pipeline's tables, one entry each in STEPS: what it needs and how it is made.

The module of a table is imported when the table is made: Numba alone takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its common name

_EXPORTED_FILE: Final = re.compile(r"part-\d{5}\.parquet")

Options = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The input of a step: telemetry, and the results of the steps before it."""

    spark: SparkSession
    folder: str  # of the telemetry
    telemetry: Mapping[str, DataFrame]
    results: dict[str, DataFrame] = field(default_factory=dict)

    def recorded(self, *names: str) -> dict[str, DataFrame]:
        return {name: self.telemetry[name] for name in names if name in self.telemetry}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The rows and columns of a table that its command prints."""

    columns: tuple[str, ...]  # the most important first: a terminal may not have room for all
    words: str  # which rows these are, and their order
    details: tuple[str, ...] = ()  # columns for programs: --json has them, a terminal does not
    first: tuple[str, ...] = ()  # SQL expressions; the largest values come first
    then: tuple[str, ...]  # columns that order the rest, ascending
    where: str = "true"
    rows_max: int | None = 20

    def rows(self, table: DataFrame) -> list[dict[str, Any]]:
        first = (F.expr(each).desc_nulls_last() for each in self.first)
        shown = (
            table.where(self.where).orderBy(*first, *self.then).select(*self.columns, *self.details)
        )
        if self.rows_max is not None:
            shown = shown.limit(self.rows_max)
        return [row.asDict() for row in shown.collect()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    make: Callable[[Inputs, Options], DataFrame]
    needs: tuple[str, ...] = ()  # telemetry that must have rows
    summary: Summary | None = None  # None: it is reported in the job's notes


def _problems(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.problems import problems, problems_exported  # noqa: PLC0415

    if is_exported(inputs.folder):
        return problems_exported(inputs.spark, inputs.folder)
    return problems(inputs.telemetry["fetches"], inputs.telemetry["appends"])


def _lag(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.lag import lag, lag_exported  # noqa: PLC0415

    if is_exported(inputs.folder):
        return lag_exported(inputs.spark, inputs.folder, **options)
    telemetry = inputs.telemetry
    return lag(telemetry["fetches"], telemetry["appends"], telemetry.get("isr"), **options)


def _episodes(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.episodes import episodes  # noqa: PLC0415

    return episodes(
        **inputs.recorded("isr", "fetches", "appends", "elections", "stalls", "configs", "throttle")
    )


def _what_if(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.scenarios import WhatIfGrid  # noqa: PLC0415
    from insync.pipeline.tables.recorded_settings import as_recorded  # noqa: PLC0415
    from insync.pipeline.tables.what_if import what_if, what_if_exported  # noqa: PLC0415

    grid = WhatIfGrid(**{**as_recorded(inputs.telemetry["configs"]), **options})
    if is_exported(inputs.folder):
        return what_if_exported(inputs.spark, inputs.folder, grid=grid)
    return what_if(**inputs.recorded("fetches", "appends", "isr", "stalls"), grid=grid)


def _recommendation(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.recommendation import Running, recommendation  # noqa: PLC0415

    names = {
        "policy": "replica.in.sync.policy",
        "lag_time_max_ms": "replica.lag.time.max.ms",
    }
    defaults = Running()
    recorded = {name: _last_setting(inputs, setting) for name, setting in names.items()}
    running = Running(
        policy=recorded["policy"] or defaults.policy,
        lag_time_max_ms=int(recorded["lag_time_max_ms"] or defaults.lag_time_max_ms),
    )
    return recommendation(inputs.results["what_if"], running)


def _last_setting(inputs: Inputs, name: str) -> str | None:
    """The latest value of any broker; values of single topics do not count."""
    rows = inputs.telemetry["configs"].where(
        (F.col("name") == name) & ~F.col("scope").contains("/topic:")
    )
    last = rows.orderBy(F.col("at_ms").desc(), "scope").first()
    return None if last is None else str(last["value"])


def _throttle(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.throttle import throttle  # noqa: PLC0415

    return throttle(inputs.telemetry["throttle"], **options)


def _health(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.health import health  # noqa: PLC0415

    recorded = inputs.recorded("isr", "fetches", "appends", "elections", "stalls", "configs")
    made = inputs.results
    return health(made["episodes"], **recorded, lag=made.get("lag"), throttle=made.get("throttle"))


def is_exported(folder: str) -> bool:
    """Whether the folder has files split by partition, with the same names in every table."""
    return any(_EXPORTED_FILE.fullmatch(path.name) for path in Path(folder, "fetches").glob("*"))


_REPLICA: Final = ("topic", "partition", "follower")

STEPS: Final[dict[str, Step]] = {
    "problems": Step(make=_problems),
    "lag": Step(
        make=_lag,
        needs=("fetches", "appends"),
        summary=Summary(
            columns=(
                *_REPLICA, "bucket_at_ms", "lag_ms_max", "lag_messages_max", "lag_bytes_max",
                "lag_ms_p99", "lag_ms_p50",
            ),
            words="the longest lag first",
            first=("lag_ms_max", "lag_messages_max"),
            then=(*_REPLICA, "bucket_at_ms"),
        ),
    ),
    "episodes": Step(
        make=_episodes,
        needs=("fetches",),
        summary=Summary(
            columns=(*_REPLICA, "cause", "ending", "out_ms", "reason", "left_at_ms"),
            words="open episodes first, then the longest",
            first=("ending = 'open'", "out_ms"),
            then=(*_REPLICA, "left_at_ms"),
        ),
    ),
    "what_if": Step(
        make=_what_if,
        needs=("fetches", "appends"),
        summary=Summary(
            columns=(
                "policy", "lag_time_max_ms", "lag_max_messages", "half_period_check",
                "below_resolution", "false_evictions", "flaps", "missed", "detection_ms_p99",
                "under_min_isr_ms", "watermark_stall_ms", "shrinks",
            ),
            words="over all partitions; the other rows are of single topics and partitions",
            then=("policy", "lag_max_messages", "half_period_check", "lag_time_max_ms"),
            where="level = 'all'",
            rows_max=None,  # one per scenario
        ),
    ),
    "recommendation": Step(
        make=_recommendation,
        summary=Summary(
            columns=(
                "is_headline", "policy", "lag_time_max_ms", "lag_max_messages",
                "half_period_check", "detection_ms_p99", "watermark_stall_ms", "under_min_isr_ms",
                "running_detection_ms_p99", "running_watermark_stall_ms",
                "running_under_min_isr_ms", "reason",
            ),
            words="the headline first; a policy without a limit has no good one",
            first=("is_headline", "lag_time_max_ms IS NOT NULL"),
            then=("lag_time_max_ms", "policy", "lag_max_messages", "half_period_check"),
            rows_max=None,
        ),
    ),
    "throttle": Step(
        make=_throttle,
        needs=("throttle",),
        summary=Summary(
            columns=(
                "broker", "side", "limit_bytes_per_s", "verdict", "progress", "estimated_ms",
                "real_ms", "difference", "use", "held_back_s", "began_at_ms",
            ),
            details=(
                "seconds", "headroom_bytes_per_s", "safe_above_bytes_per_s",
                "safe_below_bytes_per_s", "bytes_in_per_s",
            ),
            words="stuck and unfinishable first, then the longest held back",
            first=(
                "progress <=> 'stuck'",
                "verdict <=> 'cannot-finish' AND NOT progress <=> 'done'",
                "held_back_s",
            ),
            then=("broker", "side", "began_at_ms"),
        ),
    ),
    "health": Step(
        make=_health,
        needs=("fetches",),
        summary=Summary(
            columns=("status", "level", "name", "reason"),
            details=(
                "lag_ms_max", "lag_messages_max", "episodes", "open_episodes", "flapping", "out_ms",
                "under_min_isr_ms", "leader_changes", "stall_ms", "held_back_s", "bad_throttles",
            ),
            words="the worst first",
            first=("status = 'critical'", "status = 'warning'", "out_ms"),
            then=("level", "name"),
        ),
    ),
}  # fmt: skip
