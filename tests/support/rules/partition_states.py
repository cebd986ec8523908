"""Partition states in few words, and what must hold of every one of them."""

from __future__ import annotations

from itertools import compress

from hypothesis import settings
from hypothesis import strategies as st

from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch

EPOCH = LeaderEpoch(7)

# For properties whose examples cost next to nothing: 60 would let planted bugs survive.
searched = settings(max_examples=max(80, settings().max_examples))


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in ids)


def among(*ids: int) -> frozenset[BrokerId]:
    """A set of brokers: live, cooling or known ones."""
    return frozenset(brokers(*ids))


def partition(
    *replicas: int,
    leader: int | None,
    isr: tuple[int, ...] | None = None,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    epoch: int = EPOCH,
) -> PartitionState:
    """A partition in epoch 7 whose replicas are all in sync by default."""
    return PartitionState(
        replicas=brokers(*replicas),
        isr=brokers(*(replicas if isr is None else isr)),
        leader=None if leader is None else BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        adding=brokers(*adding),
        removing=brokers(*removing),
    )


BROKERS = brokers(1, 2, 3, 4, 5)

# Every set of brokers as likely as any other: st.frozensets mostly draws small ones.
broker_sets = st.tuples(*[st.booleans()] * len(BROKERS)).map(
    lambda chosen: frozenset(compress(BROKERS, chosen))
)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionState:
    """Any settled partition on brokers 1 to 5, its ISR in any order, with or without a leader."""
    replicas = tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    return PartitionState(
        replicas=replicas,
        isr=isr,
        leader=draw(st.none() | st.sampled_from(isr)),
        leader_epoch=EPOCH,
    )


def assert_sound(state: PartitionState) -> None:
    """What no step may break, checked here independently of the code's assertions."""
    assert state.isr, "empty ISR"
    assert set(state.isr) <= set(state.replicas), "in sync, and no replica"
    assert state.leader is None or state.leader in state.isr, "leader outside the ISR"
    for listed in (state.replicas, state.isr, state.adding, state.removing):
        assert len(set(listed)) == len(listed), "listed twice"
    target = state.replicas[: len(state.replicas) - len(state.removing)]
    assert state.replicas == (*target, *state.removing), "target first, then those removed"
    assert target, "a partition without a target"
    assert set(state.adding) <= set(target), "adding what is not wanted"


def assert_led(state: PartitionState, live: frozenset[BrokerId]) -> None:
    """A live in-sync replica leads if there is one; otherwise there is no leader."""
    if live.intersection(state.isr):
        assert state.leader in live
    else:
        assert state.leader is None
