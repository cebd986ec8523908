"""Which broker is the cause, in what order, and what the operator is told to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from insync.cli.replica_advice import DOES, broker_data, broker_text
from insync.cli.replica_causes import OF_NO_BROKER
from insync.cli.replica_words import Reason
from insync.client.admin import Topic
from insync.client.replica_lag import FollowerRow, Problem, Report
from insync.client.replica_limits import Limits
from insync.rules.values import BrokerId
from insync.wire.describe_replicas import Obstacles, OfflineSeen
from support.cli.replica_reports import (
    INTERNAL,
    diagnosis_of,
    evicted_report,
    healthy_report,
    map_rows,
    shown,
    stopped_report,
)

HEALTHY = healthy_report({"orders": 6})  # each broker leads 2 and follows 4


def of_follower_2(**values: object) -> Report:
    def change(row: FollowerRow) -> FollowerRow:
        return replace(row, **values) if row.follower == 2 else row  # type: ignore[arg-type]

    return map_rows(HEALTHY, change)


def sentence(report: Report, limits: Limits | None = None) -> str:
    (trouble,) = diagnosis_of(report, limits).brokers
    return broker_text(trouble)


OUT = {"in_sync": False, "obstacles": Obstacles.LAGGING}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"is_silent": True, "silent_ms": 4_200, "leaves_in_ms": 5_800, "messages": 7},
            (
                "broker 2 responds, but stopped fetching 4.2 s ago, from brokers 1, 3: still in "
                "all its ISRs, leads 2; leaders remove it from ISRs in 5.8 s; "
                "do: check the network between it and brokers 1, 3"
            ),
        ),
        (
            {"has_fetched": False, "silent_ms": None},
            (
                "broker 2 has not fetched from brokers 1, 3 yet: still in all its ISRs, leads 2; "
                "do: wait; if it stays, check the network between it and brokers 1, 3"
            ),
        ),
        (
            {"messages": 7, "lag_ms": 9_000, "leaves_in_ms": 1_000, "falls_back": True},
            (
                "broker 2 is 9.0 s behind and falling back: still in all its ISRs, leads 2; "
                "leaders remove it from ISRs in 1.0 s; "
                "do: check its disk and network, or reduce the load"
            ),
        ),
        (
            {**OUT, "messages": 7, "is_throttled": True, "catches_up_in_ms": 40_000},
            (
                "broker 2 catches up, throttled, 40.0 s left: out of 4 ISRs, leads 2; "
                "do: wait, or raise the throttle"
            ),
        ),
        (
            {**OUT, "messages": 7, "is_throttled": True, "is_silent": True, "silent_ms": 45_000},
            (
                "broker 2 is throttled, its latest fetch was 45.0 s ago: out of 4 ISRs, leads 2; "
                "do: raise the throttle; if it fetches still nothing, "
                "check the network between it and brokers 1, 3"
            ),
        ),
        (
            {**OUT, "messages": None, "has_fetched": False, "is_throttled": True},
            (
                "broker 2 catches up, throttled: out of 4 ISRs, leads 2; "
                "do: wait, or raise the throttle"
            ),
        ),
        (
            {**OUT, "messages": 7, "catches_up_in_ms": 40_000},
            "broker 2 catches up, 40.0 s left: out of 4 ISRs, leads 2; do: wait",
        ),
        (
            {"in_sync": False},
            "broker 2 is caught up, but out of sync: out of 4 ISRs, leads 2; do: wait",
        ),
        (
            OUT,
            "broker 2 joins with its next fetch: out of 4 ISRs, leads 2; do: wait",
        ),
        (
            {"in_sync": False, "is_changing": True},
            "broker 2 is joining: out of 4 ISRs, leads 2; do: wait",
        ),
        (
            {**OUT, "messages": 3, "lag_ms": 5_000, "lag_is_estimated": True},
            (
                "broker 2 is ~5.0 s behind: out of 4 ISRs, leads 2; "
                "do: check its disk and network, or reduce the load"
            ),
        ),
    ],
)
def test_what_a_broker_that_responds_does(values: dict[str, object], text: str) -> None:
    assert sentence(of_follower_2(**values)) == text


def test_every_reason_that_has_a_broker_has_words() -> None:
    assert DOES.keys() == set(Reason) - OF_NO_BROKER


def test_a_follower_that_is_behind_but_not_at_risk_is_healthy() -> None:
    report = of_follower_2(messages=7, lag_ms=300, leaves_in_ms=9_700, falls_back=True)
    assert diagnosis_of(report).brokers == []
    assert shown(report)[-1] == "Every replica is in sync."


def test_slow_reads_are_of_the_leader() -> None:
    """KIP-501: the follower's fetch waits for the leader's disk."""

    def change(row: FollowerRow) -> FollowerRow:
        if row.leader != 1:
            return row
        return replace(row, is_held=True, oldest_read_ms=8_500 - row.partition, pending_reads=1)

    report = map_rows(HEALTHY, change)
    assert sentence(report) == (
        "broker 1 reads slowly: fetches of 4 replicas wait for its disk, the oldest for 8.5 s: "
        "still in all its ISRs, leads 2; do: check its disk"
    )
    assert "  leader 1, 2 partitions: 0, 3" in shown(report)


def damage(row: FollowerRow) -> FollowerRow:
    if (row.follower, row.partition) == (2, 0):
        seen = OfflineSeen("orders", 0, 5, 9, is_damaged=True, reason="bad CRC")
        return replace(row, in_sync=False, offline=seen)
    if row.follower == 2:
        return replace(row, in_sync=False, messages=5, catches_up_in_ms=2_000)
    return row


def test_a_damaged_log_is_worse_than_catching_up_and_both_are_named() -> None:
    report = map_rows(HEALTHY, damage)
    assert sentence(report) == (
        "broker 2 has 1 damaged log (bad CRC): out of 4 ISRs, leads 2; also catching up in 3; "
        "do: wait: it copies the log from the leader"
    )
    assert "    its log is damaged: bad CRC; 4 committed records are not in it" in shown(report)


def without_leader(report: Report, broker: int) -> Report:
    """Every partition that this broker led has no leader, and its ISR is this broker alone."""

    def change(topic: Topic) -> Topic:
        return replace(
            topic,
            partitions=tuple(
                replace(each, leader=None, isr=(BrokerId(broker),))
                if each.leader == broker
                else each
                for each in topic.partitions
            ),
        )

    rows = [
        replace(row, leader=None, problem=Problem.NO_LEADER, messages=None, in_sync=False)
        if row.leader == broker
        else row
        for row in report.rows
    ]
    return replace(report, topics=tuple(map(change, report.topics)), rows=tuple(rows))


def test_partitions_without_a_leader_wait_for_the_broker_of_their_isr() -> None:
    report = replace(without_leader(HEALTHY, 1), brokers=frozenset({2, 3}))
    text = (
        "broker 1 is down: still in all its ISRs, leads 0, 2 partitions without leader wait for it"
    )
    (trouble,) = diagnosis_of(report).brokers
    assert broker_text(trouble).startswith(text)
    lines = shown(report, limits=Limits(min_isr={"orders": 2}))
    assert lines[1] == "partitions  6: 2 under min ISR, 2 without leader, 2 under-replicated"
    assert "  no leader, 2 partitions: 0, 3" in lines
    assert "    it has no leader" in lines


def damaged_without_leader(*, isr: tuple[int, ...], brokers: set[int]) -> Report:
    """Partition 0 has no leader, and its log on broker 2 is damaged."""
    (topic,) = HEALTHY.topics
    first = replace(topic.partitions[0], leader=None, isr=tuple(map(BrokerId, isr)))
    seen = OfflineSeen("orders", 0, 5, 9, is_damaged=True, reason="bad CRC")
    rows = [row for row in HEALTHY.rows if row.partition != 0]
    rows += [
        FollowerRow(
            topic="orders",
            partition=0,
            leader=None,
            follower=broker,
            in_sync=broker in isr,
            problem=Problem.NO_LEADER,
            offline=seen if broker == 2 else None,
        )
        for broker in (1, 2, 3)
    ]
    return replace(
        HEALTHY,
        topics=(replace(topic, partitions=(first, *topic.partitions[1:])),),
        rows=tuple(rows),
        brokers=frozenset(brokers),
        offline={("orders", 0, 2): seen},
    )


def test_one_partition_without_a_leader_waits() -> None:
    (trouble,) = diagnosis_of(damaged_without_leader(isr=(2,), brokers={1, 2, 3})).brokers
    assert ", 1 partition without leader waits for it; " in broker_text(trouble)


def advice_for_2(report: Report) -> str:
    (trouble,) = (each for each in diagnosis_of(report).brokers if each.broker == 2)
    return broker_text(trouble).partition("; do: ")[2]


def test_a_damaged_replica_is_not_to_be_elected_while_another_may_be_intact() -> None:
    waits = "start or repair broker 1: it then copies the log from there"
    for isr in ((1,), (1, 2)):
        assert advice_for_2(damaged_without_leader(isr=isr, brokers={2, 3})) == waits
    alone = damaged_without_leader(isr=(2,), brokers={1, 2, 3})
    assert advice_for_2(alone) == (
        "restore its files; only if you cannot, insync topics --elect-damaged, "
        "which loses the records that are missing"
    )
    out_of_sync = damaged_without_leader(isr=(2,), brokers={1, 2})
    assert advice_for_2(out_of_sync) == waits.replace("broker 1", "broker 3")


def test_a_leaderless_partition_of_another_log_is_no_reason_to_elect_a_damaged_one() -> None:
    report = map_rows(without_leader(HEALTHY, 2), damage)
    assert advice_for_2(report) == "wait: it copies the log from the leader"


def test_partitions_without_followers_whose_leader_does_not_respond_are_not_healthy() -> None:
    (topic,) = HEALTHY.topics
    alone = replace(
        topic,
        partitions=tuple(
            replace(each, replicas=(each.leader,), isr=(each.leader,))
            for each in topic.partitions
            if each.leader is not None
        ),
    )
    silent = {3: "does not respond"}
    report = replace(HEALTHY, topics=(alone,), rows=(), silent=silent)
    lines = shown(report)
    assert lines[3].startswith("healthy     0 topics, 4 partitions")
    at = lines.index("orders: 2 of 6 partitions")
    assert lines[at + 1 : at + 3] == [
        "  leader 3, 2 partitions: 2, 5",
        "    broker 3 leads it and does not respond",
    ]


def test_the_worst_broker_comes_first() -> None:
    """Without leader, not responding, damaged, catching up; never by their ids."""

    def change(row: FollowerRow) -> FollowerRow:
        if row.follower == 1 and row.problem is None:
            return replace(row, in_sync=False, messages=5, catches_up_in_ms=2_000)
        return damage(row)

    report = map_rows(stopped_report(HEALTHY), change)
    assert [each.broker for each in diagnosis_of(report).brokers] == [3, 2, 1]


def test_topics_come_the_worst_first_and_internal_ones_last() -> None:
    report = healthy_report({"a": 3, "b": 3, "c": 3, INTERNAL: 6})

    def change(row: FollowerRow) -> FollowerRow:
        worst = {"a": 1, "b": 3, "c": 1, INTERNAL: 6}[row.topic]
        is_out = row.follower == 2 and row.partition < worst + 1
        return replace(row, in_sync=False, messages=5) if is_out else row

    topics = diagnosis_of(map_rows(report, change)).topics
    assert [(each.topic, each.out_of_sync) for each in topics] == [
        ("b", 2),
        ("a", 1),
        ("c", 1),
        (INTERNAL, 4),
    ]


# When a session ends: only what is known is said.


def test_the_time_to_the_eviction_needs_the_session_timeout() -> None:
    report = stopped_report(HEALTHY, silent_ms=8_800)
    assert "; the controller evicts it in about 200 ms and elects other leaders; " in sentence(
        report
    )
    late = stopped_report(HEALTHY, silent_ms=9_100)
    assert "; the controller evicts it now and elects other leaders; " in sentence(late)
    assert "evicts" not in sentence(report, Limits())


def test_a_broker_that_keeps_its_session_is_not_said_to_be_evicted() -> None:
    """It is cut off from brokers and clients, but not from the metadata store."""
    assert sentence(stopped_report(HEALTHY, silent_ms=21_200)) == (
        "broker 3 stopped fetching 21.2 s ago and does not respond: still in all its ISRs, leads 2 "
        "(not responding); the controller does not evict it, and elects no other leaders: "
        "its heartbeats seem to arrive; do: check its network, its host and its process"
    )


def test_followers_of_a_new_leader_are_healthy_before_their_first_fetch() -> None:
    """A broker that fetched 80 ms ago has not stopped."""
    new = {"has_fetched": False, "silent_ms": 80, "messages": None, "lag_ms": None}
    assert diagnosis_of(of_follower_2(**new)).brokers == []
    assert sentence(of_follower_2(**new, **OUT)) == (
        "broker 2 has not fetched from brokers 1, 3 yet: out of 4 ISRs, leads 2; "
        "do: wait; if it stays, check the network between it and brokers 1, 3"
    )
    stopped = of_follower_2(**{**new, "silent_ms": 4_200, "is_silent": True})
    assert "responds, but stopped fetching 4.2 s ago, from brokers 1, 3" in sentence(stopped)


def test_a_broker_that_fetches_but_does_not_respond_is_not_said_to_be_evicted() -> None:
    silent = {2: "cannot reach host:9092"}
    report = replace(HEALTHY, silent=silent, problems=("broker 2: cannot reach host:9092",))
    assert sentence(report) == (
        "broker 2 does not respond to this command (cannot reach host:9092), but fetched 100 ms "
        "ago: still in all its ISRs, leads 2 (not responding); "
        "do: check its host and its process, and the network from here to it"
    )


Estimate = Callable[[FollowerRow], FollowerRow]


def of_apache_kafka(change: Estimate = lambda row: row) -> Report:
    """Nothing is known of fetches, sessions and reasons."""
    report = map_rows(HEALTHY, lambda row: replace(row, silent_ms=None, lag_is_estimated=True))
    return replace(map_rows(report, change), is_exact=False)


def test_of_apache_kafka_less_is_said() -> None:
    def change(row: FollowerRow) -> FollowerRow:
        if row.leader == 2:
            return replace(row, problem=Problem.LEADER_SILENT, messages=None, lag_ms=None)
        if row.follower == 2:
            return replace(row, problem=Problem.NOT_REPORTED, messages=None, lag_ms=None)
        return row

    silent = replace(
        of_apache_kafka(change),
        silent={2: "does not respond"},
        problems=("broker 2: does not respond",),
    )
    assert sentence(silent) == (
        "broker 2 does not respond: still in all its ISRs, leads 2 (not responding); "
        "do: check its host and its process"
    )
    lines = shown(silent)
    assert "lag         measured from outside, ~ estimated" in lines
    assert "    its broker does not report it" in lines
    gone = replace(of_apache_kafka(change), brokers=frozenset({1, 3}))
    assert sentence(gone) == (
        "broker 2 is down: still in all its ISRs, leads 2; "
        "do: start it; if its process runs, check its host"
    )


def test_a_failed_log_directory_of_apache_kafka() -> None:
    def change(row: FollowerRow) -> FollowerRow:
        if row.follower == 2 and row.partition == 0:
            return replace(row, problem=Problem.NOT_REPORTED, in_sync=False, messages=None)
        return row

    report = of_apache_kafka(change)
    (topic,) = report.topics
    failed = replace(topic.partitions[0], offline=(BrokerId(2),), isr=(BrokerId(1), BrokerId(3)))
    topic = replace(topic, partitions=(failed, *topic.partitions[1:]))
    assert sentence(replace(report, topics=(topic,))) == (
        "broker 2 has 1 offline replica: out of 1 ISR, leads 2; do: check its disk and its log"
    )
    assert sentence(report) == (
        "broker 2 does not report 1 replica: out of 1 ISR, leads 2; "
        "do: wait; if it stays, check its disk and its log"
    )


def test_the_data_of_a_broker() -> None:
    (trouble,) = diagnosis_of(stopped_report(HEALTHY)).brokers
    data = broker_data(trouble)
    assert data.pop("text") == broker_text(trouble)
    assert data == {
        "broker": 3,
        "state": "not responding",
        "registered": True,
        "responds": False,
        "stopped_fetching_ms": 8_800,
        "evicted_in_ms": 200,
        "replicas": 6,
        "out_of_sync": 0,
        "leads": 2,
    }
    (down,) = diagnosis_of(evicted_report(HEALTHY)).brokers
    assert (down.state, down.out, down.leads, down.evicted_in_ms) == ("down", 6, 0, None)
