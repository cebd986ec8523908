"""The table `assignments` on Spark: when replicas were removed, and topics created again.

`creation` numbers the topics of one name by their ids, in the order of time: 0, 1 and so on. The
epochs, versions and offsets of each begin again, so its rows are a history of their own. Without
`assignments` every topic was created once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import IntegerType

from insync.pipeline.local.dispatch import F, W
from insync.pipeline.tables.partition_episodes import CANCELLED, DELETED, MOVED

TOPIC_PARTITION: Final = ("topic", "partition")
PARTITION: Final = (*TOPIC_PARTITION, "creation")
AFTER_ALL_EPOCHS: Final = 2**31 - 1  # of a deleted topic: no epoch begins without its replicas
_ORDER: Final = ("leader_epoch", "version", "at_ms")


def with_creation(rows: DataFrame, assignments: DataFrame | None) -> DataFrame:
    if assignments is None:
        return rows.withColumn("creation", F.lit(0))
    again = (
        assignments.groupBy(*TOPIC_PARTITION, "topic_id")
        .agg(F.min("at_ms").alias("created_ms"))
        .groupBy(*TOPIC_PARTITION)
        .agg(F.collect_list("created_ms").alias("created_ms"))
        .where(F.size("created_ms") > 1)
    )
    at_ms = F.col("at_ms")
    so_far = F.size(F.filter("created_ms", lambda created_ms: created_ms <= at_ms))
    number = F.when(F.col("created_ms").isNotNull(), F.greatest(so_far - 1, F.lit(0)))
    return (
        rows.join(F.broadcast(again), list(TOPIC_PARTITION), "left")
        .withColumn("creation", F.coalesce(number, F.lit(0)).cast(IntegerType()))
        .drop("created_ms")
    )


def removals(assignments: DataFrame) -> DataFrame:
    """Each replica that was removed: how, when, and the first epoch without it.

    The replicas of a topic that was created again are removed then, if not before.
    """
    rows = assignments.distinct()
    in_order = W.partitionBy(*PARTITION).orderBy(*_ORDER)
    before = F.lag(F.struct("replicas", "adding")).over(in_order)
    is_deleted = F.size("replicas") == 0
    changed = rows.withColumn("before", before).select(
        *PARTITION,
        F.when(is_deleted, AFTER_ALL_EPOCHS).otherwise(F.col("leader_epoch")).alias("leader_epoch"),
        "at_ms",
        F.explode(F.array_except("before.replicas", "replicas")).alias("follower"),
        F.when(is_deleted, DELETED).alias("deleted"),
        F.col("before.adding").alias("adding"),
    )
    was_adding = F.array_contains("adding", F.col("follower"))
    ending = F.coalesce("deleted", F.when(was_adding, CANCELLED).otherwise(MOVED))
    columns = [*PARTITION, "follower", "leader_epoch", "at_ms", "ending"]
    return changed.withColumn("ending", ending).select(columns).unionByName(_replaced(rows))


def _replaced(rows: DataFrame) -> DataFrame:
    """The replicas of topics whose deletion is not recorded, and whose names have later topics."""
    of_name = W.partitionBy(*TOPIC_PARTITION).orderBy("creation", *_ORDER)
    following = F.lead(F.struct("creation", "at_ms")).over(of_name)
    is_last = F.col("following.creation") != F.col("creation")
    return (
        rows.withColumn("following", following)
        .where(is_last)
        .select(
            *PARTITION,
            F.explode("replicas").alias("follower"),
            F.lit(AFTER_ALL_EPOCHS).alias("leader_epoch"),
            F.col("following.at_ms").alias("at_ms"),
            F.lit(DELETED).alias("ending"),
        )
    )


def unlisted(assignments: DataFrame, known: DataFrame) -> DataFrame:
    """Replicas that were seen before the first assignment of the record, and are not in it: the
    row that listed them is older than the record, or lost. They were removed by then."""
    first = F.min_by(F.struct("replicas", "leader_epoch", "at_ms"), F.struct(*_ORDER))
    firsts = assignments.groupBy(*PARTITION).agg(first.alias("first"))
    seen = known.groupBy(*PARTITION, "follower").agg(F.min("leader_epoch").alias("seen_epoch"))
    is_deleted = F.size("first.replicas") == 0
    is_unlisted = ~F.array_contains("first.replicas", F.col("follower"))
    is_earlier = is_deleted | (F.col("seen_epoch") < F.col("first.leader_epoch"))
    epoch = F.when(is_deleted, AFTER_ALL_EPOCHS).otherwise(F.col("first.leader_epoch"))
    return (
        seen.join(firsts, list(PARTITION))
        .where(is_unlisted & is_earlier)
        .select(
            *PARTITION,
            "follower",
            epoch.alias("leader_epoch"),
            F.col("first.at_ms").alias("at_ms"),
            F.when(is_deleted, DELETED).otherwise(MOVED).alias("ending"),
        )
    )


def added_replicas(assignments: DataFrame) -> DataFrame:
    """The replicas that a reassignment is adding where they are first assigned."""
    each = assignments.select(
        *PARTITION, *_ORDER, "adding", F.explode("replicas").alias("follower")
    )
    is_adding = F.array_contains("adding", F.col("follower"))
    first = F.min_by(is_adding, F.struct(*_ORDER)).alias("is_added")
    return each.groupBy(*PARTITION, "follower").agg(first).where("is_added").drop("is_added")


def deleted_at_ms(assignments: DataFrame) -> DataFrame:
    """When each partition's topic was deleted."""
    gone = removals(assignments).where(_is_deletion())
    return gone.groupBy(*PARTITION).agg(F.max("at_ms").alias("deleted_ms"))


def _is_deletion() -> Column:
    return F.col("ending") == DELETED
