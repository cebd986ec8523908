"""Whether each throttle was right: its use, the replicas held back, and whether the move ended.

Input is one row per broker, side and second; output one row per span: the consecutive seconds in
which one broker's side had one limit. A gap of more than `GAP_MS_MAX` without rows, or a second
without a limit, ends a span. A span is how a move looks from here: throttles belong to moves. When
a move is done, its throttle is removed: the second in which that happened has no limit any more,
but it alone tells that nothing is left to copy.

- `bytes` are all that the limit counted, those of in-sync replicas (`exempt_bytes`, counted but
  never held back) included; `use` is their mean rate over the limit, the rest is headroom.
- `held_back_s`: seconds in which at least one partition was made to wait.
- `verdict`, KIP-73's question 4: IN < T < N - IN/R. `safe`, `cannot-finish` (T <= IN),
  `below-inbound` (T <= IN, but nothing was left to copy at the end) or `starves-clients`
  (T >= N - IN/R). N, the network's rate, is nowhere in the telemetry: where the caller does not
  give it, only the lower bound is judged, and a limit above it is `above-inbound`. Where inbound is
  not recorded, the verdict is `inbound-unknown`.
- IN (`bytes_in_per_s`) is a mean over the span: of what clients wrote in each second to the broker
  that got most, of those that recorded that second, in any span; `bytes_in_per_s_max` is its
  highest second. The document asks its bounds of any broker, and takes the greatest rate off the
  quota in question 1: a new replica must keep up with what its leader takes in, so a destination
  that leads nothing itself is no exception. Rows of the leaders' side are taken where there are
  any: a destination may lead nothing. A second in which a broker's limit was set tells what came
  before it as well, and counts only where there is no other.
- `estimated_ms`, KIP-73's question 1: what was to be copied when copying began (the span's first
  lag above 0, which a leader may learn of a second late) over (T - IN), null when that never ends.
  `real_ms`: from that second to the first with nothing left to copy, null if that never came. A
  throttle may be set long before the first replica moves, which is no part of either. Both are null
  where the lag is not recorded: only leaders know it.
- `difference` says of every span why the two differ, or that they do not (`move_differences`), from
  `copied_bytes` and `copied_exempt_bytes`, what the limit counted in the seconds of `real_ms`, and
  `destination_held_back_s`, those of them in which a destination held partitions back.
- `progress` at the span's end: `done`, `moving`, or `stuck` (no new low of the lag for
  `PATIENCE_MS`).

Seconds are summed by Spark; `rules.move_estimates` gives the verdicts, once per span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.pipeline.local.dispatch import F, W
from insync.pipeline.tables.move_differences import explained
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
BELOW_INBOUND: Final = "below-inbound"
INBOUND_UNKNOWN: Final = "inbound-unknown"
FOLLOWER_SIDE: Final = "follower"
LEADER_SIDE: Final = "leader"
INBOUND: Final = ("bytes_in_of_leaders", "bytes_in_settled", "bytes_in_anywhere")  # best first
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
    StructField("bytes_in_per_s", LongType()),
    StructField("bytes_in_per_s_max", LongType()),
    StructField("lag_bytes_first", LongType()),
    StructField("lag_bytes_last", LongType()),
    StructField("lag_bytes_low", LongType()),
    StructField("lag_low_at_ms", LongType()),
    StructField("real_ms", LongType()),
    StructField("copied_bytes", LongType()),
    StructField("copied_exempt_bytes", LongType()),
    StructField("destination_held_back_s", LongType()),
]
_JUDGED: Final = [
    StructField("estimated_ms", LongType()),
    StructField("safe_above_bytes_per_s", LongType()),
    StructField("safe_below_bytes_per_s", LongType()),
    StructField("verdict", StringType()),
    StructField("progress", StringType()),
    StructField("difference", StringType()),
]
SCHEMA: Final = StructType([*_SUMMED, *_JUDGED])


def throttle(
    seconds: DataFrame, *, network_bytes_per_s: int | None = None, replication_factor: int = 3
) -> DataFrame:
    spans = _spans(seconds).select(*(field.name for field in _SUMMED)).to(StructType(_SUMMED))
    judge = _judge(network_bytes_per_s, replication_factor)
    return spans.mapInArrow(judge, SCHEMA)


def _spans(seconds: DataFrame) -> DataFrame:
    return (
        # A second that was published twice is one second.
        seconds.dropDuplicates(["broker", "side", "at_ms"])
        .transform(_with_span)
        .transform(_with_anywhere)
        .where(F.col("span_limit").isNotNull())
        .transform(_with_copying)
        .transform(_summed)
        .transform(_with_use)
    )


def _with_span(seconds: DataFrame) -> DataFrame:
    """`span` numbers the spans of a side; the second in which the limit went closes its span."""
    side = W.partitionBy("broker", "side").orderBy("at_ms")
    so_far = side.rowsBetween(W.unboundedPreceding, W.currentRow)
    limit, limit_before = F.col("limit_bytes_per_s"), F.lag("limit_bytes_per_s").over(side)
    is_near = (F.col("at_ms") - F.lag("at_ms").over(side)) <= GAP_MS_MAX
    goes_on = limit.eqNullSafe(limit_before) & is_near  # null for the first
    closes = limit.isNull() & limit_before.isNotNull() & is_near
    return (
        seconds.withColumn("is_settled", F.coalesce(goes_on, F.lit(False)))  # noqa: FBT003
        .withColumn("is_closing", F.coalesce(closes, F.lit(False)))  # noqa: FBT003
        .withColumn("span_limit", F.when(F.col("is_closing"), limit_before).otherwise(limit))
        .withColumn("opens", F.when(F.col("is_settled") | F.col("is_closing"), 0).otherwise(1))
        .withColumn("span", F.sum("opens").over(so_far))
        .withColumn("last_of_side_ms", F.max("at_ms").over(W.partitionBy("broker", "side")))
    )


def _with_anywhere(seconds: DataFrame) -> DataFrame:
    """What other brokers recorded of the same second. Brokers' seconds begin apart: those that
    begin in one second of the clock go together."""
    anywhere = W.partitionBy(F.floor(F.col("at_ms") / SECOND_MS))
    settled = F.when(F.col("is_settled"), F.col("bytes_in"))
    of_leaders = F.when(F.col("side") == LEADER_SIDE, settled)
    holds_back = (F.col("side") == FOLLOWER_SIDE) & _holds_back()
    return (
        seconds.withColumn("bytes_in_of_leaders", F.max(of_leaders).over(anywhere))
        .withColumn("bytes_in_anywhere", F.max("bytes_in").over(anywhere))
        .withColumn("bytes_in_settled", F.max(settled).over(anywhere))
        .withColumn("destination_holds_back", F.max(holds_back).over(anywhere))
    )


def _holds_back() -> Column:
    return F.col("held_back_partitions") > 0


def _with_copying(seconds: DataFrame) -> DataFrame:
    """`copies_from_ms` and `done_ms`: the first second with a lag, and the next without one."""
    of_span = W.partitionBy("broker", "side", "span")
    lag_bytes, at_ms = F.col("replica_lag_bytes"), F.col("at_ms")
    copies_from = F.min(F.when(lag_bytes > 0, at_ms)).over(of_span)
    is_copying = at_ms >= F.col("copies_from_ms")
    done = F.min(F.when(is_copying & (lag_bytes == 0), at_ms)).over(of_span)
    # The lag is that of a second's end: what passed in the first second is not in it any more.
    is_copied = (at_ms > F.col("copies_from_ms")) & (at_ms <= F.col("done_ms"))
    return (
        seconds.withColumn("copies_from_ms", F.coalesce(copies_from, F.min(at_ms).over(of_span)))
        .withColumn("done_ms", done)
        .withColumn("has_lag", lag_bytes.isNotNull())
        .withColumn("is_copying", F.col("has_lag") & is_copying)
        .withColumn("is_copied", F.coalesce(is_copied, F.lit(False)))  # noqa: FBT003
    )


def _summed(seconds: DataFrame) -> DataFrame:
    """A row per span. Its closing second tells what was left to copy, and is no part of its use."""

    def limited(name: str) -> Column:
        return F.when(~F.col("is_closing"), F.col(name))

    def copied(name: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("is_copied"), F.col(name))), F.lit(0))

    lag_bytes, at_ms = F.col("replica_lag_bytes"), F.col("at_ms")
    last_ms = F.max(limited("at_ms"))
    inbound = [limited(name) for name in INBOUND]
    low = F.min(F.when(F.col("is_copying"), F.struct(lag_bytes, at_ms)))
    return seconds.groupBy(
        "broker", "side", "span", F.col("span_limit").alias("limit_bytes_per_s")
    ).agg(
        F.min("at_ms").alias("began_at_ms"),
        (last_ms + SECOND_MS).alias("ended_at_ms"),
        (last_ms == F.max("last_of_side_ms")).alias("is_open"),
        F.count(limited("at_ms")).alias("seconds"),
        F.sum(limited("bytes")).alias("bytes"),
        F.sum(limited("exempt_bytes")).alias("exempt_bytes"),
        F.max(limited("bytes")).alias("bytes_per_s_max"),
        F.count(F.when(_holds_back(), limited("at_ms"))).alias("held_back_s"),
        F.max(limited("held_back_partitions")).alias("held_back_partitions_max"),
        F.ceil(F.coalesce(*map(F.avg, inbound))).alias("bytes_in_per_s"),
        F.coalesce(*map(F.max, inbound)).alias("bytes_in_per_s_max"),
        F.min_by(lag_bytes, F.when(F.col("is_copying"), at_ms)).alias("lag_bytes_first"),
        F.max_by(lag_bytes, F.when(F.col("has_lag"), at_ms)).alias("lag_bytes_last"),
        low["replica_lag_bytes"].alias("lag_bytes_low"),
        low["at_ms"].alias("lag_low_at_ms"),
        F.min(F.col("done_ms") - F.col("copies_from_ms")).alias("real_ms"),
        copied("bytes").alias("copied_bytes"),
        copied("exempt_bytes").alias("copied_exempt_bytes"),
        F.count(F.when(F.col("is_copied") & F.col("destination_holds_back"), 1)).alias(
            "destination_held_back_s"
        ),
    )


def _with_use(spans: DataFrame) -> DataFrame:
    rate, limit = F.col("bytes") / F.col("seconds"), F.col("limit_bytes_per_s")
    return spans.withColumn("use", F.when(limit > 0, rate / limit)).withColumn(
        "headroom_bytes_per_s", F.ceil(limit - rate)
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
    judged_values: dict[str, Any] = dict.fromkeys(field.name for field in _JUDGED)
    if span["lag_bytes_first"] is not None:
        judged_values["estimated_ms"] = move_time_ms(
            move_ratio=Fraction(1),
            log_bytes_per_broker=span["lag_bytes_first"],
            brokers=1,
            quota_bytes_per_s=span["limit_bytes_per_s"],
            bytes_in_per_s_max=span["bytes_in_per_s"] or 0,
        )
        low = LagSample(at_ms=span["lag_low_at_ms"], lag_bytes=span["lag_bytes_low"])
        last_at_ms = span["ended_at_ms"] - SECOND_MS
        last = LagSample(at_ms=last_at_ms, lag_bytes=span["lag_bytes_last"])
        judged_values["progress"] = PROGRESS[progress([low, last], patience_ms=PATIENCE_MS)]
    judged_values |= _bounds(span, network_bytes_per_s, replication_factor)
    is_done = judged_values["progress"] == PROGRESS[Progress.DONE]
    if is_done and judged_values["verdict"] == VERDICTS[ThrottleVerdict.CANNOT_FINISH]:
        judged_values["verdict"] = BELOW_INBOUND
    judged_values["difference"] = explained(span, judged_values["estimated_ms"])
    return judged_values


def _bounds(
    span: dict[str, Any], network_bytes_per_s: int | None, replication_factor: int
) -> dict[str, Any]:
    """Question 4: what is safe, and whether the limit is."""
    limit, inbound = span["limit_bytes_per_s"], span["bytes_in_per_s"]
    if inbound is None:
        return {"verdict": INBOUND_UNKNOWN}
    is_known = network_bytes_per_s is not None
    # Without a network rate only the lower bound is reported; the upper is out of reach.
    network = limit + 2 * inbound + 1 if network_bytes_per_s is None else network_bytes_per_s
    bounds = safe_range(
        bytes_in_per_s=inbound,
        network_bytes_per_s=network,
        replication_factor=replication_factor,
    )
    verdict = bounds.verdict(limit)
    is_half_judged = verdict is ThrottleVerdict.SAFE and not is_known
    return {
        "safe_above_bytes_per_s": int(bounds.above_bytes_per_s),
        "safe_below_bytes_per_s": -(-bounds.below_bytes_per_s // 1) if is_known else None,
        "verdict": ABOVE_INBOUND if is_half_judged else VERDICTS[verdict],
    }
