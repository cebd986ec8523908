"""What changed between two lag reports, as objects: `insync replicas --watch --json`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from insync.cli.replica_words import Reason, reason, why
from insync.client.replica_lag import FollowerKey, FollowerRow, Report

Change = dict[str, Any]


class State(NamedTuple):
    in_sync: bool
    reason: Reason
    row: FollowerRow | None  # None: it leads


LEADS: Final = State(in_sync=True, reason=Reason.HEALTHY, row=None)


class Cluster(NamedTuple):
    """A report by its keys, to compare with the next."""

    leaders: Mapping[tuple[str, int], int | None]
    replicas: Mapping[FollowerKey, State]
    topics: Mapping[str, UUID | None]  # and their ids, if known
    brokers: Mapping[int, str]
    silent: Mapping[int, str]

    @classmethod
    def of(cls, report: Report) -> Cluster:
        leaders: dict[tuple[str, int], int | None] = {}
        replicas: dict[FollowerKey, State] = {}
        assigned: set[int] = set()
        for topic in report.topics:
            for partition in topic.partitions:
                leader = partition.leader
                leaders[topic.name, partition.number] = leader
                assigned.update(partition.replicas)
                if leader is not None:
                    replicas[topic.name, partition.number, leader] = LEADS
        for row in report.rows:
            replicas[row.key] = State(row.in_sync, reason(row), row)
            if row.leader is not None:  # which may have been elected since Metadata was read
                leaders[row.topic, row.partition] = row.leader
                replicas.setdefault((row.topic, row.partition, row.leader), LEADS)
        return cls(
            leaders=leaders,
            replicas=replicas,
            topics={topic.name: topic.topic_id for topic in report.topics},
            brokers={broker: _broker_state(report, broker) for broker in assigned | report.brokers},
            silent=report.silent,
        )


def _broker_state(report: Report, broker: int) -> str:
    if broker not in report.brokers:
        return "down"
    return "not responding" if broker in report.silent else "responding"


def changes(before: Cluster, after: Cluster) -> Iterator[Change]:
    """Brokers first, then topics and leaders, then replicas, each in the order of their keys."""
    for broker in sorted(before.brokers.keys() | after.brokers.keys()):
        old, new = before.brokers.get(broker), after.brokers.get(broker)
        if old != new:
            yield {
                "change": "broker",
                "broker": broker,
                "state": new,
                "state_before": old,
                "problem": after.silent.get(broker),
            }
    # One that was deleted and created again since is another topic.
    kept = {name for name, _ in before.topics.items() & after.topics.items()}
    for topic in sorted(before.topics.keys() - kept):
        yield {"change": "topic-deleted", "topic": topic}
    for topic in sorted(after.topics.keys() - kept):
        yield {"change": "topic-created", "topic": topic}
    for (topic, partition), leader in after.leaders.items():
        if topic not in kept:
            continue
        old_leader = before.leaders.get((topic, partition), leader)
        if leader != old_leader:
            yield {
                "change": "leader",
                "topic": topic,
                "partition": partition,
                "leader": leader,
                "leader_before": old_leader,
            }
    yield from _replica_changes(before, after, kept)


def _replica_changes(before: Cluster, after: Cluster, kept: Container[str]) -> Iterator[Change]:
    for key, state in after.replicas.items():
        if key[0] not in kept:
            continue
        old = before.replicas.get(key)
        if old is None:
            yield _replica("replica-added", key, state, None)
        elif old.in_sync != state.in_sync:
            yield _replica("joined-isr" if state.in_sync else "left-isr", key, state, old)
        elif old.reason is not state.reason:
            yield _replica("reason", key, state, old)
    for key in before.replicas:
        if key not in after.replicas and key[0] in kept:
            topic, partition, replica = key
            yield {
                "change": "replica-removed",
                "topic": topic,
                "partition": partition,
                "replica": replica,
            }


def _replica(change: str, key: FollowerKey, state: State, old: State | None) -> Change:
    topic, partition, replica = key
    row = state.row
    return {
        "change": change,
        "topic": topic,
        "partition": partition,
        "replica": replica,
        "leader": replica if row is None else row.leader,
        "in_sync": state.in_sync,
        "reason": state.reason.value,
        "reason_before": None if old is None else old.reason.value,
        "why": "leads" if row is None else why(row),
        "lag_ms": None if row is None else row.lag_ms,
        "lag_messages": None if row is None else row.messages,
        "lag_bytes": None if row is None else row.bytes,
        "leaves_in_ms": None if row is None else row.leaves_in_ms,
    }
