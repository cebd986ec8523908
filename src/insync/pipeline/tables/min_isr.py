"""When partitions were below min ISR, as recorded; and time of which spans are the union."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame

from insync.pipeline.local.dispatch import F, W, union_all
from insync.pipeline.tables.assignments import PARTITION, deleted_at_ms, with_creation
from insync.pipeline.tables.episodes import record_end
from insync.pipeline.tables.recorded_settings import split_at_changes, with_settings
from insync.telemetry.schemas import BEGAN, MIN_ISR


def spans_below_min_isr(  # noqa: PLR0917 - one for each table
    isr: DataFrame,
    fetches: DataFrame,
    appends: DataFrame,
    configs: DataFrame,
    assignments: DataFrame | None = None,
    isr_events: DataFrame | None = None,
) -> DataFrame:
    """Partition, `from_ms` and `to_ms` of each time with fewer in sync than
    min(min.insync.replicas, replicas known). The minimum is the topic's, as it was at the time. A
    topic that was created again is another one, with `creation` (`tables.assignments`).

    `isr_events` have the ISR with which each epoch began: without them nothing is known of a
    partition whose ISR did not change. Replicas known are those that were in the ISR at some time,
    and where an epoch began those that `assignments` have by then."""
    end = record_end(isr, fetches, appends)
    isr, fetches, appends = (with_creation(rows, assignments) for rows in (isr, fetches, appends))
    known = isr.select(*_KNOWN)
    if isr_events is not None:
        begun = with_creation(isr_events.where(F.col("event") == BEGAN), assignments)
        begun = begun.withColumn("isr_after", F.col("isr_before"))
        known = known.unionByName(begun.select(*_KNOWN))
    first = _first_events(known, fetches, appends)
    states = _states(known, first, _last_moments(first, end, assignments))
    if isr_events is not None and assignments is not None:
        states = _with_assigned(states, with_creation(assignments, assignments))
    parts = split_at_changes(states, configs, MIN_ISR)
    judged = with_settings(parts, configs, valid_at_ms=F.col("from_ms"))
    is_below = F.col("in_sync") < F.least("min_isr", "replicas")
    return judged.where(is_below).select(*PARTITION, "from_ms", "to_ms")


_KNOWN: Final = (
    *PARTITION, "at_ms", "leader", "leader_epoch", "version", "isr_before", "isr_after",
)  # fmt: skip


def _with_assigned(states: DataFrame, assignments: DataFrame) -> DataFrame:
    """As many replicas as the fewest that were ever assigned are known, if more were not seen."""
    is_there = F.size("replicas") > 0
    fewest = (
        assignments.where(is_there)
        .groupBy(*PARTITION)
        .agg(F.min(F.size("replicas")).alias("assigned"))
    )
    replicas = F.greatest("replicas", F.coalesce("assigned", F.lit(0)))
    joined = states.join(fewest, list(PARTITION), "left")
    return joined.withColumn("replicas", replicas).drop("assigned")


def union_ms(spans: DataFrame, *key: str) -> DataFrame:
    """Wall time: spans of one key that overlap count once. `from_ms`, `to_ms` become `union_ms`."""
    before = W.partitionBy(*key).orderBy("from_ms").rowsBetween(W.unboundedPreceding, -1)
    so_far_ms = F.coalesce(F.max("to_ms").over(before), F.col("from_ms"))
    new_ms = F.greatest(F.lit(0), F.col("to_ms") - F.greatest("from_ms", so_far_ms))
    return spans.withColumn("new_ms", new_ms).groupBy(*key).agg(F.sum("new_ms").alias("union_ms"))


def _first_events(isr: DataFrame, fetches: DataFrame, appends: DataFrame) -> DataFrame:
    events = [table.select(*PARTITION, "at_ms") for table in (isr, fetches, appends)]
    together = union_all(events)
    return together.groupBy(*PARTITION).agg(F.min("at_ms").alias("first_ms"))


def _last_moments(
    partitions: DataFrame, end: DataFrame, assignments: DataFrame | None
) -> DataFrame:
    """Of each partition: the end of the record, or when its topic was deleted."""
    ends = partitions.select(*PARTITION).crossJoin(F.broadcast(end))
    if assignments is None:
        return ends
    last_ms = F.least("record_end_ms", "deleted_ms")
    deleted_ms = deleted_at_ms(with_creation(assignments, assignments))
    deleted = ends.join(deleted_ms, list(PARTITION), "left")
    return deleted.withColumn("record_end_ms", last_ms).drop("deleted_ms")


def _states(isr: DataFrame, first: DataFrame, last: DataFrame) -> DataFrame:
    """How many were in sync from each change to the next; the first change also says how many
    were before it."""
    state = (*PARTITION, "leader_epoch", "number")
    of_partition = W.partitionBy(*PARTITION)
    in_order = of_partition.orderBy("leader_epoch", "number")
    members = F.flatten(F.collect_set("members").over(of_partition))
    changes = (
        isr.withColumn("number", F.coalesce("version", "at_ms"))
        .groupBy(*state)
        .agg(
            F.min("at_ms").alias("from_ms"),
            F.max("leader").alias("leader"),
            F.max(F.size("isr_before")).alias("in_sync_before"),
            F.max(F.size("isr_after")).alias("in_sync"),
            F.max(F.array_union("isr_before", "isr_after")).alias("members"),
        )
        .withColumn("is_first", F.row_number().over(in_order) == 1)
        .withColumn("next_ms", F.lead("from_ms").over(in_order))
        .withColumn("replicas", F.size(F.array_distinct(members)))
        .join(first, list(PARTITION))
        .join(last, list(PARTITION))
    )

    def spans(from_ms: Column, to_ms: Column, in_sync: str) -> DataFrame:
        return changes.select(
            *PARTITION,
            "leader",
            "replicas",
            "is_first",
            F.col(in_sync).alias("in_sync"),
            from_ms.alias("from_ms"),
            to_ms.alias("to_ms"),
        )

    after = spans(F.col("from_ms"), F.coalesce("next_ms", "record_end_ms"), "in_sync")
    before = spans(F.col("first_ms"), F.col("from_ms"), "in_sync_before").where("is_first")
    return after.unionByName(before).where("to_ms > from_ms").drop("is_first")
