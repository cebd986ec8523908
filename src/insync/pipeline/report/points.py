"""What the charts show, cut down by Spark: a bounded number of points, whatever the record.

Everything here is plain data for `page`: numbers, texts, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row

from insync.pipeline.local.dispatch import F
from insync.pipeline.report.incidents import collect_incidents
from insync.pipeline.tables.episodes import CAUSES, OPEN
from insync.pipeline.tables.health import BROKER, CRITICAL, TOPIC, WARNING, is_bad_throttle
from insync.pipeline.tables.incidents import incidents, with_broker_and_times
from insync.pipeline.tables.min_isr import union_ms

COLUMNS_MAX: Final = 240  # moments along a time axis: a phone has fewer pixels, a screen few more
SERIES_MAX: Final = 6
ROWS_MAX: Final = 250  # of each table on the page
WHAT_IF_MAX: Final = 600
LIMITS_MAX: Final = 8
OTHERS: Final = "all others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The pipeline's own, and `seconds`: the telemetry table `throttle`. None: not recorded.

    Without a table `incidents` they are those of the episodes.
    """

    episodes: DataFrame | None = None
    incidents: DataFrame | None = None
    lag: DataFrame | None = None
    what_if: DataFrame | None = None
    recommendation: DataFrame | None = None
    throttle: DataFrame | None = None
    seconds: DataFrame | None = None
    health: DataFrame | None = None


@dataclass(slots=True, kw_only=True)
class Points:
    """None where there is no table."""

    span_ms: tuple[int, int] | None = None
    summary: dict[str, Any] = field(default_factory=dict)  # of all rows, whatever is shown of them
    episodes_span_ms: tuple[int, int] | None = None
    incidents: list[dict[str, Any]] | None = None  # each with its partitions and its episodes
    lag: dict[str, Any] | None = None
    what_if: list[dict[str, Any]] | None = None
    recommendation: dict[str, Any] | None = None
    seconds: list[dict[str, Any]] | None = None
    throttle: list[dict[str, Any]] | None = None
    health: list[dict[str, Any]] | None = None


def collect(tables: Tables) -> Points:
    points = Points()
    if tables.health is not None:
        points.summary |= _health_summary(tables.health)
        points.health = _health(tables.health)
    if tables.episodes is not None:
        points.summary |= _episode_summary(tables.episodes)
        points.episodes_span_ms = _episodes_span(tables.episodes)
        together = incidents(tables.episodes) if tables.incidents is None else tables.incidents
        points.summary["incidents"] = together.count()
        points.incidents = collect_incidents(together, tables.episodes)
    if tables.lag is not None:
        points.lag = _lag(tables.lag)
    if tables.what_if is not None:
        overall = tables.what_if.where(F.col("level") == "all")
        points.summary["scenarios"] = overall.count()
        points.what_if = _what_if(overall)
    if tables.recommendation is not None:
        points.recommendation = _rows(tables.recommendation.limit(1))[0]
    if tables.throttle is not None:
        points.summary["spans"] = tables.throttle.count()
        points.throttle = _spans(tables.throttle)
    if tables.seconds is not None:
        limited = tables.seconds.where(F.col("limit_bytes_per_s").isNotNull())
        points.summary["limits"] = limited.select("broker", "side").distinct().count()
        points.seconds = _seconds(limited)
    points.span_ms = _span(points)
    return points


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _one(frame: DataFrame, *facts: Column) -> Row:
    row = frame.agg(*facts).first()
    assert row is not None, "an aggregate has a row"
    return row


def _span(points: Points) -> tuple[int, int] | None:
    """One time axis for all charts."""
    spans: list[Sequence[int]] = [points.episodes_span_ms] if points.episodes_span_ms else []
    spans += [points.lag["span_ms"]] if points.lag and points.lag["span_ms"] else []
    spans += [
        (each["at_ms"][0], each["at_ms"][-1] + each["step_ms"]) for each in points.seconds or []
    ]
    if not spans:
        return None
    return min(span[0] for span in spans), max(span[1] for span in spans)


# Episodes.


def _replica() -> Column:
    return F.concat_ws("", F.col("topic"), F.lit("-"), F.col("partition"))


def _episode_summary(episodes: DataFrame) -> dict[str, Any]:
    row = _one(
        episodes,
        F.count("*").alias("episodes"),
        F.count(F.when(F.col("ending") == OPEN, 1)).alias("open"),
        F.count(F.when(F.col("kip501_would_hold"), 1)).alias("kip501"),
        F.countDistinct("topic", "partition", "follower").alias("replicas"),
        F.min("lag_time_max_ms").alias("limit_ms_min"),
        F.max("lag_time_max_ms").alias("limit_ms_max"),
        *(F.count(F.when(F.col("cause") == cause, 1)).alias(f"cause {cause}") for cause in CAUSES),
    )
    start_ms = F.coalesce("left_at_ms", "began_at_ms")
    out = episodes.select(start_ms.alias("from_ms"), (start_ms + F.col("out_ms")).alias("to_ms"))
    wall = union_ms(out.where("to_ms IS NOT NULL")).first()
    assert wall is not None, "an aggregate has a row"
    return dict(row.asDict()) | {"out_ms": wall["union_ms"] or 0}


def _episodes_span(episodes: DataFrame) -> tuple[int, int] | None:
    bounds = (F.min("from_ms").alias("from_ms"), F.max("to_ms").alias("to_ms"))
    span = _one(episodes.transform(with_broker_and_times), *bounds)
    return None if span["from_ms"] is None else (span["from_ms"], span["to_ms"])


# Lag.


def _lag(lag: DataFrame) -> dict[str, Any]:
    """The worst replicas each on its own, all others together; the highest lag of each moment."""
    bounds = (F.min("bucket_at_ms").alias("from_ms"), F.max("bucket_at_ms").alias("to_ms"))
    span = _one(lag, *bounds)
    if span["from_ms"] is None:
        return {"span_ms": None, "at_ms": [], "series": []}
    from_ms, step_ms = span["from_ms"], _step(span["from_ms"], span["to_ms"])
    replica = ["topic", "partition", "follower"]
    worst = (
        lag.groupBy(*replica)
        .agg(F.max("lag_ms_max").alias("highest_ms"))
        .orderBy(F.col("highest_ms").desc_nulls_last(), *replica)
        .limit(SERIES_MAX - 1)
    )
    name = F.concat(_replica(), F.lit(" on "), F.col("follower"))
    shown = _rows(worst.select(*replica, name.alias("name"), "highest_ms"))
    marked = worst.select(*replica, F.lit(True).alias("is_worst"))  # noqa: FBT003
    peaks = [f"lag_{unit}_max" for unit in ("ms", "messages", "bytes")]
    cells = _rows(
        lag.join(F.broadcast(marked), replica, "left")
        .withColumn("name", F.when(F.col("is_worst"), name).otherwise(OTHERS))
        .withColumn("column", F.floor((F.col("bucket_at_ms") - from_ms) / step_ms))
        .groupBy("name", "column")
        .agg(*(F.max(peak).alias(peak) for peak in peaks))
    )
    columns = sorted({cell["column"] for cell in cells})
    gaps = (later - column for column, later in pairwise(columns))
    index_of = {column: at for at, column in enumerate(columns)}
    names = [row["name"] for row in shown]
    names += [OTHERS] if any(cell["name"] == OTHERS for cell in cells) else []
    series: dict[str, dict[str, list[int | None]]] = {
        name: {peak: [None] * len(columns) for peak in peaks} for name in names
    }
    for cell in cells:
        for peak in peaks:
            series[cell["name"]][peak][index_of[cell["column"]]] = cell[peak]
    return {
        "span_ms": (from_ms, span["to_ms"]),
        "at_ms": [from_ms + column * step_ms for column in columns],
        "step_ms": step_ms * min(gaps, default=1),  # buckets may be wider than columns
        "series": [
            {
                "name": name,
                "ms": series[name]["lag_ms_max"],
                "messages": series[name]["lag_messages_max"],
                "bytes": series[name]["lag_bytes_max"],
            }
            for name in names
        ],
    }


def _step(from_ms: int, to_ms: int) -> int:
    return max(1, -(-(to_ms - from_ms + 1) // COLUMNS_MAX))


# What-if.


def _what_if(overall: DataFrame) -> list[dict[str, Any]]:
    """Every policy at every threshold."""
    return _rows(
        overall.orderBy("policy", "half_period_check", "lag_max_messages", "lag_time_max_ms")
        .limit(WHAT_IF_MAX)
        .select(
            "policy", "half_period_check", "lag_max_messages", "lag_time_max_ms", "shrinks",
            "flaps", "false_evictions", "missed", "detection_ms_p50", "detection_ms_p99",
            "out_of_sync_ms", "under_min_isr_ms", "under_min_isr_fetching_ms",
            "watermark_stall_ms", "acks_all_stall_ms_max", "below_resolution",
        )
    )  # fmt: skip


# Throttles.


def _spans(spans: DataFrame) -> list[dict[str, Any]]:
    worst_first = [
        F.when(is_bad_throttle(), 0).otherwise(1),
        F.col("held_back_s").desc(),
        F.col("broker"),
        F.col("side"),
        F.col("began_at_ms"),
    ]
    return _rows(spans.orderBy(*worst_first).limit(ROWS_MAX))


def _seconds(limited: DataFrame) -> list[dict[str, Any]]:
    span = _one(limited, F.min("at_ms").alias("from_ms"), F.max("at_ms").alias("to_ms"))
    if span["from_ms"] is None:
        return []
    from_ms, step_ms = span["from_ms"], max(1_000, _step(span["from_ms"], span["to_ms"]))
    held = F.count(F.when(F.col("held_back_partitions") > 0, 1))
    worst = (
        limited.groupBy("broker", "side")
        .agg(held.alias("held"), F.sum("bytes").alias("total"))
        .orderBy(F.col("held").desc(), F.col("total").desc_nulls_last(), "broker", "side")
        .limit(LIMITS_MAX)
        .drop("held", "total")
    )
    cells = _rows(
        limited.join(F.broadcast(worst), ["broker", "side"])
        .withColumn("column", F.floor((F.col("at_ms") - from_ms) / step_ms))
        .groupBy("broker", "side", "column")
        .agg(
            F.max("limit_bytes_per_s").alias("limit"),
            F.avg("bytes").cast("long").alias("bytes"),
            F.max("bytes_in").alias("bytes_in"),
            held.alias("held"),
        )
        .orderBy("broker", "side", "column")
    )
    charts: dict[tuple[int, str], dict[str, Any]] = {}
    for cell in cells:
        key = (cell["broker"], cell["side"])
        chart = charts.setdefault(
            key,
            {"broker": key[0], "side": key[1], "step_ms": step_ms}
            | {name: [] for name in ("at_ms", "limit", "bytes", "bytes_in", "held")},
        )
        chart["at_ms"].append(from_ms + cell["column"] * step_ms)
        for name in ("limit", "bytes", "bytes_in", "held"):
            chart[name].append(cell[name])
    return list(charts.values())


# Health.


def _health_summary(health: DataFrame) -> dict[str, Any]:
    """Leader changes are the topics': a broker's are some of them again. The time below min ISR is
    that of the topic that was below it longest."""
    of_topic = F.col("level") == TOPIC
    row = _one(
        health,
        F.count(F.when(of_topic, 1)).alias("topics"),
        F.count(F.when(F.col("level") == BROKER, 1)).alias("brokers"),
        *(
            F.count(F.when((F.col("level") == level) & (F.col("status") == status), 1)).alias(
                f"{status} {level}s"
            )
            for level in (TOPIC, BROKER)
            for status in (CRITICAL, WARNING)
        ),
        F.coalesce(F.sum(F.when(of_topic, F.col("leader_changes"))), F.lit(0)).alias(
            "leader_changes"
        ),
        F.max(F.when(of_topic, F.struct("under_min_isr_ms", "name"))).alias("longest"),
    ).asDict(recursive=True)
    longest = row.pop("longest") or {"under_min_isr_ms": 0, "name": None}
    return row | {
        "under_min_isr_ms": longest["under_min_isr_ms"],
        "under_min_isr_topic": longest["name"],
    }


def _health(health: DataFrame) -> list[dict[str, Any]]:
    """Topics, then brokers: up to a limit of each, however many there are of the other."""
    urgency = (
        F.when(F.col("status") == CRITICAL, 0).when(F.col("status") == WARNING, 1).otherwise(2)
    )
    by_number = F.col("name").try_cast("int")  # a topic has no number
    worst_first = [urgency, F.col("out_ms").desc(), by_number, F.col("name")]
    levels = [health.where(F.col("level") == level) for level in (TOPIC, BROKER)]
    return [row for lines in levels for row in _rows(lines.orderBy(*worst_first).limit(ROWS_MAX))]
