"""A snapshot of a cluster, with what moves need to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from insync.client import reassignments
from insync.client.admin import Admin, Move, Partition
from insync.rules.move_plan import Assignment, TopicPartition
from insync.rules.values import BrokerId, PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNow:
    cluster_id: str
    racks: Mapping[BrokerId, str | None]  # of every live broker
    partitions: Mapping[TopicPartition, Partition]

    @property
    def alive(self) -> frozenset[BrokerId]:
        return frozenset(self.racks)

    @property
    def known(self) -> frozenset[BrokerId]:
        """Live brokers, and brokers that are down but have replicas."""
        return self.alive.union(*(each.replicas for each in self.partitions.values()))

    @property
    def active(self) -> dict[TopicPartition, Move]:
        """Every running reassignment."""
        return {
            partition: now.move
            for partition, now in self.partitions.items()
            if now.move is not None
        }

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(topic for topic, _ in self.partitions)

    def assignments(self) -> dict[TopicPartition, Assignment]:
        return {
            partition: Assignment(
                replicas=tuple(now.replicas),
                adding=() if now.move is None else tuple(now.move.adding),
                removing=() if now.move is None else tuple(now.move.removing),
            )
            for partition, now in self.partitions.items()
        }

    def hosted(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[BrokerId, tuple[TopicPartition, ...]]:
        """Which of these partitions each broker has a replica of."""
        hosted: dict[BrokerId, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            if partition in self.partitions:
                for broker in self.partitions[partition].replicas:
                    hosted.setdefault(broker, []).append(partition)
        return {broker: tuple(hosted[broker]) for broker in sorted(hosted)}


async def read_cluster(admin: Admin) -> ClusterNow:
    cluster_id = await reassignments.cluster_id(admin)
    moves = await admin.moves()
    topics = await admin.topics()
    brokers = await admin.brokers()
    partitions = {
        (topic.name, PartitionId(each.number)): _with_move(
            each, moves.get((topic.name, each.number))
        )
        for topic in topics
        for each in topic.partitions
    }
    return ClusterNow(
        cluster_id=cluster_id,
        racks={broker.number: broker.rack for broker in brokers},
        partitions=partitions,
    )


def _with_move(partition: Partition, move: Move | None) -> Partition:
    """Replicas as the reassignment has them: the Metadata response may be older."""
    if move is None:
        return partition
    return Partition(
        number=partition.number,
        leader=partition.leader,
        replicas=move.replicas,
        isr=partition.isr,
        offline=partition.offline,
        move=move,
    )
