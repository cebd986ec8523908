"""Typed views of settings: one attribute per setting, for code that reads settings often.

An attribute has the name of the setting with underscores for dots; a test compares both classes
with the table of settings. Views are immutable: after a change of settings there is a new view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The effective settings of one topic: its own values, or else the broker's.

    Settings that brokers and topics name differently have the broker's name here, for example
    `log_segment_bytes` for `segment.bytes`.
    """

    follower_replication_throttled_replicas: str
    leader_replication_throttled_replicas: str
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_retention_bytes: int
    log_retention_ms: int
    log_roll_ms: int
    log_segment_bytes: int
    message_max_bytes: int
    min_insync_replicas: int
    replica_in_sync_policy: str
    replica_lag_time_max_ms: int
    unclean_leader_election_enable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The effective settings of this broker, which are the defaults of its topics."""

    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_rack: str
    broker_session_timeout_ms: int
    connections_max_idle_ms: int
    default_replication_factor: int
    follower_fetch_pending_reads_insync_enable: bool
    follower_fetch_process_time_include_stalls: bool
    follower_fetch_process_time_max_ms: int
    follower_replication_throttled_rate: int
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    leader_replication_throttled_rate: int
    leader_resign_cooldown_ms: int
    listeners: str
    log_dirs: str
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_scrub_interval_ms: int
    log_retention_ms: int
    log_roll_ms: int
    log_segment_bytes: int
    log_stray_retention_ms: int
    max_connections: int
    max_incremental_fetch_session_cache_slots: int
    message_max_bytes: int
    metadata_dir: str
    metadata_synchronous: str
    metrics_host: str
    metrics_port: int
    min_insync_replicas: int
    node_id: int
    num_partitions: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_in_sync_policy: str
    replica_lag_max_messages: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    socket_request_max_bytes: int
    telemetry_buffer_bytes: int
    telemetry_enable: bool
    telemetry_publish_interval_ms: int
    telemetry_retention_bytes: int
    telemetry_topic_partitions: int
    unclean_leader_election_enable: bool


View = TypeVar("View", TopicSettings, BrokerSettings)


def build_view(view: type[View], value_of: Callable[[str], Any]) -> View:
    """A view of the values that `value_of` returns for the names of settings."""
    names = [field.name for field in fields(view)]
    return view(**{name: value_of(name.replace("_", ".")) for name in names})
