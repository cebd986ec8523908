"""KIP-501, solution 2, and the design's limits on it ("KIP-501", "Stalls of the leader itself")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.follower import Follower
from insync.rules.partition_state import PartitionState
from insync.rules.resignation import COOLDOWN_MS_DEFAULT, Cooldowns, resign, resigns_at_ms
from insync.rules.stalls import Stall
from insync.rules.values import BrokerId, LeaderEpoch, Offset
from support.rules.partition_states import (
    EPOCH,
    among,
    assert_sound,
    broker_sets,
    brokers,
    partition,
)

ALL_BROKERS = among(1, 2, 3, 4, 5)


def reading(*parsed_at_ms: int) -> Follower:
    """A follower with one read under way per time given."""
    follower = Follower.member(epoch_started_at_ms=0)
    for read_id, at_ms in enumerate(parsed_at_ms):
        follower = follower.on_read_began(
            read_id=read_id,
            connection=1,
            offset=Offset(0),
            parsed_at_ms=at_ms,
            high_watermark=None,
        )
    return follower


class TestWhen:
    """KIP-501: "if it takes more than this configured time then it relinquishes the leadership"."""

    def test_with_the_default_of_500_ms_a_read_of_501_ms_is_too_long(self) -> None:
        assert resigns_at_ms([reading(10_000)], process_time_max_ms=500) == 10_501

    def test_the_oldest_read_of_any_follower_counts(self) -> None:
        followers = [reading(), reading(7_000, 5_000), reading(6_000)]
        assert resigns_at_ms(followers, process_time_max_ms=500) == 5_501

    def test_no_read_under_way_no_resignation(self) -> None:
        assert resigns_at_ms([], process_time_max_ms=500) is None
        assert resigns_at_ms([reading()], process_time_max_ms=500) is None

    def test_a_read_that_ended_counts_no_longer(self) -> None:
        follower = reading(5_000, 6_000).on_read_ended(0)
        assert resigns_at_ms([follower], process_time_max_ms=500) == 6_501

    def test_design_a_stall_of_the_leader_is_not_processing(self) -> None:
        stall = Stall(began_at_ms=5_100, ended_at_ms=7_100)
        follower = reading(5_000).on_leader_stall(stall, forgiven_ms_max=10_000, was_in_sync=True)
        assert resigns_at_ms([follower], process_time_max_ms=500) == 7_501

    def test_a_rule_that_includes_stalls_counts_from_the_request_on(self) -> None:
        stall = Stall(began_at_ms=5_100, ended_at_ms=7_100)
        followers = [
            follower.on_leader_stall(stall, forgiven_ms_max=10_000, was_in_sync=True)
            for follower in (reading(), reading(5_000, 5_050))
        ]
        due_ms = resigns_at_ms(followers, process_time_max_ms=500, includes_stalls=True)
        assert due_ms == 5_501


def resigned(state: PartitionState, *cooling: int) -> PartitionState | None:
    return resign(state, live=ALL_BROKERS, cooling=among(*cooling))


class TestHandOver:
    def test_kip_501_the_old_leader_goes_last_in_the_isr_and_the_next_replica_leads(self) -> None:
        state = partition(1, 2, 3, leader=1)
        assert resigned(state) == partition(1, 2, 3, isr=(2, 3, 1), leader=2, epoch=EPOCH + 1)

    def test_kip_501_example_1001_resigns_and_1002_leads(self) -> None:
        after = resign(
            partition(1001, 1002, 1003, leader=1001), live=among(1001, 1002, 1003), cooling=among()
        )
        assert after is not None
        assert (after.leader, after.isr) == (1002, brokers(1002, 1003, 1001))

    def test_the_successor_is_in_sync_live_and_not_cooling(self) -> None:
        state = partition(1, 2, 3, 4, 5, isr=(1, 3, 4, 5), leader=1)
        after = resign(state, live=among(1, 2, 4, 5), cooling=among(4))
        assert after is not None
        assert after.leader == 5

    def test_design_never_when_no_other_replica_is_in_sync(self) -> None:
        assert resigned(partition(1, 2, 3, isr=(1,), leader=1)) is None

    def test_never_to_a_dead_replica(self) -> None:
        assert resign(partition(1, 2, leader=1), live=among(1), cooling=among()) is None

    def test_never_when_all_others_are_cooling(self) -> None:
        assert resigned(partition(1, 2, 3, leader=1), 2, 3) is None

    def test_a_replica_that_does_not_lead_cannot_resign(self) -> None:
        with pytest.raises(AssertionError, match="only a leader"):
            resigned(partition(1, 2, leader=None))


class TestCooling:
    def test_design_the_cooldown_is_a_minute(self) -> None:
        assert COOLDOWN_MS_DEFAULT == 60_000

    def test_a_cool_down_lasts_exactly_its_time(self) -> None:
        cooling = Cooldowns().after(BrokerId(1), now_ms=5_000, cooldown_ms=60_000)
        assert cooling.brokers(now_ms=5_000) == among(1)
        assert cooling.brokers(now_ms=64_999) == among(1)
        assert cooling.brokers(now_ms=65_000) == among()

    def test_a_cool_down_is_per_broker(self) -> None:
        cooling = (
            Cooldowns()
            .after(BrokerId(1), now_ms=0, cooldown_ms=60_000)
            .after(BrokerId(2), now_ms=30_000, cooldown_ms=60_000)
        )
        assert cooling.brokers(now_ms=59_999) == among(1, 2)
        assert cooling.brokers(now_ms=60_000) == among(2)

    def test_cool_downs_that_are_over_are_forgotten(self) -> None:
        cooling = (
            Cooldowns()
            .after(BrokerId(1), now_ms=0, cooldown_ms=60_000)
            .after(BrokerId(2), now_ms=60_000, cooldown_ms=60_000)
        )
        assert dict(cooling.until_ms) == {2: 120_000}

    def test_no_broker_is_cooling_at_first(self) -> None:
        assert Cooldowns().brokers(now_ms=0) == among()


COOLDOWN_MS = 100

isr_changes = st.lists(st.tuples(st.integers(1, 40), broker_sets), max_size=40)


@pytest.mark.property
@given(st.integers(1, 5), isr_changes)
def test_kip_501_no_thrashing_though_every_broker_is_always_slow(
    replicas: int, changes: list[tuple[int, frozenset[BrokerId]]]
) -> None:
    """At most R - 1 resignations in any cool-down, whatever joins and leaves the ISR meanwhile.

    Each change is some milliseconds later, and says which followers are in sync then.
    """
    assigned = tuple(BrokerId(broker) for broker in range(1, replicas + 1))
    state = PartitionState(
        replicas=assigned, isr=assigned, leader=assigned[0], leader_epoch=LeaderEpoch(0)
    )
    cooling = Cooldowns()
    resigned_at_ms: list[int] = []
    now_ms = 0
    for wait_ms, caught_up in [*changes, *[(20, ALL_BROKERS)] * 10]:
        now_ms += wait_ms
        isr = tuple(b for b in assigned if b == state.leader or b in caught_up)
        state = PartitionState(
            replicas=assigned, isr=isr, leader=state.leader, leader_epoch=state.leader_epoch
        )
        for _ in range(replicas + 1):  # slow at once, again and again
            after = resign(state, live=ALL_BROKERS, cooling=cooling.brokers(now_ms=now_ms))
            if after is None:
                break
            assert_sound(after)
            assert state.leader is not None
            assert after.isr[-1] == state.leader
            assert set(after.isr) == set(state.isr)
            cooling = cooling.after(state.leader, now_ms=now_ms, cooldown_ms=COOLDOWN_MS)
            resigned_at_ms.append(now_ms)
            state = after
    for since_ms in resigned_at_ms:
        window = [at_ms for at_ms in resigned_at_ms if since_ms <= at_ms < since_ms + COOLDOWN_MS]
        assert len(window) <= replicas - 1
    assert resigned_at_ms or replicas == 1, (
        "a slow leader with a successor that is not cooling does resign"
    )
