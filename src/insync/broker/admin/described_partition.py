"""What Metadata and DescribeTopicPartitions both say of a partition."""

from __future__ import annotations

from collections.abc import Mapping

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.metadata import paths
from insync.metadata.offline_replicas import ALL_ONLINE, Offline, offline_by_state_path
from insync.wire.any_version import Values

OfflineByPath = Mapping[str, Offline]


def reported_offline(view: ClusterView) -> OfflineByPath:
    """The failed and damaged replicas of live brokers: found once per request, mostly none."""
    return offline_by_state_path(view.store, view.incarnations)


def describe_partition(view: ClusterView, key: TopicPartition, offline: OfflineByPath) -> Values:
    """`offline_replicas` has those of dead brokers, and those that their brokers report."""
    state, live = view.states[key], view.live
    reported = offline.get(paths.partition_state(*key), ALL_ONLINE).brokers if offline else ()
    return {
        "partition_index": key[1],
        "leader_id": state.leader if state.leader in live else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": tuple(
            broker for broker in state.replicas if broker not in live or broker in reported
        ),
    }
