"""Replicas of new partitions: in different racks, balanced, and without randomness."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.broker.admin.assignment import Racks, assign
from insync.rules.values import BrokerId


def racks(*names: str | None) -> dict[BrokerId, str | None]:
    return {BrokerId(number): name for number, name in enumerate(names, start=1)}


SOME_RACKS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=9).map(
    lambda names: racks(*names)
)
NO_RACKS = st.integers(1, 9).map(lambda size: racks(*[None] * size))
EQUAL_RACKS = st.tuples(st.integers(1, 4), st.integers(1, 3)).flatmap(
    lambda shape: st.permutations(list("abcd"[: shape[0]]) * shape[1]).map(
        lambda names: racks(*names)
    )
)


@st.composite
def topics(draw: st.DrawFn, brokers: st.SearchStrategy[Racks]) -> tuple[Racks, int, int, int]:
    chosen = draw(brokers)
    return (
        chosen,
        draw(st.integers(1, 40)),
        draw(st.integers(1, len(chosen))),
        draw(st.integers(0, 50)),
    )


@pytest.mark.property
@given(topics(st.one_of(SOME_RACKS, NO_RACKS, EQUAL_RACKS)))
def test_replicas_are_distinct_and_as_many_racks_apart_as_there_are(
    topic: tuple[Racks, int, int, int],
) -> None:
    brokers, count, factor, first = topic
    assignment = assign(brokers, count=count, factor=factor, first=first)
    assert len(assignment) == count
    is_racked = any(brokers.values())
    rack_count = len(set(brokers.values())) if is_racked else len(brokers)
    for replicas in assignment:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(brokers)
        used = {brokers[broker] if is_racked else broker for broker in replicas}
        assert len(used) == min(factor, rack_count)


@pytest.mark.property
@given(topics(st.one_of(SOME_RACKS, NO_RACKS, EQUAL_RACKS)))
def test_leaders_are_balanced_within_one(topic: tuple[Racks, int, int, int]) -> None:
    brokers, count, factor, first = topic
    assignment = assign(brokers, count=count, factor=factor, first=first)
    led = Counter(dict.fromkeys(brokers, 0))
    led.update(replicas[0] for replicas in assignment)
    assert max(led.values()) - min(led.values()) <= 1


@pytest.mark.property
@given(topics(st.one_of(NO_RACKS, EQUAL_RACKS)))
def test_racks_of_one_size_hold_equally_many_replicas_per_broker(
    topic: tuple[Racks, int, int, int],
) -> None:
    """Exactly after whole rounds; within a round, one more per list position at most."""
    brokers, count, factor, first = topic
    held = Counter(dict.fromkeys(brokers, 0))
    for replicas in assign(brokers, count=count, factor=factor, first=first):
        held.update(replicas)
    spread = max(held.values()) - min(held.values())
    assert spread <= (factor if count % len(brokers) else 0)


def test_a_dead_brokers_partitions_are_led_by_more_than_one_other() -> None:
    assignment = assign(racks(None, None, None, None), count=12, factor=2, first=0)
    assert {replicas[1] for replicas in assignment if replicas[0] == 1} == {2, 3, 4}


def test_the_first_leader_is_at_the_requested_position() -> None:
    brokers = racks("a", "a", "b", "b")
    assert [replicas[0] for replicas in assign(brokers, count=4, factor=1, first=2)] == [2, 4, 1, 3]
    assert assign(brokers, count=9, factor=2, first=1) == assign(
        dict(reversed(brokers.items())), count=9, factor=2, first=1
    )


def test_brokers_without_a_rack_count_as_one_rack() -> None:
    assignment = assign(racks("a", "a", None, None), count=8, factor=2, first=0)
    assert all(len({replica <= 2 for replica in replicas}) == 2 for replicas in assignment)
