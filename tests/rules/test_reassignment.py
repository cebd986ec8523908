"""Moving replicas: Kafka's controller (kafka-facts 4 and 6), and the design's completion rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.election import broker_gone, elect
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import cancel, complete, replicas_before_move, start
from insync.rules.refusals import BadPlan, NothingToCancel, WouldLoseData
from insync.rules.resignation import resign
from insync.rules.values import BrokerId
from support.rules.partition_states import (
    BROKERS,
    EPOCH,
    among,
    assert_led,
    assert_sound,
    broker_sets,
    brokers,
    partition,
    searched,
)

KNOWN = among(0, 1, 2, 3, 4, 5)


def started(state: PartitionState, *target: int) -> PartitionState:
    return start(state, brokers(*target), known=KNOWN, live=KNOWN)


def completed(
    state: PartitionState,
    *,
    min_insync_replicas: int = 1,
    live: frozenset[BrokerId] = KNOWN,
    cooling: frozenset[BrokerId] = frozenset(),
) -> PartitionState:
    return complete(state, min_insync_replicas=min_insync_replicas, live=live, cooling=cooling)


def cancelled(
    state: PartitionState,
    *,
    live: frozenset[BrokerId] = KNOWN,
    cooling: frozenset[BrokerId] = frozenset(),
    unclean: bool = False,
) -> PartitionState:
    return cancel(state, live=live, cooling=cooling, unclean=unclean)


def in_sync(state: PartitionState, *isr: int, leader: BrokerId | None = None) -> PartitionState:
    """The partition with this ISR, and with this leader if one is named."""
    return replace(state, isr=brokers(*isr), leader=state.leader if leader is None else leader)


class TestStart:
    def test_kafka_test_reassign_partitions(self) -> None:
        """[3,2,1] -> [0,2,1] lists replicas [0,2,1,3], adding [0], removing [3]."""
        moving = started(partition(3, 2, 1, leader=3), 0, 2, 1)
        assert moving == partition(0, 2, 1, 3, isr=(3, 2, 1), leader=3, adding=(0,), removing=(3,))
        assert moving.is_moving

    def test_kafka_reassign_partitions_command_test_lists_0_1_3_2(self) -> None:
        moving = started(partition(0, 1, 2, leader=0), 0, 1, 3)
        assert moving.replicas == brokers(0, 1, 3, 2)

    def test_kafka_a_reordering_completes_at_once_and_keeps_the_leader(self) -> None:
        assert started(partition(1, 2, 3, leader=1), 3, 1, 2) == partition(
            3, 1, 2, isr=(1, 2, 3), leader=1
        )

    def test_a_higher_factor_only_adds(self) -> None:
        moving = started(partition(1, leader=1), 1, 2, 3)
        assert moving == partition(1, 2, 3, isr=(1,), leader=1, adding=(2, 3))

    def test_a_lower_factor_only_removes(self) -> None:
        moving = started(partition(1, 2, 3, leader=1), 3)
        assert moving == partition(3, 1, 2, isr=(1, 2, 3), leader=1, removing=(1, 2))

    @pytest.mark.parametrize(
        ("target", "says"),
        [
            ((), "the replica list is empty"),
            ((1, 2, 1), "broker 1 is listed more than once"),
            ((1, 9, 8), "broker 8 is not known; this cluster has 0, 1, 2, 3, 4, 5"),
        ],
    )
    def test_kafka_refuses_a_plan_that_is(self, target: tuple[int, ...], says: str) -> None:
        with pytest.raises(BadPlan, match=says):
            started(partition(1, 2, leader=1), *target)


# Broker 0 replaces broker 3, which leads.
MOVING = partition(0, 2, 1, 3, isr=(3, 2, 1), leader=3, adding=(0,), removing=(3,))

# The same move after all from before fell out of sync.
STRANDED = in_sync(MOVING, 0, leader=BrokerId(0))


class TestComplete:
    """The design: every adding replica is in the ISR, and the ISR has at least the effective min
    ISR of the target's members."""

    def test_waits_for_every_adding_replica(self) -> None:
        assert completed(MOVING) == MOVING
        both = partition(4, 5, 1, 2, isr=(1, 2, 5), leader=1, adding=(4, 5), removing=(1, 2))
        assert completed(both) == both

    def test_removed_replicas_leave_and_a_removed_leader_is_replaced_in_a_new_epoch(self) -> None:
        assert completed(in_sync(MOVING, 3, 2, 1, 0)) == partition(
            0, 2, 1, isr=(2, 1, 0), leader=0, epoch=EPOCH + 1
        )

    def test_kafka_a_leader_that_stays_leads_on_in_a_new_epoch(self) -> None:
        """A fetch of the removed replica must not count when it is added again, empty."""
        ready = in_sync(MOVING, 3, 2, 1, 0, leader=BrokerId(1))
        assert completed(ready) == partition(0, 2, 1, isr=(2, 1, 0), leader=1, epoch=EPOCH + 1)

    def test_an_increase_completes_in_the_same_epoch(self) -> None:
        ready = in_sync(started(partition(1, leader=1), 1, 2), 1, 2)
        assert completed(ready) == partition(1, 2, leader=1)

    def test_kafka_19975_a_dead_replica_that_stays_does_not_block_completion(self) -> None:
        ready = in_sync(MOVING, 3, 1, 0)
        after = completed(ready, min_insync_replicas=2, live=among(0, 1, 3))
        assert after == partition(0, 2, 1, isr=(1, 0), leader=0, epoch=EPOCH + 1)

    @pytest.mark.parametrize(
        ("isr", "min_insync_replicas", "completes"),
        [
            pytest.param((3, 0), 1, True, id="one of one"),
            pytest.param((3, 0), 2, False, id="one of two: the removed one does not count"),
            pytest.param((3, 1, 0), 2, True, id="two of two"),
            pytest.param((3, 1, 0), 3, False, id="two of three"),
            pytest.param((3, 2, 1, 0), 3, True, id="three of three"),
            pytest.param((3, 2, 1, 0), 4, True, id="never more than the target has"),
        ],
    )
    def test_needs_the_effective_min_isr_of_the_target(
        self, isr: tuple[int, ...], min_insync_replicas: int, *, completes: bool
    ) -> None:
        ready = in_sync(MOVING, *isr)
        after = completed(ready, min_insync_replicas=min_insync_replicas)
        assert (after != ready) is completes
        assert after.is_moving is (not completes)

    @pytest.mark.parametrize("min_insync_replicas", [0, 1])
    def test_a_lower_factor_waits_until_the_target_has_an_in_sync_replica(
        self, min_insync_replicas: int
    ) -> None:
        shrinking = partition(3, 1, 2, isr=(1, 2), leader=1, removing=(1, 2))
        assert completed(shrinking, min_insync_replicas=min_insync_replicas) == shrinking
        arrived = in_sync(shrinking, 1, 2, 3)
        assert completed(arrived, min_insync_replicas=min_insync_replicas) == partition(
            3, leader=3, epoch=EPOCH + 1
        )

    def test_a_removed_leader_stays_while_no_in_sync_target_replica_is_live(self) -> None:
        ready = in_sync(MOVING, 3, 0)
        assert completed(ready, live=among(1, 2, 3)) == ready

    def test_a_cooling_successor_is_passed_over_unless_it_is_the_only_one(self) -> None:
        ready = in_sync(MOVING, 3, 2, 1, 0)
        assert completed(ready, cooling=among(0)).leader == 2
        assert completed(in_sync(MOVING, 3, 0), cooling=among(0)).leader == 0

    def test_a_settled_partition_is_left_alone(self) -> None:
        state = partition(1, 2, 3, leader=1)
        assert completed(state) == state


class TestCancel:
    def test_kafka_test_reassign_partitions_returns_to_2_1_3(self) -> None:
        back = partition(2, 1, 3, isr=(3, 2, 1), leader=3, epoch=EPOCH + 1)
        assert cancelled(MOVING) == back

    def test_kafka_an_adding_replica_already_in_the_isr_is_removed(self) -> None:
        assert cancelled(in_sync(MOVING, 3, 2, 1, 0)).isr == brokers(3, 2, 1)

    def test_an_adding_replica_that_leads_hands_over_in_a_new_epoch(self) -> None:
        moving = in_sync(MOVING, 0, 1, 3, leader=BrokerId(0))
        back = partition(2, 1, 3, isr=(1, 3), leader=1, epoch=EPOCH + 1)
        assert cancelled(moving) == back
        assert cancelled(moving, cooling=among(1)) == replace(back, leader=BrokerId(3))

    def test_kafka_pr_20003_a_pure_increase_can_be_cancelled(self) -> None:
        before = partition(1, leader=1)
        after = cancelled(in_sync(started(before, 1, 2, 3), 1, 2))
        assert after == partition(1, leader=1, epoch=EPOCH + 1)

    def test_a_pure_decrease_can_be_cancelled(self) -> None:
        after = cancelled(started(partition(1, 2, 3, leader=1), 3))
        assert set(after.replicas) == {1, 2, 3}
        assert not after.is_moving

    def test_kafka_refuses_when_nothing_from_before_is_in_sync(self) -> None:
        with pytest.raises(WouldLoseData, match="none of the replicas 2, 1, 3 is in sync"):
            cancelled(STRANDED)

    def test_kafka_allows_that_with_unclean_election(self) -> None:
        """The first live replica of the original ones starts over."""
        after = cancelled(STRANDED, live=among(0, 1, 3), unclean=True)
        assert after == partition(2, 1, 3, isr=(1,), leader=1, epoch=EPOCH + 1)

    def test_unclean_changes_nothing_while_something_from_before_is_in_sync(self) -> None:
        moving = in_sync(MOVING, 3, 0)
        assert cancelled(moving, unclean=True) == cancelled(moving)
        assert cancelled(moving, unclean=True).isr == brokers(3)

    def test_kafka_no_reassignment_in_progress(self) -> None:
        with pytest.raises(NothingToCancel, match="no reassignment of this partition"):
            cancelled(partition(1, 2, leader=1))


class TestSupersede:
    """A move replaced by another is forgotten; what the partition had before is not."""

    FIRST = started(partition(1, 2, 3, leader=1), 4, 2, 3)

    def test_the_first_moves_adding_replica_is_dropped_and_cancel_returns_to_the_original(
        self,
    ) -> None:
        second = started(in_sync(self.FIRST, 1, 2, 3, 4), 5, 2, 3)
        assert second == partition(
            5, 2, 3, 1, isr=(1, 2, 3), leader=1, adding=(5,), removing=(1,), epoch=EPOCH + 1
        )
        back = partition(2, 3, 1, isr=(1, 2, 3), leader=1, epoch=EPOCH + 2)
        assert cancelled(second) == back

    def test_a_replica_both_moves_add_is_still_adding(self) -> None:
        second = started(self.FIRST, 4, 5, 3)
        assert second.replicas[:3] == brokers(4, 5, 3)
        assert set(second.replicas[3:]) == set(second.removing) == {1, 2}
        assert second.adding == brokers(4, 5)

    def test_a_move_back_to_where_it_began_is_done_at_once(self) -> None:
        assert started(self.FIRST, 1, 2, 3) == partition(1, 2, 3, leader=1, epoch=EPOCH + 1)

    def test_a_dropped_leader_hands_over_in_a_new_epoch(self) -> None:
        led_by_4 = in_sync(self.FIRST, 4, 2, leader=BrokerId(4))
        second = started(led_by_4, 5, 2, 3)
        assert (second.leader, second.isr, second.leader_epoch) == (2, brokers(2), EPOCH + 1)

    def test_refused_when_only_the_dropped_replica_is_in_sync(self) -> None:
        only_4 = in_sync(self.FIRST, 4, leader=BrokerId(4))
        with pytest.raises(WouldLoseData, match="none of the replicas 5, 2, 3, 1 is in sync"):
            started(only_4, 5, 2, 3)

    def test_origin_is_what_was_there_before_the_first_move(self) -> None:
        assert set(replicas_before_move(self.FIRST)) == {1, 2, 3}
        assert set(replicas_before_move(started(self.FIRST, 5))) == {1, 2, 3}


targets = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True).map(tuple)


@dataclass(slots=True)
class Partition:
    """One partition under operators, a leader that changes the ISR, and brokers that die.

    The model is two facts: which brokers are live, and which replicas there were before the first
    move that is still under way. Every step checks what it did against them.
    """

    state: PartitionState
    before: frozenset[BrokerId]
    unclean: bool
    live: frozenset[BrokerId] = frozenset(BROKERS)

    def became(self, state: PartitionState, *, may_lose: bool = False) -> None:
        assert state.leader == self.state.leader or state.leader_epoch > self.state.leader_epoch
        all_stay = set(self.state.replicas) <= set(state.replicas)
        assert all_stay or state.leader_epoch > self.state.leader_epoch
        assert state.leader_epoch >= self.state.leader_epoch
        assert may_lose or set(state.isr) <= set(self.state.isr), "joined without catching up"
        assert_sound(state)
        assert_led(state, self.live)
        self.state = state
        if not state.is_moving:
            self.before = frozenset(state.replicas)

    def start(self, wanted: tuple[BrokerId, ...]) -> None:
        try:
            state = start(self.state, wanted, known=frozenset(BROKERS), live=self.live)
        except WouldLoseData:
            assert not set(self.state.isr).intersection({*wanted, *self.before})
            return
        assert set(state.adding) == set(wanted) - self.before
        assert set(state.removing) == self.before - set(wanted)
        assert state.replicas == (*wanted, *state.removing)
        self.became(state)

    def live_on(self, live: frozenset[BrokerId]) -> None:
        """Some brokers die, one after the other, and some return."""
        for broker in sorted(self.live - live):
            self.live -= {broker}
            state = broker_gone(self.state, broker, live=self.live, unclean=self.unclean)
            self.became(state, may_lose=self.unclean)
        self.live = live
        self.became(elect(self.state, live=live, unclean=self.unclean), may_lose=self.unclean)

    def change_isr(self, caught_up: frozenset[BrokerId]) -> None:
        """A leader adds live replicas that have caught up, and removes the rest."""
        if self.state.leader is not None:
            stay = {self.state.leader, *(caught_up & self.live)}
            isr = tuple(broker for broker in self.state.replicas if broker in stay)
            self.state = replace(self.state, isr=isr)

    def hand_over(self) -> None:
        """Leadership may come to any in-sync replica, adding and removing ones too."""
        if self.state.leader is not None:
            self.became(resign(self.state, live=self.live, cooling=among()) or self.state)

    def complete(self, min_insync_replicas: int) -> None:
        old = self.state
        wanted = [broker for broker in old.replicas if broker not in old.removing]
        arrived = [broker for broker in wanted if broker in old.isr]
        may_complete = (
            old.is_moving
            and all(broker in arrived for broker in old.adding)
            and len(arrived) >= min(min_insync_replicas, len(wanted))
            and any(broker in self.live for broker in arrived)
        )
        state = complete(old, min_insync_replicas=min_insync_replicas, live=self.live)
        if may_complete:
            assert list(state.replicas) == wanted
            assert not state.is_moving
            assert set(state.isr) == set(arrived)
        else:
            assert state == old
        self.became(state)

    def cancel(self) -> None:
        is_stranded = not self.before.intersection(self.state.isr)
        try:
            state = cancel(self.state, live=self.live, unclean=self.unclean)
        except NothingToCancel:
            assert not self.state.is_moving
            return
        except WouldLoseData:
            assert is_stranded
            assert not (self.unclean and self.before & self.live)
            return
        assert set(state.replicas) == self.before
        assert not state.is_moving
        assert not is_stranded or self.unclean
        self.became(state, may_lose=is_stranded)


@dataclass(frozen=True, slots=True)
class Step:
    """A move, perhaps in place of another, and what happens before it is checked again."""

    target: tuple[BrokerId, ...]
    live: frozenset[BrokerId]
    caught_up: frozenset[BrokerId]
    hands_over: bool
    caught_up_later: frozenset[BrokerId]
    dead_later: frozenset[BrokerId]
    ending: str
    min_insync_replicas: int


steps = st.builds(
    Step,
    target=targets,
    live=broker_sets,
    caught_up=broker_sets,
    hands_over=st.booleans(),
    caught_up_later=broker_sets,
    dead_later=st.just(among()) | broker_sets,
    ending=st.sampled_from(["complete", "cancel", "nothing"]),
    min_insync_replicas=st.integers(1, 4),
)


@pytest.mark.property
@searched
@given(replicas=targets, sequence=st.lists(steps, min_size=2, max_size=6), unclean=st.booleans())
def test_design_no_sequence_of_moves_loses_the_isr_the_leader_or_the_origin(
    replicas: tuple[BrokerId, ...], sequence: list[Step], *, unclean: bool
) -> None:
    """Never an empty ISR or a leader outside it; a cancelled move ends on the replicas from before
    the first start, and a completed one on its target."""
    moved = Partition(partition(*replicas, leader=replicas[0]), frozenset(replicas), unclean)
    for step in sequence:
        moved.start(step.target)
        moved.live_on(step.live)
        moved.change_isr(step.caught_up)
        if step.hands_over:
            moved.hand_over()
        moved.change_isr(step.caught_up_later)
        moved.live_on(moved.live - step.dead_later)
        if step.ending == "complete":
            moved.complete(step.min_insync_replicas)
        elif step.ending == "cancel":
            moved.cancel()
