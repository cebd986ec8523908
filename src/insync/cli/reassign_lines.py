"""The lines that kafka-reassign-partitions prints, for scripts that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from insync.client.admin import Move
from insync.moves.cluster import ClusterNow
from insync.moves.execute import MoveStatus
from insync.moves.plan_file import Plan, plan_json
from insync.moves.throttle import ALL_BROKERS, ThrottleRemoval
from insync.rules.move_plan import TopicPartition
from insync.rules.values import BrokerId

VERIFY_WARNING = (
    "Warning: You must run --verify periodically, until the reassignment completes, "
    "to ensure the throttle is removed.\n"
)
PRESERVED = (
    "The throttle stays set, also when the moves are over; --verify without --preserve-throttles "
    "removes it.\n"
)


def name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def names(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(name(partition) for partition in sorted(partitions))


def under_way(active: Mapping[TopicPartition, Move]) -> str:
    if not active:
        return "No partition reassignments found.\n"
    lines = ["Current partition reassignments:"]
    for partition in sorted(active):
        move = active[partition]
        line = f"{name(partition)}: replicas: {_brokers(move.replicas)}."
        if move.adding:
            line += f" adding: {_brokers(move.adding)}."
        if move.removing:
            line += f" removing: {_brokers(move.removing)}."
        lines.append(line)
    return _text(lines)


def current(before: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> str:
    return _text(
        [
            "Current partition replica assignment",
            "",
            plan_json(before),
            "",
            "Save this to use as the --reassignment-json-file option during rollback",
        ]
    )


def started(plan: Plan, *, throttle_bytes_per_s: int | None) -> str:
    lines = []
    if throttle_bytes_per_s is not None:
        lines.append(f"The inter-broker throttle limit was set to {throttle_bytes_per_s} B/s")
    plural = "s" if len(plan) != 1 else ""
    lines.append(f"Successfully started partition reassignment{plural} for {names(plan)}")
    return _text(lines)


def status(statuses: Mapping[TopicPartition, MoveStatus], cluster: ClusterNow, plan: Plan) -> str:
    lines = ["Status of partition reassignment:"]
    for partition, standing in statuses.items():
        if standing is MoveStatus.COMPLETED:
            lines.append(f"Reassignment of partition {name(partition)} is completed.")
        elif standing is MoveStatus.IN_PROGRESS:
            lines.append(f"Reassignment of partition {name(partition)} is still in progress.")
        elif standing is MoveStatus.GONE:  # where Kafka shows an empty replica set
            lines.append(
                f"Partition {name(partition)} does not exist any more; take it out of the plan."
            )
        else:
            replicas = cluster.partitions[partition].replicas
            lines.append(
                f"There is no active reassignment of partition {name(partition)}, but "
                f"replica set is {_brokers(replicas)} rather than {_brokers(plan[partition])}."
            )
    return _text([*lines, ""])


def cancelled(partitions: Iterable[TopicPartition]) -> str:
    listed = names(partitions)
    if not listed:
        return "None of the specified partition reassignments are active.\n"
    return f"Successfully cancelled partition reassignments for: {listed}\n"


def cleared(ended: ThrottleRemoval) -> str:
    lines = []
    brokers = [each for each in ended.brokers if each != ALL_BROKERS]
    if brokers:
        plural = "s" if len(brokers) > 1 else ""
        lines.append(f"Clearing broker-level throttles on broker{plural} {_brokers(brokers)}")
    if ALL_BROKERS in ended.brokers:
        lines.append("Clearing the default throttle of all brokers")
    if ended.topics:
        plural = "s" if len(ended.topics) > 1 else ""
        lines.append(f"Clearing topic-level throttles on topic{plural} {','.join(ended.topics)}")
    if ended.kept_for:
        lines.append(f"The throttle stays for moves under way: {names(ended.kept_for)}")
    return _text(lines)


def _brokers(brokers: Iterable[BrokerId]) -> str:
    return ",".join(str(broker) for broker in brokers)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
