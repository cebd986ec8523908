"""Each time a replica was out of sync, from its first cause to its return, and why.

The `isr` rows say which replicas left and returned; what the leader saw before says why. L is the
time of the shrink (`decided_at_ms`, or the commit if no leader decided it), T the
`replica.lag.time.max.ms` that held then. The first of these that is true is the cause:

| cause | true when | began_at_ms |
|---|---|---|
| `unrecorded` | it returned, and no row has its shrink (lost with a broker, for example) | null |
| `unrecorded` | it is first seen outside the ISR and has a log: its first fetch is past the
  start of it (`log_start`, where known), so it left before the record began | its first fetch |
| `unrecorded` | an epoch began without it (`isr_events`), though it was assigned by then, and no
  row has its shrink: it left before the record began, or the row is lost | that begin |
| `bootstrapping` | all others that are first seen outside; also a replica that is seen again
  after a reassignment removed it | its first fetch |
| `broker-down` | its broker's session ended, and the controller removed it | last fetch, else L |
| `frozen` | the same, and the broker's process lived: only its heartbeat had stopped | last fetch,
  else L |
| `replica-offline` | its log failed or is damaged, and the controller removed it | last fetch,
  else L |
| `controller` | the controller removed it, and no `isr.cause` says why | last fetch, else L |
| `leader-slow-reads` | for half of the T ms before L the leader was reading for it | caught up |
| `throttled` | in the T ms before L one of its fetches was `throttled`, or it made an effective one
  and its broker held partitions back, whichever they were, for half of that time | caught up |
| `frozen` | it made no effective fetch in the T ms before L, and its broker fell silent: in no
  whole tenth of a second of that time a fetch of it reached any leader, or it led anything itself,
  though in the T ms before that it did so in another partition | last fetch, else caught up |
| `stuck` | it made no effective fetch in the T ms before L, but its broker was not silent; or this
  is all that its broker did, so the record cannot tell | last fetch, else caught up |
| `burst` | under `messages`: its true lag at L was at most T; the end jumped | caught up |
| `slow` | all others: it fetches and falls behind | caught up |

Where the controller removed it, its last fetch is that of this leader epoch or the one before.
"The T ms before L" are the moments from L - T to L, both included: a fetch exactly T ago is in
time, as equality is in sync. "Caught up" is `isr.caught_up_at_ms`, else L. "First seen outside":
not in `isr_before` of the partition's first `isr` row, or, in a partition without any, without
having led first seen in a later epoch than its first, while a reassignment was adding it, or below
the high watermark in every effective fetch: a replica in sync is at or past it.

- `kip501_would_hold`: at L a read for it was pending whose offset was at or past the leader's end
  at its earlier fetches of this epoch: what KIP-501 asks for. Null where no leader decided.
- `lag_ms` is the true lag at L by KAFKA-4485's definition: since the first append of its epoch that
  it lacked, or since the epoch began if it was below its start; `lag_messages` and `lag_bytes` are
  what it lacked. If it is first seen outside, `lag_messages` is that of its first fetch.
- `rejoined_at_ms` is the commit of its return. `ending` says whether that happened (`rejoined`), it
  was still out when the record ended (`open`), a reassignment removed it (`moved-away`), the one
  that was adding it was cancelled (`move-cancelled`), its topic was deleted or created again
  (`topic-deleted`), or it must have returned, because it left again, led the partition, or was in
  the ISR with which a later epoch began (`isr_events`), but no row has its return
  (`unrecorded`). `out_ms` counts from L (first seen outside: from the first fetch)
  to the return, the removal or the record's end. Without `assignments` only the removal of ISR
  members is known; a replica that was outside when it was removed stays `open`. In tables without
  `isr.cause` and `assignments` no removal is known.
- `flap_group` numbers a replica's episodes; one that begins within T after the last one's return
  belongs to the same group, and `flaps` is the number of episodes in it. (What-if's `flaps` are
  returns within T. These are the ones that come in a row.)
- `held_back_ms`: whole seconds, of its broker's and its leader's, with partitions held back by a
  throttle between first cause and return. `leader_stall_ms`: how long the leader itself stalled
  between first cause and L. `leader_changes`: elections of another leader between first cause
  and return.
- `under_min_isr_ms`: for how long the partition had fewer in-sync replicas than
  min(min.insync.replicas, replicas known), while this one was out. Before the first `isr` row they
  are those of its `isr_before`, and the minimum is the one that held at that row.

Rows of a partition are ordered by (leader_epoch, version, at_ms). A topic that was created again
under its name is another one (`tables.assignments`). Settings are those of `configs`
that held when a change was decided; without any, Kafka's defaults.

Spark brings together what belongs to one partition, reduced to the time before each shrink;
`partition_episodes` decides, in plain Python. So the plan is one shuffle, and the decisions are
tested without Java. Tables of brokers (stalls, throttles) are joined before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline.io.telemetry_schemas import with_optional_columns
from insync.pipeline.local.dispatch import F, union_all
from insync.pipeline.tables import partition_episodes as core
from insync.pipeline.tables.assignments import (
    PARTITION,
    TOPIC_PARTITION,
    added_replicas,
    removals,
    unlisted,
    with_creation,
)
from insync.pipeline.tables.intervals import meet, packed, unpacked
from insync.pipeline.tables.partition_episodes import (
    BOOTSTRAPPING,
    BROKER_DOWN,
    BURST,
    BY_CONTROLLER,
    FROZEN,
    LOG_OFFLINE,
    MOVED,
    OPEN,
    REJOINED,
    SLOW,
    SLOW_READS,
    STUCK,
    THROTTLED,
    UNRECORDED,
    PartitionRecord,
)
from insync.pipeline.tables.recorded_settings import with_settings
from insync.telemetry.schemas import BEGAN, ISR, OK, REASSIGNMENT, SHRINK

__all__ = [
    "CAUSES",
    "MOVED",
    "OPEN",
    "REJOINED",
    "SCHEMA",
    "UNRECORDED",
    "episodes",
    "leader_changes",
    "record_end",
]

CAUSES: Final = (
    BROKER_DOWN, FROZEN, STUCK, SLOW, BOOTSTRAPPING, SLOW_READS, THROTTLED, BURST, LOG_OFFLINE,
    BY_CONTROLLER, UNRECORDED,
)  # fmt: skip

REPLICA: Final = (*PARTITION, "follower")
FOLLOWER_SIDE: Final = "follower"
LEADER_SIDE: Final = "leader"
SECOND_MS: Final = 1_000
SILENCE_SLOT_MS: Final = 100  # what a broker did is known to this: all of it would be too much
ROWS_AT_ONCE: Final = 1_000

_COLUMNS: Final = (
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
    StructField("flap_group", IntegerType()),
    StructField("flaps", IntegerType()),
    StructField("reason", StringType()),
)
_NUMBERED: Final = StructType(
    [
        *_COLUMNS,
        StructField("creation", IntegerType()),
        StructField("episode", IntegerType()),
        StructField("end_ms", LongType()),
    ]
)
SCHEMA: Final = StructType(
    [
        *_COLUMNS,
        StructField("leader_stall_ms", LongType()),
        StructField("held_back_ms", LongType()),
    ]
)
EPISODE: Final = (*REPLICA, "episode")
CHANGE: Final = (*REPLICA, "leader_epoch", "number", "at_ms", "change")

# Kinds of rows of a partition.
_CHANGE, _HEARD, _LED, _ELECTION, _FETCH, _APPEND, _REMOVAL, _ADDED, _BEGUN, _ASSIGNED = range(10)


def episodes(  # noqa: PLR0917 - one for each table, in the order of their importance
    isr: DataFrame,
    fetches: DataFrame,
    appends: DataFrame,
    elections: DataFrame,
    stalls: DataFrame,
    configs: DataFrame,
    throttle: DataFrame | None = None,
    assignments: DataFrame | None = None,
    isr_events: DataFrame | None = None,
) -> DataFrame:
    """Without a `throttle` table nothing is known to have been held back; without `assignments`
    only the removal of ISR members is; without `isr_events` only that a replica left or returned
    which a row of `isr` says, or which leads or fetches."""
    end = record_end(isr, fetches, appends)
    isr, fetches, appends, elections = (
        with_creation(rows, assignments) for rows in (isr, fetches, appends, elections)
    )
    changes = _changes(isr, configs, throttle, _activity(fetches, appends))
    left = changes.where((F.col("change") == SHRINK) & ~_is_moved_away())
    removed = changes.where(_is_moved_away()).select(*REPLICA, "leader_epoch")
    kinds = {}
    if assignments is not None:
        numbered = with_creation(assignments, assignments)
        known = changes.select(*REPLICA, "leader_epoch").unionByName(
            fetches.select(*REPLICA, "leader_epoch")
        )
        kinds = {
            _REMOVAL: removals(numbered).unionByName(unlisted(numbered, known)),
            _ADDED: added_replicas(numbered),
            _ASSIGNED: _first_assigned(numbered),
        }
        removed = removed.unionByName(kinds[_REMOVAL].select(*REPLICA, "leader_epoch"))
    if isr_events is not None:
        kinds[_BEGUN] = _begun(with_creation(isr_events, assignments), configs)
    kinds |= {
        _CHANGE: changes,
        _HEARD: _heard(fetches, removed, configs),
        _LED: appends.groupBy(*PARTITION, "leader").agg(
            F.min("leader_epoch").alias("leader_epoch"),
            F.max("leader_epoch").alias("last_epoch"),
            F.collect_set("leader_epoch").alias("epochs"),
            F.min("at_ms").alias("at_ms"),
        ),
        _ELECTION: leader_changes(elections).select(*PARTITION, "at_ms", "leader_epoch"),
        _FETCH: _fetches_before(fetches, left),
        _APPEND: _appends_of(appends, left),
    }
    together = [rows.withColumn("kind", F.lit(kind)) for kind, rows in sorted(kinds.items())]
    rows = together[0]
    for each in together[1:]:
        rows = rows.unionByName(each, allowMissingColumns=True)
    numbered = (
        rows.crossJoin(F.broadcast(end))
        .repartition(*PARTITION)
        .sortWithinPartitions(*PARTITION, "kind")
        .mapInArrow(_find_episodes, _NUMBERED)
    )
    complete = _with_held_back_while_out(_with_leader_stalls(numbered, stalls), throttle)
    return complete.select(*SCHEMA.names).to(SCHEMA)


def record_end(isr: DataFrame, fetches: DataFrame, appends: DataFrame) -> DataFrame:
    ends = [
        isr.agg(F.max("at_ms").alias("at_ms")),
        fetches.agg(F.max("last_at_ms").alias("at_ms")),
        appends.agg(F.max("at_ms").alias("at_ms")),
    ]
    union = ends[0].unionByName(ends[1]).unionByName(ends[2])
    return union.agg(F.max("at_ms").alias("record_end_ms"))


def leader_changes(elections: DataFrame) -> DataFrame:
    """A move, or a leader that came back at once, begins an epoch under the same leader."""
    return elections.where(~F.col("leader_before").eqNullSafe(F.col("leader_after")))


# The rows of a partition.


def _changes(
    isr: DataFrame, configs: DataFrame, throttle: DataFrame | None, activity: DataFrame
) -> DataFrame:
    rows = with_optional_columns(isr, ISR)
    rows = rows.withColumnRenamed("replica", "follower").withColumn(
        "number", F.coalesce("version", "at_ms")
    )
    valid_at_ms = F.coalesce("decided_at_ms", "at_ms")
    rows = with_settings(rows, configs, valid_at_ms=valid_at_ms).drop("version", "seq")
    left_at_ms = F.coalesce("e.decided_at_ms", "at_ms")
    from_ms = left_at_ms - F.col("e.lag_time_max_ms")
    asking = packed(rows, CHANGE).withColumn("broker", F.col("follower"))
    # A tenth of a second that is only in part of the time before tells nothing.
    met = meet(
        asking,
        activity,
        ("broker",),
        from_ms=from_ms - F.col("e.lag_time_max_ms"),
        to_ms=left_at_ms - SILENCE_SLOT_MS + 1,
    )
    rows = unpacked(met, CHANGE, {"is_broker_silent": _fell_silent(from_ms)})
    if throttle is None:
        return rows.withColumn("held_back_ms_before", F.lit(0).cast(LongType()))
    asking = packed(rows, CHANGE).select(
        *CHANGE, "e", F.col("follower").alias("broker"), F.lit(FOLLOWER_SIDE).alias("side")
    )
    met = meet(asking, _held_back(throttle), ("broker", "side"), from_ms=from_ms, to_ms=left_at_ms)
    return unpacked(met, CHANGE, {"held_back_ms_before": _held_back_ms()})


def _fell_silent(from_ms: Column) -> Column:
    """Of all that a broker did: nothing since then, but something in another partition before."""
    own = F.struct(*TOPIC_PARTITION)
    is_elsewhere = (F.col("first_partition") != own) | (F.col("last_partition") != own)
    is_silent = F.count_if(F.col("row_to_ms") >= from_ms) == 0
    return is_silent & (F.count_if(is_elsewhere) > 0)


def _activity(fetches: DataFrame, appends: DataFrame) -> DataFrame:
    """The tenths of a second in which each broker fetched, or recorded something as a leader.

    Of the partitions it did so in, the first and the last: enough to know of another than one.
    """
    at_ms, last_at_ms = F.col("at_ms"), F.coalesce("last_at_ms", "at_ms")
    spans = [
        rows.select(
            F.col(broker).alias("broker"),
            F.struct(*TOPIC_PARTITION).alias("partition"),
            *(
                (F.floor(moment / SILENCE_SLOT_MS) * SILENCE_SLOT_MS).alias(name)
                for name, moment in (("row_from_ms", at_ms), ("row_to_ms", until_ms))
            ),
        )
        for rows, broker, until_ms in (
            (fetches, "follower", last_at_ms),
            (fetches, "leader", at_ms),
            (appends, "leader", at_ms),
        )
    ]
    return (
        union_all(spans)
        .groupBy("broker", "row_from_ms", "row_to_ms")
        .agg(
            F.min("partition").alias("first_partition"), F.max("partition").alias("last_partition")
        )
    )


def _is_moved_away() -> Column:
    return F.col("cause").eqNullSafe(REASSIGNMENT)


def _heard(fetches: DataFrame, removed: DataFrame, configs: DataFrame) -> DataFrame:
    """The first fetch of each follower and the leader of its last, per membership.

    A removed replica fetches, and is refused, until it learns of the move: only fetches that are
    served begin a new membership.
    """
    moves = removed.groupBy(*REPLICA).agg(F.collect_set("leader_epoch").alias("moves"))
    gone_epoch = F.array_max(F.filter("moves", lambda epoch: epoch <= F.col("leader_epoch")))
    is_there = F.col("gone_epoch").isNull() | F.col("is_ok")
    # Without a high watermark the follower was at the end, or it was not recorded.
    below = F.col("offset") < F.coalesce("high_watermark", F.lit(0))
    # Moves are joined to one row per epoch, not to every fetch.
    in_epoch = (
        fetches.withColumn("is_ok", F.col("outcome") == OK)
        .groupBy(*REPLICA, "leader_epoch", "is_ok")
        .agg(
            F.min(F.struct("at_ms", "seq", "offset", "leader_end_low", "log_start")).alias("first"),
            F.max(F.struct("leader_epoch", "at_ms", "leader")).alias("last"),
            F.bool_and(F.when(F.col("is_ok"), below)).alias("is_below_watermark"),
        )
    )
    heard = (
        in_epoch.join(moves, list(REPLICA), "left")
        .withColumn("gone_epoch", gone_epoch)
        .where(is_there)
        .groupBy(*REPLICA, "gone_epoch")
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.min("leader_epoch").alias("first_epoch"),
            F.bool_and("is_below_watermark").alias("is_below_watermark"),
        )
    )
    rows = heard.select(
        *REPLICA,
        "gone_epoch",
        "first.at_ms",
        "first.offset",
        "first.leader_end_low",
        "first.log_start",
        "last.leader",
        "last.leader_epoch",
        "first_epoch",
        "is_below_watermark",
    )
    return with_settings(rows, configs, valid_at_ms=F.lit(2**62))


def _begun(isr_events: DataFrame, configs: DataFrame) -> DataFrame:
    """The ISR with which each epoch began."""
    rows = isr_events.where(F.col("event") == BEGAN).select(
        *PARTITION,
        "at_ms",
        "leader",
        "leader_epoch",
        F.coalesce("version", "at_ms").alias("number"),
        "isr_before",
        F.lit(None).cast(StringType()).alias("reason"),
    )
    return with_settings(rows, configs, valid_at_ms=F.col("at_ms"))


def _first_assigned(assignments: DataFrame) -> DataFrame:
    """Of each replica the epoch and the version in which it is first listed."""
    each = assignments.select(
        *PARTITION,
        F.explode("replicas").alias("follower"),
        F.struct("leader_epoch", F.coalesce("version", "at_ms").alias("number")).alias("since"),
    )
    return each.groupBy(*REPLICA).agg(F.min("since").alias("since")).select(*REPLICA, "since.*")


def _fetches_before(fetches: DataFrame, left: DataFrame) -> DataFrame:
    left_at_ms = F.coalesce("decided_at_ms", "at_ms")
    windows = left.select(
        *(F.col(name).alias(f"left_{name}") for name in REPLICA),
        (left_at_ms - core.LAG_TIMES_BEFORE * F.col("lag_time_max_ms")).alias("from_ms"),
        left_at_ms.alias("to_ms"),
    )
    rows = fetches.select(
        *REPLICA, "leader_epoch", "at_ms", "last_at_ms", "seq", "offset", "leader_end_low",
        "throttled", F.coalesce("read_ms", F.lit(0)).alias("read_ms"),
        (F.col("outcome") == OK).alias("is_ok"),
    )  # fmt: skip
    same = [F.col(name) == F.col(f"left_{name}") for name in REPLICA]
    ended_ms = F.greatest(F.col("last_at_ms"), F.col("at_ms") + F.col("read_ms"))
    overlap = (F.col("at_ms") <= F.col("to_ms")) & (ended_ms >= F.col("from_ms"))
    return rows.join(windows, [*same, overlap], "left_semi")


def _appends_of(appends: DataFrame, left: DataFrame) -> DataFrame:
    term = [*PARTITION, "leader_epoch"]
    return appends.select(*term, "at_ms", "end_offset", "bytes").join(
        left.select(*term), term, "left_semi"
    )


# Partition by partition.


def _find_episodes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(each.name, _ARROW[type(each.dataType)]) for each in _NUMBERED])
    rows: list[dict[str, Any]] = []
    for table in _by_partition(batches):
        rows += _episodes_in(table)
        if len(rows) >= ROWS_AT_ONCE:
            yield pa.RecordBatch.from_pylist(rows, schema)
            rows = []
    yield pa.RecordBatch.from_pylist(rows, schema)


_ARROW: Final = {
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
    BooleanType: pa.bool_(),
}


def _by_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows come sorted: one table for each partition."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        for part in _runs(batch):
            if parts and _key(parts[-1]) != _key(part):
                yield pa.Table.from_batches(parts)
                parts = []
            parts.append(part)
    if parts:
        yield pa.Table.from_batches(parts)


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    differs = np.zeros(batch.num_rows - 1, bool)
    for name in PARTITION:
        column = batch.column(name)
        differs |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    bounds = [0, *(np.flatnonzero(differs) + 1).tolist(), batch.num_rows]
    for first, last in pairwise(bounds):
        yield batch.slice(first, last - first)


def _key(batch: pa.RecordBatch) -> tuple[Any, ...]:
    return tuple(batch.column(name)[0].as_py() for name in PARTITION)


def _episodes_in(table: pa.Table) -> list[dict[str, Any]]:
    partition_key = {name: table.column(name)[0].as_py() for name in PARTITION}

    def of_kind(kind: int) -> pa.Table:
        return table.filter(pc.equal(table.column("kind"), kind))

    def columns(kind: int, names: Iterable[str]) -> core.Columns:
        rows = of_kind(kind)
        return {name: rows.column(name).cast(pa.int64()).fill_null(0).to_numpy() for name in names}

    record = PartitionRecord(
        record_end_ms=table.column("record_end_ms")[0].as_py(),
        changes=of_kind(_CHANGE).to_pylist(),
        first_and_last_fetches=[row | {"reason": None} for row in of_kind(_HEARD).to_pylist()],
        led=of_kind(_LED).to_pylist(),
        elections=of_kind(_ELECTION).to_pylist(),
        fetches=columns(_FETCH, core.FETCH_COLUMNS),
        appends=columns(_APPEND, core.APPEND_COLUMNS),
        removals=of_kind(_REMOVAL).to_pylist() if "ending" in table.column_names else [],
        added=frozenset(of_kind(_ADDED).column("follower").to_pylist()),
        begun=of_kind(_BEGUN).to_pylist(),
        assigned={
            row["follower"]: (row["leader_epoch"], row["number"])
            for row in of_kind(_ASSIGNED).to_pylist()
        },
    )
    return [
        episode | partition_key | {"episode": at}
        for at, episode in enumerate(core.episodes_of(record))
    ]


# What brokers tell.


def _with_leader_stalls(episodes: DataFrame, stalls: DataFrame) -> DataFrame:
    """How long its leader stalled between the first cause and the shrink."""
    rows = stalls.select(
        F.col("broker").alias("leader"),
        F.col("at_ms").alias("row_from_ms"),
        (F.col("at_ms") + F.col("stall_ms")).alias("row_to_ms"),
    ).distinct()
    asking = packed(episodes, EPISODE).withColumn("leader", F.col("e.leader"))
    began_ms, left_ms = F.col("e.began_at_ms"), F.col("e.left_at_ms")
    met = meet(asking, rows, ("leader",), from_ms=began_ms, to_ms=left_ms)
    overlap_ms = F.least("row_to_ms", left_ms) - F.greatest("row_from_ms", began_ms)
    # Both ignore nulls; an episode without a stall has only nulls.
    stalled_ms = F.when(F.col("row_from_ms").isNotNull(), overlap_ms)
    return unpacked(met, EPISODE, {"leader_stall_ms": F.coalesce(F.sum(stalled_ms), F.lit(0))})


def _with_held_back_while_out(episodes: DataFrame, throttle: DataFrame | None) -> DataFrame:
    if throttle is None:
        return episodes.withColumn("held_back_ms", F.lit(0).cast(LongType()))
    sides = F.array(
        F.struct(F.col("follower").alias("broker"), F.lit(FOLLOWER_SIDE).alias("side")),
        F.struct(F.col("e.leader").alias("broker"), F.lit(LEADER_SIDE).alias("side")),
    )
    asking = (
        packed(episodes, EPISODE)
        .withColumn("whose", F.explode(sides))
        .select(*EPISODE, "e", "whose.broker", "whose.side")
    )
    met = meet(
        asking,
        _held_back(throttle),
        ("broker", "side"),
        from_ms=F.col("e.began_at_ms"),
        to_ms=F.col("e.end_ms"),
    )
    return unpacked(met, EPISODE, {"held_back_ms": _held_back_ms()})


def _held_back(throttle: DataFrame) -> DataFrame:
    at_ms = F.col("at_ms")
    return throttle.where(F.col("held_back_partitions") > 0).select(
        "broker", "side", at_ms.alias("row_from_ms"), at_ms.alias("row_to_ms")
    )


def _held_back_ms() -> Column:
    seconds = F.count_distinct(F.floor(F.col("row_from_ms") / SECOND_MS))
    return (seconds * SECOND_MS).cast(LongType())
