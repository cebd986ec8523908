"""The rules put together: Kafka's PartitionTest, KIP-207, stalls and sessions, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from insync.rules.follower import Fetch
from insync.rules.isr import committed, maximal
from insync.rules.leadership import Leadership, Rule
from insync.rules.membership import Obstacle, isr_by_definition
from insync.rules.policy import CaughtUp, LagBegin, Messages, Policy, TrueLag
from insync.rules.stalls import Stall
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset

LEADER, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (LEADER, SECOND, THIRD)
LIMIT_MS = 30_000


def rule_of(policy: Policy, *, fetch_wait_max_ms: int = 500) -> Rule:
    return Rule(policy=policy, fetch_wait_max_ms=fetch_wait_max_ms)


def leadership(
    *,
    members: tuple[BrokerId, ...] = ALL,
    end: int = 0,
    high_watermark: int = 0,
    policy: Policy | None = None,
) -> Leadership:
    return Leadership.begin(
        rule=rule_of(policy or CaughtUp(lag_time_max_ms=LIMIT_MS)),
        leader=LEADER,
        epoch=LeaderEpoch(5),
        replicas=ALL,
        members=frozenset(members),
        end=Offset(end),
        high_watermark=Offset(high_watermark),
        registered=dict.fromkeys(ALL, Incarnation(1)),
        now_ms=0,
    )


def fetched(
    term: Leadership, broker: BrokerId, offset: int, *, at_ms: int, incarnation: int = 1
) -> Leadership:
    return term.fetch(
        broker,
        Fetch(
            offset=Offset(offset),
            leader_end=term.end,
            at_ms=at_ms,
            served_at_ms=at_ms,
            incarnation=Incarnation(incarnation),
        ),
    )


def test_a_shrink_counts_the_old_members_until_it_is_committed() -> None:
    """PartitionTest: after 30 001 ms of silence ISR, maximal ISR and watermark stay; then 10."""
    term = leadership().append(end=Offset(10), now_ms=0)
    term = fetched(term, SECOND, 10, at_ms=29_000)
    assert term.leaving(now_ms=30_000) == ()
    assert term.leaving(now_ms=30_001) == (THIRD,)
    term = term.propose_leave({THIRD}).with_watermark(now_ms=30_001)
    assert committed(term.isr) == maximal(term.isr) == set(ALL)
    assert term.high_watermark == 0
    term = term.settle({LEADER, SECOND}, now_ms=30_002)
    assert term.high_watermark == 10


def test_an_expand_counts_the_new_member_at_once_and_there_is_no_min_isr_gate() -> None:
    """PartitionTest has a watermark of 0 below min ISR here; ours is the documents': 10."""
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(10), now_ms=0)
    term = fetched(term, SECOND, 10, at_ms=1)
    term = fetched(term, THIRD, 10, at_ms=2)
    assert term.obstacles(THIRD, now_ms=2) == ()
    term = term.propose_join(THIRD).append(end=Offset(20), now_ms=3)
    term = fetched(term, SECOND, 20, at_ms=4)
    assert maximal(term.isr) == set(ALL)
    assert term.high_watermark == 10
    term = fetched(term, THIRD, 20, at_ms=5)
    assert term.high_watermark == 20


def test_a_failed_write_keeps_the_maximal_isr_until_the_state_is_read() -> None:
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(5), now_ms=0)
    term = fetched(fetched(term, SECOND, 5, at_ms=1), THIRD, 5, at_ms=1).propose_join(THIRD)
    assert maximal(term.append(end=Offset(6), now_ms=2).isr) == set(ALL)
    assert maximal(term.settle({LEADER, SECOND}, now_ms=3).isr) == {LEADER, SECOND}


def test_one_change_at_a_time() -> None:
    term = leadership().propose_leave({THIRD})
    with pytest.raises(AssertionError, match="one change at a time"):
        term.propose_leave({SECOND})


@pytest.mark.parametrize(
    ("offset", "incarnation", "expected"),
    [
        (100, 1, ()),
        (99, 1, (Obstacle.LAGGING, Obstacle.BELOW_EPOCH_START)),
        (50, 1, (Obstacle.LAGGING, Obstacle.BELOW_WATERMARK, Obstacle.BELOW_EPOCH_START)),
        (100, 2, (Obstacle.STALE_INCARNATION,)),
    ],
)
def test_obstacles_to_joining_the_isr(
    offset: int, incarnation: int, expected: tuple[Obstacle, ...]
) -> None:
    """PartitionTest: joins only at the start of the current epoch, never with a stale epoch."""
    term = leadership(members=(LEADER, SECOND), end=100, high_watermark=60)
    term = fetched(term, THIRD, offset, at_ms=10, incarnation=incarnation)
    assert term.obstacles(THIRD, now_ms=10) == expected


def test_a_broker_that_is_gone_neither_joins_nor_holds_the_watermark() -> None:
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(10), now_ms=0)
    term = fetched(term, THIRD, 10, at_ms=1).append(end=Offset(20), now_ms=2)
    term = fetched(term, SECOND, 20, at_ms=3)
    assert term.high_watermark == 10  # the third is close, and outside
    alive = {LEADER: Incarnation(1), SECOND: Incarnation(1)}
    gone = term.registration(alive, now_ms=4)
    assert gone.high_watermark == 20
    assert Obstacle.STALE_INCARNATION in gone.obstacles(THIRD, now_ms=4)


def test_a_pseudo_isr_member_stops_holding_the_watermark_when_its_lag_passes_the_limit() -> None:
    """KAFKA-4485, guarantee 1; and the deadline is when to check."""
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(10), now_ms=0)
    term = fetched(term, THIRD, 10, at_ms=100).append(end=Offset(20), now_ms=200)
    term = fetched(term, SECOND, 20, at_ms=300)
    assert term.high_watermark == 10
    assert term.next_deadline_ms(now_ms=300) == 100 + LIMIT_MS + 1
    assert term.with_watermark(now_ms=100 + LIMIT_MS).high_watermark == 10
    assert term.with_watermark(now_ms=100 + LIMIT_MS + 1).high_watermark == 20


def test_a_follower_that_lost_its_log_does_not_hold_the_watermark() -> None:
    """It was caught up a moment ago; a new disk makes it a bootstrapping replica like any other."""
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(10), now_ms=0)
    term = fetched(term, THIRD, 10, at_ms=100).append(end=Offset(20), now_ms=200)
    term = fetched(fetched(term, SECOND, 20, at_ms=300), THIRD, 0, at_ms=400)
    assert term.high_watermark == 20
    assert term.obstacles(THIRD, now_ms=400)


def test_a_replica_below_the_epochs_start_does_not_hold_the_watermark() -> None:
    """By true lag it is in sync for T after an election, but it could not join yet."""
    policy = TrueLag(lag_time_max_ms=LIMIT_MS)
    term = leadership(members=(LEADER, SECOND), end=100, high_watermark=60, policy=policy)
    term = fetched(fetched(term, THIRD, 80, at_ms=1), SECOND, 100, at_ms=2)
    assert term.obstacles(THIRD, now_ms=2) == (
        Obstacle.BELOW_WATERMARK,
        Obstacle.BELOW_EPOCH_START,
    )
    assert term.high_watermark == 100


@pytest.mark.parametrize("policy", [CaughtUp, TrueLag])
def test_a_pending_read_lets_no_follower_join(policy: type[CaughtUp | TrueLag]) -> None:
    """KIP-501: it keeps a member in; a follower outside that lags stays outside."""
    rule = policy(lag_time_max_ms=LIMIT_MS, pending_reads=True)
    term = leadership(members=(LEADER, SECOND), policy=rule).append(end=Offset(10), now_ms=0)
    term = fetched(term, THIRD, 10, at_ms=1).append(end=Offset(20), now_ms=2)
    late_ms = 2 * LIMIT_MS
    term = term.read_began(THIRD, read_id=1, connection=1, offset=Offset(10), parsed_at_ms=late_ms)
    assert term.followers[THIRD].reads.hold
    assert Obstacle.LAGGING in term.obstacles(THIRD, now_ms=late_ms)


def test_nothing_is_due_when_every_follower_is_level() -> None:
    term = leadership().append(end=Offset(1), now_ms=0)
    term = fetched(fetched(term, SECOND, 1, at_ms=1), THIRD, 1, at_ms=1)
    assert term.next_deadline_ms(now_ms=1) is None


def test_latest_is_served_once_the_watermark_reached_the_epochs_start() -> None:
    """KIP-207."""
    term = leadership(end=100, high_watermark=60)
    assert not term.serves_latest
    term = fetched(fetched(term, SECOND, 100, at_ms=1), THIRD, 100, at_ms=1)
    assert term.serves_latest


def test_an_idle_session_counts_when_the_partition_gets_an_append() -> None:
    term = leadership().append(end=Offset(1), now_ms=0)
    term = fetched(fetched(term, SECOND, 1, at_ms=1), THIRD, 1, at_ms=1)
    term = term.append(end=Offset(2), now_ms=90_000, session_fetched_at_ms={SECOND: 89_800})
    assert term.leaving(now_ms=90_000) == (THIRD,)
    assert term.deadlines()[SECOND] == 89_800 + LIMIT_MS + 1


@pytest.mark.parametrize(
    "policy",
    [
        CaughtUp(lag_time_max_ms=3_000),
        LagBegin(lag_time_max_ms=3_000),
        TrueLag(lag_time_max_ms=3_000),
        Messages(lag_time_max_ms=3_000, lag_max_messages=100),
    ],
    ids=lambda policy: policy.name,
)
class TestStalls:
    """The design's stall rule: T is 3000, the wait 500."""

    def stopped(self, policy: Policy, *, stall_ms: int) -> tuple[Leadership, int]:
        """Both fetched at 1000, one append at 1050, stopped from 1100 on."""
        term = leadership(policy=policy)
        term = fetched(fetched(term, SECOND, 0, at_ms=1_000), THIRD, 0, at_ms=1_000)
        term = term.append(end=Offset(1), now_ms=1_050)
        now_ms = 1_100 + stall_ms
        return term.stalled(Stall(began_at_ms=1_100, ended_at_ms=now_ms)), now_ms

    def test_no_healthy_follower_leaves_however_long_the_stall_was(self, policy: Policy) -> None:
        """Neither the follower whose fetch waited in the socket nor one that has yet to fetch."""
        for stall_ms in (200, 2_900, 5_000, 60_000):
            term, now_ms = self.stopped(policy, stall_ms=stall_ms)
            term = fetched(term, SECOND, 0, at_ms=now_ms).drained(now_ms=now_ms + 10)
            assert term.leaving(now_ms=now_ms + 509) == ()
            term = fetched(term, SECOND, 1, at_ms=now_ms + 509)
            assert SECOND not in term.leaving(now_ms=now_ms + 3_000)

    def test_a_follower_that_died_in_a_leader_stall_leaves_in_bounded_time(
        self, policy: Policy
    ) -> None:
        for stall_ms in (200, 2_900, 5_000, 60_000):
            term, now_ms = self.stopped(policy, stall_ms=stall_ms)
            term = term.drained(now_ms=now_ms + 10)
            assert term.deadlines()[THIRD] <= now_ms + 10 + 2 * 3_000 + 500

    @pytest.mark.parametrize("fetches", [False, True], ids=["dead", "fetching without progress"])
    def test_repeated_stalls_do_not_keep_a_dead_follower_in_the_isr_for_ever(
        self,
        policy: Policy,
        fetches: bool,  # noqa: FBT001
    ) -> None:
        """150 ms of every 550, each within a fetch wait of the last."""
        term, now_ms = self.stopped(policy, stall_ms=1_000)
        term = term.append(end=Offset(200), now_ms=now_ms)  # too much for `messages`
        running_ms = 0
        while THIRD not in term.leaving(now_ms=now_ms):
            term = term.stalled(Stall(began_at_ms=now_ms, ended_at_ms=now_ms + 150))
            now_ms += 150
            if fetches:
                term = fetched(term, THIRD, 0, at_ms=now_ms)
            term = term.drained(now_ms=now_ms)
            now_ms += 400
            running_ms += 400
            assert running_ms <= 2 * 3_000 + 500

    def test_an_idle_session_fetch_is_moved_by_a_stall_like_a_fetch(self, policy: Policy) -> None:
        """Level at 1000, its session fetches last at 60 000, stopped from 60 400 to 63 300."""
        term = leadership(policy=policy)
        term = fetched(fetched(term, SECOND, 0, at_ms=1_000), THIRD, 0, at_ms=1_000)
        sessions = {SECOND: 60_000, THIRD: 60_000}
        stall = Stall(began_at_ms=60_400, ended_at_ms=63_300)
        term = term.stalled(stall, session_fetched_at_ms=sessions).drained(now_ms=63_310)
        term = term.append(end=Offset(1), now_ms=63_320, session_fetched_at_ms=sessions)
        assert term.leaving(now_ms=65_900, session_fetched_at_ms=sessions) == ()

    def test_a_read_in_flight_is_dated_without_the_stall(self, policy: Policy) -> None:
        term = leadership(policy=policy).append(end=Offset(9), now_ms=0)
        term = term.read_began(
            SECOND, read_id=1, connection=1, offset=Offset(0), parsed_at_ms=1_090
        )
        term = term.stalled(Stall(began_at_ms=1_100, ended_at_ms=4_000))
        term = term.read_served(
            SECOND,
            read_id=1,
            leader_end=Offset(9),
            served_at_ms=4_010,
            incarnation=Incarnation(1),
        )
        assert term.followers[SECOND].fetched_at_ms == 3_990


def test_a_gap_that_began_before_the_last_work_moves_nothing_into_the_future() -> None:
    term = leadership(policy=TrueLag(lag_time_max_ms=3_000)).append(end=Offset(1), now_ms=1_005)
    term = term.stalled(Stall(began_at_ms=1_002, ended_at_ms=6_000))
    term = term.append(end=Offset(2), now_ms=6_000)
    assert term.log.append_times.first_past_ms(Offset(0)) == 6_000


def test_a_follower_that_stops_holding_the_watermark_in_a_stall_advances_it_at_once() -> None:
    """Outside the ISR and caught up, then silent for longer than a stall excuses.
    No check runs until the next fetch or append, and a producer may wait for it."""
    term = leadership(members=(LEADER,), policy=LagBegin(lag_time_max_ms=3_000))
    term = fetched(term.append(end=Offset(5), now_ms=1_000), THIRD, 5, at_ms=1_001)
    term = term.append(end=Offset(9), now_ms=1_002)
    assert term.high_watermark == 5
    assert term.stalled(Stall(began_at_ms=1_100, ended_at_ms=4_000)).high_watermark == 5
    assert term.stalled(Stall(began_at_ms=1_100, ended_at_ms=9_000)).high_watermark == 9


@pytest.mark.parametrize(
    "policy",
    [LagBegin(lag_time_max_ms=3_000), Messages(lag_time_max_ms=3_000, lag_max_messages=100)],
)
def test_a_returning_replica_that_has_far_to_go_does_not_hold_the_watermark(policy: Policy) -> None:
    """KAFKA-4485 defines the pseudo-ISR by time lag. Both rules call this replica in sync."""
    term = leadership(members=(LEADER,), policy=policy).append(end=Offset(50), now_ms=10_000)
    term = fetched(term, THIRD, 10, at_ms=10_001)
    term = term.append(end=Offset(60), now_ms=10_002)
    assert term.high_watermark == 60
    assert THIRD not in term.pseudo_isr(now_ms=10_002)


@pytest.mark.parametrize(
    "policy",
    [LagBegin(lag_time_max_ms=3_000), Messages(lag_time_max_ms=3_000, lag_max_messages=100)],
)
def test_a_replica_that_was_caught_up_within_the_limit_holds_the_watermark(policy: Policy) -> None:
    term = leadership(members=(LEADER,), policy=policy).append(end=Offset(50), now_ms=10_000)
    term = fetched(term, THIRD, 50, at_ms=10_001)
    term = term.append(end=Offset(60), now_ms=10_002)
    assert term.high_watermark == 50
    lets_go_at_ms = term.next_deadline_ms(now_ms=10_002)
    assert lets_go_at_ms == 13_002, "T after it was caught up"
    assert THIRD in term.pseudo_isr(now_ms=13_001)
    assert THIRD not in term.pseudo_isr(now_ms=13_002)


def test_a_move_adds_and_drops_replicas_within_an_epoch() -> None:
    newcomer = BrokerId(4)
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(5), now_ms=0)
    term = fetched(term, SECOND, 5, at_ms=1)
    term = term.assigned((LEADER, SECOND, newcomer), members={LEADER, SECOND}, now_ms=2)
    assert list(term.followers) == [SECOND, newcomer]
    assert term.followers[SECOND].end == 5
    assert Obstacle.LAGGING in term.obstacles(newcomer, now_ms=2)


def test_an_append_takes_the_last_fetch_time_of_an_idle_session() -> None:
    """The design: when the partition gets an append, is listed or leaves the session."""
    term = leadership()
    term = fetched(fetched(term, SECOND, 0, at_ms=1), THIRD, 0, at_ms=1)
    term = term.session_fetched(SECOND, at_ms=60_000).append(end=Offset(1), now_ms=60_020)
    assert term.leaving(now_ms=60_020) == (THIRD,)


def test_while_a_change_is_pending_no_follower_leaves_or_joins() -> None:
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(1), now_ms=0)
    term = fetched(term, THIRD, 1, at_ms=LIMIT_MS + 1)
    assert term.leaving(now_ms=LIMIT_MS + 1) == (SECOND,)
    term = term.propose_leave({SECOND})
    assert term.leaving(now_ms=LIMIT_MS + 1) == ()
    assert term.next_deadline_ms(now_ms=LIMIT_MS + 1) is None
    assert term.obstacles(THIRD, now_ms=LIMIT_MS + 1) == (Obstacle.CHANGE_PENDING,)


def test_a_session_fetch_before_the_last_fetch_changes_nothing() -> None:
    term = fetched(leadership(), SECOND, 0, at_ms=100)
    assert term.session_fetched(SECOND, at_ms=90) is term


def test_a_read_whose_connection_closed_has_no_effect() -> None:
    term = leadership().read_began(
        SECOND, read_id=7, connection=1, offset=Offset(0), parsed_at_ms=5
    )
    term = term.connection_closed(SECOND, connection=1)
    served = term.read_served(
        SECOND, read_id=7, leader_end=Offset(0), served_at_ms=9, incarnation=Incarnation(1)
    )
    assert served == term
    assert term.read_failed(SECOND, read_id=7) == term


def test_kafkas_definition_of_the_isr() -> None:
    """KAFKA-4485: in the pseudo-ISR AND end >= high watermark."""
    ends = {LEADER: Offset(20), SECOND: Offset(15), THIRD: Offset(9)}
    assert isr_by_definition(ALL, ends, high_watermark=Offset(10)) == {LEADER, SECOND}


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda term: term.append(end=Offset(0), now_ms=0), "adds something"),
        (lambda term: replace(term).propose_join(SECOND), "a member cannot join"),
        (lambda term: term.propose_leave(set()), "a shrink removes at least one replica"),
        (lambda term: term.propose_leave(set(ALL)), "never all of them"),
        (lambda term: term.settle(set(), now_ms=0), "never empty"),
    ],
)
def test_invalid_calls_fail_assertions(breakage: object, message: str) -> None:
    assert callable(breakage)
    with pytest.raises(AssertionError, match=message):
        breakage(leadership())


# Another rule while leading.


def test_a_shorter_limit_counts_from_the_last_fetch_of_a_follower() -> None:
    term = leadership().append(end=Offset(10), now_ms=1_000)
    term = fetched(term, SECOND, 10, at_ms=2_000)
    term = fetched(term, THIRD, 10, at_ms=2_000).append(end=Offset(20), now_ms=2_500)
    term = fetched(term, SECOND, 20, at_ms=6_000)
    ruled = term.with_rule(
        rule_of(CaughtUp(lag_time_max_ms=3_000), fetch_wait_max_ms=100), now_ms=7_000
    )
    assert (ruled.isr, ruled.followers, ruled.end) == (term.isr, term.followers, term.end)
    assert ruled.fetch_wait_max_ms == 100
    assert ruled.next_deadline_ms(now_ms=7_000) == 5_001, "past already"
    assert ruled.leaving(now_ms=7_000) == (THIRD,)
    longer = ruled.with_rule(
        rule_of(CaughtUp(lag_time_max_ms=9_000), fetch_wait_max_ms=100), now_ms=7_000
    )
    assert longer.leaving(now_ms=11_000) == ()
    assert longer.leaving(now_ms=11_001) == (THIRD,)


def test_a_stricter_rule_advances_the_watermark_at_once() -> None:
    """A replica outside the ISR that was close enough to hold it no longer is."""
    term = leadership(members=(LEADER, SECOND)).append(end=Offset(10), now_ms=0)
    term = fetched(term, THIRD, 10, at_ms=100).append(end=Offset(20), now_ms=150)
    term = fetched(term, SECOND, 20, at_ms=200)
    assert term.high_watermark == 10
    ruled = term.with_rule(
        rule_of(Messages(lag_time_max_ms=LIMIT_MS, lag_max_messages=9)), now_ms=300
    )
    assert ruled.high_watermark == 20


def test_append_times_begin_with_the_rule_that_reads_them() -> None:
    """What was appended before counts as appended at the change, and no later."""
    true_lag = TrueLag(lag_time_max_ms=3_000)

    def fetched_by_both(term: Leadership, offset: int, *, at_ms: int) -> Leadership:
        for broker in (SECOND, THIRD):
            term = fetched(term, broker, offset, at_ms=at_ms)
        return term

    term = leadership().append(end=Offset(10), now_ms=1_000)
    ruled = term.with_rule(rule_of(true_lag), now_ms=5_000)
    assert fetched_by_both(ruled, 4, at_ms=5_500).deadlines() == {SECOND: 8_001, THIRD: 8_001}
    again = ruled.with_rule(rule_of(true_lag, fetch_wait_max_ms=400), now_ms=6_000)
    assert again.log == ruled.log, "the record goes on"
    caught_up = CaughtUp(lag_time_max_ms=30_000)
    unread = again.with_rule(rule_of(caught_up), now_ms=6_500)
    unread = unread.append(end=Offset(20), now_ms=6_700)
    back = fetched_by_both(unread.with_rule(rule_of(true_lag), now_ms=7_000), 9, at_ms=7_500)
    assert back.deadlines() == {SECOND: 10_001, THIRD: 10_001}, "restarted"
    assert fetched_by_both(back, 20, at_ms=8_000).deadlines() == {}


def test_append_times_of_an_epoch_without_appends() -> None:
    term = leadership(end=5).with_rule(rule_of(TrueLag(lag_time_max_ms=3_000)), now_ms=1_000)
    assert term.log.append_times.entries == ()
    assert term.append(end=Offset(6), now_ms=2_000).log.append_times.entries
