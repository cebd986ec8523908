"""Lag reports of three brokers, as leaders of Insync or logs of Apache Kafka would give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from insync.cli.replica_causes import Diagnosis, diagnose
from insync.cli.replica_view import ReplicaView
from insync.client.admin import Partition, Topic
from insync.client.replica_lag import FollowerRow, Problem, Report
from insync.client.replica_limits import Limits
from insync.rules.values import BrokerId

BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
INTERNAL = "__telemetry"


def healthy_report(topics: dict[str, int]) -> Report:
    """Partition n of each topic is led by broker n % 3 + 1, and every replica is caught up."""
    described, rows = [], []
    for name, count in sorted(topics.items()):
        partitions = []
        for number in range(count):
            leader = BROKERS[number % 3]
            partitions.append(
                Partition(number=number, leader=leader, replicas=BROKERS, isr=BROKERS)
            )
            rows += [
                FollowerRow(
                    topic=name,
                    partition=number,
                    leader=leader,
                    follower=follower,
                    in_sync=True,
                    lag_ms=0,
                    messages=0,
                    bytes=0,
                    silent_ms=100,
                )
                for follower in BROKERS
                if follower != leader
            ]
        described.append(
            Topic(
                name=name,
                topic_id=None,
                is_internal=name == INTERNAL,
                partitions=tuple(partitions),
            )
        )
    return Report(
        is_exact=True,
        rows=tuple(rows),
        problems=(),
        topics=tuple(described),
        brokers=frozenset(BROKERS),
    )


def map_rows(report: Report, change: Callable[[FollowerRow], FollowerRow]) -> Report:
    return replace(report, rows=tuple(map(change, report.rows)))


def stopped_report(report: Report, *, silent_ms: int = 8_800) -> Report:
    """Broker 3 hangs: it neither fetches nor responds, and its session has not ended."""

    def change(row: FollowerRow) -> FollowerRow:
        if row.leader == BROKERS[2]:
            return replace(
                row,
                problem=Problem.LEADER_SILENT,
                lag_ms=None,
                messages=None,
                bytes=None,
                silent_ms=None,
            )
        if row.follower == BROKERS[2]:
            return replace(row, is_silent=True, silent_ms=silent_ms)
        return row

    return replace(
        map_rows(report, change),
        problems=("broker 3: does not respond",),
        silent={3: "does not respond"},
    )


def evicted_report(report: Report) -> Report:
    """Broker 3 is down: the controller elected other leaders and removed it from every ISR."""
    left = BROKERS[:2]
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                replace(
                    each,
                    leader=each.leader if each.leader in left else left[each.number % 2],
                    isr=left,
                    offline=BROKERS[2:],
                )
                for each in topic.partitions
            ),
        )
        for topic in report.topics
    )
    rows = [
        FollowerRow(
            topic=topic.name,
            partition=each.number,
            leader=each.leader,
            follower=follower,
            in_sync=follower in left,
            lag_ms=0,
            messages=0,
            bytes=0,
            silent_ms=100 if follower in left else 12_500,
            is_silent=follower not in left,
            is_registered=follower in left,
        )
        for topic in topics
        for each in topic.partitions
        for follower in BROKERS
        if follower != each.leader
    ]
    return replace(report, topics=topics, rows=tuple(rows), brokers=frozenset(left))


def shown(
    report: Report,
    width: int = 80,
    height: int | None = None,
    *,
    limits: Limits | None = None,
    shows_all: bool = False,
) -> list[str]:
    """The lines of the view."""
    diagnosis = diagnosis_of(report, limits)
    view = ReplicaView(report=report, diagnosis=diagnosis, shows_all=shows_all)
    return [line.text for line in view.lines(width, height)]


def diagnosis_of(report: Report, limits: Limits | None = None) -> Diagnosis:
    return diagnose(report, limits or Limits(session_timeout_ms=9_000))
