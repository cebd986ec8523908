"""What Metadata and DescribeTopicPartitions both say of a partition."""

from __future__ import annotations

from collections.abc import Mapping

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.metadata import paths
from insync.metadata.offline_replicas import ALL_ONLINE, Offline, offline_by_state_path
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId
from insync.wire.any_version import Values

OfflineByPath = Mapping[str, Offline]


def reported_offline(view: ClusterView) -> OfflineByPath:
    """The failed and damaged replicas of live brokers: found once per request, mostly none."""
    return offline_by_state_path(view.store, view.incarnations)


def describe_partition(
    view: ClusterView, key: TopicPartition, offline: OfflineByPath, live: frozenset[BrokerId]
) -> Values:
    """`offline_replicas` has those of dead brokers, and those that their brokers report."""
    state = view.states[key]
    return {
        "partition_index": key[1],
        "leader_id": state.leader if state.leader in live else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": offline_replicas(key, state, offline, live),
    }


def offline_replicas(
    key: TopicPartition,
    state: PartitionState,
    offline: OfflineByPath,
    live: frozenset[BrokerId],
) -> tuple[BrokerId, ...]:
    """Mostly none: of thousands of partitions each costs little then."""
    if not offline and live.issuperset(state.replicas):
        return ()
    reported = offline.get(paths.partition_state(*key), ALL_ONLINE).brokers if offline else ()
    return tuple(broker for broker in state.replicas if broker not in live or broker in reported)
