"""Settings of a leader and its topic at some time, from the table `configs`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame

from insync.pipeline.local.dispatch import F
from insync.rules.settings import InSyncSettings
from insync.telemetry.schemas import MIN_ISR, RUN_BEGINS

_DEFAULTS: Final = InSyncSettings()
SETTINGS: Final = {  # column, type and default of each setting that verdicts depend on
    "replica.in.sync.policy": ("policy", "string", _DEFAULTS.replica_in_sync_policy),
    "replica.lag.time.max.ms": ("lag_time_max_ms", "long", _DEFAULTS.replica_lag_time_max_ms),
    MIN_ISR: ("min_isr", "int", 1),
}
_SCOPED: Final = ("of_broker", "of_topic", "settings_of_broker", "settings_of_topic")


def with_settings(rows: DataFrame, configs: DataFrame, *, valid_at_ms: Column) -> DataFrame:
    """The latest value set by then; a topic's overrides its broker's, within a run of the broker.
    Rows have a `leader`."""
    of_names = _readable(configs.where(F.col("name").isin(*SETTINGS, RUN_BEGINS)))
    with_values = _with_scopes(rows, of_names).withColumn("valid_at_ms", valid_at_ms)
    run_ms = F.coalesce(_latest("settings_of_broker", RUN_BEGINS)["at_ms"], F.lit(-(2**62)))
    with_values = with_values.withColumn("run_ms", run_ms)
    for name, (column, type_, default) in SETTINGS.items():
        own = _latest("settings_of_topic", name)
        own_value = F.when(own["at_ms"] >= F.col("run_ms"), own["value"])
        value = F.coalesce(own_value, _latest("settings_of_broker", name)["value"])
        value = value.try_cast(type_)
        with_values = with_values.withColumn(column, F.coalesce(value, F.lit(default)))
    return with_values.drop(*_SCOPED, "valid_at_ms", "run_ms")


def split_at_changes(rows: DataFrame, configs: DataFrame, name: str) -> DataFrame:
    """Rows from `from_ms` to `to_ms`, cut where a setting of their leader or topic changes."""
    from_ms, to_ms = F.col("from_ms"), F.col("to_ms")
    nothing = F.array().cast("array<bigint>")
    times = [
        F.coalesce(F.transform(f"settings_{scope}", lambda each: each["at_ms"]), nothing)
        for scope in ("of_broker", "of_topic")
    ]
    inside = F.filter(F.array_union(*times), lambda at_ms: (at_ms > from_ms) & (at_ms < to_ms))
    cuts = F.array_sort(F.concat(F.array(from_ms), inside))
    of_names = _readable(configs.where(F.col("name").isin(name, RUN_BEGINS)))
    scoped = _with_scopes(rows, of_names).withColumn("cuts", cuts)
    others = [column for column in rows.columns if column not in {"from_ms", "to_ms"}]
    parts = scoped.select(*others, to_ms.alias("end_ms"), "cuts", F.posexplode("cuts"))
    return parts.select(
        *others,
        F.col("col").alias("from_ms"),
        F.coalesce(F.get("cuts", F.col("pos") + 1), F.col("end_ms")).alias("to_ms"),
    )


def _readable(configs: DataFrame) -> DataFrame:
    """Without values that are no numbers, where a number is expected."""
    numbers = [name for name, (_, type_, _) in SETTINGS.items() if type_ != "string"]
    is_number = F.coalesce(F.col("value").try_cast("int") >= 0, F.lit(False))  # noqa: FBT003
    return configs.where(~F.col("name").isin(*numbers) | is_number)


def _with_scopes(rows: DataFrame, configs: DataFrame) -> DataFrame:
    """With the settings of each row's leader, and those that it has for the row's topic."""
    by_scope = configs.groupBy("scope").agg(
        F.collect_list(F.struct("at_ms", "value", "name")).alias("settings")
    )
    broker = F.concat(F.lit("broker:"), F.col("leader"))
    topic = F.concat(broker, F.lit("/topic:"), F.col("topic"))
    scoped = rows.withColumn("of_broker", broker).withColumn("of_topic", topic)
    for scope in ("of_broker", "of_topic"):
        named = by_scope.select(
            F.col("scope").alias(scope), F.col("settings").alias(f"settings_{scope}")
        )
        scoped = scoped.join(named, scope, "left")
    return scoped


def _latest(settings: str, name: str) -> Column:
    """When it was set, and to what."""
    valid_at_ms = F.col("valid_at_ms")
    in_time = F.filter(
        settings, lambda each: (each["name"] == name) & (each["at_ms"] <= valid_at_ms)
    )
    return F.array_max(in_time)
