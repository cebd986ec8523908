"""Advice from made-up records, each with the one right answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from insync.pipeline.tables.advice import (
    KEEP,
    MIN_RECORD_MS,
    SET,
    TOO_SHORT,
    Advice,
    Outcome,
    Recorded,
    Running,
    advise,
    floor_ms,
    readable_limit_ms,
)
from insync.telemetry.replay.scenario import Scenario

DAY = Recorded(
    covered_ms=MIN_RECORD_MS,
    span_ms=MIN_RECORD_MS,
    silences=1_000_000,
    silence_ms_p9999=300,
    silence_ms_max=900,
)
RUNNING = Running(lag_time_max_ms=30_000)


def outcome(limit_ms: int, policy: str = "caught-up", **numbers: Any) -> Outcome:
    scenario = Scenario(policy=policy, lag_time_max_ms=limit_ms)
    return Outcome(scenario=scenario, **numbers)


def harm(limit_ms: int, partition_ms: int, policy: str = "caught-up", **numbers: Any) -> Outcome:
    return outcome(limit_ms, policy, evictions=1, catch_up_partition_ms=partition_ms, **numbers)


def chosen(advice: Advice) -> tuple[str, str, int]:
    return advice.verdict, advice.scenario.policy, advice.scenario.lag_time_max_ms


def test_staged_faults_of_a_minute_give_no_advice() -> None:
    """This record gave "set replica.lag.time.max.ms=500" once."""
    recorded = replace(DAY, covered_ms=15_000, span_ms=15_000)
    outcomes = [outcome(500), harm(1_000, 9_000, flaps=3), harm(30_000, 90_000)]
    advice = advise(recorded, RUNNING, outcomes)
    assert chosen(advice) == (TOO_SHORT, "caught-up", 30_000)
    assert "15 s of record is less than the 24 h that advice needs" in advice.reason
    assert "a day's peaks" in advice.reason
    assert advice.apply_command is None
    assert [row.outcome.limit_ms for row in advice.trade] == [500, 1_000, 30_000]


def test_the_covered_time_counts_and_not_the_time_from_first_to_last() -> None:
    recorded = replace(DAY, covered_ms=3_600_000, span_ms=5 * MIN_RECORD_MS)
    advice = advise(recorded, RUNNING, [outcome(30_000)])
    assert advice.verdict == TOO_SHORT
    assert advice.statements[0] == "1 h 0 min were recorded, gaps of 4 d 23 h left out."
    idle = advise(replace(recorded, idle_ms=MIN_RECORD_MS), RUNNING, [outcome(30_000)])
    left_out = "idle time of 1 d 0 h and gaps of 3 d 23 h left out"
    assert (idle.verdict, idle.statements[0]) == (
        TOO_SHORT,
        f"1 h 0 min were recorded, {left_out}.",
    )


def test_advice_from_less_than_a_day_warns_of_it() -> None:
    recorded = replace(DAY, covered_ms=60_000, span_ms=60_000)
    outcomes = [harm(30_000, 90_000), harm(5_000, 10_000)]
    advice = advise(recorded, RUNNING, outcomes, min_record_ms=30_000)
    assert chosen(advice) == (SET, "caught-up", 5_000)
    assert any("advice from 1 min 0 s, not from a day" in each for each in advice.statements)
    of_a_day = advise(DAY, RUNNING, outcomes)
    assert not any("not from a day" in each for each in of_a_day.statements)


def test_a_long_pause_of_a_healthy_follower_keeps_the_limit_above_it() -> None:
    """Eight seconds of garbage collection: 2 s does the least harm, and is not advised."""
    recorded = replace(DAY, silence_ms_max=8_000)
    outcomes = [harm(2_000, 1), harm(10_000, 50), harm(20_000, 100), harm(30_000, 1_000)]
    advice = advise(recorded, RUNNING, outcomes)
    assert advice.floor_ms == 20_000  # twice eight, and a quarter of that
    assert chosen(advice) == (SET, "caught-up", 20_000)
    assert [row.is_below_floor for row in advice.trade] == [True, True, False, False]
    assert any("silent for up to 8 s (p99.99 300 ms)" in each for each in advice.statements)


def test_the_floor_is_four_fetch_waits_where_silences_were_short() -> None:
    quiet = replace(DAY, silences=0, silence_ms_p9999=None, silence_ms_max=None)
    assert floor_ms(quiet, fetch_wait_max_ms=500) == 2_500
    assert floor_ms(DAY, fetch_wait_max_ms=500) == 2_500
    assert floor_ms(replace(DAY, silence_ms_max=1_001), fetch_wait_max_ms=500) == 2_503
    outcomes = [outcome(2_000), harm(3_000, 9), harm(30_000, 1_000)]
    assert chosen(advise(DAY, RUNNING, outcomes)) == (SET, "caught-up", 3_000)


def test_without_a_silence_of_a_healthy_follower_nothing_is_changed() -> None:
    """A day without evidence said "set 2500" once, and with a fetch wait of 0 "set 1"."""
    quiet = replace(DAY, silences=0, silence_ms_p9999=None, silence_ms_max=None)
    outcomes = [outcome(1), outcome(2_500), harm(30_000, 90_000)]
    for wait_ms in (0, 500):
        advice = advise(quiet, replace(RUNNING, fetch_wait_max_ms=wait_ms), outcomes)
        assert chosen(advice) == (KEEP, "caught-up", 30_000)
        assert "no silence of a healthy follower was recorded" in advice.reason


def test_no_limit_is_advised_that_the_record_does_not_resolve() -> None:
    outcomes = [outcome(5_000, is_resolved=False), harm(10_000, 80_000), harm(30_000, 90_000)]
    assert chosen(advise(DAY, RUNNING, outcomes)) == (SET, "caught-up", 10_000)
    other = outcome(30_000, "pending-reads", is_resolved=False)
    false = [harm(limit_ms, 90_000, false_evictions=1) for limit_ms in (30_000, 60_000)]
    assert advise(DAY, RUNNING, [other, *false]).verdict == KEEP


def test_a_limit_that_ends_flaps_is_advised() -> None:
    """With as much harm: the wait for the follower takes the place of its evictions."""
    running = Running(lag_time_max_ms=3_000)
    outcomes = [
        harm(3_000, 4_000, flaps=6),
        harm(5_000, 4_000, flaps=1),
        outcome(10_000, acks_all_stall_partition_ms=4_200),
        outcome(60_000, acks_all_stall_partition_ms=4_300),
    ]
    advice = advise(DAY, running, outcomes)
    assert chosen(advice) == (SET, "caught-up", 10_000)
    assert "ends 6 flaps" in advice.reason


def test_flaps_stay_where_every_limit_without_does_much_more_harm() -> None:
    running = Running(lag_time_max_ms=3_000)
    outcomes = [harm(3_000, 4_000, flaps=1), harm(60_000, 60_000)]
    advice = advise(DAY, running, outcomes)
    assert chosen(advice) == (KEEP, "caught-up", 3_000)
    assert "1 flap, but every limit without does more harm" in advice.reason


def test_slow_reads_of_a_leader_speak_for_pending_reads() -> None:
    """No limit of caught-up up to 60 s is without false evictions; 90 s is out of reason."""
    faults: dict[str, Any] = {"false_evictions": 12, "under_min_isr_partition_ms": 40_000}
    outcomes = [
        harm(20_000, 70_000, **faults),
        harm(30_000, 60_000, **faults),
        harm(60_000, 50_000, false_evictions=2),
        outcome(90_000),
        outcome(30_000, "pending-reads"),
        outcome(60_000, "pending-reads"),
        harm(30_000, 55_000, "true-lag", flaps=1),
    ]
    advice = advise(DAY, RUNNING, outcomes)
    assert chosen(advice) == (SET, "pending-reads", 30_000)
    assert advice.reason == (
        "pending-reads removes 2 false evictions that no limit of caught-up up to 1 min 0 s removes"
    )
    assert (advice.apply_command or "").endswith(
        "--add-config replica.in.sync.policy=pending-reads,replica.lag.time.max.ms=30000"
    )
    assert (advice.revert_command or "").endswith(
        "--add-config replica.in.sync.policy=caught-up,replica.lag.time.max.ms=30000"
    )


def test_the_running_policy_stays_where_a_longer_limit_does_as_well() -> None:
    outcomes = [
        harm(30_000, 60_000, false_evictions=2),
        outcome(45_000),
        outcome(30_000, "pending-reads"),
    ]
    assert chosen(advise(DAY, RUNNING, outcomes)) == (SET, "caught-up", 45_000)


def test_time_below_min_isr_that_every_policy_has_changes_no_policy() -> None:
    """A broker was down: no rule helps."""
    down: dict[str, Any] = {"under_min_isr_partition_ms": 600_000}
    outcomes = [harm(30_000, 0, **down), harm(30_000, 0, "pending-reads", **down)]
    assert chosen(advise(DAY, RUNNING, outcomes)) == (KEEP, "caught-up", 30_000)


@pytest.mark.parametrize(
    ("harm_ms", "expected"),
    [(91, (KEEP, 30_000)), (90, (SET, 20_000)), (100, (KEEP, 30_000)), (110, (KEEP, 30_000))],
)
def test_a_gain_below_a_tenth_changes_nothing(harm_ms: int, expected: tuple[str, int]) -> None:
    advice = advise(DAY, RUNNING, [harm(20_000, harm_ms), harm(30_000, 100)])
    assert (advice.verdict, advice.scenario.lag_time_max_ms) == expected


def test_nothing_to_gain_changes_nothing() -> None:
    outcomes = [outcome(limit_ms) for limit_ms in (5_000, 20_000, 30_000, 60_000)]
    advice = advise(DAY, RUNNING, outcomes)
    assert chosen(advice) == (KEEP, "caught-up", 30_000)
    assert advice.apply_command is None
    below = advise(DAY, Running(lag_time_max_ms=1_000), [outcome(1_000), outcome(5_000)])
    assert chosen(below) == (KEEP, "caught-up", 1_000)
    assert below.reason == "there is nothing to gain: the running limit did no harm"
    assert "The running limit of 1 s is below the floor." in below.statements


def test_without_a_sound_limit_there_is_nothing_to_set() -> None:
    outcomes = [harm(30_000, 9_000, flaps=1), harm(60_000, 9_000, false_evictions=1)]
    advice = advise(DAY, RUNNING, outcomes)
    assert advice.verdict == KEEP
    assert "no limit replayed from the floor of 2.5 s up is without" in advice.reason


def test_a_running_rule_that_was_not_replayed_stays() -> None:
    advice = advise(DAY, RUNNING, [outcome(30_000, "true-lag")])
    assert chosen(advice) == (KEEP, "caught-up", 30_000)
    assert "was not replayed" in advice.reason


def test_the_commands_apply_the_advice_and_take_it_back() -> None:
    advice = advise(DAY, RUNNING, [harm(20_000, 10), harm(30_000, 100)])
    command = (
        "insync configs --bootstrap-server HOST:PORT --entity-type brokers --entity-default "
        "--alter --add-config replica.lag.time.max.ms="
    )
    assert (advice.apply_command, advice.revert_command) == (f"{command}20000", f"{command}30000")


def test_apache_kafka_has_one_rule_and_reads_its_limit_at_the_start() -> None:
    def kafka(limit_ms: int, partition_ms: int, policy: str = "caught-up") -> Outcome:
        each = harm(limit_ms, partition_ms, policy)
        return replace(each, scenario=replace(each.scenario, half_period_check=True))

    running = replace(RUNNING, is_apache_kafka=True)
    outcomes = [kafka(30_000, 100), kafka(20_000, 10), kafka(20_000, 0, "true-lag")]
    advice = advise(DAY, running, [*outcomes, harm(20_000, 0)])
    assert chosen(advice) == (SET, "caught-up", 20_000)
    assert advice.apply_command == (
        "replica.lag.time.max.ms=20000 in server.properties of every broker, then restart them "
        "one by one"
    )


def test_changed_settings_are_named() -> None:
    running = replace(RUNNING, changes=("it was 500 before",))
    assert "it was 500 before" in advise(DAY, running, [outcome(30_000)]).statements


@pytest.mark.parametrize(
    ("limit_ms", "rounded_ms"),
    [(625, 700), (2_500, 2_500), (2_503, 3_000), (20_000, 20_000), (20_001, 21_000),
     (61_000, 65_000), (600_001, 660_000)],
)  # fmt: skip
def test_the_floor_is_rounded_up_to_what_an_operator_would_write(
    limit_ms: int, rounded_ms: int
) -> None:
    assert readable_limit_ms(limit_ms) == rounded_ms
