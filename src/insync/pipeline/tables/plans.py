"""A plan that evens out brokers, from the record: one row.

`balance_plan.py` decides, in this process. Here Spark computes what it decides by: the cluster at
the end of the record, and bytes by hour. `plan` and `rollback` are files of
kafka-reassign-partitions; where nothing is to be changed, their lists are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from insync.moves.plan_file import plan_json
from insync.pipeline.local.dispatch import F
from insync.pipeline.tables.assignments import TOPIC_PARTITION
from insync.pipeline.tables.balance_plan import (
    HourEstimate,
    HourRates,
    MovePlan,
    PlanOptions,
    changes_of,
    moving_of,
    plan_of,
)
from insync.pipeline.tables.inbound import SECOND_MS, bytes_by_hour, covered_hours
from insync.pipeline.tables.recorded_cluster import (
    LastAssignments,
    RecordedCluster,
    recorded_cluster,
)
from insync.rules.load_balance import BYTES_IN, CLIENT_BYTES_IN, LEADERS
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId, PartitionId

_IDS: Final = ArrayType(IntegerType())
MOVES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("replicas", _IDS),
        StructField("new_replicas", _IDS),
        StructField("copies", IntegerType()),  # 0: only the preferred leader changes
        StructField("size_bytes", LongType()),
        StructField("bytes_written", LongType()),
    ]
)
HOURS: Final = StructType(
    [
        StructField("hour", IntegerType()),  # of the day, UTC
        StructField("covered_ms", LongType()),
        StructField("client_inbound_bytes_per_s", LongType()),  # of the busiest broker
        StructField("throttle_min_bytes_per_s", LongType()),
        StructField("throttle_max_bytes_per_s", LongType()),  # null: the network is not known
        StructField("move_time_ms", LongType()),  # KIP-73's, with the plan's throttle
    ]
)
BROKERS: Final = StructType(
    [
        StructField("broker", IntegerType()),
        StructField("unfit", StringType()),  # why it gets no replicas
        *(
            StructField(f"{when}{name}", LongType())
            for name in ("inbound_bytes_per_s", "client_inbound_bytes_per_s", "leaders")
            for when in ("", "new_")
        ),
    ]
)
PLANS: Final = StructType(
    [
        StructField("verdict", StringType(), nullable=False),
        StructField("reason", StringType(), nullable=False),
        StructField("statements", ArrayType(StringType())),
        StructField("partitions_to_move", LongType()),
        StructField("partitions_to_reorder", LongType()),
        StructField("partitions_total", LongType()),
        StructField("move_ratio", DoubleType()),
        StructField("bytes_to_move", LongType()),
        StructField("log_bytes_per_broker", LongType()),
        StructField("best_hour", IntegerType()),  # null: the record gives no choice
        StructField("throttle_bytes_per_s", LongType()),  # null: nothing is copied
        # Safe in every recorded hour.
        StructField("throttle_min_bytes_per_s", LongType()),
        StructField("throttle_max_bytes_per_s", LongType()),
        StructField("move_time_ms", LongType()),  # KIP-73's; null: not known, or never
        StructField("per_broker_time_ms", LongType()),
        StructField("covered_ms", LongType()),
        StructField("moves", ArrayType(MOVES)),
        StructField("hours", ArrayType(HOURS)),
        StructField("brokers", ArrayType(BROKERS)),
        StructField("plan", StringType()),
        StructField("rollback", StringType()),
    ]
)


_PARTITION: Final = [StructField("topic", StringType()), StructField("partition", IntegerType())]


def plans(
    fetches: DataFrame,
    appends: DataFrame,
    assignments: DataFrame,
    isr: DataFrame,
    configs: DataFrame,
    *,
    options: PlanOptions | None = None,
) -> DataFrame:
    """From telemetry tables; the schema is `PLANS`."""
    options = options or PlanOptions()
    assigned = LastAssignments(assignments)
    cluster = recorded_cluster(fetches, appends, assigned, isr, configs)
    if not cluster.partitions:
        raise BadPlan("every topic of the record was deleted: there is nothing to plan")
    covered = {
        row["hour_at_ms"]: row["covered_ms"] for row in covered_hours(fetches, appends).collect()
    }
    covered_ms = sum(covered.values())
    balance = changes_of(cluster, options, covered_ms)
    moving = moving_of(cluster, balance)
    current = assigned.of_last_creation(appends)
    rates = _rates(current, appends, cluster, moving, covered)
    plan = plan_of(cluster, balance, rates, options)
    row = _row(plan, cluster, covered_ms)
    return appends.sparkSession.createDataFrame([row], PLANS)


def _rates(
    current: DataFrame,
    appends: DataFrame,
    cluster: RecordedCluster,
    moving: Iterable[TopicPartition],
    covered: Mapping[int, int],
) -> list[HourRates]:
    spark = appends.sparkSession
    hourly = bytes_by_hour(current, *TOPIC_PARTITION).persist()
    placed = spark.createDataFrame(
        [
            (topic, number, broker)
            for (topic, number), each in cluster.partitions.items()
            for broker in each.replicas
        ],
        StructType([*_PARTITION, StructField("broker", IntegerType())]),
    )
    chosen = spark.createDataFrame(list(moving), StructType(_PARTITION))
    try:
        of_moving = hourly.join(F.broadcast(chosen), list(TOPIC_PARTITION)).collect()
        received = hourly.join(F.broadcast(placed), list(TOPIC_PARTITION))
        of_brokers = received.groupBy("broker", "hour_at_ms").agg(F.sum("bytes").alias("bytes"))
        in_all = of_brokers.collect()
    finally:
        hourly.unpersist()
    clients = bytes_by_hour(appends, "leader").collect()  # of deleted topics too: they were written
    moving_rates, client_rates, all_rates = (
        _per_hour(rows, covered) for rows in (of_moving, clients, in_all)
    )
    return [
        HourRates(
            at_ms=hour,
            covered_ms=covered[hour],
            moving={
                (row["topic"], PartitionId(row["partition"])): rate
                for row, rate in moving_rates.get(hour, ())
            },
            clients={BrokerId(row["leader"]): rate for row, rate in client_rates.get(hour, ())},
            received={BrokerId(row["broker"]): rate for row, rate in all_rates.get(hour, ())},
        )
        for hour in sorted(covered)
    ]


def _per_hour(rows: Iterable[Row], covered: Mapping[int, int]) -> dict[int, list[tuple[Row, int]]]:
    """With bytes per second, rounded up."""
    by_hour: dict[int, list[tuple[Row, int]]] = {}
    for row in rows:
        hour = row["hour_at_ms"]
        by_hour.setdefault(hour, []).append((row, -(-row["bytes"] * SECOND_MS // covered[hour])))
    return by_hour


def _row(plan: MovePlan, cluster: RecordedCluster, covered_ms: int) -> dict[str, Any]:
    is_kept = bool(plan.replicas)
    any_hour = plan.worst or plan.hours[0]
    estimate, quota = any_hour.estimate, plan.throttle_bytes_per_s
    to_move = estimate.partitions_to_move if is_kept else 0
    highest = [each.throttle_max for each in plan.hours if each.throttle_max is not None]
    return {
        "verdict": plan.verdict,
        "reason": plan.reason,
        "statements": list(plan.statements),
        "partitions_to_move": to_move,
        "partitions_to_reorder": len(plan.replicas) - to_move,
        "partitions_total": len(cluster.partitions),
        "move_ratio": to_move / len(cluster.partitions),
        "bytes_to_move": estimate.bytes_to_move if is_kept else 0,
        "log_bytes_per_broker": estimate.log_bytes_per_broker,
        "best_hour": plan.best_hour,
        "throttle_bytes_per_s": quota,
        "throttle_min_bytes_per_s": max(each.throttle_min for each in plan.hours),
        "throttle_max_bytes_per_s": min(highest, default=None),
        "move_time_ms": None if quota is None else estimate.document_time_ms(quota),
        "per_broker_time_ms": None if quota is None else estimate.time_ms(quota),
        "covered_ms": covered_ms,
        "moves": _moves(plan, cluster),
        "hours": [_hour(each, quota) for each in plan.hours],
        "brokers": _brokers(plan, cluster),
        "plan": plan_json(plan.replicas),
        "rollback": plan_json(plan.before),
    }


def _moves(plan: MovePlan, cluster: RecordedCluster) -> list[dict[str, Any]]:
    """Those that copy data first, the largest before the others."""
    rows = [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(plan.before[topic, number]),
            "new_replicas": list(replicas),
            "copies": len(set(replicas) - set(plan.before[topic, number])),
            "size_bytes": cluster.partitions[topic, number].size_bytes,
            "bytes_written": cluster.partitions[topic, number].bytes_written,
        }
        for (topic, number), replicas in sorted(plan.replicas.items())
    ]
    return sorted(rows, key=lambda row: (-row["copies"], -row["bytes_written"]))


def _hour(hour: HourEstimate, quota: int | None) -> dict[str, Any]:
    return {
        "hour": hour.hour,
        "covered_ms": hour.covered_ms,
        "client_inbound_bytes_per_s": hour.estimate.client_bytes_in_max,
        "throttle_min_bytes_per_s": hour.throttle_min,
        "throttle_max_bytes_per_s": hour.throttle_max,
        "move_time_ms": None if quota is None else hour.estimate.document_time_ms(quota),
    }


def _brokers(plan: MovePlan, cluster: RecordedCluster) -> list[dict[str, Any]]:
    columns = {BYTES_IN: "inbound_bytes_per_s", CLIENT_BYTES_IN: "client_inbound_bytes_per_s"}
    columns |= {LEADERS: "leaders"}
    rows = []
    for broker in cluster.brokers:
        row: dict[str, Any] = {"broker": broker, "unfit": cluster.unfit.get(broker)}
        for name, column in columns.items():
            balance = plan.balance
            after = balance and (balance.after if plan.replicas else balance.before)
            row[column] = None if balance is None else balance.before[name].get(broker)
            row[f"new_{column}"] = None if not after else after[name].get(broker)
        rows.append(row)
    return rows
