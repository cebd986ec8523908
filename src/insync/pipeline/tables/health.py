"""A line per topic and per broker, for a daily check.

`status` is the worst that holds:

- `critical`: a replica is still out of sync; or it, or the topic, was below min ISR; or a broker's
  throttle cannot finish.
- `warning`: a replica was out, a lag passed half the limit, or a leader changed; or a broker
  stalled, or its throttle held replicas back.
- `ok`: none of this.

A broker's episodes are those of its own replicas, its leader changes the leaderships that it lost.
`out_ms` and `under_min_isr_ms` are wall time: while several partitions are out, or below min ISR,
it passes once. `..._partition_ms` are the sums over partitions. A broker's time below min ISR is
that in which its own replica was out of such a partition. `reason` says why, the worst first; of a
broker it names incidents, if they are given, and not every episode.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from insync.pipeline.local.dispatch import F
from insync.pipeline.tables.assignments import PARTITION, TOPIC_PARTITION, with_creation
from insync.pipeline.tables.episodes import OPEN, leader_changes
from insync.pipeline.tables.min_isr import spans_below_min_isr, union_ms
from insync.pipeline.tables.texts import duration_text
from insync.pipeline.tables.throttle import PROGRESS, VERDICTS
from insync.rules.move_estimates import Progress, ThrottleVerdict
from insync.rules.settings import InSyncSettings

TOPIC: Final = "topic"
BROKER: Final = "broker"
OK, WARNING, CRITICAL = "ok", "warning", "critical"
STALL_MS_SHOWN: Final = 1_000  # less than this in all is no news
INCIDENTS_SHOWN: Final = 3  # of a broker, in its reason: those of the most partitions

_SUMS: Final = (
    "episodes",
    "open_episodes",
    "flapping",
    "out_ms",
    "out_partition_ms",
    "under_min_isr_ms",
    "under_min_isr_partition_ms",
    "leader_changes",
    "stall_ms",
    "held_back_s",
    "bad_throttles",
)
_PEAKS: Final = ("lag_ms_max", "lag_messages_max")
_REPLICA: Final = (*TOPIC_PARTITION, "follower")

SCHEMA: Final = StructType(
    [
        StructField("level", StringType()),
        StructField("name", StringType()),
        StructField("status", StringType()),
        StructField("reason", StringType()),
        *(StructField(name, LongType()) for name in (*_PEAKS, *_SUMS)),
    ]
)


def health(  # noqa: PLR0917 - one for each table
    episodes: DataFrame,
    isr: DataFrame,
    fetches: DataFrame,
    appends: DataFrame,
    elections: DataFrame,
    stalls: DataFrame,
    configs: DataFrame,
    lag: DataFrame | None = None,
    throttle: DataFrame | None = None,
    incidents: DataFrame | None = None,
    assignments: DataFrame | None = None,
    isr_events: DataFrame | None = None,
) -> DataFrame:
    """`episodes`, `lag`, `throttle` and `incidents` are the pipeline's tables, others telemetry."""
    below = spans_below_min_isr(isr, fetches, appends, configs, assignments, isr_events)
    facts = [
        *_topics_and_brokers(fetches, appends),
        *_of_episodes(episodes),
        *_of_min_isr(below, episodes),
        *_of_elections(with_creation(elections, assignments)),
        _of_stalls(stalls),
    ]
    if lag is not None:
        facts += _of_lag(lag)
    if throttle is not None:
        facts.append(_of_throttle(throttle))
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _SUMS]
    peaks = [F.max(name).alias(name) for name in _PEAKS]
    empty = isr.sparkSession.createDataFrame([], SCHEMA).drop("status", "reason")
    together = reduce(_joined, facts, empty).groupBy("level", "name").agg(*sums, *peaks)
    together = together.join(_incident_texts(incidents, empty), ["level", "name"], "left")
    judged = together.crossJoin(F.broadcast(_limit(configs)))
    return (
        judged.withColumn("reasons", _reasons())
        .withColumn(
            "status", F.when(_is_bad(), CRITICAL).when(F.size("reasons") > 0, WARNING).otherwise(OK)
        )
        .withColumn("reason", F.concat_ws("; ", "reasons"))
        .select(*SCHEMA.names)
        .to(SCHEMA)
    )


def _joined(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _named(level: str, name: str) -> list[Column]:
    return [F.lit(level).alias("level"), F.col(name).cast(StringType()).alias("name")]


def _topics_and_brokers(fetches: DataFrame, appends: DataFrame) -> list[DataFrame]:
    """Topics and brokers without a problem have a line as well."""
    return [
        appends.select(*_named(TOPIC, "topic")).distinct(),
        appends.select(*_named(BROKER, "leader")).distinct(),
        fetches.select(*_named(BROKER, "follower")).distinct(),
    ]


def _of_episodes(episodes: DataFrame) -> list[DataFrame]:
    facts: list[Column | str] = [
        F.lit(1).alias("episodes"),
        F.when(F.col("ending") == OPEN, 1).otherwise(0).alias("open_episodes"),
        F.when(F.col("flaps") > 1, 1).otherwise(0).alias("flapping"),
    ]
    out = _spans_out(episodes)
    return [
        episodes.select(*_named(TOPIC, "topic"), *facts),
        episodes.select(*_named(BROKER, "follower"), *facts),
        _both_sums(out, TOPIC, "topic", "out", _REPLICA),
        _both_sums(out, BROKER, "follower", "out", _REPLICA),
    ]


def _incident_texts(incidents: DataFrame | None, empty: DataFrame) -> DataFrame:
    """Of each broker, its incidents in words, those of the most partitions first."""
    if incidents is None:
        return empty.select("level", "name", F.lit("").alias("incidents"))
    order = F.struct(-F.col("partitions"), -F.col("duration_ms"), "began_at_ms", "cause", "summary")
    summaries = F.transform(F.array_sort(F.collect_list(order)), lambda each: each["summary"])
    by_broker = incidents.groupBy("broker").agg(summaries.alias("summaries"))
    prefix = F.concat(F.lit("broker "), F.col("broker"), F.lit(" "))
    shown = F.transform(
        F.slice("summaries", 1, INCIDENTS_SHOWN), lambda each: F.replace(each, prefix, F.lit(""))
    )
    more = F.size("summaries") - INCIDENTS_SHOWN
    others = F.when(more == 1, "1 more incident").when(
        more > 1, F.format_string("%d more incidents", more)
    )
    words = F.concat_ws("; ", shown, others)
    return by_broker.select(*_named(BROKER, "broker"), words.alias("incidents"))


def _of_min_isr(below: DataFrame, episodes: DataFrame) -> list[DataFrame]:
    """Time that a topic had a partition below min ISR; and that a broker's own replica was out of
    such a partition. Of partitions at the same time it counts once, `..._partition_ms` each."""
    out = _spans_out(episodes).select(
        *TOPIC_PARTITION,
        "follower",
        F.col("from_ms").alias("left_ms"),
        F.col("to_ms").alias("back_ms"),
    )
    of_brokers = (
        below.join(out, list(TOPIC_PARTITION))
        .withColumn("from_ms", F.greatest("from_ms", "left_ms"))
        .withColumn("to_ms", F.least("to_ms", "back_ms"))
        .where("to_ms > from_ms")
    )
    return [
        _both_sums(below, TOPIC, "topic", "under_min_isr", TOPIC_PARTITION),
        _both_sums(of_brokers, BROKER, "follower", "under_min_isr", TOPIC_PARTITION),
    ]


def _spans_out(episodes: DataFrame) -> DataFrame:
    """Of episodes whose length is known."""
    from_ms = F.coalesce("left_at_ms", "began_at_ms")
    spans = episodes.withColumn("from_ms", from_ms).withColumn("to_ms", from_ms + F.col("out_ms"))
    return spans.where("to_ms IS NOT NULL")


def _both_sums(
    spans: DataFrame, level: str, name: str, what: str, part: tuple[str, ...]
) -> DataFrame:
    """Wall time, and the sum over partitions or their replicas."""
    of_parts = union_ms(spans, *dict.fromkeys((name, *part)))
    sums = of_parts.groupBy(name).agg(F.sum("union_ms").alias("sum_ms"))
    joined = union_ms(spans, name).join(sums, name)
    return joined.select(
        *_named(level, name),
        F.col("union_ms").alias(f"{what}_ms"),
        F.col("sum_ms").alias(f"{what}_partition_ms"),
    )


def _of_elections(elections: DataFrame) -> list[DataFrame]:
    named = (*PARTITION, "leader_epoch", "leader_before")
    each = leader_changes(elections).select(*named).distinct()
    lost = each.where(F.col("leader_before").isNotNull())
    return [
        each.select(*_named(TOPIC, "topic"), F.lit(1).alias("leader_changes")),
        lost.select(*_named(BROKER, "leader_before"), F.lit(1).alias("leader_changes")),
    ]


def _of_stalls(stalls: DataFrame) -> DataFrame:
    return (
        stalls.select("broker", "at_ms", "stall_ms")
        .distinct()
        .select(*_named(BROKER, "broker"), "stall_ms")
    )


def _of_lag(lag: DataFrame) -> list[DataFrame]:
    return [
        lag.select(*_named(level, name), *_PEAKS)
        for level, name in ((TOPIC, "topic"), (BROKER, "follower"))
    ]


def _of_throttle(spans: DataFrame) -> DataFrame:
    return spans.select(
        *_named(BROKER, "broker"),
        "held_back_s",
        F.when(is_bad_throttle(), 1).otherwise(0).alias("bad_throttles"),
    )


def is_bad_throttle() -> Column:
    """Of a span of the table `throttle`; null if it is not known."""
    cannot_finish = F.col("verdict") == VERDICTS[ThrottleVerdict.CANNOT_FINISH]
    is_stuck = F.col("progress") == PROGRESS[Progress.STUCK]
    is_done = F.col("progress").eqNullSafe(PROGRESS[Progress.DONE])
    return is_stuck | (cannot_finish & ~is_done)


def _limit(configs: DataFrame) -> DataFrame:
    is_limit = F.col("name") == "replica.lag.time.max.ms"
    default = F.lit(InSyncSettings().replica_lag_time_max_ms)
    lowest = F.min(F.when(is_limit, F.col("value").try_cast(LongType())))
    return configs.agg(F.coalesce(lowest, default).alias("limit_ms"))


def _is_bad() -> Column:
    return (
        (F.col("open_episodes") > 0)
        | (F.col("under_min_isr_ms") > 0)
        | (F.col("bad_throttles") > 0)
    )


def _reasons() -> Column:
    """Worst first."""

    def count(name: str, one: str, more: str) -> Column:
        """`more` holds the number where it has a %d."""
        many = F.format_string(more, F.col(name))
        return F.when(F.col(name) == 1, F.lit(one)).otherwise(many)

    reasons = [
        ("open_episodes", count("open_episodes", "1 still out of sync", "%d still out of sync")),
        ("under_min_isr_ms", F.concat(duration_text("under_min_isr_ms"), F.lit(" below min ISR"))),
        (
            "bad_throttles",
            count(
                "bad_throttles", "a throttle that cannot finish", "%d throttles that cannot finish"
            ),
        ),
        ("incidents", F.col("incidents")),
        (
            "unnamed_episodes",
            F.concat(
                count("episodes", "out of sync once, for ", "out of sync %d times, for "),
                duration_text("out_ms"),
            ),
        ),
        ("flapping", count("flapping", "1 of them in a row", "%d of them in a row")),
        ("late", F.concat(F.lit("lag up to "), duration_text("lag_ms_max"))),
        ("leader_changes", count("leader_changes", "1 leader change", "%d leader changes")),
        ("long_stall", F.concat(F.lit("stalled for "), duration_text("stall_ms"))),
        ("held_back_s", count("held_back_s", "held back for 1 s", "replicas held back for %d s")),
    ]
    has_incidents = F.coalesce(F.col("incidents") != "", F.lit(False))  # noqa: FBT003
    holds = {
        "incidents": has_incidents,
        "unnamed_episodes": _is_some("episodes") & ~has_incidents,
        "late": F.col("lag_ms_max") * 2 > F.col("limit_ms"),
        "long_stall": F.col("stall_ms") >= STALL_MS_SHOWN,
    }
    texts = (
        F.when(holds[name] if name in holds else _is_some(name), words) for name, words in reasons
    )
    return F.array_compact(F.array(*texts))


def _is_some(name: str) -> Column:
    return F.col(name) > 0
