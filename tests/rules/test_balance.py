"""Balanced plans: even, apart in racks, and with the least data; checked by trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from insync.rules.balance import balanced
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId, PartitionId

Plan = dict[TopicPartition, tuple[BrokerId, ...]]


def plan(*replicas: Iterable[int]) -> Plan:
    return {
        ("t", PartitionId(number)): tuple(BrokerId(each) for each in brokers)
        for number, brokers in enumerate(replicas)
    }


def ids(numbers: Iterable[int]) -> list[BrokerId]:
    return [BrokerId(number) for number in numbers]


def copied(before: Mapping[TopicPartition, Iterable[BrokerId]], after: Plan, weight: object) -> int:
    assert callable(weight)
    return sum(weight(p) * len(set(after[p]) - set(before[p])) for p in after)


def spread(counts: Mapping[BrokerId, int], brokers: list[BrokerId]) -> int:
    return max(counts[b] for b in brokers) - min(counts[b] for b in brokers)


def test_one_node_is_added() -> None:
    """Two brokers with everything and a third with nothing: a third of it moves, no more."""
    before = plan(*[(1, 2)] * 6)
    after = balanced(before, brokers=ids([1, 2, 3]), racks={}, sizes={})
    assert Counter(b for each in after.values() for b in each) == {1: 4, 2: 4, 3: 4}
    assert Counter(each[0] for each in after.values()) == {1: 2, 2: 2, 3: 2}
    assert copied(before, after, lambda _: 1) == 4


def test_a_broker_that_is_not_listed_is_emptied() -> None:
    before = plan((1, 2), (2, 3), (3, 1))
    after = balanced(before, brokers=ids([2, 3, 4]), racks={}, sizes={})
    assert Counter(b for each in after.values() for b in each) == {2: 2, 3: 2, 4: 2}
    assert copied(before, after, lambda _: 1) == 2, "what broker 1 had"


def test_the_smaller_partitions_move() -> None:
    before = plan((1,), (1,), (1,))
    sizes = {("t", PartitionId(0)): 10, ("t", PartitionId(1)): 5, ("t", PartitionId(2)): 100}
    after = balanced(before, brokers=ids([1, 2]), racks={}, sizes=sizes)
    assert after == plan((1,), (2,), (1,))


def test_replicas_in_one_rack_come_apart() -> None:
    racks = {BrokerId(1): "a", BrokerId(2): "a", BrokerId(3): "b", BrokerId(4): "b"}
    before = plan((1, 2), (3, 4))
    after = balanced(before, brokers=ids([1, 2, 3, 4]), racks=racks, sizes={})
    for replicas in after.values():
        assert {racks[b] for b in replicas} == {"a", "b"}
    assert copied(before, after, lambda _: 1) == 2
    assert Counter(b for each in after.values() for b in each) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_racks_come_before_evenness() -> None:
    racks = {BrokerId(1): "a", BrokerId(2): "b", BrokerId(3): "b"}
    after = balanced(plan(*[(2, 3)] * 4), brokers=ids([1, 2, 3]), racks=racks, sizes={})
    assert Counter(b for each in after.values() for b in each) == {1: 4, 2: 2, 3: 2}


def test_a_rack_that_is_too_small_for_its_share() -> None:
    racks = {BrokerId(n): "a" if n == 1 else "b" for n in range(1, 5)}
    after = balanced(plan((1, 2, 3, 4)), brokers=ids([1, 2, 3, 4]), racks=racks, sizes={})
    assert set(after["t", PartitionId(0)]) == {1, 2, 3, 4}


def test_brokers_without_a_rack() -> None:
    with pytest.raises(BadPlan, match="broker 2 has no rack"):
        balanced(plan((1, 2)), brokers=ids([1, 2]), racks={BrokerId(1): "a"}, sizes={})


def test_too_few_brokers() -> None:
    with pytest.raises(BadPlan, match="t-0 has 2 replicas, more than the 1 brokers named"):
        balanced(plan((1, 2)), brokers=ids([1]), racks={}, sizes={})


@st.composite
def clusters(draw: st.DrawFn, partitions_max: int = 6) -> tuple[Plan, list[BrokerId], list[int]]:
    """Often crowded on a few brokers, so that there is no way but through others."""
    brokers_known = range(1, 1 + draw(st.integers(2, 5)))
    factor = draw(st.integers(1, min(3, len(brokers_known))))
    usual = draw(st.permutations(brokers_known))[: factor + 1]
    replicas = st.permutations(usual).map(lambda order: tuple(order[:factor]))
    odd = st.permutations(brokers_known).map(lambda order: tuple(order[:factor]))
    before = plan(*draw(st.lists(replicas | odd, min_size=1, max_size=partitions_max)))
    listed = draw(st.sets(st.sampled_from(brokers_known), min_size=factor))
    sizes = draw(st.lists(st.integers(0, 9), min_size=len(before), max_size=len(before)))
    return before, ids(sorted(listed)), sizes


def crowding(replicas: Iterable[BrokerId], racks: Mapping[BrokerId, str]) -> int:
    """The most replicas of a partition that one rack has."""
    return max(Counter(racks.get(b, f"broker {b}") for b in replicas).values())


def unevenness(loads: Iterable[int]) -> int:
    return sum(load * load for load in loads)


def best_of_all(
    before: Plan,
    brokers: list[BrokerId],
    racks: Mapping[BrokerId, str],
    sizes: Mapping[TopicPartition, int],
) -> tuple[int, int]:
    """Every placement there is, by the loads it leads to: the least uneven, the least data."""
    reached = {(0,) * len(brokers): 0}
    for partition in before:
        choices = list(combinations(brokers, len(before[partition])))
        least = min(crowding(each, racks) for each in choices)
        following: dict[tuple[int, ...], int] = {}
        for each in choices:
            if crowding(each, racks) > least:
                continue
            data = (sizes[partition] + 1) * len(set(each) - set(before[partition]))
            for loads, so_far in reached.items():
                after = tuple(n + (b in each) for n, b in zip(loads, brokers, strict=True))
                following[after] = min(so_far + data, following.get(after, so_far + data))
        reached = following
    return min((unevenness(loads), data) for loads, data in reached.items())


def crowded(seed: int) -> tuple[Plan, list[BrokerId], dict[BrokerId, str], list[int]]:
    """At random: Hypothesis prefers small numbers, which hardly ever need a second move."""
    chance = Random(seed)  # noqa: S311
    count = chance.randint(3, 6)
    brokers_known = range(1, 1 + count)
    factor = chance.randint(1, min(3, count - 1))
    usual = chance.sample(brokers_known, factor + 1)
    before = plan(
        *(
            chance.sample(usual if chance.random() < 0.7 else brokers_known, factor)
            for _ in range(chance.randint(2, 6))
        )
    )
    brokers = ids(sorted(chance.sample(brokers_known, chance.randint(factor, count))))
    racks = {b: chance.choice("abc") for b in brokers} if chance.random() < 0.7 else {}
    return before, brokers, racks, [chance.randint(0, 9) for _ in before]


@pytest.mark.property
@given(st.integers(0, 2**32))
@example(50)  # a partition moved once is moved on for nothing
def test_as_good_as_the_best_of_all_placements(seed: int) -> None:
    before, brokers, racks, size_list = crowded(seed)
    sizes = dict(zip(sorted(before), size_list, strict=True))
    after = balanced(before, brokers=brokers, racks=racks, sizes=sizes)
    for partition, replicas in after.items():
        choices = combinations(brokers, len(before[partition]))
        assert len(set(replicas)) == len(before[partition])
        assert crowding(replicas, racks) == min(crowding(each, racks) for each in choices)
    loads = Counter(b for each in after.values() for b in each)
    data = copied(before, after, lambda p: sizes[p] + 1)
    assert (unevenness(loads.values()), data) == best_of_all(before, brokers, racks, sizes)


@pytest.mark.property
@given(clusters(partitions_max=12))
def test_counts_and_leaders_are_within_one_and_nothing_moves_twice(
    case: tuple[Plan, list[BrokerId], list[int]],
) -> None:
    before, brokers, size_list = case
    sizes = dict(zip(sorted(before), size_list, strict=True))
    after = balanced(before, brokers=brokers, racks={}, sizes=sizes)
    assert spread(Counter(b for each in after.values() for b in each), brokers) <= 1
    assert spread(Counter(each[0] for each in after.values()), brokers) <= 1
    again = balanced(after, brokers=brokers, racks={}, sizes=sizes)
    assert again == after, "what is balanced stays as it is, order included"


@pytest.mark.property
@settings(max_examples=20)
@given(st.integers(10, 60), st.integers(3, 8), st.integers(1, 3))
def test_more_partitions_over_more_brokers(count: int, brokers: int, factor: int) -> None:
    """All on the first brokers; exactly the surplus moves."""
    before = plan(*[range(1, 1 + factor)] * count)
    listed = ids(range(1, 1 + brokers))
    after = balanced(before, brokers=listed, racks={}, sizes={})
    loads = Counter(b for each in after.values() for b in each)
    assert spread(loads, listed) <= 1
    floor, extra = divmod(count * factor, brokers)
    stay = sum(sorted((floor + (n < extra) for n in range(brokers)), reverse=True)[:factor])
    assert copied(before, after, lambda _: 1) == count * factor - stay
