"""Each time a replica was out of sync, from its first cause to its return, and why.

Who left and came back is told by the `isr` rows; why, by what the leader saw in the lag time before.
L is the moment of leaving (`decided_at_ms`, or the commit where nobody decided it), T the
`replica.lag.time.max.ms` that held then. The first of these that is true is the cause:

| cause | true when | began_at_ms |
|---|---|---|
| `unrecorded` | it came back, and no row tells of its leaving (lost with a broker, say) | null |
| `bootstrapping` | it is first met outside the ISR, and was never in it before | its first fetch |
| `controller` | the controller removed it: its session ended, or it restarted | last heard of, else L |
| `leader-slow-reads` | of the T ms before L the leader spent half or more in reads for it | caught up |
| `throttled` | in the T ms before L a fetch of it was answered `throttled`, or its broker held partitions back for half of that time or more | caught up |
| `stuck` | it made no effective fetch in the T ms before L | last heard of, else caught up |
| `burst` | under `messages`: at L its true lag was at most T; the end jumped, it was not late | caught up |
| `slow` | all others: it fetches and falls behind | caught up |

"The T ms before L" are the moments from L - T to L, both included: a fetch exactly T ago is in time,
as equality is in sync. "Caught up" is `isr.caught_up_at_ms`, else L. "First met outside": not in
`isr_before` of the partition's first `isr` row, or, in a partition without any, first heard of in a
later epoch than its first without having led.

- `kip501_would_hold`: at L a read for it was pending whose offset was at or past the leader's end at
  its earlier fetches of this epoch, which is what KIP-501 asks for. Null where no leader decided.
- `lag_ms` is the true lag at L by KAFKA-4485's definition (see `lag`); `lag_messages` and `lag_bytes`
  are what it lacked. Of a bootstrapping replica `lag_messages` is told at its first fetch.
- `rejoined_at_ms` is the commit of its return. `ending` says whether that happened (`rejoined`), it
  was still out when the record ended (`open`), or it must have returned, for it left again, but
  no row tells when (`unrecorded`). `out_ms` counts from L (bootstrapping: from the first fetch) to the
  return or the record's end.
- `flap_group` numbers a replica's episodes; one that begins within T after the last one's return
  belongs to the same group, and `flaps` is the number of episodes in it. (What-if's `flaps` are
  returns within T. These are the ones that come in a row.)
- `held_back_ms`: whole seconds, of its broker's and its leader's, with partitions held back by a
  throttle between first cause and return. `leader_stall_ms`: how long the leader itself stood still
  between first cause and L. `leader_changes`: elections of the partition between first cause and return.
- `under_min_isr_ms`: for how long the partition had fewer in-sync replicas than
  min(min.insync.replicas, replicas known), while this one was out.

Rows of a partition are ordered by (leader_epoch, version, at_ms). Settings are those recorded in
`configs`; without them, Kafka's defaults.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W  # noqa: N817 - it is in every line
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline import episode_evidence as evidence
from insync.pipeline.episode_evidence import EPISODE, PARTITION, REPLICA
from insync.telemetry.schemas import CONTROLLER, EXPAND, SHRINK

STUCK: Final = "stuck"
SLOW: Final = "slow"
BOOTSTRAPPING: Final = "bootstrapping"
SLOW_READS: Final = "leader-slow-reads"
THROTTLED: Final = "throttled"
BURST: Final = "burst"
BY_CONTROLLER: Final = "controller"
UNRECORDED: Final = "unrecorded"
CAUSES: Final = (
    STUCK, SLOW, BOOTSTRAPPING, SLOW_READS, THROTTLED, BURST, BY_CONTROLLER, UNRECORDED
)  # fmt: skip

REJOINED: Final = "rejoined"
OPEN: Final = "open"

SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("follower", IntegerType()),
        StructField("leader", IntegerType()),
        StructField("leader_epoch", IntegerType()),
        StructField("cause", StringType()),
        StructField("began_at_ms", LongType()),
        StructField("left_at_ms", LongType()),
        StructField("rejoined_at_ms", LongType()),
        StructField("ending", StringType()),
        StructField("out_ms", LongType()),
        StructField("kip501_would_hold", BooleanType()),
        StructField("lag_ms", LongType()),
        StructField("lag_messages", LongType()),
        StructField("lag_bytes", LongType()),
        StructField("policy", StringType()),
        StructField("lag_time_max_ms", LongType()),
        StructField("under_min_isr_ms", LongType()),
        StructField("leader_changes", IntegerType()),
        StructField("leader_stall_ms", LongType()),
        StructField("held_back_ms", LongType()),
        StructField("flap_group", IntegerType()),
        StructField("flaps", IntegerType()),
        StructField("reason", StringType()),
    ]
)


def episodes(
    isr: DataFrame,
    fetches: DataFrame,
    appends: DataFrame,
    elections: DataFrame,
    stalls: DataFrame,
    configs: DataFrame,
    throttle: DataFrame | None = None,
) -> DataFrame:
    """Without a `throttle` table nothing is known to have been held back."""
    changes = _changes(isr)
    found = _told_by_changes(changes).unionByName(
        _never_in_sync(changes, fetches, appends), allowMissingColumns=True
    )
    record_end = evidence.record_end(isr, fetches, appends)
    known = evidence.with_settings(_numbered(found), configs).crossJoin(F.broadcast(record_end))
    known = evidence.with_first_fetch(known, fetches)
    known = evidence.with_fetches(known, fetches, isr)
    known = evidence.with_lag(known, appends, isr)
    known = evidence.with_held_back_before(known, throttle)
    known = _with_cause(known)
    known = evidence.with_leader_changes(known, elections)
    known = evidence.with_leader_stalls(known, stalls)
    known = evidence.with_held_back_while_out(known, throttle)
    known = evidence.with_time_under_min_isr(known, evidence.time_under_min_isr(isr, configs))
    return _with_flaps(known).select(*SCHEMA.names).to(SCHEMA)


def _changes(isr: DataFrame) -> DataFrame:
    """The changes of each replica in order, each once, with their neighbours."""
    of_replica = W.partitionBy(*REPLICA).orderBy("leader_epoch", "number", "at_ms")
    of_partition = W.partitionBy(*PARTITION).orderBy("leader_epoch", "number", "at_ms")
    is_told_again = (F.lag("change").over(of_replica) == F.col("change")) & (
        F.lag("number").over(of_replica) == F.col("number")
    )
    told = (
        isr.withColumnRenamed("replica", "follower")
        .withColumn("number", F.coalesce("version", "at_ms"))
        .withColumn("is_told_again", F.coalesce(is_told_again, F.lit(False)))
        .where(~F.col("is_told_again"))
        .withColumn("first_isr", F.first("isr_before").over(of_partition))
    )
    return (
        told.withColumn("change_before", F.lag("change").over(of_replica))
        .withColumn("change_after", F.lead("change").over(of_replica))
        .withColumn("at_ms_after", F.lead("at_ms").over(of_replica))
    )


def _told_by_changes(changes: DataFrame) -> DataFrame:
    """A shrink and the expand after it; or an expand that nothing preceded."""
    is_shrink = F.col("change") == SHRINK
    came_from_nowhere = (F.col("change") == EXPAND) & ~F.col("change_before").eqNullSafe(SHRINK)
    was_in_before = F.col("change_before").isNotNull() | F.array_contains(
        "first_isr", F.col("follower")
    )
    left_at_ms = F.coalesce("decided_at_ms", "at_ms")
    returned_after = F.col("change_after") == EXPAND
    told_cause = (
        F.when(is_shrink & (F.col("decided_by") == CONTROLLER), BY_CONTROLLER)
        .when(~is_shrink & was_in_before, UNRECORDED)
        .when(~is_shrink, BOOTSTRAPPING)
    )
    return changes.where(is_shrink | came_from_nowhere).select(
        *REPLICA,
        "leader",
        "leader_epoch",
        "number",
        "reason",
        "caught_up_at_ms",
        told_cause.alias("told_cause"),
        F.when(is_shrink, left_at_ms).alias("left_at_ms"),
        F.when(is_shrink, F.when(returned_after, F.col("at_ms_after")))
        .otherwise(F.col("at_ms"))
        .alias("rejoined_at_ms"),
        F.when(~is_shrink | returned_after, REJOINED)
        .when(F.col("change_after").isNull(), OPEN)
        .otherwise(UNRECORDED)
        .alias("ending"),
        F.when(is_shrink, F.col("replica_end")).alias("replica_end"),
        F.when(is_shrink, F.col("leader_end")).alias("leader_end"),
    )


def _never_in_sync(changes: DataFrame, fetches: DataFrame, appends: DataFrame) -> DataFrame:
    """Replicas that fetch, are not in the ISR when we meet them, and never come into it."""
    heard = fetches.groupBy(*REPLICA).agg(
        F.min("leader_epoch").alias("first_heard_epoch"),
        F.max(F.struct("leader_epoch", "at_ms", "leader")).alias("last"),
    )
    led = appends.groupBy(*PARTITION, "leader").agg(F.min("leader_epoch").alias("led_epoch"))
    first_epoch = led.groupBy(*PARTITION).agg(F.min("led_epoch").alias("first_epoch"))
    has_led = led.select(*PARTITION, F.col("leader").alias("follower"))
    first_isr = changes.groupBy(*PARTITION).agg(F.first("first_isr").alias("first_isr"))
    was_in = F.coalesce(
        F.array_contains("first_isr", F.col("follower")),
        F.col("first_heard_epoch") <= F.col("first_epoch"),
    )
    return (
        heard.join(changes.select(*REPLICA), list(REPLICA), "left_anti")
        .join(has_led, list(REPLICA), "left_anti")
        .join(first_isr, list(PARTITION), "left")
        .join(first_epoch, list(PARTITION), "left")
        .where(~F.coalesce(was_in, F.lit(True)))
        .select(
            *REPLICA,
            F.col("last.leader").alias("leader"),
            F.col("last.leader_epoch").alias("leader_epoch"),
            F.lit(0).cast(LongType()).alias("number"),
            F.lit(BOOTSTRAPPING).alias("told_cause"),
            F.lit(OPEN).alias("ending"),
        )
    )


def _numbered(found: DataFrame) -> DataFrame:
    in_order = W.partitionBy(*REPLICA).orderBy("leader_epoch", "number", "rejoined_at_ms")
    return found.withColumn("episode", F.row_number().over(in_order))


def _with_cause(known: DataFrame) -> DataFrame:
    left_at_ms, limit_ms = F.col("left_at_ms"), F.col("lag_time_max_ms")
    caught_up_at_ms = F.least(F.coalesce("caught_up_at_ms", "left_at_ms"), "left_at_ms")
    is_burst = (F.col("policy") == "messages") & (F.coalesce("lag_ms", F.lit(0)) <= limit_ms)
    cause = (
        F.when(F.col("told_cause").isNotNull(), F.col("told_cause"))
        .when(F.col("read_ms_before") * 2 >= limit_ms, SLOW_READS)
        .when(F.col("throttled_before"), THROTTLED)
        .when(F.col("held_back_ms_before") * 2 >= limit_ms, THROTTLED)
        .when(F.col("fetches_before") == 0, STUCK)
        .when(is_burst, BURST)
        .otherwise(SLOW)
    )
    began_at_ms = (
        F.when(F.col("cause") == BOOTSTRAPPING, F.col("first_heard_at_ms"))
        .when(F.col("cause") == BY_CONTROLLER, F.coalesce("heard_at_ms", "left_at_ms"))
        .when(F.col("cause") == STUCK, F.coalesce("heard_in_epoch_at_ms", caught_up_at_ms))
        .when(F.col("cause") != UNRECORDED, caught_up_at_ms)
    )
    is_known_out = F.col("ending") != UNRECORDED
    end_ms = F.coalesce("rejoined_at_ms", F.when(is_known_out, F.col("record_end_ms")))
    lag_messages = F.when(
        F.col("cause") == BOOTSTRAPPING, F.col("first_heard_lag_messages")
    ).otherwise(F.col("leader_end") - F.col("replica_end"))
    decided_by_leader = F.col("told_cause").isNull()
    return (
        known.withColumn("cause", cause)
        .withColumn("began_at_ms", began_at_ms)
        .withColumn("end_ms", end_ms)
        .withColumn("out_ms", F.col("end_ms") - F.coalesce(left_at_ms, "began_at_ms"))
        .withColumn("lag_messages", lag_messages)
        .withColumn(
            "kip501_would_hold", F.when(decided_by_leader, F.col("holding_read_at_leaving"))
        )
    )


def _with_flaps(known: DataFrame) -> DataFrame:
    in_order = W.partitionBy(*REPLICA).orderBy("episode")
    so_far = in_order.rowsBetween(W.unboundedPreceding, W.currentRow)
    returned_ms = F.lag("rejoined_at_ms").over(in_order)
    in_a_row: Column = (F.col("left_at_ms") - returned_ms) <= F.col("lag_time_max_ms")
    opens_group = F.when(F.coalesce(in_a_row, F.lit(False)), 0).otherwise(1)
    of_group = W.partitionBy(*REPLICA, "flap_group")
    return (
        known.withColumn("opens_group", opens_group)
        .withColumn("flap_group", F.sum("opens_group").over(so_far).cast(IntegerType()))
        .withColumn("flaps", F.count("*").over(of_group).cast(IntegerType()))
    )


assert EPISODE == (*REPLICA, "episode"), "numbered as the evidence asks for it"
