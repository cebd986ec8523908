"""Loads of brokers evened out: known answers, and every plan checked by counting again."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.load_balance import (
    BYTES_IN,
    CLIENT_BYTES_IN,
    GOAL,
    LEADERS,
    LOADS,
    Balanced,
    Placement,
    Replicas,
    even_out,
    excess,
    is_balanced,
)
from insync.rules.move_plan import TopicPartition
from insync.rules.values import BrokerId, PartitionId


def key(number: int, topic: str = "t") -> TopicPartition:
    return topic, PartitionId(number)


def placement(
    *partitions: tuple[tuple[int, ...], int],
    brokers: tuple[int, ...] = (1, 2, 3),
    racks: Mapping[int, str] | None = None,
    sizes: Mapping[int, int] | None = None,
    fixed: tuple[int, ...] = (),
) -> Placement:
    """Each partition as its replicas and its rate."""
    return Placement(
        replicas={
            key(number): tuple(map(BrokerId, replicas))
            for number, (replicas, _) in enumerate(partitions)
        },
        rates={key(number): rate for number, (_, rate) in enumerate(partitions)},
        sizes={key(number): size for number, size in (sizes or {}).items()},
        brokers=tuple(map(BrokerId, brokers)),
        racks={BrokerId(broker): rack for broker, rack in (racks or {}).items()},
        fixed=tuple(map(key, fixed)),
    )


def changes(balanced: Balanced) -> dict[int, Replicas]:
    return {partition[1]: replicas for partition, replicas in balanced.changes.items()}


def counted(
    replicas: Mapping[TopicPartition, Replicas], rates: Mapping[TopicPartition, int], broker: int
) -> dict[str, int]:
    """The definition of each load, of one broker."""
    here = [each for each, brokers in replicas.items() if broker in brokers]
    led = [each for each in here if replicas[each][0] == broker]
    return {
        BYTES_IN: sum(rates[each] for each in here),
        CLIENT_BYTES_IN: sum(rates[each] for each in led),
        LEADERS: len(led),
    }


def test_a_replica_moves_from_the_busiest_broker_to_the_idlest() -> None:
    """30, 0 and 15: the one partition of 10 + 5 that makes all of them 15 is moved."""
    before = placement(((1,), 15), ((1,), 10), ((1,), 5), ((3,), 15))
    balanced = even_out(before, changes_max=10)
    assert changes(balanced) == {0: (2,)}
    assert balanced.after[BYTES_IN] == {1: 15, 2: 15, 3: 15}
    assert balanced.before[BYTES_IN] == {1: 30, 2: 0, 3: 15}


def test_leaders_change_where_every_broker_has_every_replica() -> None:
    """Then bytes in are even, whatever moves; another leader copies nothing."""
    before = placement(*[((1, 2, 3), 10)] * 6)
    balanced = even_out(before, changes_max=10)
    assert balanced.after[LEADERS] == {1: 2, 2: 2, 3: 2}
    assert balanced.after[CLIENT_BYTES_IN] == {1: 20, 2: 20, 3: 20}
    assert len(balanced.changes) == 4
    assert all(set(replicas) == {1, 2, 3} for replicas in balanced.changes.values())


def test_busy_and_idle_partitions_change_leaders_with_each_other() -> None:
    """Each broker leads three partitions, but broker 1 leads what is written to."""
    busy, idle = [((1, 2), 50)] * 3, [((2, 1), 10)] * 3
    balanced = even_out(placement(*busy, *idle, brokers=(1, 2)), changes_max=10)
    assert balanced.before[CLIENT_BYTES_IN] == {1: 150, 2: 30}
    assert balanced.after[CLIENT_BYTES_IN] == {1: 110, 2: 70}
    assert balanced.after[LEADERS] == {1: 3, 2: 3}


@pytest.mark.parametrize("excess_of_one", [0, 10])
def test_a_tenth_above_the_mean_is_balanced(excess_of_one: int) -> None:
    before = placement(((1,), 100 + excess_of_one), ((2,), 100 - excess_of_one), brokers=(1, 2))
    balanced = even_out(before, changes_max=10)
    assert not balanced.changes
    assert not balanced.is_too_little


def test_one_hot_partition_does_not_move_back_and_forth() -> None:
    """Wherever it is, its broker is the busiest."""
    before = placement(((1,), 100), ((2,), 1), ((3,), 1))
    assert not even_out(before, changes_max=10).changes


def test_what_gains_little_moves_nothing() -> None:
    """Of 101 on broker 1 only 1 may move; all that it leads counts, so that leaders stay even."""
    idle = [((1,), 0)] * 18 + [((2,), 0)] * 20
    before = placement(((1,), 100), ((1,), 1), *idle, brokers=(1, 2), fixed=(0, *range(2, 40)))
    balanced = even_out(before, changes_max=9)
    assert not balanced.changes
    assert balanced.is_too_little
    # A tenth of it is enough.
    better = placement(((1,), 91), ((1,), 10), *idle, brokers=(1, 2), fixed=(0, *range(2, 40)))
    assert changes(even_out(better, changes_max=9)) == {1: (2,)}


def test_no_load_is_balanced() -> None:
    assert not even_out(placement(((1,), 0), ((2,), 0), brokers=(1, 2)), changes_max=5).changes
    assert excess({BrokerId(1): 0}) == 0


def test_leaders_that_do_not_divide_are_balanced() -> None:
    assert is_balanced(LEADERS, {BrokerId(1): 2, BrokerId(2): 1, BrokerId(3): 1})
    assert not is_balanced(BYTES_IN, {BrokerId(1): 2, BrokerId(2): 1, BrokerId(3): 1})


def test_at_most_so_many_partitions_change() -> None:
    before = placement(*[((1,), 10)] * 12)
    for most in (1, 3):
        assert len(even_out(before, changes_max=most).changes) == most


def test_the_smaller_log_is_copied() -> None:
    before = placement(((1,), 10), ((1,), 10), brokers=(1, 2), sizes={0: 500, 1: 100})
    assert changes(even_out(before, changes_max=5)) == {1: (2,)}


def test_fixed_partitions_count_and_stay() -> None:
    before = placement(((1,), 10), ((1,), 10), brokers=(1, 2), fixed=(1,))
    assert changes(even_out(before, changes_max=5)) == {0: (2,)}
    assert not even_out(
        placement(((1,), 10), ((1,), 10), brokers=(1, 2), fixed=(0, 1)), changes_max=5
    ).changes


def test_nothing_moves_onto_a_broker_that_is_not_named() -> None:
    """Broker 3 is down; its replicas and what it leads stay as they are."""
    before = placement(
        ((1, 3), 10), ((1, 3), 10), ((3, 1), 10), ((1,), 10), brokers=(1, 2), fixed=()
    )
    balanced = even_out(before, changes_max=10)
    assert balanced.changes
    for partition, replicas in balanced.changes.items():
        assert (3 in replicas) == (3 in before.replicas[partition])
    assert key(2) not in balanced.changes or balanced.changes[key(2)][0] == 3


def test_replicas_stay_in_as_many_racks() -> None:
    """Broker 3 has no load, and the rack of broker 2; broker 4 has no rack."""
    racks = {1: "a", 2: "b", 3: "b", 5: "a"}
    before = placement(*[((1, 2), 10)] * 4, brokers=(1, 2, 3, 4, 5), racks=racks)
    after = even_out(before, changes_max=10)
    for partition in before.replicas:
        replicas = after.changes.get(partition, before.replicas[partition])
        assert {racks[broker] for broker in replicas} == {"a", "b"}
    assert after.after[BYTES_IN][BrokerId(4)] == 0
    assert after.after[BYTES_IN][BrokerId(3)] == after.after[BYTES_IN][BrokerId(5)] == 20


replica_lists = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3, unique=True)


@pytest.mark.property
@given(
    st.lists(st.tuples(replica_lists.map(tuple), st.integers(0, 100)), min_size=1, max_size=9),
    st.sets(st.sampled_from([1, 2, 3, 4]), min_size=1),
    st.integers(1, 5),
    st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.sampled_from("ab")),
)
def test_a_plan_gains_and_breaks_nothing(
    partitions: list[tuple[tuple[int, ...], int]],
    brokers: set[int],
    most: int,
    racks: dict[int, str],
) -> None:
    before = placement(*partitions, brokers=tuple(sorted(brokers)), racks=racks)
    balanced = even_out(before, changes_max=most)
    after = {**before.replicas, **balanced.changes}
    for broker, name in product(sorted(brokers), LOADS):
        assert (
            balanced.before[name][BrokerId(broker)]
            == (counted(before.replicas, before.rates, broker)[name])
        )
        assert balanced.after[name][BrokerId(broker)] == counted(after, before.rates, broker)[name]
    assert len(balanced.changes) <= most
    for partition, replicas in balanced.changes.items():
        old = before.replicas[partition]
        assert replicas != old
        assert len(set(replicas)) == len(replicas) == len(old)
        assert set(replicas) - set(old) <= brokers
        if racks:
            assert set(replicas) - set(old) <= racks.keys()
            known = [{racks[each] for each in list_ if each in racks} for list_ in (replicas, old)]
            assert len(known[0]) >= len(known[1])
    assert _unevenness(balanced.after) <= _unevenness(balanced.before)


def _unevenness(loads: Mapping[str, Mapping[BrokerId, int]]) -> Fraction:
    """Of loads that the search takes for uneven: more than half the tolerance."""
    uneven = (load for name, load in loads.items() if not is_balanced(name, load, to=GOAL))
    return sum(map(excess, uneven), Fraction(0))


def test_a_tie_is_decided_the_same_way_whatever_the_order_of_brokers() -> None:
    partitions = [((1, 2), 10)] * 5
    one = even_out(placement(*partitions, brokers=(3, 1, 2)), changes_max=9)
    other = even_out(placement(*partitions, brokers=(2, 3, 1)), changes_max=9)
    assert one == other
