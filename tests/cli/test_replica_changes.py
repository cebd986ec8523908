"""`insync replicas --watch --json`: each change is one object, and nothing else is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

from insync.cli.replica_changes import Cluster, changes
from insync.client.replica_lag import FollowerRow, Report
from support.cli.replica_reports import evicted_report, healthy_report, map_rows, stopped_report

HEALTHY = healthy_report({"orders": 6})


def between(before: Report, after: Report) -> list[dict[str, Any]]:
    return list(changes(Cluster.of(before), Cluster.of(after)))


def counted(before: Report, after: Report) -> Counter[str]:
    return Counter(change["change"] for change in between(before, after))


def test_numbers_that_move_are_no_change() -> None:
    busy = map_rows(HEALTHY, lambda row: replace(row, messages=7, lag_ms=30, silent_ms=3))
    assert between(HEALTHY, HEALTHY) == between(HEALTHY, busy) == between(busy, HEALTHY) == []
    later = stopped_report(HEALTHY, silent_ms=8_900)
    assert between(stopped_report(HEALTHY, silent_ms=7_900), later) == []


def test_a_stopped_broker() -> None:
    objects = between(HEALTHY, stopped_report(HEALTHY))
    assert objects[0] == {
        "change": "broker",
        "broker": 3,
        "state": "not responding",
        "state_before": "responding",
        "problem": "does not respond",
    }
    reasons = Counter((each["reason"], each["reason_before"]) for each in objects[1:])
    assert reasons == {
        ("leader does not respond", "healthy"): 4,
        ("stopped fetching", "healthy"): 4,
    }


def test_an_eviction_changes_leaders_and_isrs_and_a_return_the_isrs() -> None:
    stopped, evicted = stopped_report(HEALTHY), evicted_report(HEALTHY)
    assert counted(stopped, evicted) == {"broker": 1, "leader": 2, "left-isr": 6, "reason": 4}
    objects = between(stopped, evicted)
    assert objects[0]["state"] == "down"
    left = [each for each in objects if each["change"] == "left-isr"]
    assert [(each["partition"], each["replica"]) for each in left] == [(n, 3) for n in range(6)]
    assert left[0] == {
        "change": "left-isr",
        "topic": "orders",
        "partition": 0,
        "replica": 3,
        "leader": 1,
        "in_sync": False,
        "reason": "broker down",
        "reason_before": "stopped fetching",
        "why": "its broker is down",
        "lag_ms": 0,
        "lag_messages": 0,
        "lag_bytes": 0,
        "leaves_in_ms": None,
    }
    back = between(evicted, HEALTHY)
    assert [each["change"] for each in back] == ["broker", *["leader"] * 2, *["joined-isr"] * 6]
    assert back[1]["leader"] == 3
    assert back[1]["leader_before"] in (1, 2)


def test_topics_and_replicas_come_and_go() -> None:
    more = healthy_report({"orders": 6, "new": 3})
    assert between(HEALTHY, more) == [{"change": "topic-created", "topic": "new"}]
    assert between(more, HEALTHY) == [{"change": "topic-deleted", "topic": "new"}]
    grown = healthy_report({"orders": 7})
    assert counted(HEALTHY, grown) == {"replica-added": 3}
    assert counted(grown, HEALTHY) == {"replica-removed": 3}


def test_a_reason_that_changes_outside_the_isr() -> None:
    def out(row: FollowerRow, **values: object) -> FollowerRow:
        if (row.partition, row.follower) != (0, 2):
            return row
        return replace(row, in_sync=False, messages=5, **values)  # type: ignore[arg-type]

    behind = map_rows(HEALTHY, out)
    catching_up = map_rows(HEALTHY, lambda row: out(row, catches_up_in_ms=4_000))
    (change,) = between(behind, catching_up)
    assert (change["change"], change["reason"], change["reason_before"]) == (
        "reason",
        "catching up",
        "behind",
    )
    assert change["why"] == "catching up, 4.0 s left"


def test_a_leader_that_is_newer_than_metadata_is_no_replica_that_was_removed() -> None:
    """Metadata names broker 1; broker 2 already reports that it leads."""

    def change(row: FollowerRow) -> FollowerRow:
        if row.partition != 0:
            return row
        return replace(row, leader=2, follower={2: 1, 3: 3}[row.follower])

    objects = between(HEALTHY, map_rows(HEALTHY, change))
    assert [(each["change"], each.get("leader")) for each in objects] == [("leader", 2)]


def test_a_topic_that_was_deleted_and_created_again_is_another_one() -> None:
    def with_id(number: int, partitions: int) -> Report:
        report = healthy_report({"orders": partitions})
        (topic,) = report.topics
        return replace(report, topics=(replace(topic, topic_id=UUID(int=number)),))

    assert between(with_id(1, 9), with_id(2, 3)) == [
        {"change": "topic-deleted", "topic": "orders"},
        {"change": "topic-created", "topic": "orders"},
    ]
    assert between(with_id(1, 3), with_id(1, 3)) == []
