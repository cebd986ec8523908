"""Topics as rows for scripts, and as the lines kafka-topics prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from insync.client.admin import ConfigValue, Partition, Topic
from insync.wire.configs import ConfigSource
from insync.wire.uuid_text import write_uuid

COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
    "could collide. To avoid issues it is best to use either, but not both.\n"
)

Row = dict[str, Any]


def topic_id(topic: Topic) -> str | None:
    """As Kafka writes ids: 22 characters."""
    if topic.topic_id is None:
        return None
    return write_uuid(topic.topic_id)


def topic_row(topic: Topic, settings: Mapping[str, ConfigValue] | None) -> Row:
    """`configs` has what is not a default; None where the brokers do not offer it."""
    return {
        "topic": topic.name,
        "topic_id": topic_id(topic),
        "internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": None
        if settings is None
        else {
            each.name: each.value
            for each in settings.values()
            if each.source is not ConfigSource.DEFAULT
        },
    }


def partition_row(partition: Partition) -> Row:
    move = partition.move
    return {
        "partition": partition.number,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline_replicas": list(partition.offline),
        "adding_replicas": [] if move is None else list(move.adding),
        "removing_replicas": [] if move is None else list(move.removing),
        "elr": None if partition.elr is None else list(partition.elr),
        "last_known_elr": (
            None if partition.last_known_elr is None else list(partition.last_known_elr)
        ),
    }


def text(rows: Sequence[Row], *, with_topics: bool) -> str:
    lines = []
    for row in rows:
        if with_topics:
            lines.append(_topic_line(row))
        lines += [_partition_line(row["topic"], each) for each in row["partitions"]]
    return "".join(f"{line}\n" for line in lines)


def _topic_line(row: Row) -> str:
    identity = [] if row["topic_id"] is None else [f"TopicId: {row['topic_id']}"]
    configs = ",".join(f"{name}={value}" for name, value in (row["configs"] or {}).items())
    return "\t".join(
        [
            f"Topic: {row['topic']}",
            *identity,
            f"PartitionCount: {row['partition_count']}",
            f"ReplicationFactor: {row['replication_factor']}",
            f"Configs: {configs}",
        ]
    )


def _partition_line(topic: str, row: Row) -> str:
    moving = (
        [
            f"Adding Replicas: {_brokers(row['adding_replicas'])}",
            f"Removing Replicas: {_brokers(row['removing_replicas'])}",
        ]
        if row["adding_replicas"] or row["removing_replicas"]
        else []
    )
    leader = "none" if row["leader"] is None else row["leader"]
    return "\t" + "\t".join(
        [
            f"Topic: {topic}",
            f"Partition: {row['partition']}",
            f"Leader: {leader}",
            f"Replicas: {_brokers(row['replicas'])}",
            f"Isr: {_brokers(row['isr'])}",
            *moving,
            f"Elr: {_brokers(row['elr'])}",
            f"LastKnownElr: {_brokers(row['last_known_elr'])}",
        ]
    )


def _brokers(brokers: Sequence[int] | None) -> str:
    return "N/A" if brokers is None else ",".join(str(broker) for broker in brokers)
