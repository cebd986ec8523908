"""What the tables tell about an episode beside the change itself: one function per table.

Each takes the episodes found so far, keyed by `EPISODE`, meets them with a table and adds columns.
Episodes travel along as one struct, `e`, and are never joined with themselves: a plan that did so
would double with every table. Rows that grow with traffic meet episodes in buckets of time, each
pair once, so that a replica that flaps a thousand times is not compared with its whole history
a thousand times.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W  # noqa: N817 - it is in every line
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType

from insync.rules.settings import InSyncSettings
from insync.telemetry.schemas import OK, SHRINK

PARTITION: Final = ("topic", "partition")
REPLICA: Final = (*PARTITION, "follower")
EPISODE: Final = (*REPLICA, "episode")

BUCKET_MS: Final = 60_000
LOOKED_BACK: Final = 3
"""So many lag times before leaving: the fetch before a pending read is not older."""
SECOND_MS: Final = 1_000
FOLLOWER_SIDE: Final = "follower"
LEADER_SIDE: Final = "leader"

_USUAL: Final = InSyncSettings()
SETTINGS: Final = {  # column, type and default of each setting that an episode is judged by
    "replica.in.sync.policy": ("policy", "string", _USUAL.replica_in_sync_policy),
    "replica.lag.time.max.ms": ("lag_time_max_ms", "long", _USUAL.replica_lag_time_max_ms),
    "min.insync.replicas": ("min_isr", "int", 1),
}


def record_end(isr: DataFrame, fetches: DataFrame, appends: DataFrame) -> DataFrame:
    ends = [
        isr.agg(F.max("at_ms").alias("at_ms")),
        fetches.agg(F.max("last_at_ms").alias("at_ms")),
        appends.agg(F.max("at_ms").alias("at_ms")),
    ]
    union = ends[0].unionByName(ends[1]).unionByName(ends[2])
    return union.agg(F.max("at_ms").alias("record_end_ms"))


def with_settings(episodes: DataFrame, configs: DataFrame) -> DataFrame:
    """What held for the leader and topic at leaving, or at the return if only that is known."""
    asked_at_ms = F.coalesce("left_at_ms", "rejoined_at_ms", F.lit(2**62))
    return _with_settings(episodes, configs, key=EPISODE, asked_at_ms=asked_at_ms)


def _with_settings(
    asking: DataFrame, configs: DataFrame, *, key: tuple[str, ...], asked_at_ms: Column
) -> DataFrame:
    """The latest value set by then; a topic's own goes before its broker's."""
    broker = F.concat(F.lit("broker:"), F.col("leader"))
    topic = F.concat(broker, F.lit("/topic:"), F.col("topic"))
    rows = configs.where(F.col("name").isin(*SETTINGS)).select(
        "scope", "name", "value", F.col("at_ms").alias("set_at_ms")
    )
    scoped = packed(
        asking.withColumn("asked_at_ms", asked_at_ms).withColumn("scopes", F.array(broker, topic)),
        key,
    ).withColumn("scope", F.explode("e.scopes"))
    in_time = F.col("set_at_ms") <= F.col("e.asked_at_ms")
    rank = F.struct(F.length("scope"), F.col("set_at_ms"), F.col("value"))
    values = {}
    for name, (column, type_, default) in SETTINGS.items():
        is_it = (F.col("name") == name) & in_time
        value = F.max_by(F.when(is_it, F.col("value")), F.when(is_it, rank))
        values[column] = F.coalesce(value.cast(type_), F.lit(default))
    met = scoped.join(rows, "scope", "left")
    return unpacked(met, key, values).drop("asked_at_ms", "scopes")


def with_first_fetch(episodes: DataFrame, fetches: DataFrame) -> DataFrame:
    """When anybody first heard of the replica, and what it lacked then."""
    first = fetches.groupBy(*REPLICA).agg(
        F.min(F.struct("at_ms", "seq", "offset", "leader_end_low")).alias("first")
    )
    lag_messages = F.col("first.leader_end_low") - F.col("first.offset")
    return episodes.join(
        first.select(
            *REPLICA,
            F.col("first.at_ms").alias("first_heard_at_ms"),
            lag_messages.alias("first_heard_lag_messages"),
        ),
        list(REPLICA),
        "left",
    )


def with_fetches(episodes: DataFrame, fetches: DataFrame, isr: DataFrame) -> DataFrame:
    """What its leader heard of it before it left."""
    who_left = isr.where(F.col("change") == SHRINK).select(
        *PARTITION, F.col("replica").alias("follower")
    )
    ended_ms = F.col("at_ms") + F.coalesce("read_ms", F.lit(0))
    rows = (
        fetches.join(who_left.distinct(), list(REPLICA), "left_semi")
        .withColumn("ended_ms", ended_ms)
        .withColumn("row_to_ms", F.greatest("last_at_ms", "ended_ms"))
        .select(
            *REPLICA, "leader_epoch", "at_ms", "last_at_ms", "ended_ms", "seq", "offset",
            "leader_end_low", "outcome", "throttled", F.col("at_ms").alias("row_from_ms"),
            "row_to_ms",
        )
    )  # fmt: skip
    met = meet(
        packed(episodes, EPISODE),
        rows,
        REPLICA,
        from_ms=F.col("e.left_at_ms") - LOOKED_BACK * F.col("e.lag_time_max_ms"),
        to_ms=F.col("e.left_at_ms"),
    )
    earlier = (
        W.partitionBy(*EPISODE, "leader_epoch")
        .orderBy("at_ms", "seq")
        .rowsBetween(W.unboundedPreceding, -1)
    )
    served_end = F.when(F.col("outcome") == OK, F.col("leader_end_low"))
    return unpacked(
        met.withColumn("known_end", F.max(served_end).over(earlier)), EPISODE, _heard_of_it()
    )


def _heard_of_it() -> dict[str, Column]:
    left_at_ms, ended_ms = F.col("e.left_at_ms"), F.col("ended_ms")
    from_ms = left_at_ms - F.col("e.lag_time_max_ms")
    in_epoch = F.col("leader_epoch") == F.col("e.leader_epoch")
    took_effect = (F.col("outcome") == OK) & (ended_ms <= left_at_ms)
    # A merged row stands for fetches up to `last_at_ms`; those after leaving do not count.
    heard_at_ms = F.least(F.col("last_at_ms"), left_at_ms)
    is_before = heard_at_ms >= from_ms
    read_ms = F.greatest(
        F.lit(0), F.least(ended_ms, left_at_ms) - F.greatest(F.col("at_ms"), from_ms)
    )
    holds = in_epoch & (ended_ms > left_at_ms) & (F.col("offset") >= F.col("known_end"))
    return {
        "heard_at_ms": F.max(F.when(took_effect, heard_at_ms)),
        "heard_in_epoch_at_ms": F.max(F.when(took_effect & in_epoch, heard_at_ms)),
        "fetches_before": F.count(F.when(in_epoch & took_effect & is_before, 1)),
        "read_ms_before": F.coalesce(F.sum(F.when(in_epoch, read_ms)), F.lit(0)),
        "throttled_before": _any(in_epoch & F.col("throttled") & is_before),
        "holding_read_at_leaving": _any(holds),
    }


def with_lag(episodes: DataFrame, appends: DataFrame, isr: DataFrame) -> DataFrame:
    """The true lag at leaving: since the first append of this epoch that the replica lacked."""
    term = (*PARTITION, "leader_epoch")
    of_interest = isr.where(F.col("change") == SHRINK).select(*term).distinct()
    rows = (
        appends.join(of_interest, list(term), "left_semi")
        .where(F.col("end_offset") > F.col("base_offset"))
        .select(*term, "end_offset", "at_ms", "bytes", F.lit(1).alias("is_append"))
    )
    ends = F.array(F.col("e.replica_end"), F.col("e.leader_end"))
    probes = packed(episodes, EPISODE).select(
        *EPISODE,
        "e",
        F.col("e.leader_epoch").alias("leader_epoch"),
        F.lit(0).alias("is_append"),
        F.posexplode(ends).alias("probe", "end_offset"),
    )
    # From the end backwards: what comes before a probe is what lies past its offset.
    past = (
        W.partitionBy(*term)
        .orderBy(F.col("end_offset").desc(), "is_append")
        .rowsBetween(W.unboundedPreceding, W.currentRow)
    )
    met = (
        rows.unionByName(probes, allowMissingColumns=True)
        .withColumn("first_past_at_ms", F.last("at_ms", ignorenulls=True).over(past))
        .withColumn("bytes_past", F.coalesce(F.sum("bytes").over(past), F.lit(0)))
        .where(F.col("is_append") == 0)
    )
    of_replica, of_leader = F.col("probe") == 0, F.col("probe") == 1
    found = unpacked(
        met,
        EPISODE,
        {
            "lacks_since_ms": F.max(F.when(of_replica, F.col("first_past_at_ms"))),
            "bytes_past_replica": F.max(F.when(of_replica, F.col("bytes_past"))),
            "bytes_past_leader": F.max(F.when(of_leader, F.col("bytes_past"))),
        },
    )
    is_known = F.col("replica_end").isNotNull() & F.col("leader_end").isNotNull()
    is_level = F.col("replica_end") >= F.col("leader_end")
    lag_ms = F.when(is_level, F.lit(0)).otherwise(F.col("left_at_ms") - F.col("lacks_since_ms"))
    lag_bytes = F.col("bytes_past_replica") - F.col("bytes_past_leader")
    return found.withColumn("lag_ms", F.when(is_known, lag_ms).cast(LongType())).withColumn(
        "lag_bytes", F.when(is_known, lag_bytes)
    )


def with_leader_changes(episodes: DataFrame, elections: DataFrame) -> DataFrame:
    rows = elections.select(*PARTITION, "at_ms", "leader_epoch").distinct()
    around = F.col("at_ms").between(F.col("e.began_at_ms"), F.col("e.end_ms"))
    met = packed(episodes, EPISODE).join(rows, list(PARTITION), "left")
    count = F.count(F.when(around, 1)).cast(IntegerType())
    return unpacked(met, EPISODE, {"leader_changes": count})


def with_leader_stalls(episodes: DataFrame, stalls: DataFrame) -> DataFrame:
    """Of the time between first cause and leaving, how much its leader stood still."""
    rows = stalls.select(F.col("broker").alias("leader"), "at_ms", "stall_ms").distinct()
    stalled_ms = _overlap_ms(
        F.col("at_ms"),
        F.col("at_ms") + F.col("stall_ms"),
        F.col("e.began_at_ms"),
        F.col("e.left_at_ms"),
    )
    asking = packed(episodes, EPISODE).withColumn("leader", F.col("e.leader"))
    met = asking.join(rows, "leader", "left")
    return unpacked(met, EPISODE, {"leader_stall_ms": F.coalesce(F.sum(stalled_ms), F.lit(0))})


def with_held_back_before(episodes: DataFrame, throttle: DataFrame | None) -> DataFrame:
    """For how long, in the lag time before it left, its own broker held partitions back."""
    return _with_held_back(
        episodes,
        throttle,
        "held_back_ms_before",
        sides=F.array(_side(F.col("follower"), FOLLOWER_SIDE)),
        from_ms=F.col("e.left_at_ms") - F.col("e.lag_time_max_ms"),
        to_ms=F.col("e.left_at_ms"),
    )


def with_held_back_while_out(episodes: DataFrame, throttle: DataFrame | None) -> DataFrame:
    return _with_held_back(
        episodes,
        throttle,
        "held_back_ms",
        sides=F.array(
            _side(F.col("follower"), FOLLOWER_SIDE), _side(F.col("e.leader"), LEADER_SIDE)
        ),
        from_ms=F.col("e.began_at_ms"),
        to_ms=F.col("e.end_ms"),
    )


def _side(broker: Column, side: str) -> Column:
    return F.struct(broker.alias("broker"), F.lit(side).alias("side"))


def _with_held_back(
    episodes: DataFrame,
    throttle: DataFrame | None,
    column: str,
    *,
    sides: Column,
    from_ms: Column,
    to_ms: Column,
) -> DataFrame:
    if throttle is None:
        return episodes.withColumn(column, F.lit(0).cast(LongType()))
    rows = throttle.where(F.col("held_back_partitions") > 0).select(
        "broker", "side", F.col("at_ms").alias("row_from_ms"), F.col("at_ms").alias("row_to_ms")
    )
    asking = (
        packed(episodes, EPISODE)
        .withColumn("whose", F.explode(sides))
        .select(*EPISODE, "e", "whose.broker", "whose.side")
    )
    met = meet(asking, rows, ("broker", "side"), from_ms=from_ms, to_ms=to_ms)
    seconds = F.count_distinct(F.floor(F.col("row_from_ms") / SECOND_MS))
    return unpacked(met, EPISODE, {column: (seconds * SECOND_MS).cast(LongType())})


def time_under_min_isr(isr: DataFrame, configs: DataFrame) -> DataFrame:
    """When a partition had too few in-sync replicas: `from_ms`, and `to_ms` (null: ever since).

    The minimum is the lower of the setting and the replicas that the record knows of.
    """
    state = (*PARTITION, "leader_epoch", "number")
    in_order = W.partitionBy(*PARTITION).orderBy("leader_epoch", "number", "from_ms")
    members = F.collect_set("members").over(W.partitionBy(*PARTITION))
    states = (
        isr.withColumn("number", F.coalesce("version", "at_ms"))
        .groupBy(*state)
        .agg(
            F.min("at_ms").alias("from_ms"),
            F.max("leader").alias("leader"),
            F.max(F.size("isr_after")).alias("in_sync"),
            F.max(F.array_union("isr_before", "isr_after")).alias("members"),
        )
        .withColumn("to_ms", F.lead("from_ms").over(in_order))
        .withColumn("replicas", F.size(F.array_distinct(F.flatten(members))))
    )
    judged = _with_settings(states, configs, key=state, asked_at_ms=F.col("from_ms"))
    is_under = F.col("in_sync") < F.least("min_isr", "replicas")
    return judged.where(is_under).select(*PARTITION, "from_ms", "to_ms")


def with_time_under_min_isr(episodes: DataFrame, spans: DataFrame) -> DataFrame:
    under_ms = _overlap_ms(
        F.col("from_ms"),
        F.coalesce("to_ms", "e.record_end_ms"),
        F.coalesce("e.left_at_ms", "e.began_at_ms"),
        F.col("e.end_ms"),
    )
    met = packed(episodes, EPISODE).join(spans, list(PARTITION), "left")
    return unpacked(met, EPISODE, {"under_min_isr_ms": F.coalesce(F.sum(under_ms), F.lit(0))})


# How episodes and rows meet.


def packed(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    others = [name for name in frame.columns if name not in key]
    return frame.select(*key, F.struct(*others).alias("e"))


def unpacked(met: DataFrame, key: tuple[str, ...], facts: dict[str, Column]) -> DataFrame:
    """One row for each key again, with what was found out."""
    named = [fact.alias(name) for name, fact in facts.items()]
    grouped = met.groupBy(*key).agg(F.first("e").alias("e"), *named)
    return grouped.select(*key, "e.*", *facts)


def meet(
    asking: DataFrame, rows: DataFrame, key: tuple[str, ...], *, from_ms: Column, to_ms: Column
) -> DataFrame:
    """Every asker with every row whose closed interval overlaps its own; alone if there is none.

    Rows bring `row_from_ms` and `row_to_ms`.
    """
    first_of_rows = _bucket(F.col("row_from_ms"))
    in_buckets = asking.withColumn(
        "bucket", F.explode_outer(F.sequence(_bucket(from_ms), _bucket(to_ms)))
    )
    also = rows.withColumn(
        "bucket", F.explode(F.sequence(first_of_rows, _bucket(F.col("row_to_ms"))))
    ).withColumnRenamed("bucket", "row_bucket")
    also = also.select(*(F.col(name).alias(f"row_{name}") if name in key else name
                         for name in also.columns))  # fmt: skip
    same = F.lit(True)
    for name in key:
        same = same & (F.col(name) == F.col(f"row_{name}"))
    # Two intervals may share several buckets; the first that both have is where they meet.
    here = (F.col("bucket") == F.col("row_bucket")) & (
        F.col("bucket") == F.greatest(_bucket(from_ms), first_of_rows)
    )
    overlap = (F.col("row_from_ms") <= to_ms) & (F.col("row_to_ms") >= from_ms)
    return in_buckets.join(also, same & here & overlap, "left")


def _bucket(at_ms: Column) -> Column:
    return F.floor(at_ms / BUCKET_MS)


def _overlap_ms(from_ms: Column, to_ms: Column, other_from: Column, other_to: Column) -> Column:
    overlap_ms = F.least(to_ms, other_to) - F.greatest(from_ms, other_from)
    is_known = other_from.isNotNull() & other_to.isNotNull() & from_ms.isNotNull()
    return F.when(is_known, F.greatest(F.lit(0), overlap_ms)).otherwise(0)


def _any(condition: Column) -> Column:
    return F.max(F.coalesce(condition, F.lit(False)))
