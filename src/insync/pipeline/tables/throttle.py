"""Whether each throttle was right: its use, the replicas held back, and whether the move ended.

Input is one row per broker, side and second; output one row per span: the consecutive seconds in
which one broker's side had one limit. A gap of more than `GAP_MS_MAX` without rows, or a second
without a limit, ends a span. A span is how a move looks from here: throttles belong to moves.

- `bytes` are all that the limit counted, those of in-sync replicas (`exempt_bytes`, counted but
  never held back) included; `use` is their mean rate over the limit, the rest is headroom.
- `held_back_s`: seconds in which at least one partition was made to wait.
- `verdict`, KIP-73's question 4: IN < T < N - IN/R: `safe`, `cannot-finish` (T <= IN) or
  `starves-clients` (T >= N - IN/R). N, the network's rate, is nowhere in the telemetry: where the
  caller does not give it, only the lower bound is judged, and a limit above it is `above-inbound`.
  Where inbound is unknown, so is the verdict.
- IN (`bytes_in_per_s_max`) is what clients wrote in a second of the span to the broker that got
  most, of those that recorded that second, in any span. The document asks its bounds of any broker,
  and takes the greatest rate off the quota in question 1: a new replica must keep up with
  what its leader takes in, so a destination that leads nothing itself is no exception. A second in
  which a broker's limit was set tells what came before it as well, and counts only where there is
  no other.
- `estimated_ms`, KIP-73's question 1: what was to be copied when copying began (the span's first
  lag above 0, which a leader may learn of a second late) over (T - IN), null when that never ends.
  `real_ms`: from the span's first second to the first after that with nothing left to copy, null if
  that never came. Both are null where the lag is not recorded: only leaders know it.
- `progress` at the span's end: `done`, `moving`, or `stuck` (no new low of the lag for
  `PATIENCE_MS`).

Seconds are summed by Spark; `rules.move_estimates` gives the verdicts, once per span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import Window as W  # noqa: N817 - it is in every line
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.rules.move_estimates import (
    LagSample,
    Progress,
    ThrottleVerdict,
    move_time_ms,
    progress,
    safe_range,
)

SECOND_MS: Final = 1_000
GAP_MS_MAX: Final = 10_000
PATIENCE_MS: Final = 30_000

ABOVE_INBOUND: Final = "above-inbound"
VERDICTS: Final = {
    ThrottleVerdict.CANNOT_FINISH: "cannot-finish",
    ThrottleVerdict.SAFE: "safe",
    ThrottleVerdict.STARVES_CLIENTS: "starves-clients",
}
PROGRESS: Final = {Progress.DONE: "done", Progress.MOVING: "moving", Progress.STUCK: "stuck"}

_SUMMED: Final = [
    StructField("broker", IntegerType()),
    StructField("side", StringType()),
    StructField("began_at_ms", LongType()),
    StructField("ended_at_ms", LongType()),
    StructField("is_open", BooleanType()),
    StructField("seconds", LongType()),
    StructField("limit_bytes_per_s", LongType()),
    StructField("bytes", LongType()),
    StructField("exempt_bytes", LongType()),
    StructField("bytes_per_s_max", LongType()),
    StructField("use", DoubleType()),
    StructField("headroom_bytes_per_s", LongType()),
    StructField("held_back_s", LongType()),
    StructField("held_back_partitions_max", LongType()),
    StructField("bytes_in_per_s_max", LongType()),
    StructField("lag_bytes_first", LongType()),
    StructField("lag_bytes_last", LongType()),
    StructField("lag_bytes_low", LongType()),
    StructField("lag_low_at_ms", LongType()),
    StructField("real_ms", LongType()),
]
_JUDGED: Final = [
    StructField("estimated_ms", LongType()),
    StructField("safe_above_bytes_per_s", LongType()),
    StructField("safe_below_bytes_per_s", LongType()),
    StructField("verdict", StringType()),
    StructField("progress", StringType()),
]
SCHEMA: Final = StructType([*_SUMMED, *_JUDGED])


def throttle(
    seconds: DataFrame, *, network_bytes_per_s: int | None = None, replication_factor: int = 3
) -> DataFrame:
    spans = _spans(seconds).select(*(field.name for field in _SUMMED)).to(StructType(_SUMMED))
    judge = _judge(network_bytes_per_s, replication_factor)
    return spans.mapInArrow(judge, SCHEMA)


def _spans(seconds: DataFrame) -> DataFrame:
    side = W.partitionBy("broker", "side").orderBy("at_ms")
    so_far = side.rowsBetween(W.unboundedPreceding, W.currentRow)
    same_limit = F.col("limit_bytes_per_s").eqNullSafe(F.lag("limit_bytes_per_s").over(side))
    is_near = (F.col("at_ms") - F.lag("at_ms").over(side)) <= GAP_MS_MAX
    goes_on = same_limit & is_near  # null for the first
    opens = F.when(goes_on, 0).otherwise(1)
    lag_bytes = F.col("replica_lag_bytes")
    begins = F.min("at_ms").over(W.partitionBy("broker", "side", "span"))
    copies_from = F.min(F.when(lag_bytes > 0, F.col("at_ms"))).over(
        W.partitionBy("broker", "side", "span")
    )
    last_of_side = F.max("at_ms").over(W.partitionBy("broker", "side"))
    # Brokers' seconds begin apart: those that begin in one second of the clock go together.
    anywhere = W.partitionBy(F.floor(F.col("at_ms") / SECOND_MS))
    settled = F.when(F.col("opens") == 0, F.col("bytes_in"))
    has_lag = lag_bytes.isNotNull()
    is_copying = F.col("at_ms") >= F.col("copies_from_ms")
    is_done = is_copying & (lag_bytes == 0)
    summed = (
        # A second that was published twice is one second.
        seconds.dropDuplicates(["broker", "side", "at_ms"])
        .withColumn("opens", opens)
        .withColumn("span", F.sum("opens").over(so_far))
        .withColumn("last_of_side_ms", last_of_side)
        .withColumn("bytes_in_anywhere", F.max("bytes_in").over(anywhere))
        .withColumn("bytes_in_settled", F.max(settled).over(anywhere))
        .where(F.col("limit_bytes_per_s").isNotNull())
        .withColumn("span_began_ms", begins)
        .withColumn("copies_from_ms", F.coalesce(copies_from, begins))
        .groupBy("broker", "side", "span", "limit_bytes_per_s")
        .agg(
            F.min("at_ms").alias("began_at_ms"),
            (F.max("at_ms") + SECOND_MS).alias("ended_at_ms"),
            (F.max("at_ms") == F.max("last_of_side_ms")).alias("is_open"),
            F.count("*").alias("seconds"),
            F.sum("bytes").alias("bytes"),
            F.sum("exempt_bytes").alias("exempt_bytes"),
            F.max("bytes").alias("bytes_per_s_max"),
            F.count(F.when(F.col("held_back_partitions") > 0, 1)).alias("held_back_s"),
            F.max("held_back_partitions").alias("held_back_partitions_max"),
            F.coalesce(F.max("bytes_in_settled"), F.max("bytes_in_anywhere")).alias(
                "bytes_in_per_s_max"
            ),
            F.min_by(lag_bytes, F.when(has_lag & is_copying, F.col("at_ms"))).alias(
                "lag_bytes_first"
            ),
            F.max_by(lag_bytes, F.when(has_lag, F.col("at_ms"))).alias("lag_bytes_last"),
            F.min(F.when(has_lag & is_copying, F.struct(lag_bytes, "at_ms"))).alias("low"),
            F.min(F.when(is_done, F.col("at_ms") - F.col("span_began_ms"))).alias("real_ms"),
        )
    )
    rate = F.col("bytes") / F.col("seconds")
    limit = F.col("limit_bytes_per_s")
    return (
        summed.withColumn("lag_bytes_low", F.col("low.replica_lag_bytes"))
        .withColumn("lag_low_at_ms", F.col("low.at_ms"))
        .withColumn("use", F.when(limit > 0, rate / limit))
        .withColumn("headroom_bytes_per_s", F.ceil(limit - rate))
    )


def _judge(
    network_bytes_per_s: int | None, replication_factor: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def judged(span: dict[str, Any]) -> dict[str, Any]:
        return span | judgement(
            span, network_bytes_per_s=network_bytes_per_s, replication_factor=replication_factor
        )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [judged(span) for span in batch.to_pylist()]
            judged_fields = [(field.name, _ARROW[type(field.dataType)]) for field in _JUDGED]
            schema = pa.schema([*batch.schema, *(pa.field(*field) for field in judged_fields)])
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return run


_ARROW: Final = {LongType: pa.int64(), StringType: pa.string()}


def judgement(
    span: dict[str, Any], *, network_bytes_per_s: int | None, replication_factor: int
) -> dict[str, Any]:
    """What the rules say of one span."""
    limit, inbound = span["limit_bytes_per_s"], span["bytes_in_per_s_max"]
    judged_values: dict[str, Any] = dict.fromkeys(field.name for field in _JUDGED)
    if inbound is not None:
        # Without a network rate only the lower bound is reported; the upper is out of reach.
        network = (
            network_bytes_per_s if network_bytes_per_s is not None else limit + 2 * inbound + 1
        )
        bounds = safe_range(
            bytes_in_per_s=inbound,
            network_bytes_per_s=network,
            replication_factor=replication_factor,
        )
        verdict = VERDICTS[bounds.verdict(limit)]
        judged_values["safe_above_bytes_per_s"] = int(bounds.above_bytes_per_s)
        if network_bytes_per_s is not None:
            judged_values["safe_below_bytes_per_s"] = -(-bounds.below_bytes_per_s // 1)
        elif verdict == VERDICTS[ThrottleVerdict.SAFE]:
            verdict = ABOVE_INBOUND
        judged_values["verdict"] = verdict
    if span["lag_bytes_first"] is not None:
        judged_values["estimated_ms"] = move_time_ms(
            move_ratio=Fraction(1),
            log_bytes_per_broker=span["lag_bytes_first"],
            brokers=1,
            quota_bytes_per_s=limit,
            bytes_in_per_s_max=inbound or 0,
        )
        low = LagSample(at_ms=span["lag_low_at_ms"], lag_bytes=span["lag_bytes_low"])
        last_at_ms = span["ended_at_ms"] - SECOND_MS
        last = LagSample(at_ms=last_at_ms, lag_bytes=span["lag_bytes_last"])
        judged_values["progress"] = PROGRESS[progress([low, last], patience_ms=PATIENCE_MS)]
    return judged_values
