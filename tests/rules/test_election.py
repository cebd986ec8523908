"""Leader election, by the design: "Who writes partition state", "KIP-501" and "Defaults"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.election import (
    broker_gone,
    elect,
    elect_preferred_leader,
    raise_epoch,
    successor,
)
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from support.rules.partition_states import (
    BROKERS,
    EPOCH,
    among,
    assert_led,
    assert_sound,
    broker_sets,
    brokers,
    partition,
    partitions,
    searched,
)

ALL_BROKERS = frozenset(BROKERS)


class TestPartitionState:
    @pytest.mark.parametrize(
        ("isr", "leader", "adding", "removing", "message"),
        [
            ((), None, (), (), "last in-sync replica"),
            ((1, 9), 1, (), (), "only replicas are in sync"),
            ((1,), 2, (), (), "only in-sync replicas lead"),
            ((1,), 1, (9,), (), "adding replicas are replicas"),
            ((1,), 1, (), (9,), "removing replicas are replicas"),
        ],
    )
    def test_an_invalid_state_is_refused(
        self,
        isr: tuple[int, ...],
        leader: int | None,
        adding: tuple[int, ...],
        removing: tuple[int, ...],
        message: str,
    ) -> None:
        with pytest.raises(AssertionError, match=message):
            partition(1, 2, 3, isr=isr, leader=leader, adding=adding, removing=removing)

    @pytest.mark.parametrize(
        ("adding", "removing", "is_moving"),
        [((), (), False), ((1,), (), True), ((), (3,), True), ((1,), (3,), True)],
    )
    def test_a_partition_is_moving_while_replicas_are_added_or_removed(
        self, adding: tuple[int, ...], removing: tuple[int, ...], *, is_moving: bool
    ) -> None:
        state = partition(1, 2, 3, leader=1, adding=adding, removing=removing)
        assert state.is_moving is is_moving

    def test_every_change_of_leader_is_a_new_epoch(self) -> None:
        state = partition(1, 2, leader=1)
        assert state.led_by(BrokerId(2)) == partition(1, 2, leader=2, epoch=EPOCH + 1)
        assert state.led_by(None) == partition(1, 2, leader=None, epoch=EPOCH + 1)


class TestEpochOfALog:
    """Defect 7: a store that went back must not give an epoch to a second leader."""

    def test_an_epoch_found_above_the_stores_is_ended(self) -> None:
        state = partition(1, 2, leader=1)
        found_epoch = LeaderEpoch(EPOCH + 3)
        after = raise_epoch(state, found_epoch)
        assert after == partition(1, 2, leader=None, epoch=EPOCH + 3)
        assert elect(after, live=ALL_BROKERS).leader_epoch == found_epoch + 1

    @pytest.mark.parametrize("behind", [0, 1])
    def test_an_epoch_found_at_or_below_the_stores_changes_nothing(self, behind: int) -> None:
        state = partition(1, 2, leader=1)
        assert raise_epoch(state, LeaderEpoch(EPOCH - behind)) == state


class TestCleanElection:
    def test_a_live_leader_stays(self) -> None:
        state = partition(1, 2, 3, leader=3)
        assert elect(state, live=ALL_BROKERS) == state

    def test_assignment_order_decides_not_the_order_of_the_isr(self) -> None:
        """kafka-facts 2, trap 3."""
        state = partition(3, 1, 2, isr=(2, 1, 3), leader=None)
        assert successor(state, live=ALL_BROKERS) == 3
        assert elect(state, live=ALL_BROKERS).leader == 3

    def test_only_live_replicas_are_elected_and_the_epoch_grows_by_one(self) -> None:
        elected = elect(partition(1, 2, 3, leader=1), live=among(2, 3))
        assert elected == partition(1, 2, 3, leader=2, epoch=EPOCH + 1)

    def test_only_in_sync_replicas_are_elected(self) -> None:
        state = partition(1, 2, 3, isr=(1, 3), leader=1)
        assert elect(state, live=among(2, 3)).leader == 3

    def test_a_cooling_broker_comes_last(self) -> None:
        state = partition(1, 2, 3, leader=None)
        assert elect(state, live=ALL_BROKERS, cooling=among(1)).leader == 2
        assert elect(state, live=ALL_BROKERS, cooling=among(1, 2)).leader == 3

    def test_a_cooling_broker_is_elected_if_no_other_isr_member_is_live(self) -> None:
        state = partition(1, 2, 3, isr=(1, 2), leader=2)
        assert elect(state, live=among(1, 3), cooling=among(1)).leader == 1

    def test_all_cooling_means_assignment_order_again(self) -> None:
        state = partition(3, 1, 2, leader=None)
        assert elect(state, live=ALL_BROKERS, cooling=ALL_BROKERS).leader == 3

    def test_without_a_live_isr_member_there_is_no_leader_in_a_new_epoch(self) -> None:
        state = partition(1, 2, 3, isr=(1,), leader=1)
        gone = elect(state, live=among(2, 3))
        assert gone == partition(1, 2, 3, isr=(1,), leader=None, epoch=EPOCH + 1)

    def test_still_no_leader_is_no_change(self) -> None:
        state = partition(1, 2, 3, isr=(1,), leader=None)
        assert elect(state, live=among(2, 3)) == state
        assert successor(state, live=among(2, 3)) is None

    def test_the_isr_member_that_returns_leads_again(self) -> None:
        state = partition(1, 2, 3, isr=(2,), leader=None)
        assert elect(state, live=among(1, 2)) == partition(
            1, 2, 3, isr=(2,), leader=2, epoch=EPOCH + 1
        )


class TestUncleanElection:
    def test_an_unclean_election_makes_the_first_live_replica_the_whole_isr(self) -> None:
        state = partition(1, 3, 2, isr=(1,), leader=1)
        elected = elect(state, live=among(2, 3), unclean=True)
        assert elected == partition(1, 3, 2, isr=(3,), leader=3, epoch=EPOCH + 1)

    def test_an_election_is_unclean_only_when_no_isr_member_is_live(self) -> None:
        state = partition(1, 2, 3, isr=(1, 3), leader=1)
        elected = elect(state, live=among(2, 3), unclean=True)
        assert elected == partition(1, 2, 3, isr=(1, 3), leader=3, epoch=EPOCH + 1)

    def test_a_cooling_isr_member_still_comes_before_one_out_of_sync(self) -> None:
        state = partition(1, 2, 3, isr=(3,), leader=None)
        assert elect(state, live=ALL_BROKERS, cooling=among(3), unclean=True).leader == 3

    def test_with_no_live_replica_at_all_there_is_no_leader(self) -> None:
        state = partition(1, 2, isr=(1,), leader=1)
        elected = elect(state, live=among(4, 5), unclean=True)
        assert elected == partition(1, 2, isr=(1,), leader=None, epoch=EPOCH + 1)


class TestPreferredLeader:
    def test_the_first_replica_gets_leadership_back(self) -> None:
        preferred = elect_preferred_leader(partition(1, 2, 3, leader=2), live=ALL_BROKERS)
        assert preferred == partition(1, 2, 3, leader=1, epoch=EPOCH + 1)

    @pytest.mark.parametrize(
        ("state", "live", "cooling"),
        [
            pytest.param(partition(1, 2, leader=1), among(1, 2), among(), id="it leads already"),
            pytest.param(partition(1, 2, leader=2), among(2), among(), id="it is dead"),
            pytest.param(
                partition(1, 2, isr=(2,), leader=2), among(1, 2), among(), id="it is not in sync"
            ),
            pytest.param(partition(1, 2, leader=2), among(1, 2), among(1), id="it is cooling"),
            pytest.param(
                partition(1, 2, 3, leader=2, removing=(3,)), among(1, 2), among(), id="it moves"
            ),
        ],
    )
    def test_leadership_is_not_restored_when(
        self, state: PartitionState, live: frozenset[BrokerId], cooling: frozenset[BrokerId]
    ) -> None:
        assert elect_preferred_leader(state, live=live, cooling=cooling) == state


class TestBrokerGone:
    def test_a_follower_leaves_the_isr_without_a_new_epoch(self) -> None:
        """kafka-facts 1: the leader epoch does not bump on a shrink."""
        after = broker_gone(partition(1, 2, 3, leader=1), BrokerId(2), live=among(1, 3))
        assert after == partition(1, 2, 3, isr=(1, 3), leader=1)

    def test_a_leader_leaves_the_isr_and_the_next_replica_leads(self) -> None:
        after = broker_gone(partition(1, 2, 3, leader=1), BrokerId(1), live=among(2, 3))
        assert after == partition(1, 2, 3, isr=(2, 3), leader=2, epoch=EPOCH + 1)

    def test_a_leader_back_as_a_new_incarnation_no_longer_leads(self) -> None:
        after = broker_gone(partition(1, 2, 3, leader=1), BrokerId(1), live=ALL_BROKERS)
        assert after == partition(1, 2, 3, isr=(2, 3), leader=2, epoch=EPOCH + 1)

    def test_a_follower_back_as_a_new_incarnation_is_out_of_sync(self) -> None:
        after = broker_gone(partition(1, 2, 3, leader=1), BrokerId(3), live=ALL_BROKERS)
        assert after == partition(1, 2, 3, isr=(1, 2), leader=1)

    def test_the_last_member_stays_in_the_isr_and_there_is_no_leader_until_it_returns(self) -> None:
        alone = partition(1, 2, isr=(1,), leader=1)
        waiting = broker_gone(alone, BrokerId(1), live=among(2))
        assert waiting == partition(1, 2, isr=(1,), leader=None, epoch=EPOCH + 1)
        back = broker_gone(waiting, BrokerId(1), live=among(1, 2))
        assert back == partition(1, 2, isr=(1,), leader=1, epoch=EPOCH + 2)

    def test_the_last_live_member_stays_in_the_isr_with_dead_ones(self) -> None:
        state = partition(1, 2, leader=1)
        assert broker_gone(state, BrokerId(1), live=among(1)).isr == brokers(1, 2)

    def test_the_only_replica_leads_again_in_a_new_epoch(self) -> None:
        """Its new incarnation may lack its former tail; an epoch has one writer."""
        state = partition(1, 2, isr=(1,), leader=1)
        after = broker_gone(state, BrokerId(1), live=among(1, 2))
        assert after == partition(1, 2, isr=(1,), leader=1, epoch=EPOCH + 1)

    def test_a_cooling_successor_is_passed_over(self) -> None:
        state = partition(1, 2, 3, leader=1)
        after = broker_gone(state, BrokerId(1), live=among(2, 3), cooling=among(2))
        assert after.leader == 3

    def test_unclean_when_allowed_and_the_last_member_died(self) -> None:
        state = partition(1, 2, isr=(1,), leader=1)
        after = broker_gone(state, BrokerId(1), live=among(2), unclean=True)
        assert after == partition(1, 2, isr=(2,), leader=2, epoch=EPOCH + 1)


@pytest.mark.property
@searched
@given(
    state=partitions(),
    broker=st.sampled_from(BROKERS),
    live=broker_sets,
    cooling=broker_sets,
    unclean=st.booleans(),
)
def test_design_removing_a_broker_is_idempotent_and_leaves_a_valid_state(
    state: PartitionState,
    broker: BrokerId,
    live: frozenset[BrokerId],
    cooling: frozenset[BrokerId],
    *,
    unclean: bool,
) -> None:
    """The design: it leaves every ISR with another live member, never the last; repeating is
    harmless. (A new incarnation, which is live, is reported once.)"""
    once = broker_gone(state, broker, live=live, cooling=cooling, unclean=unclean)
    assert_sound(once)
    assert_led(once, live)
    if broker not in live:
        assert broker_gone(once, broker, live=live, cooling=cooling, unclean=unclean) == once
    if live.intersection(state.isr) - {broker}:
        assert set(once.isr) == set(state.isr) - {broker}
    elif not unclean or live.intersection(state.isr):
        assert once.isr == state.isr


@pytest.mark.property
@searched
@given(state=partitions(), live=broker_sets, cooling=broker_sets, unclean=st.booleans())
def test_design_an_epoch_belongs_to_one_leader(
    state: PartitionState,
    live: frozenset[BrokerId],
    cooling: frozenset[BrokerId],
    *,
    unclean: bool,
) -> None:
    """The epoch grows by one exactly when the leader changes, also to none."""
    for after in (
        elect(state, live=live, cooling=cooling, unclean=unclean),
        elect_preferred_leader(state, live=live, cooling=cooling),
    ):
        assert_sound(after)
        assert after.leader_epoch - state.leader_epoch == int(after.leader != state.leader)


@pytest.mark.property
@searched
@given(partitions(), broker_sets, broker_sets)
def test_design_a_cooling_broker_is_elected_only_if_no_other_member_is_live(
    state: PartitionState, live: frozenset[BrokerId], cooling: frozenset[BrokerId]
) -> None:
    """The oracle: rank by (cooling, position in the assignment) and take the first."""
    ranked = sorted(
        (broker in cooling, state.replicas.index(broker)) for broker in state.isr if broker in live
    )
    expected = state.replicas[ranked[0][1]] if ranked else None
    assert successor(state, live=live, cooling=cooling) == expected
