"""Settings of a leader and its topic at some time, from the table `configs`."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from insync.pipeline.scenarios import LIMIT_MAX, WhatIfGrid
from insync.rules.settings import InSyncSettings

_DEFAULTS: Final = InSyncSettings()
SETTINGS: Final = {  # column, type and default of each setting that verdicts depend on
    "replica.in.sync.policy": ("policy", "string", _DEFAULTS.replica_in_sync_policy),
    "replica.lag.time.max.ms": ("lag_time_max_ms", "long", _DEFAULTS.replica_lag_time_max_ms),
    "min.insync.replicas": ("min_isr", "int", 1),
}
_REPLAYED: Final = ("replica.lag.time.max.ms", "min.insync.replicas", "replica.fetch.wait.max.ms")


def with_settings(rows: DataFrame, configs: DataFrame, *, valid_at_ms: Column) -> DataFrame:
    """The latest value set by then; a topic's overrides its broker's. Rows have a `leader`."""
    by_scope = (
        configs.where(F.col("name").isin(*SETTINGS))
        .groupBy("scope")
        .agg(F.collect_list(F.struct("at_ms", "value", "name")).alias("settings"))
    )
    broker = F.concat(F.lit("broker:"), F.col("leader"))
    topic = F.concat(broker, F.lit("/topic:"), F.col("topic"))
    scoped = rows.withColumn("of_broker", broker).withColumn("of_topic", topic)
    for scope in ("of_broker", "of_topic"):
        named = by_scope.select(
            F.col("scope").alias(scope), F.col("settings").alias(f"settings_{scope}")
        )
        scoped = scoped.join(named, scope, "left")
    with_values = scoped.withColumn("valid_at_ms", valid_at_ms)
    for name, (column, type_, default) in SETTINGS.items():
        latest = [_latest(f"settings_{scope}", name) for scope in ("of_topic", "of_broker")]
        value = F.coalesce(*latest).cast(type_)
        with_values = with_values.withColumn(column, F.coalesce(value, F.lit(default)))
    return with_values.drop(
        "of_broker", "of_topic", "settings_of_broker", "settings_of_topic", "valid_at_ms"
    )


def _latest(settings: str, name: str) -> Column:
    valid_at_ms = F.col("valid_at_ms")
    in_time = F.filter(
        settings, lambda each: (each["name"] == name) & (each["at_ms"] <= valid_at_ms)
    )
    return F.array_max(in_time)["value"]


def as_recorded(configs: DataFrame) -> dict[str, Any]:
    """Defaults of a what-if from the recorded settings; a setting that is not recorded is left out.

    One value stands for all topics. Of several min.insync.replicas it is the largest: a broker's
    default is 1, with which no partition is ever below it, and a partition with fewer replicas
    needs no more than it has. Of fetch waits it is the longest: below twice that the record does
    not resolve. Every limit that was in force is included, to be compared with the others.
    """
    number = F.col("value").try_cast("long")
    numbers = configs.where(F.col("name").isin(*_REPLAYED)).select("name", number.alias("number"))
    values: dict[str, list[int]] = {name: [] for name in _REPLAYED}
    for row in numbers.where(F.col("number").between(0, LIMIT_MAX)).distinct().collect():
        values[row["name"]].append(row["number"])
    limits, minimums, waits = (values[name] for name in _REPLAYED)
    grid: dict[str, Any] = {}
    if any(limits):
        grid["lag_time_max_ms"] = (*WhatIfGrid().lag_time_max_ms, *filter(None, limits))
    if any(minimums):
        grid["min_insync_replicas"] = max(minimums)
    if waits:
        grid["fetch_wait_max_ms"] = max(waits)
    return grid
