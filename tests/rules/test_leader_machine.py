"""The leader's state machine: which effects follow from which events, and in which order."""

from __future__ import annotations

import pytest

from insync.rules.follower import Fetch
from insync.rules.isr import Expanding, Shrinking, Stable
from insync.rules.leader_machine import (
    RESIGN_AGAIN_MS,
    Appended,
    Committed,
    Effect,
    Event,
    FollowerFetched,
    HighWatermarkRecorded,
    IsrSettled,
    LeaderStalled,
    PartitionStateRead,
    ProposalRefused,
    ProposeIsr,
    ReadFailed,
    ReadServed,
    ReadStarted,
    Resign,
    ResignReason,
    RuleChanged,
    SessionFetched,
    SocketsDrained,
    WakeAt,
    Woken,
    start,
    step,
)
from insync.rules.leadership import NO_WAKE_MS, Draining, Leadership, Rule
from insync.rules.membership import Obstacle
from insync.rules.policy import CaughtUp, Messages
from insync.rules.stalls import Stall, StallRecord
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset

LEADER, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (LEADER, SECOND, THIRD)
LIMIT_MS = 1_000
RULE = Rule(policy=CaughtUp(lag_time_max_ms=LIMIT_MS), fetch_wait_max_ms=100)


class Machine:
    """A driver that performs nothing: the test says what the store and the clock do."""

    def __init__(
        self, *, members: tuple[BrokerId, ...] = ALL, rule: Rule = RULE, version: int = 0
    ) -> None:
        self.state, self.first_effects = start(
            Leadership.begin(
                rule=rule,
                leader=LEADER,
                epoch=LeaderEpoch(5),
                replicas=ALL,
                members=frozenset(members),
                end=Offset(0),
                high_watermark=Offset(0),
                registered=dict.fromkeys(ALL, Incarnation(1)),
                now_ms=0,
                version=version,
            ),
            now_ms=0,
        )

    def report(self, event: Event, *, now_ms: int) -> list[Effect]:
        self.state, effects = step(self.state, event, now_ms=now_ms)
        return effects

    def fetch(self, broker: BrokerId, offset: int, *, now_ms: int) -> list[Effect]:
        fetch = Fetch(
            offset=Offset(offset),
            leader_end=self.state.end,
            at_ms=now_ms,
            served_at_ms=now_ms,
            incarnation=Incarnation(1),
        )
        return self.report(FollowerFetched(broker, fetch), now_ms=now_ms)


def appended(machine: Machine, end: int, *, now_ms: int) -> list[Effect]:
    return machine.report(Appended(Offset(end)), now_ms=now_ms)


def level(machine: Machine) -> Machine:
    """All followers have fetched to the end; the wake-up that was set for them is gone."""
    for broker in (SECOND, THIRD):
        machine.fetch(broker, 0, now_ms=0)
    machine.report(LeaderStalled(Stall(began_at_ms=0, ended_at_ms=1)), now_ms=1)
    machine.report(SocketsDrained(), now_ms=1)
    return machine


def test_a_new_leader_requests_one_wake_up() -> None:
    machine = Machine()
    assert machine.first_effects == [WakeAt(LIMIT_MS + 1)], "its followers have yet to fetch"
    assert appended(machine, 20, now_ms=6) == [], "the wake-up that is set is early enough"
    assert appended(machine, 20, now_ms=7) == [], "nothing new"


def test_the_last_fetch_commits() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    assert machine.fetch(SECOND, 10, now_ms=6) == []
    assert machine.fetch(THIRD, 10, now_ms=7) == [Committed(Offset(10))]


def test_a_wake_up_that_is_too_early_is_repeated() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    machine.fetch(SECOND, 10, now_ms=600)
    machine.fetch(THIRD, 5, now_ms=600)
    machine.fetch(THIRD, 10, now_ms=700)
    appended(machine, 20, now_ms=800)
    assert machine.report(Woken(), now_ms=LIMIT_MS + 1) == [WakeAt(600 + LIMIT_MS + 1)]


def test_a_silent_member_is_proposed_out_when_its_deadline_passes() -> None:
    machine = Machine(version=7)
    appended(machine, 10, now_ms=5)
    machine.fetch(SECOND, 10, now_ms=6)
    change = Shrinking(frozenset(ALL), frozenset({THIRD}), 7)
    assert machine.report(Woken(), now_ms=LIMIT_MS + 1) == [ProposeIsr(change, LIMIT_MS + 1)]
    members = frozenset({LEADER, SECOND})
    assert machine.report(PartitionStateRead(8, ALL, members), now_ms=LIMIT_MS + 9) == [
        Committed(Offset(10)),
        IsrSettled(change, members),
    ]
    assert machine.state.isr == Stable(members, 8)


def test_a_deadline_precedes_an_event_of_its_millisecond() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    machine.fetch(SECOND, 10, now_ms=6)
    (proposal, *_) = machine.fetch(THIRD, 10, now_ms=LIMIT_MS + 1)
    assert isinstance(proposal, Committed), "the fetch itself still counts"
    assert isinstance(machine.state.isr, Shrinking)


def test_a_late_leader_records_when_its_decision_was_due() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    effects = machine.report(Woken(), now_ms=LIMIT_MS + 41)
    assert [effect.due_at_ms for effect in effects if isinstance(effect, ProposeIsr)] == [
        LIMIT_MS + 1
    ]


def test_an_eviction_that_an_append_causes_is_due_at_the_append() -> None:
    """`messages`: the append itself puts the followers out of sync."""
    rule = Rule(policy=Messages(lag_time_max_ms=LIMIT_MS, lag_max_messages=5), fetch_wait_max_ms=9)
    machine = level(Machine(rule=rule))
    assert appended(machine, 6, now_ms=50) == [WakeAt(50)]
    effects = machine.report(Woken(), now_ms=53)
    assert [type(effect) for effect in effects] == [ProposeIsr]
    assert effects == [
        ProposeIsr(Shrinking(frozenset(ALL), frozenset({SECOND, THIRD})), due_at_ms=50)
    ]


def test_a_fetch_that_meets_the_conditions_joins() -> None:
    machine = Machine(members=(LEADER, SECOND))
    appended(machine, 10, now_ms=5)
    machine.fetch(SECOND, 10, now_ms=6)
    change = Expanding(frozenset({LEADER, SECOND}), THIRD)
    assert machine.fetch(THIRD, 10, now_ms=7) == [ProposeIsr(change, 7)]
    assert machine.fetch(THIRD, 10, now_ms=8) == [], "one change at a time"


def test_obstacles_may_be_ignored_to_show_what_they_are_for() -> None:
    ignored = frozenset({Obstacle.LAGGING})
    rule = Rule(policy=RULE.policy, fetch_wait_max_ms=100, ignored_obstacles=ignored)
    machine = Machine(members=(LEADER,), rule=rule)
    appended(machine, 10, now_ms=5)
    assert machine.fetch(THIRD, 9, now_ms=7) == [], "below the watermark"
    machine = Machine(members=(LEADER, SECOND), rule=rule)
    appended(machine, 10, now_ms=5)
    assert [type(effect) for effect in machine.fetch(THIRD, 9, now_ms=7)] == [ProposeIsr]


class TestOutcomes:
    """An outcome settles the proposal that it belongs to, and no other."""

    def proposed(self) -> tuple[Machine, Shrinking, Expanding]:
        """A shrink was overtaken by a controller; the follower is about to join again."""
        machine = Machine(version=3)
        appended(machine, 10, now_ms=5)
        machine.fetch(SECOND, 10, now_ms=6)
        machine.report(Woken(), now_ms=LIMIT_MS + 1)
        shrink = machine.state.isr
        machine.report(PartitionStateRead(4, ALL, frozenset({LEADER, SECOND})), now_ms=1_100)
        machine.fetch(THIRD, 10, now_ms=1_200)
        expand = machine.state.isr
        assert isinstance(shrink, Shrinking)
        assert isinstance(expand, Expanding)
        return machine, shrink, expand

    def test_a_late_refusal_of_an_earlier_proposal(self) -> None:
        machine, shrink, expand = self.proposed()
        assert machine.report(ProposalRefused(shrink), now_ms=1_201) == []
        assert machine.state.isr == expand

    @pytest.mark.parametrize("version", [3, 4])
    def test_a_partition_state_from_before_the_proposal_changes_nothing(self, version: int) -> None:
        machine, _, expand = self.proposed()
        state = PartitionStateRead(version, ALL, frozenset({LEADER, SECOND}))
        assert machine.report(state, now_ms=1_201) == []
        assert machine.state.isr == expand

    def test_a_refusal_of_the_pending_proposal(self) -> None:
        machine, _, expand = self.proposed()
        members = frozenset({LEADER, SECOND})
        assert IsrSettled(expand, members) in machine.report(ProposalRefused(expand), now_ms=1_201)
        assert machine.state.isr == Stable(members, 4)

    def test_the_same_change_at_a_later_version_is_another_proposal(self) -> None:
        machine, _, expand = self.proposed()
        machine.report(PartitionStateRead(5, ALL, frozenset({LEADER, SECOND})), now_ms=1_201)
        machine.fetch(THIRD, 10, now_ms=1_202)
        again = machine.state.isr
        assert machine.report(ProposalRefused(expand), now_ms=1_203) == []
        assert machine.state.isr == again


class TestStalls:
    def test_nothing_is_due_until_the_sockets_are_drained(self) -> None:
        machine = Machine()
        appended(machine, 10, now_ms=5)
        stall = Stall(began_at_ms=10, ended_at_ms=5_000)
        assert machine.report(LeaderStalled(stall), now_ms=5_000) == []
        assert machine.report(Woken(), now_ms=5_001) == []
        assert machine.fetch(SECOND, 10, now_ms=5_002) == []
        # What the leader did not run for is forgiven up to the limit: it died at 0, say.
        assert machine.report(SocketsDrained(), now_ms=5_003) == [WakeAt(5_003 + 100)]
        assert machine.state.draining is Draining.NO

    def test_a_stall_too_short_to_count_moves_no_time(self) -> None:
        machine = Machine(rule=Rule(policy=CaughtUp(lag_time_max_ms=30_000), fetch_wait_max_ms=9))
        appended(machine, 10, now_ms=5)
        followers = machine.state.followers
        machine.report(LeaderStalled(Stall(began_at_ms=10, ended_at_ms=200)), now_ms=200)
        assert machine.state.followers == followers
        assert machine.state.draining is Draining.AFTER_SHORT_STALL
        machine.report(SocketsDrained(), now_ms=201)
        assert machine.state.drained_at_ms < 0, "no grace"
        assert machine.state.wake_at_ms == 30_001

    def test_a_stall_that_a_replay_cuts_counts_by_its_whole_length(self) -> None:
        machine = Machine()
        appended(machine, 10, now_ms=5)
        cut = LeaderStalled(Stall(began_at_ms=10, ended_at_ms=50), recorded_ms=100)
        machine.report(cut, now_ms=50)
        assert machine.state.draining is Draining.AFTER_STALL

    def test_a_short_stall_while_draining_does_not_take_the_grace_away(self) -> None:
        machine = Machine()
        machine.report(LeaderStalled(Stall(began_at_ms=10, ended_at_ms=5_000)), now_ms=5_000)
        machine.report(LeaderStalled(Stall(began_at_ms=5_000, ended_at_ms=5_020)), now_ms=5_020)
        assert machine.state.draining is Draining.AFTER_STALL

    def test_a_leader_that_stalls_too_often_resigns(self) -> None:
        stall = Stall(began_at_ms=10, ended_at_ms=1_500)
        machine = Machine()
        machine.report(LeaderStalled(stall), now_ms=1_500)
        recent = StallRecord(lag_time_max_ms=LIMIT_MS).after(stall)
        effects = machine.report(SocketsDrained(recent), now_ms=1_501)
        assert Resign(ResignReason.STALLED) in effects


def test_a_leader_resigns_because_of_a_slow_read_and_repeats_the_request() -> None:
    """KIP-501, solution 2: noticed while the read is still running."""
    rule = Rule(
        policy=CaughtUp(lag_time_max_ms=LIMIT_MS, pending_reads=True),
        fetch_wait_max_ms=100,
        process_time_max_ms=500,
    )
    machine = level(Machine(rule=rule))
    started = ReadStarted(
        follower=SECOND, read_id=1, connection=1, offset=Offset(0), parsed_at_ms=90
    )
    assert machine.report(started, now_ms=100) == [WakeAt(591)]
    assert machine.report(Woken(), now_ms=591) == [
        Resign(ResignReason.SLOW_READ),
        WakeAt(591 + RESIGN_AGAIN_MS),
    ]


class TestReadPendingInAStall:
    """KIP-501 names "intermittent CPU issues"; the leader's stall is from 200 to 900."""

    def stalled(self, *, includes_stalls: bool, process_time_max_ms: int | None = 500) -> Machine:
        rule = Rule(
            policy=CaughtUp(lag_time_max_ms=LIMIT_MS, pending_reads=True),
            fetch_wait_max_ms=100,
            process_time_max_ms=process_time_max_ms,
            process_time_includes_stalls=includes_stalls,
        )
        machine = level(Machine(rule=rule))
        started = ReadStarted(
            follower=SECOND, read_id=1, connection=1, offset=Offset(0), parsed_at_ms=100
        )
        machine.report(started, now_ms=100)
        stall = LeaderStalled(Stall(began_at_ms=200, ended_at_ms=900))
        assert machine.report(stall, now_ms=900) == []
        return machine

    def served(self, machine: Machine, *, now_ms: int) -> list[Effect]:
        event = ReadServed(
            follower=SECOND, read_id=1, leader_end=Offset(0), incarnation=Incarnation(1)
        )
        return machine.report(event, now_ms=now_ms)

    def test_design_a_leader_that_did_not_run_stays(self) -> None:
        assert self.served(self.stalled(includes_stalls=False), now_ms=900) == []

    def test_the_leader_resigns_if_stalls_are_included(self) -> None:
        machine = self.stalled(includes_stalls=True)
        assert self.served(machine, now_ms=900) == [Resign(ResignReason.PENDING_IN_STALL)]
        assert self.served(machine, now_ms=900) == [], "that read is done"

    def test_a_read_that_is_not_done_is_noticed_after_the_drain(self) -> None:
        machine = self.stalled(includes_stalls=True)
        assert machine.report(SocketsDrained(), now_ms=901) == [WakeAt(901)]
        assert machine.report(Woken(), now_ms=901) == [
            Resign(ResignReason.PENDING_IN_STALL),
            WakeAt(901 + RESIGN_AGAIN_MS),
        ]
        assert self.served(machine, now_ms=950) == [], "it has asked already"

    def test_a_read_that_is_slow_without_the_stall_is_a_slow_read(self) -> None:
        machine = self.stalled(includes_stalls=True)
        assert self.served(machine, now_ms=1_301) == [Resign(ResignReason.SLOW_READ)]

    def test_a_short_read_and_a_leader_that_never_resigns(self) -> None:
        patient = self.stalled(includes_stalls=True, process_time_max_ms=800)
        assert self.served(patient, now_ms=900) == [], "800 ms are not more than 800"
        never = self.stalled(includes_stalls=True, process_time_max_ms=None)
        assert self.served(never, now_ms=2_000) == []
        assert not never.state.is_read_slow(now_ms=2_000)


def test_kafka_checks_every_half_period() -> None:
    rule = Rule(policy=RULE.policy, fetch_wait_max_ms=100, checks_from_ms=0)
    machine = Machine(rule=rule)
    assert machine.first_effects == [WakeAt(1_500)], "due at 1001, noticed at 1500"
    appended(machine, 10, now_ms=5)
    (proposal,) = machine.report(Woken(), now_ms=1_500)
    assert isinstance(proposal, ProposeIsr)


def test_a_replay_checks_deadlines_only_when_the_recorded_leader_did() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    event = HighWatermarkRecorded(Offset(4))
    state, effects = step(machine.state, event, now_ms=2_000, meets_deadlines=False)
    assert effects == [Committed(Offset(4))]
    assert isinstance(state.isr, Stable)
    assert state.wake_at_ms == LIMIT_MS + 1


def test_level_followers_need_no_wake_up() -> None:
    machine = Machine()
    appended(machine, 10, now_ms=5)
    machine.fetch(SECOND, 10, now_ms=6)
    machine.fetch(THIRD, 10, now_ms=7)
    assert machine.report(Woken(), now_ms=LIMIT_MS + 1) == []
    assert machine.state.wake_at_ms == NO_WAKE_MS


def test_kafka_evicts_no_follower_between_two_checks() -> None:
    """Woken for another reason: a replica outside the ISR stops holding the watermark."""
    rule = Rule(policy=RULE.policy, fetch_wait_max_ms=100, checks_from_ms=0)
    machine = Machine(members=(LEADER, SECOND), rule=rule)
    appended(machine, 10, now_ms=5)
    machine.fetch(THIRD, 10, now_ms=100)
    members = frozenset({LEADER, SECOND})
    machine.report(PartitionStateRead(1, ALL, members), now_ms=101)
    appended(machine, 20, now_ms=150)
    assert machine.state.wake_at_ms == 100 + LIMIT_MS + 1
    machine.report(Woken(), now_ms=100 + LIMIT_MS + 1)
    assert machine.state.isr == Stable(members, 1), "the second is late, and not noticed yet"
    assert machine.state.wake_at_ms == 1_500


def test_an_idle_session_fetch_counts_with_the_next_fetch() -> None:
    machine = level(Machine())
    fetch = Fetch(
        offset=Offset(0),
        leader_end=Offset(0),
        at_ms=700,
        served_at_ms=700,
        incarnation=Incarnation(1),
    )
    machine.state, _ = step(
        machine.state,
        FollowerFetched(SECOND, fetch),
        now_ms=700,
        session_fetched_at_ms={SECOND: 650},
    )
    machine.report(SessionFetched(THIRD, 600), now_ms=700)
    assert machine.report(SessionFetched(BrokerId(4), 650), now_ms=700) == [], "not a replica"
    fetched_at_ms = {broker: f.fetched_at_ms for broker, f in machine.state.followers.items()}
    assert fetched_at_ms == {SECOND: 700, THIRD: 600}


def test_a_read_that_failed_holds_nothing() -> None:
    rule = Rule(policy=RULE.policy, fetch_wait_max_ms=100, process_time_max_ms=500)
    machine = level(Machine(rule=rule))
    started = ReadStarted(
        follower=SECOND, read_id=1, connection=1, offset=Offset(0), parsed_at_ms=90
    )
    machine.report(started, now_ms=100)
    machine.report(ReadFailed(SECOND, 1), now_ms=200)
    assert machine.report(Woken(), now_ms=591) == [], "no read is slow any more"


def test_a_new_rule_applies_at_once() -> None:
    machine = level(Machine())
    appended(machine, 10, now_ms=100)
    shorter = Rule(policy=CaughtUp(lag_time_max_ms=300), fetch_wait_max_ms=100)
    assert machine.report(RuleChanged(shorter), now_ms=250) == [WakeAt(301)]


def test_a_wake_up_that_comes_early_is_requested_again() -> None:
    """A loop may measure time with a coarser clock, and be a millisecond early."""
    machine = Machine()
    appended(machine, 10, now_ms=5)
    assert machine.report(Woken(), now_ms=LIMIT_MS) == [WakeAt(LIMIT_MS + 1)]
