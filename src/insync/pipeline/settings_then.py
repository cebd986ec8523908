"""Which settings held for a leader and its topic at some moment, as `configs` tells."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from insync.pipeline.scenarios import LIMIT_MAX, Asked
from insync.rules.settings import InSyncSettings

_USUAL: Final = InSyncSettings()
SETTINGS: Final = {  # column, type and default of each setting that the pipeline judges by
    "replica.in.sync.policy": ("policy", "string", _USUAL.replica_in_sync_policy),
    "replica.lag.time.max.ms": ("lag_time_max_ms", "long", _USUAL.replica_lag_time_max_ms),
    "min.insync.replicas": ("min_isr", "int", 1),
}
_ASKED: Final = ("replica.lag.time.max.ms", "min.insync.replicas", "replica.fetch.wait.max.ms")


def with_settings(rows: DataFrame, configs: DataFrame, *, asked_at_ms: Column) -> DataFrame:
    """The latest value set by then; a topic's own goes before its broker's. Rows name a leader."""
    known = (
        configs.where(F.col("name").isin(*SETTINGS))
        .groupBy("scope")
        .agg(F.collect_list(F.struct("at_ms", "value", "name")).alias("settings"))
    )
    broker = F.concat(F.lit("broker:"), F.col("leader"))
    topic = F.concat(broker, F.lit("/topic:"), F.col("topic"))
    scoped = rows.withColumn("of_broker", broker).withColumn("of_topic", topic)
    for scope in ("of_broker", "of_topic"):
        named = known.select(
            F.col("scope").alias(scope), F.col("settings").alias(f"settings_{scope}")
        )
        scoped = scoped.join(named, scope, "left")
    found = scoped.withColumn("asked_at_ms", asked_at_ms)
    for name, (column, type_, default) in SETTINGS.items():
        latest = [_latest(f"settings_{scope}", name) for scope in ("of_topic", "of_broker")]
        value = F.coalesce(*latest).cast(type_)
        found = found.withColumn(column, F.coalesce(value, F.lit(default)))
    return found.drop(
        "of_broker", "of_topic", "settings_of_broker", "settings_of_topic", "asked_at_ms"
    )


def _latest(settings: str, name: str) -> Column:
    asked_at_ms = F.col("asked_at_ms")
    in_time = F.filter(
        settings, lambda each: (each["name"] == name) & (each["at_ms"] <= asked_at_ms)
    )
    return F.array_max(in_time)["value"]


def as_recorded(configs: DataFrame) -> dict[str, Any]:
    """What to ask of a what-if when nobody says; what is not recorded is left as it usually is.

    One number stands for all topics. Of several minimum ISRs it is the largest: brokers' own is
    usually 1, under which nothing is ever below it; a partition with fewer replicas needs no more
    than it has. Of fetch waits the longest: below twice that the record does not tell. Every
    limit that was in force is asked, so that it can be compared with.
    """
    number = F.col("value").try_cast("long")
    known = configs.where(F.col("name").isin(*_ASKED)).select("name", number.alias("number"))
    found: dict[str, list[int]] = {name: [] for name in _ASKED}
    for row in known.where(F.col("number").between(0, LIMIT_MAX)).distinct().collect():
        found[row["name"]].append(row["number"])
    limits, minimums, waits = (found[name] for name in _ASKED)
    asked: dict[str, Any] = {}
    if any(limits):
        asked["lag_time_max_ms"] = (*Asked().lag_time_max_ms, *filter(None, limits))
    if any(minimums):
        asked["min_insync_replicas"] = max(minimums)
    if waits:
        asked["fetch_wait_max_ms"] = max(waits)
    return asked
