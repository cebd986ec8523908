"""What a leader learns from fetches: KAFKA-4485's implementation notes and Kafka's ReplicaTest."""

from insync.rules.append_times import AppendTimes
from insync.rules.follower import Fetch, Follower
from insync.rules.policy import CaughtUp, LeaderLog, in_sync
from insync.rules.stalls import Stall
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, Incarnation, Offset


def fetch(offset: int, *, leader_end: int, at_ms: int, served_at_ms: int | None = None) -> Fetch:
    return Fetch(
        offset=Offset(offset),
        leader_end=Offset(leader_end),
        at_ms=at_ms,
        served_at_ms=at_ms if served_at_ms is None else served_at_ms,
    )


def stall(follower: Follower, *, began_at_ms: int, length_ms: int) -> Follower:
    return follower.on_leader_stall(
        Stall(began_at_ms=began_at_ms, ended_at_ms=began_at_ms + length_ms),
        forgiven_ms_max=1_000,
        was_in_sync=True,
    )


def log(end: int) -> LeaderLog:
    return LeaderLog(
        end=Offset(end),
        append_times=AppendTimes(epoch_start=Offset(0), epoch_started_at_ms=0),
    )


def test_a_new_epoch_forgets_all_but_membership() -> None:
    member = Follower.member(epoch_started_at_ms=500)
    assert (member.end, member.caught_up_at_ms) == (UNKNOWN_OFFSET, 500)
    assert member.leader_end_at_fetch is None
    outsider = Follower.outsider()
    assert outsider.caught_up_at_ms == NEVER_MS
    assert outsider.lag_ms(leader_end=Offset(10), now_ms=1_000) is None


def test_kafka_replica_test_caught_up_times() -> None:
    """ReplicaTest: fetches (5, leader 10), (10, 15), (15, 15) give caught-up 0, t1, t3."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(5, leader_end=10, at_ms=100))
    assert follower.caught_up_at_ms == 0
    follower = follower.on_fetch(fetch(10, leader_end=15, at_ms=200))
    assert follower.caught_up_at_ms == 100
    follower = follower.on_fetch(fetch(15, leader_end=15, at_ms=300))
    assert follower.caught_up_at_ms == 300


def test_kafka_replica_test_level_stays_caught_up() -> None:
    """ReplicaTest: at the leader's end, still caught up after 30 001 ms."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=0))
    policy = CaughtUp(lag_time_max_ms=30_000)
    assert in_sync(policy, follower, log(10), now_ms=30_001)
    assert not in_sync(policy, follower, log(11), now_ms=30_001)


def test_a_caught_up_time_never_goes_back_while_the_log_does_not() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=300))
    follower = follower.on_fetch(fetch(10, leader_end=20, at_ms=400))
    assert follower.caught_up_at_ms == 300


def test_a_follower_that_lost_its_log_has_no_caught_up_time() -> None:
    """KAFKA-4485: lag is where its end is now, not where it once was."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=300))
    follower = follower.on_fetch(fetch(0, leader_end=20, at_ms=400))
    assert follower.lag_ms(leader_end=Offset(20), now_ms=400) is None
    assert not in_sync(CaughtUp(lag_time_max_ms=30_000), follower, log(20), now_ms=400)
    follower = follower.on_fetch(fetch(20, leader_end=20, at_ms=500))
    assert follower.caught_up_at_ms == 500


def test_reads_that_finish_out_of_order_keep_the_later_times() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=20, at_ms=500))
    follower = follower.on_fetch(fetch(8, leader_end=10, at_ms=300, served_at_ms=600))
    assert follower.fetched_at_ms == 500
    assert follower.leader_end_at_fetch == 20


def test_lag_begins_at_the_first_fetch_short_of_the_end_and_ends_at_one_at_it() -> None:
    """KIP-16's lagBeginValue: compareAndSet(-1, now), set(-1)."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(0, leader_end=5, at_ms=100))
    follower = follower.on_fetch(fetch(3, leader_end=9, at_ms=200))
    assert follower.lag_began_at_ms == 100
    follower = follower.on_fetch(fetch(9, leader_end=9, at_ms=300))
    assert follower.lag_began_at_ms is None


def test_lag_is_zero_when_level_and_counts_from_the_caught_up_time_otherwise() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=100))
    assert follower.lag_ms(leader_end=Offset(10), now_ms=900) == 0
    assert follower.lag_ms(leader_end=Offset(11), now_ms=900) == 800


def test_kip_501_sets_the_caught_up_time_when_the_read_is_done_and_keeps_kafkas() -> None:
    """KIP-501's example: fetch at 2000, served at 27 000; KAFKA-4485's value stays beside it."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(950, leader_end=1_002, at_ms=0))
    served = fetch(1_002, leader_end=1_100, at_ms=2_000, served_at_ms=27_000)
    follower = follower.on_fetch(served)
    assert follower.caught_up_served_at_ms == 27_000
    assert follower.caught_up_at_ms == 0


def test_an_idle_session_counts_as_a_fetch_only_for_a_level_follower() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=100))
    level = follower.on_session_fetch(leader_end=Offset(10), session_fetched_at_ms=700)
    assert (level.fetched_at_ms, level.caught_up_at_ms) == (700, 700)
    behind = follower.on_session_fetch(leader_end=Offset(11), session_fetched_at_ms=700)
    assert behind == follower
    older = follower.on_session_fetch(leader_end=Offset(10), session_fetched_at_ms=50)
    assert older == follower


def test_a_fetch_carries_the_log_start_and_the_incarnation() -> None:
    follower = Follower.outsider().on_fetch(
        Fetch(
            offset=Offset(7),
            leader_end=Offset(9),
            at_ms=1,
            served_at_ms=1,
            log_start=Offset(3),
            incarnation=Incarnation(42),
        )
    )
    assert (follower.log_start, follower.incarnation) == (3, 42)


def test_a_stall_moves_every_clock_but_never_more_than_allowed_since_the_last_fetch() -> None:
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=100))
    follower = follower.on_fetch(fetch(10, leader_end=20, at_ms=150))
    follower = follower.on_read_began(
        read_id=1, connection=1, offset=Offset(10), parsed_at_ms=160, high_watermark=None
    )
    stalled = stall(follower, began_at_ms=170, length_ms=700)
    assert stalled.fetched_at_ms == 850
    assert stalled.caught_up_at_ms == 800
    assert stalled.lag_began_at_ms == 850
    assert stalled.reads.oldest_parsed_at_ms == 860
    again = stall(stalled, began_at_ms=900, length_ms=700)
    assert again.fetched_at_ms == 1_150
    assert again.forgiven_ms == 1_000
    fresh = again.on_fetch(fetch(20, leader_end=20, at_ms=2_000))
    assert fresh.forgiven_ms == 0


def test_a_stall_moves_nothing_into_the_future() -> None:
    """A gap between two ticks begins before the work that followed the first of them."""
    follower = Follower.member(epoch_started_at_ms=0)
    follower = follower.on_fetch(fetch(10, leader_end=10, at_ms=105))
    assert stall(follower, began_at_ms=100, length_ms=700).fetched_at_ms == 800


def test_a_stall_moves_no_time_of_a_follower_that_never_fetched() -> None:
    assert stall(Follower.outsider(), began_at_ms=0, length_ms=500).caught_up_at_ms == NEVER_MS
