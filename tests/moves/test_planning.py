"""Estimates of plans on a cluster with fixed sizes and rates: the document's examples."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from insync.cli.reassign_plan import _range_lines
from insync.cli.throttle import estimate
from insync.client.admin import Move as RunningMove
from insync.client.log_sizes import LogSize, LogSizes
from insync.moves import planning
from insync.moves.bootstrap import copies_of, estimate_rebuild
from insync.moves.execute import (
    MoveStatus,
    MovesUnderWay,
    check_rates_can_be_set,
    check_topics_exist,
    move_statuses,
    prepare,
)
from insync.moves.measure import between
from insync.moves.planning import FetchSettings, UnsafeThrottle, response_warnings
from insync.moves.throttle import CannotThrottle
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId
from support.moves.admin_in_memory import OneCluster, cluster_now, ids, partition
from support.moves.simulated_brokers import options

MB = 1_000_000
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
ONE, TWO = BrokerId(1), BrokerId(2)
TEN = [partition(number) for number in range(10)]


def sizes(mb: float, messages: int) -> LogSizes:
    log = LogSize(end=messages, size_bytes=int(mb * MB))
    return LogSizes(of={ONE: dict.fromkeys(TEN, log), TWO: {}}, problems={})


def seen(network: int | None = None, *, inbound_mb: float = 2) -> planning.PlanEstimate:
    """Ten partitions of 30 MB from 1 to 2, r=1, with 2 MB/s coming in."""
    cluster = cluster_now(dict.fromkeys(TEN, (1,)), alive=[1, 2])
    prepared = prepare(cluster, dict.fromkeys(TEN, ids([2])), is_additional=False)
    first, last = sizes(30 - inbound_mb, 90), sizes(30, 100)
    measured = between(cluster, last, first, elapsed_ms=10_000)
    return planning.estimate_plan(cluster, prepared.moving, measured, network_bytes_per_s=network)


def test_the_documents_formula_and_each_brokers_own() -> None:
    estimated = seen()
    assert estimated.ratio == 1
    assert estimated.bytes_to_move == 300 * MB
    assert estimated.inbound_bytes_per_s == 2 * MB
    assert estimated.client_bytes_in_max == 2 * MB
    assert estimated.log_bytes_per_broker == 150 * MB
    # MoveRatio x TotalLogSizePerBroker x #Brokers / (quota - max(BytesInPerSec))
    assert estimated.document_time_ms(12 * MB) == 30_000
    assert estimated.time_ms(12 * MB) == 30_000
    assert estimated.quota_to_finish(30) == 12 * MB


def test_verdicts() -> None:
    estimated = seen(network=125 * MB)
    assert estimated.range.below_bytes_per_s == Fraction(123 * MB)
    assert estimated.verdict(2 * MB) == "cannot finish"
    assert estimated.verdict(2 * MB + 1) == "tight"
    assert estimated.verdict(2_499_999) == "tight"
    assert estimated.verdict(2_500_000) == "safe"
    assert estimated.verdict(123 * MB) == "starves clients"
    planning.check_safe(estimated, 2 * MB + 1)
    with pytest.raises(UnsafeThrottle, match=r"2 MB/s on broker 1 .* use at least 2000001"):
        planning.check_safe(estimated, 2 * MB)
    with pytest.raises(UnsafeThrottle, match="use at most 122999999, or --force"):
        planning.check_safe(estimated, 124 * MB)


def test_a_throttle_for_an_impact_counts_the_replicas_to_copy() -> None:
    """300 MB in ten replicas count as 330 MB; in ten partitions with two new replicas each, 660."""
    estimated = seen(network=125 * MB)
    one_each = estimated.quota_for_impact(Fraction(3, 10), network_bytes_per_s=125 * MB)
    assert one_each == 37_500_000 * 300 // 330
    cluster = cluster_now(dict.fromkeys(TEN, (1,)), alive=[1, 2, 3])
    prepared = prepare(cluster, dict.fromkeys(TEN, ids([1, 2, 3])), is_additional=False)
    measured = between(cluster, sizes(30, 100), sizes(30, 100), elapsed_ms=10_000)
    estimated = planning.estimate_plan(cluster, prepared.moving, measured, network_bytes_per_s=None)
    assert (estimated.replicas_to_copy, estimated.bytes_to_move) == (20, 600 * MB)
    two_each = estimated.quota_for_impact(Fraction(3, 10), network_bytes_per_s=125 * MB)
    assert two_each == 37_500_000 * 600 // 660


def test_a_throttle_is_not_called_safe_beside_a_time_of_never() -> None:
    """Much comes in to the brokers, little for the partitions that move."""
    estimated = replace(seen(), client_bytes_in_max=50 * MB)
    assert estimated.document_time_ms(12 * MB) is None
    assert estimated.verdict(12 * MB) == "safe for what comes in for these partitions"
    assert estimated.tighter_time_ms(12 * MB) == 30_000
    assert estimated.verdict(2 * MB) == "cannot finish"
    assert estimated.tighter_time_ms(2 * MB) is None


def test_no_time_is_shown_beside_a_throttle_that_cannot_finish() -> None:
    """The leader sends what comes in to two replicas; the document's formula counts it once."""
    cluster = cluster_now(dict.fromkeys(TEN, (1, 2)), alive=[1, 2, 3])
    prepared = prepare(cluster, dict.fromkeys(TEN, ids([3, 2])), is_additional=False)
    measured = between(cluster, sizes(30, 100), sizes(28, 90), elapsed_ms=10_000)
    estimated = planning.estimate_plan(cluster, prepared.moving, measured, network_bytes_per_s=None)
    assert estimated.document_time_ms(3 * MB) is not None
    assert estimated.verdict(3 * MB) == "cannot finish"
    assert estimated.tighter_time_ms(3 * MB) is None
    assert estimated.tighter_time_ms(14 * MB) == 30_000


def test_the_longer_of_both_times_is_shown() -> None:
    estimated = replace(seen(), client_bytes_in_max=7 * MB)
    assert estimated.document_time_ms(12 * MB) == 60_000
    assert estimated.tighter_time_ms(12 * MB) == 60_000


@pytest.mark.parametrize(
    ("network", "inbound_mb", "ours", "documents"),
    [
        (None, 2, "above 2 MB/s", "above 2 MB/s"),
        (125 * MB, 2, "above 2 MB/s, below 123 MB/s", "above 2 MB/s, below 123 MB/s"),
        (None, 0, "any; nothing comes in", "any; nothing comes in"),
        (125 * MB, 0, "below 125 MB/s", "below 125 MB/s"),
    ],
)
def test_both_safe_ranges_are_shown(
    network: int | None, inbound_mb: float, ours: str, documents: str, tmp_path: Path
) -> None:
    estimated = seen(network, inbound_mb=inbound_mb)
    shown = _range_lines(options(tmp_path, {}, network_bytes_per_s=network), estimated)
    assert shown[:2] == [
        f"Safe throttle for these partitions: {ours}",
        f"Safe throttle by KIP-73, for all that comes in to a broker: {documents}",
    ]


@pytest.mark.parametrize(
    ("before", "first", "adding", "removing"),
    [((1, 2), (3, 2), (3,), (1,)), ((1, 2), (1, 2, 3), (3,), ()), ((1, 2, 3), (2,), (), (1, 3))],
)
def test_the_rollback_of_an_additional_plan_is_the_assignment_before_the_first_move(
    before: tuple[int, ...],
    first: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
) -> None:
    replicas = ids([*first, *removing])
    move = RunningMove(replicas=replicas, adding=ids(adding), removing=ids(removing))
    cluster = cluster_now({TEN[0]: replicas}, alive=[1, 2, 3, 4])
    moving = replace(cluster.partitions[TEN[0]], move=move)
    cluster = replace(cluster, partitions={TEN[0]: moving})
    prepared = prepare(cluster, {TEN[0]: ids([4])}, is_additional=True)
    assert sorted(prepared.before[TEN[0]]) == sorted(before)
    if len(adding) == len(removing):
        assert prepared.before[TEN[0]] == before, "also in the same order"


def test_a_broker_that_is_rebuilding_copies_what_it_lacks() -> None:
    """Ten partitions of 30 MB with 2 MB/s coming in; it has 10 MB of each, or is down."""
    cluster = cluster_now(dict.fromkeys(TEN, (1, 2)), alive=[1, 2])
    copies = copies_of(cluster, TWO)
    first, last = sizes(28, 90), sizes(30, 100)
    part = dict.fromkeys(TEN, LogSize(end=33, size_bytes=10 * MB))
    for second, lacks, time_ms in ((part, 200, 20_000), ({}, 300, 30_000)):
        now = replace(last, of={**last.of, TWO: second})
        measured = between(cluster, now, first, elapsed_ms=10_000)
        estimated = estimate_rebuild(cluster, copies, TWO, measured)
        assert estimated.bytes_to_move == lacks * MB
        assert estimated.time_ms(12 * MB) == time_ms
        answer = estimate(estimated, TWO, 12 * MB, is_without_inbound=False)
        assert answer.data == {
            "throttle_bytes_per_s": 12 * MB,
            "bytes_to_copy": lacks * MB,
            "brokers": [
                {
                    "broker": broker,
                    "in_bytes": lacks * MB if broker == TWO else 0,
                    "out_bytes": lacks * MB if broker == ONE else 0,
                    "inbound_bytes_per_s": 2 * MB,
                }
                for broker in (ONE, TWO)
            ],
            "time_ms": time_ms,
        }
        *table, line = answer.text.splitlines()
        assert line == (
            f"Broker 2 lacks {lacks} MB: at 12 MB/s, less what comes in, this takes "
            f"{time_ms // 1_000}.0 s"
        )
        assert table[2].split()[:3] == ["2", str(lacks), "MB"]


def test_a_log_that_retention_cut_is_measured_by_its_offsets() -> None:
    """Ten messages of a hundred came while the log lost two thirds of its bytes."""
    cluster = cluster_now(dict.fromkeys(TEN, (1,)), alive=[1, 2])
    measured = between(cluster, sizes(10, 100), sizes(30, 90), elapsed_ms=1_000)
    assert measured.rates[TEN[0]] == 10 * 30 * MB // 100


def test_partitions_without_a_leader_or_a_size_are_left_out() -> None:
    cluster = cluster_now({partition(0): [2], partition(1): [1]}, alive=[1, 2])
    measured = between(cluster, sizes(30, 1), None, elapsed_ms=1)
    assert dict(measured.sizes) == {partition(1): 30 * MB}


def test_a_response_size_too_large_for_the_quota_gets_a_warning() -> None:
    """Five nodes at 1 MB/s with a window of 10 s bear 10 MB; 500 nodes on 100 MB/s bear 2 MB."""
    at_limit = {ONE: FetchSettings(response_bytes_max=10 * MB, window_s=10)}
    below = {ONE: FetchSettings(response_bytes_max=10 * MB - 1, window_s=10)}
    quota = {"quota_bytes_per_s": MB}
    assert response_warnings(below, **quota, network_bytes_per_s=None, brokers=5) == []
    (warning,) = response_warnings(at_limit, **quota, network_bytes_per_s=None, brokers=5)
    assert "set it below 10000000" in warning
    assert response_warnings(below, **quota, network_bytes_per_s=100 * MB, brokers=5) == []
    (warning,) = response_warnings(below, **quota, network_bytes_per_s=100 * MB, brokers=500)
    assert "set it below 2000000" in warning


@pytest.mark.parametrize(
    ("brokers_set", "warnings"),
    [
        ({}, []),
        ({"": {LEADER_RATE: "5"}}, []),
        ({"1": {LEADER_RATE: "5"}, "2": {LEADER_RATE: "5"}}, []),
        (
            {"1": {LEADER_RATE: "5"}, "2": {LEADER_RATE: str(2**63 - 1)}},  # which is Kafka's none
            [(f"{LEADER_RATE} is not the same on all brokers involved: 5 on broker 1, none on "
             "broker 2")],
        ),
        (
            {"": {FOLLOWER_RATE: "7"}, "2": {FOLLOWER_RATE: "6"}},
            [(f"{FOLLOWER_RATE} is not the same on all brokers involved: 7 on broker 1, 6 on "
             "broker 2")],
        ),
    ],
)  # fmt: skip
def test_unequal_throttles_of_brokers_get_a_warning(
    brokers_set: dict[str, dict[str, str]], warnings: list[str]
) -> None:
    """With unequal throttles a move may stop once leaders have changed."""
    admin = OneCluster(brokers_set=brokers_set).admin
    assert asyncio.run(planning.rate_warnings(admin, [ONE, TWO])) == warnings


def test_fetch_settings_are_each_brokers_own() -> None:
    own = {"replica.fetch.response.max.bytes": "1000", "replication.quota.window.num": "5"}
    cluster = OneCluster(brokers_set={"": {"replication.quota.window.size.seconds": "2"}, "2": own})
    estimated = asyncio.run(planning.fetch_settings(cluster.admin, [TWO, ONE]))
    assert estimated == {
        ONE: FetchSettings(response_bytes_max=10 * 1024 * 1024, window_s=22),
        TWO: FetchSettings(response_bytes_max=1000, window_s=10),
    }


# Before anything is changed.


def test_plans_that_do_not_fit() -> None:
    cluster = cluster_now({partition(0): [1, 2]})
    for plan, message in (
        ({partition(0): ids([1, 9])}, "t-0: broker 9 is not known; this cluster has 1, 2, 3"),
        ({partition(7): ids([1])}, "t-7 does not exist; take it out of the plan"),
        ({partition(0, "gone"): ids([1])}, "gone-0 does not exist"),
    ):
        with pytest.raises(BadPlan, match=message):
            prepare(cluster, plan, is_additional=False)
    with pytest.raises(BadPlan, match="topic 'gone' does not exist"):
        check_topics_exist(cluster, ["t", "gone"])


def test_running_moves() -> None:
    cluster = cluster_now({partition(0): [1, 2, 3]}, moving={partition(0): ([3], [1])})
    plan = {partition(0): ids([3, 2])}
    with pytest.raises(MovesUnderWay, match=r"running \(t-0\); .* --additional"):
        prepare(cluster, plan, is_additional=False)
    prepared = prepare(cluster, plan, is_additional=True)
    assert prepared.moving[partition(0)].sources == {1, 2}


def test_no_rate_can_be_set_on_a_broker_that_is_down() -> None:
    cluster = cluster_now({partition(0): [1, 2]}, alive=[1, 3])
    prepared = prepare(cluster, {partition(0): ids([1, 3])}, is_additional=False)
    with pytest.raises(CannotThrottle, match="broker 2 is down, so its rate cannot be set"):
        check_rates_can_be_set(cluster, prepared)


def test_a_broker_that_keeps_a_replica_may_be_down_one_that_gets_one_may_not() -> None:
    """KAFKA-19975: 3 keeps the replica it has, dead or not; 4 must be live."""
    cluster = cluster_now({partition(0): [1, 2, 3]}, alive=[1, 2, 4])
    prepared = prepare(cluster, {partition(0): ids([4, 2, 3])}, is_additional=False)
    assert prepared.moving[partition(0)].destinations == {4}
    another = cluster_now({partition(0): [1, 2], partition(1): [3]}, alive=[1, 2])
    plan = {partition(0): ids([1, 3])}
    with pytest.raises(BadPlan, match="t-0: broker 3 is down and cannot get a replica; "):
        prepare(another, plan, is_additional=False)


def test_the_statuses_of_a_plan() -> None:
    cluster = cluster_now(
        {partition(0): [3, 2], partition(1): [1, 2, 3], partition(2): [1, 2]},
        moving={partition(1): ([3], [1])},
    )
    plan = {partition(number): ids([3, 2]) for number in range(4)}
    assert list(move_statuses(cluster, plan).values()) == [
        MoveStatus.COMPLETED,
        MoveStatus.IN_PROGRESS,
        MoveStatus.ELSEWHERE,
        MoveStatus.GONE,
    ]
