"""The pipeline's tables, one entry each in STEPS: what it needs and how it is made.

The module of a table is imported when the table is made: Numba alone takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from insync.pipeline.io import storage
from insync.pipeline.local.dispatch import F

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
    named: Mapping[str, str] = field(default_factory=dict)  # what a column is called there
    then: tuple[str, ...]  # columns that order the rest, ascending
    where: str = "true"
    rows_max: int | None = 20
    has_all_in_json: bool = False  # also what a terminal has no room for

    def rows(self, table: DataFrame, *, as_json: bool = False) -> list[dict[str, Any]]:
        first = (F.expr(each).desc_nulls_last() for each in self.first)
        columns = {name: name for name in (*self.columns, *self.details)} | {
            shown: name for name, shown in self.named.items()
        }
        shown = table.where(self.where).orderBy(*first, *self.then)
        shown = shown.select(
            *(F.col(columns[name]).alias(name) for name in (*self.columns, *self.details))
        )
        if self.rows_max is not None and not (as_json and self.has_all_in_json):
            shown = shown.limit(self.rows_max)
        return [row.asDict(recursive=True) for row in shown.collect()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    make: Callable[[Inputs, Options], DataFrame]
    needs: tuple[str, ...] = ()  # telemetry that must have rows
    summary: Summary | None = None  # None: it is reported in the job's notes


def _problems(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.problems import problems, problems_exported  # noqa: PLC0415

    if is_exported(inputs.folder, inputs.spark):
        return problems_exported(inputs.spark, inputs.folder)
    return problems(**inputs.recorded("fetches", "appends", "assignments"))


def _lag(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.lag import lag, lag_exported  # noqa: PLC0415

    if is_exported(inputs.folder, inputs.spark):
        return lag_exported(inputs.spark, inputs.folder, **options)
    telemetry = inputs.telemetry
    return lag(
        telemetry["fetches"],
        telemetry["appends"],
        telemetry.get("isr"),
        telemetry.get("assignments"),
        **options,
    )


def _episodes(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.episodes import episodes  # noqa: PLC0415

    names = ("isr", "fetches", "appends", "elections", "stalls", "configs", "throttle")
    return episodes(**inputs.recorded(*names, "assignments", "isr_events"))


def _incidents(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.incidents import incidents  # noqa: PLC0415

    return incidents(inputs.results["episodes"], inputs.results.get("lag"))


def _record(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.record import record, record_exported  # noqa: PLC0415

    if is_exported(inputs.folder, inputs.spark):
        return record_exported(inputs.spark, inputs.folder, inputs.telemetry.get("isr"))
    return record(**inputs.recorded("fetches", "appends", "isr", "stalls", "assignments"))


def _what_if(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.recommendation import recorded_of  # noqa: PLC0415
    from insync.pipeline.tables.running import grid_of  # noqa: PLC0415
    from insync.pipeline.tables.what_if import what_if, what_if_exported  # noqa: PLC0415

    record = inputs.results.get("record")
    recorded = None if record is None else recorded_of(record)
    grid = grid_of(options, inputs.telemetry["configs"], recorded)
    if is_exported(inputs.folder, inputs.spark):
        return what_if_exported(inputs.spark, inputs.folder, grid=grid)
    names = ("fetches", "appends", "isr", "stalls", "assignments", "configs")
    return what_if(**inputs.recorded(*names), grid=grid)


def _recommendation(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.recommendation import recommendation  # noqa: PLC0415

    results, configs = inputs.results, inputs.telemetry["configs"]
    return recommendation(results["what_if"], results["record"], configs, **options)


def _throttle(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.throttle import throttle  # noqa: PLC0415

    return throttle(inputs.telemetry["throttle"], **options)


def _inbound(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.inbound import inbound  # noqa: PLC0415

    return inbound(**inputs.recorded("fetches", "appends"))


def _plans(inputs: Inputs, options: Options) -> DataFrame:
    from insync.pipeline.tables.balance_plan import PlanOptions  # noqa: PLC0415
    from insync.pipeline.tables.plans import plans  # noqa: PLC0415

    names = ("fetches", "appends", "assignments", "isr", "configs")
    return plans(**inputs.recorded(*names), options=PlanOptions(**options))


def _health(inputs: Inputs, _: Options) -> DataFrame:
    from insync.pipeline.tables.health import health  # noqa: PLC0415

    names = ("isr", "fetches", "appends", "elections", "stalls", "configs", "assignments",
             "isr_events")  # fmt: skip
    recorded = inputs.recorded(*names)
    made = inputs.results
    optional = {name: made[name] for name in ("lag", "throttle", "incidents") if name in made}
    return health(made["episodes"], **recorded, **optional)


def is_exported(folder: str, spark: SparkSession | None = None) -> bool:
    """Whether the folder has files split by partition, with the same names in every table, in a
    storage that tasks can read."""
    try:
        names = storage.folder(spark, folder).listed("fetches")
    except storage.SparkOnly:
        return False
    return any(map(_EXPORTED_FILE.fullmatch, names))


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
    "incidents": Step(
        make=_incidents,
        summary=Summary(
            columns=(
                "summary", "began_at_ms", "ended_at_ms", "lag_ms_max", "lag_messages_max", "topics",
                "partitions", "episodes", "broker", "cause", "duration_ms",
            ),
            words="open incidents first, then those of the most partitions",
            first=("ended_at_ms IS NULL", "partitions", "duration_ms"),
            then=("broker", "cause", "began_at_ms"),
        ),
    ),
    "record": Step(
        make=_record,
        needs=("fetches", "appends"),
        summary=Summary(
            columns=(
                "covered_ms", "recorded_ms", "first_at_ms", "last_at_ms", "gaps", "silences",
                "silence_ms_p9999", "silence_ms_max", "silence_topic", "silence_partition",
                "silence_follower", "silence_began_at_ms",
            ),
            words="how much was recorded, and the silences of healthy followers",
            then=("first_at_ms",),
        ),
    ),
    "what_if": Step(
        make=_what_if,
        needs=("fetches", "appends"),
        summary=Summary(
            columns=(
                "policy", "lag_time_max_ms", "lag_max_messages", "half_period_check",
                "below_resolution", "false_evictions", "flaps", "missed", "detection_ms_p99",
                "under_min_isr_partition_ms", "acks_all_stall_ms_max", "shrinks",
                "watermark_stall_partition_ms",
            ),
            # Over all partitions these are sums.
            named={
                "under_min_isr_ms": "under_min_isr_partition_ms",
                "watermark_stall_ms": "watermark_stall_partition_ms",
            },
            words="over all partitions; the other rows are of single topics and partitions. "
            "partition ms are summed over partitions",
            then=("policy", "lag_max_messages", "half_period_check", "lag_time_max_ms"),
            where="level = 'all'",
            rows_max=None,  # one per scenario
        ),
    ),
    "recommendation": Step(
        make=_recommendation,
        summary=Summary(
            columns=(
                "verdict", "reason", "policy", "lag_time_max_ms", "lag_max_messages",
                "apply_command", "revert_command", "covered_ms", "min_record_ms", "floor_ms",
                "silence_ms_p9999", "silence_ms_max", "statements", "trade",
            ),
            words="what to set, or why to leave it",
            then=("verdict",),
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
                "coalesce(progress = 'stuck', false)",
                "coalesce(verdict = 'cannot-finish', false) AND coalesce(progress <> 'done', true)",
                "held_back_s",
            ),
            then=("broker", "side", "began_at_ms"),
        ),
    ),
    "inbound": Step(
        make=_inbound,
        needs=("fetches", "appends"),
        summary=Summary(
            columns=(
                "level", "name", "hour", "inbound_bytes_per_s", "inbound_max_bytes_per_s", "days",
                "covered_ms", "bytes",
            ),
            words="the busiest first; hours are of UTC, max is that of the busiest day",
            first=("level = 'broker'", "inbound_max_bytes_per_s"),
            then=("level", "name", "hour"),
        ),
    ),
    "plans": Step(
        make=_plans,
        needs=("fetches", "appends", "assignments"),
        summary=Summary(
            columns=(
                "verdict", "reason", "statements", "move_ratio", "move_time_ms",
                "per_broker_time_ms", "throttle_bytes_per_s", "throttle_min_bytes_per_s",
                "throttle_max_bytes_per_s", "best_hour", "partitions_to_move",
                "partitions_to_reorder", "partitions_total", "bytes_to_move",
                "log_bytes_per_broker", "covered_ms", "moves", "hours", "brokers", "plan",
                "rollback",
            ),
            words="what to move, with which throttle and when, or why nothing",
            then=("verdict",),
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
            has_all_in_json=True,
            first=("status = 'critical'", "status = 'warning'", "out_ms"),
            then=("level", "name"),
        ),
    ),
}  # fmt: skip
