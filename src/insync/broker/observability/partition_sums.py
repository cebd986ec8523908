"""One pass over a broker's partitions for its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.rules import isr as isr_rules
from insync.rules.isr import Stable
from insync.rules.leadership import Leadership
from insync.rules.values import UNKNOWN_OFFSET, BrokerId

EVICT_WITHOUT_LAG: Final = frozenset({"messages", "lag-begin"})
"""Policies that evict a follower that does not fetch even if it has all records."""


@dataclass(slots=True)
class FollowerSums:
    """One broker as the follower of all partitions that this broker leads."""

    lag_ms_max: int = 0
    messages_max: int = 0
    out_of_sync: int = 0
    reads: int = 0
    oldest_read_ms: int = 0


@dataclass(slots=True)
class Sums:
    """The result of one pass over the partitions of this broker."""

    partitions: int = 0
    leaders: int = 0
    offline_logs: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    changes_pending: int = 0
    fetcher_lag_max: int = 0
    replica_lag: int = 0
    next_eviction_at_ms: int | None = None
    followers: dict[BrokerId, FollowerSums] = field(default_factory=dict)
    behind: list[tuple[int, int, TopicPartition, BrokerId]] = field(default_factory=list)


IsThrottled = Callable[[TopicPartition, BrokerId], bool]


def sum_partitions(
    replicas: Replicas, view: ClusterView, *, is_throttled: IsThrottled, now_ms: int
) -> Sums:
    """`is_throttled`: whether the replica of a partition on a broker is a throttled follower."""
    sums = Sums(
        followers={broker: FollowerSums() for broker in view.brokers if broker != replicas.broker}
    )
    sums.offline_logs += len(replicas.directory.unopened)
    is_alive = replicas.store.is_alive(now_ms)
    for replica in replicas.partitions.values():
        sums.partitions += 1
        sums.offline_logs += replica.log.has_failed or replica.key in replicas.directory.damaged
        if replica.term is None:
            lag = replica.leader_watermark - replica.log.end
            sums.fetcher_lag_max = max(sums.fetcher_lag_max, lag)
        elif is_alive:
            _add_led_partition(sums, view, replica, replica.term, now_ms=now_ms)
            sums.replica_lag += _moving_lag(view, replica, replica.term, is_throttled)
    return sums


def _moving_lag(
    view: ClusterView, replica: Replica, term: Leadership, is_throttled: IsThrottled
) -> int:
    """What throttled followers, and those that a reassignment adds, lack of this log.

    Of the leader's knowledge: a follower does not know the end of a partition that its throttle
    holds back, and would count it as 0 until it is first answered.
    """
    state = view.states.get(replica.key)
    adding = () if state is None else state.adding
    lag = 0
    for broker, follower in term.followers.items():
        if follower.end != term.end and (broker in adding or is_throttled(replica.key, broker)):
            sent_end = replica.sent_ends.get(broker, UNKNOWN_OFFSET)
            known_end = max(follower.end, sent_end, replica.log.start)
            lag += max(0, term.end - known_end)
    return lag


def _add_led_partition(
    sums: Sums, view: ClusterView, replica: Replica, term: Leadership, *, now_ms: int
) -> None:
    sums.leaders += 1
    members = isr_rules.committed(term.isr)
    state = view.states.get(replica.key)
    adding = 0 if state is None else len(state.adding)
    sums.reassigning += state is not None and state.is_moving
    sums.under_replicated += len(members) < len(term.followers) + 1 - adding
    sums.under_min_isr += len(members) < replica.min_isr
    sums.at_min_isr += len(members) == replica.min_isr
    sums.changes_pending += not isinstance(term.isr, Stable)
    end, is_any_behind = term.end, False
    for broker, follower in term.followers.items():
        follower_sums = sums.followers.get(broker)
        if follower_sums is None:  # not live, but still a follower
            follower_sums = sums.followers[broker] = FollowerSums()
        follower_sums.out_of_sync += broker not in members
        if follower.reads.reads:
            follower_sums.reads += len(follower.reads.reads)
            oldest_ms = follower.reads.oldest_parsed_at_ms
            assert oldest_ms is not None, "there is a pending read"
            follower_sums.oldest_read_ms = max(follower_sums.oldest_read_ms, now_ms - oldest_ms)
        if follower.end == end:
            continue
        is_any_behind = True
        messages = end if follower.end == UNKNOWN_OFFSET else end - follower.end
        follower_sums.messages_max = max(follower_sums.messages_max, messages)
        lag_ms = follower.lag_ms(leader_end=end, now_ms=now_ms)
        if lag_ms is not None:
            follower_sums.lag_ms_max = max(follower_sums.lag_ms_max, lag_ms)
            sums.behind.append((lag_ms, messages, replica.key, broker))
    if is_any_behind or term.policy.name in EVICT_WITHOUT_LAG:
        for at_ms in term.deadlines(replica.session_fetched_at_ms).values():
            soonest = sums.next_eviction_at_ms
            sums.next_eviction_at_ms = at_ms if soonest is None else min(soonest, at_ms)
