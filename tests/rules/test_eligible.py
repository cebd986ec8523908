"""Replicas that cannot lead, and those outside the ISR that may: nothing acknowledged is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.election import brokers_changed, elect
from insync.rules.eligible import eligible_after
from insync.rules.partition_state import PartitionState
from insync.rules.reassignment import cancel, start
from insync.rules.values import BrokerId
from support.rules.partition_states import EPOCH, among, brokers, partition, searched

ALL = among(1, 2, 3)


def with_eligible(state: PartitionState, *ids: int) -> PartitionState:
    return replace(state, eligible=brokers(*ids))


class TestEligible:
    def test_an_eligible_replica_is_a_replica_outside_the_isr(self) -> None:
        with pytest.raises(AssertionError, match="eligible replicas are replicas"):
            with_eligible(partition(1, 2, isr=(1,), leader=1), 9)
        with pytest.raises(AssertionError, match="outside the ISR"):
            with_eligible(partition(1, 2, leader=1), 2)

    def test_a_replica_that_leaves_an_isr_below_min_isr_is_eligible(self) -> None:
        state = partition(1, 2, 3, isr=(3, 1, 2), leader=1)
        assert eligible_after(state, among(1, 2), min_isr=2) == ()
        assert eligible_after(state, among(1), min_isr=2) == brokers(2, 3)
        assert eligible_after(state, among(1), min_isr=2, lost=among(3)) == brokers(2)

    def test_a_replica_stays_eligible_until_the_isr_reaches_min_isr(self) -> None:
        state = with_eligible(partition(1, 2, 3, isr=(1,), leader=1), 2)
        assert eligible_after(state, among(1), min_isr=2) == brokers(2)
        assert eligible_after(state, among(1, 3), min_isr=3) == brokers(2)
        assert eligible_after(state, among(1, 3), min_isr=2) == ()


class TestOffline:
    def test_a_failed_follower_leaves_and_the_term_goes_on(self) -> None:
        state = partition(1, 2, 3, leader=1)
        after = brokers_changed(state, ended=(), live=ALL, failed=among(2))
        assert after == partition(1, 2, 3, isr=(1, 3), leader=1)
        assert brokers_changed(after, ended=(), live=ALL, failed=among(2)) == after

    def test_a_failed_leader_is_replaced_and_leaves_the_isr(self) -> None:
        after = brokers_changed(partition(1, 2, 3, leader=1), ended=(), live=ALL, failed=among(1))
        assert after == partition(1, 2, 3, isr=(2, 3), leader=2, epoch=EPOCH + 1)

    def test_the_last_member_stays_and_does_not_lead(self) -> None:
        state = partition(1, 2, 3, isr=(1,), leader=1)
        after = brokers_changed(state, ended=(), live=ALL, failed=among(1))
        assert after == partition(1, 2, 3, isr=(1,), leader=None, epoch=EPOCH + 1)

    def test_a_failed_replica_is_not_eligible(self) -> None:
        after = brokers_changed(
            partition(1, 2, leader=1), ended=(), live=ALL, failed=among(2), min_isr=2
        )
        assert (after.isr, after.eligible) == (brokers(1), ())

    def test_all_that_stop_in_one_step_are_eligible(self) -> None:
        after = brokers_changed(
            partition(1, 2, 3, leader=1), ended=brokers(1, 2, 3), live=among(2), min_isr=2
        )
        assert (after.isr, after.leader, after.eligible) == (brokers(2), 2, brokers(1, 3))

    def test_a_damaged_member_leaves_though_the_others_are_down(self) -> None:
        after = brokers_changed(
            partition(1, 2, 3, leader=1),
            ended=brokers(1, 2, 3),
            live=among(2),
            damaged=among(2),
            min_isr=2,
        )
        assert (after.isr, after.leader, after.eligible) == (brokers(1, 3), None, ())

    def test_a_damaged_leader_that_leaves_ends_its_epoch_although_no_member_is_live(self) -> None:
        """Every change of leader, also to none, is a new epoch."""
        before = partition(1, 2, 3, leader=2)
        after = brokers_changed(
            before, ended=brokers(1, 2, 3), live=among(2), damaged=among(2), min_isr=2
        )
        assert (after.isr, after.leader) == (brokers(1, 3), None)
        assert after.leader_epoch == before.leader_epoch + 1

    def test_an_eligible_replica_leads_if_every_member_is_damaged(self) -> None:
        state = with_eligible(partition(1, 2, 3, isr=(1,), leader=None), 2, 3)
        assert elect(state, live=among(2)) == state, "the member may come back intact"
        elected = elect(state, live=among(2, 3), damaged=among(1))
        assert (elected.leader, elected.isr) == (2, brokers(2))
        assert elected.eligible == brokers(3)

    def test_an_unclean_election_takes_an_eligible_replica_first(self) -> None:
        state = with_eligible(partition(1, 2, 3, isr=(1,), leader=1), 3)
        elected = elect(state, live=among(2, 3), unclean=True)
        assert (elected.leader, elected.isr, elected.eligible) == (3, brokers(3), ())

    def test_damaged_replicas_never_lead_not_even_uncleanly(self) -> None:
        state = with_eligible(partition(1, 2, 3, isr=(1,), leader=None), 2)
        after = brokers_changed(
            state, ended=(), live=among(1, 2), damaged=among(1, 2), unclean=True, min_isr=2
        )
        assert (after.leader, after.isr, after.eligible) == (None, brokers(1), ())
        intact = brokers_changed(
            state, ended=(), live=ALL, damaged=among(1, 2), unclean=True, min_isr=2
        )
        assert (intact.leader, intact.isr) == (3, brokers(3))

    def test_a_damaged_member_leaves_while_its_leader_is_live(self) -> None:
        """A leader that adds it deletes the report: while there is one, it is damaged."""
        after = brokers_changed(
            partition(1, 2, 3, leader=1), ended=(), live=ALL, damaged=among(2), min_isr=2
        )
        assert (after.isr, after.leader) == (brokers(1, 3), 1)

    def test_a_leader_that_finds_damage_leads_on_if_no_other_replica_can(self) -> None:
        state = partition(1, isr=(1,), leader=1)
        assert brokers_changed(state, ended=(), live=ALL, damaged=among(1)) == state
        restarted = brokers_changed(state, ended=brokers(1), live=ALL, damaged=among(1))
        assert restarted.leader is None
        others = with_eligible(partition(1, 2, 3, isr=(1,), leader=1), 2)
        elected = brokers_changed(others, ended=(), live=ALL, damaged=among(1), min_isr=2)
        assert (elected.leader, elected.isr) == (2, brokers(2))


class TestMoves:
    def test_a_removed_replica_is_not_eligible(self) -> None:
        state = with_eligible(partition(1, 2, 3, isr=(1,), leader=1), 2, 3)
        moving = start(state, brokers(1, 4), known=among(1, 2, 3, 4), live=ALL)
        assert moving.eligible == brokers(2, 3)
        assert cancel(moving, live=ALL, unclean=False).eligible == brokers(2, 3)

    def test_an_unclean_cancellation_starts_over(self) -> None:
        state = replace(
            partition(4, 1, 2, isr=(4,), leader=4, adding=(4,), removing=(1, 2)),
            eligible=brokers(2),
        )
        cancelled = cancel(state, live=among(1, 2, 4), unclean=True)
        assert (cancelled.isr, cancelled.eligible) == (brokers(1), ())


class Model:
    """Which records each replica has, by the slowest means, and which were acknowledged."""

    def __init__(self) -> None:
        self.state = partition(1, 2, 3, leader=1)
        self.live = set(self.state.replicas)
        self.damaged: set[BrokerId] = set()  # reported, by a live broker
        self.has_lost: set[BrokerId] = set()  # as noted on its disk, also while it is down
        self.records: dict[BrokerId, set[int]] = {each: set() for each in self.state.replicas}
        self.acknowledged: set[int] = set()
        self.written = 0
        self.min_isr = 2

    def change(self, *ended: BrokerId) -> None:
        before = self.state
        self.state = brokers_changed(
            self.state,
            ended=ended,
            live=frozenset(self.live),
            damaged=frozenset(self.damaged),
            min_isr=self.min_isr,
        )
        if self.state.leader != before.leader:
            assert self.state.leader_epoch > before.leader_epoch, "a leader without its own epoch"
        if self.state.leader is not None:
            assert self.state.leader in self.live - self.damaged
            assert self.acknowledged <= self.records[self.state.leader], "lost"

    def write(self) -> None:
        if self.state.leader is None:
            return
        self.written += 1
        if len(self.state.isr) >= self.min_isr:
            self.state = replace(self.state, eligible=())
            self.acknowledged.add(self.written)
        for member in self.state.isr:
            self.records[member].add(self.written)

    def stop(self, broker: BrokerId) -> None:
        self.live.discard(broker)
        self.damaged.discard(broker)

    def start(self, broker: BrokerId, *, is_damaged: bool) -> None:
        if broker in self.live:
            return
        self.live.add(broker)
        if is_damaged:
            self.has_lost.add(broker)
            self.records[broker] = set()
        if broker in self.has_lost:
            self.damaged.add(broker)
        self.change(broker, *(each for each in self.state.replicas if each not in self.live))

    def join(self, broker: BrokerId) -> None:
        leader = self.state.leader
        if leader is None or broker not in self.live or broker in self.state.isr:
            return
        self.records[broker] = set(self.records[leader])
        self.damaged.discard(broker)
        self.has_lost.discard(broker)
        isr = (*self.state.isr, broker)
        eligible = eligible_after(self.state, frozenset(isr), min_isr=self.min_isr)
        self.state = replace(self.state, isr=isr, eligible=eligible)


steps = st.tuples(
    st.sampled_from(["write", "stop", "stop all", "start", "start damaged", "join", "min ISR"]),
    st.sampled_from(brokers(1, 2, 3)),
)


@pytest.mark.property
@searched
@given(st.lists(steps, max_size=40))
def test_a_leader_has_all_that_was_acknowledged(todo: list[tuple[str, BrokerId]]) -> None:
    model = Model()
    for step, broker in todo:
        match step:
            case "write":
                model.write()
            case "stop":
                model.stop(broker)
                model.change(broker)
            case "stop all":
                for each in model.state.replicas:
                    model.stop(each)
            case "start" | "start damaged":
                model.start(broker, is_damaged=step == "start damaged")
            case "join":
                model.join(broker)
            case _:
                model.min_isr = int(broker)
