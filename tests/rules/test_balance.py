"""Balanced plans: even, apart in racks, and with the least data; checked by trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, product

import pytest
from hypothesis import given, settings
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


def test_the_smaller_ones_move() -> None:
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


def test_some_racks_are_not_known() -> None:
    with pytest.raises(BadPlan, match="broker 2 has no rack"):
        balanced(plan((1, 2)), brokers=ids([1, 2]), racks={BrokerId(1): "a"}, sizes={})


def test_too_few_brokers() -> None:
    with pytest.raises(BadPlan, match="t-0 has 2 replicas, more than the 1 brokers given"):
        balanced(plan((1, 2)), brokers=ids([1]), racks={}, sizes={})


@st.composite
def clusters(draw: st.DrawFn, partitions_max: int = 4) -> tuple[Plan, list[BrokerId], list[int]]:
    everybody = range(1, 1 + draw(st.integers(2, 4)))
    factor = draw(st.integers(1, min(3, len(everybody))))
    replicas = st.permutations(everybody).map(lambda order: order[:factor])
    before = plan(*draw(st.lists(replicas, min_size=1, max_size=partitions_max)))
    listed = draw(st.sets(st.sampled_from(everybody), min_size=factor))
    sizes = draw(st.lists(st.integers(0, 9), min_size=len(before), max_size=len(before)))
    return before, ids(sorted(listed)), sizes


RACKS = ("a", "b")


@pytest.mark.property
@given(clusters(), st.none() | st.lists(st.sampled_from(RACKS), min_size=4, max_size=4))
def test_as_good_as_the_best_of_all_placements(
    case: tuple[Plan, list[BrokerId], list[int]], in_racks: list[str] | None
) -> None:
    before, brokers, size_list = case
    sizes = dict(zip(sorted(before), size_list, strict=True))
    racks = {b: in_racks[b - 1] for b in brokers} if in_racks else {}
    after = balanced(before, brokers=brokers, racks=racks, sizes=sizes)

    def crowding(sets: Iterable[Iterable[BrokerId]]) -> int:
        """The most replicas of a partition in one rack, summed over partitions."""
        if not racks:
            return 0
        return sum(max(Counter(racks[b] for b in each).values()) for each in sets)

    def cost(placement: Mapping[TopicPartition, Iterable[BrokerId]]) -> tuple[int, int, int]:
        loads = Counter(b for each in placement.values() for b in each)
        data = sum(
            (sizes[p] + 1) * len(set(each) - set(before[p])) for p, each in placement.items()
        )
        return crowding(placement.values()), sum(n * n for n in loads.values()), data

    choices = [list(combinations(brokers, len(before[p]))) for p in sorted(before)]
    best = min(cost(dict(zip(sorted(before), each, strict=True))) for each in product(*choices))
    assert cost(after) == best
    assert all(len(set(after[p])) == len(before[p]) for p in before)


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
