"""Throttle lists of a plan, with the exact numbers of Kafka's ReassignPartitionsUnitTest."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.move_plan import (
    Assignment,
    Move,
    TopicPartition,
    brokers_involved,
    follower_throttles,
    leader_throttles,
    move_ratio,
    moves,
)
from insync.rules.refusals import BadPlan
from insync.rules.values import BrokerId, PartitionId

Plan = dict[TopicPartition, tuple[BrokerId, ...]]


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in ids)


def partition(topic: str, number: int) -> TopicPartition:
    return topic, PartitionId(number)


def move(sources: set[int], destinations: set[int]) -> Move:
    return Move(
        sources=frozenset(brokers(*sources)), destinations=frozenset(brokers(*destinations))
    )


KNOWN = frozenset(brokers(*range(1, 9)))

# --- kafka-facts 6: ReassignPartitionsUnitTest.testMoveMap ---

TWO_LEAVE_TWO_COME = Assignment(
    replicas=brokers(1, 2, 3, 4), adding=brokers(3, 4), removing=brokers(1, 2)
)
CURRENT = {
    partition("foo", 0): Assignment(
        replicas=brokers(1, 2, 3, 4), adding=brokers(4), removing=brokers(3)
    ),
    partition("foo", 1): Assignment(
        replicas=brokers(4, 5, 6, 7, 8), adding=brokers(7, 8), removing=brokers(4, 5)
    ),
    partition("foo", 2): TWO_LEAVE_TWO_COME,
    partition("foo", 3): TWO_LEAVE_TWO_COME,
    partition("foo", 4): TWO_LEAVE_TWO_COME,
    partition("foo", 5): TWO_LEAVE_TWO_COME,
    partition("bar", 0): Assignment(replicas=brokers(2, 3, 4)),
    partition("baz", 0): Assignment(replicas=brokers(1, 2, 3)),
}
PLAN = {
    partition("foo", 0): brokers(1, 2, 5),
    partition("foo", 2): brokers(3, 4),
    partition("foo", 3): brokers(5, 6),
    partition("foo", 4): brokers(3),
    partition("foo", 5): brokers(3, 4, 5, 6),
    partition("bar", 0): brokers(1, 2, 3),
}


def kafkas_moves() -> dict[TopicPartition, Move]:
    return moves(CURRENT, PLAN, known=KNOWN)


def test_move_map_sources_and_destinations() -> None:
    assert kafkas_moves() == {
        partition("foo", 0): move({1, 2, 3}, {5}),
        partition("foo", 1): move({4, 5, 6}, {7, 8}),
        partition("foo", 2): move({1, 2}, {3, 4}),
        partition("foo", 3): move({1, 2}, {5, 6}),
        partition("foo", 4): move({1, 2}, {3}),
        partition("foo", 5): move({1, 2}, {3, 4, 5, 6}),
        partition("bar", 0): move({2, 3, 4}, {1}),
    }


def test_move_map_leader_lists() -> None:
    assert {topic: str(listed) for topic, listed in leader_throttles(kafkas_moves()).items()} == {
        "foo": "0:1,0:2,0:3,1:4,1:5,1:6,2:1,2:2,3:1,3:2,4:1,4:2,5:1,5:2",
        "bar": "0:2,0:3,0:4",
    }


def test_move_map_follower_lists() -> None:
    assert {topic: str(listed) for topic, listed in follower_throttles(kafkas_moves()).items()} == {
        "foo": "0:5,1:7,1:8,2:3,2:4,3:5,3:6,4:3,5:3,5:4,5:5,5:6",
        "bar": "0:1",
    }


def test_move_map_brokers() -> None:
    assert brokers_involved(kafkas_moves()) == KNOWN


def test_moves_and_lists_come_in_order() -> None:
    moving = kafkas_moves()
    assert list(moving) == sorted(moving)
    assert list(leader_throttles(moving)) == ["bar", "foo"]


# --- kafka-facts 4: 101,102 -> 102,103 ---


def test_kafka_facts_example() -> None:
    moving = moves(
        {partition("t", 0): Assignment(replicas=brokers(101, 102))},
        {partition("t", 0): brokers(102, 103)},
        known=frozenset(brokers(101, 102, 103)),
    )
    assert str(leader_throttles(moving)["t"]) == "0:101,0:102"
    assert str(follower_throttles(moving)["t"]) == "0:103"
    assert brokers_involved(moving) == {101, 102, 103}


@pytest.mark.parametrize("target", [brokers(1, 2, 3), brokers(3, 2, 1), brokers(2, 3), brokers(3)])
def test_a_partition_that_only_reorders_or_shrinks_is_not_throttled(
    target: tuple[BrokerId, ...],
) -> None:
    """KIP-73: replicas "that are moving" and "that are being created"; here there are none."""
    assert moves(CURRENT, {partition("baz", 0): target}, known=KNOWN).keys() == {
        partition("foo", number) for number in range(6)
    }


def test_a_move_under_way_that_only_removes_is_not_throttled() -> None:
    shrinking = Assignment(replicas=brokers(1, 2, 3), removing=brokers(3))
    assert moves({partition("t", 0): shrinking}, {}, known=KNOWN) == {}


def test_an_empty_plan_on_a_quiet_cluster_touches_nothing() -> None:
    moving = moves({partition("t", 0): Assignment(replicas=brokers(1))}, {}, known=KNOWN)
    assert moving == {}
    assert leader_throttles(moving) == follower_throttles(moving) == {}
    assert brokers_involved(moving) == frozenset()


# --- any plan, against the rule stated replica by replica ---

TARGETS = st.lists(st.sampled_from(sorted(KNOWN)), min_size=1, unique=True).map(tuple)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    """A quiet partition, or one that moves from some replicas to others."""
    before = draw(TARGETS)
    target = draw(st.just(before) | TARGETS)
    return Assignment(
        replicas=(*target, *(broker for broker in before if broker not in target)),
        adding=tuple(broker for broker in target if broker not in before),
        removing=tuple(broker for broker in before if broker not in target),
    )


PARTITIONS = st.builds(partition, st.sampled_from(["a", "b"]), st.integers(0, 2))


@pytest.mark.property
@given(
    current=st.dictionaries(PARTITIONS, assignments(), min_size=1),
    wanted=st.dictionaries(PARTITIONS, TARGETS),
)
def test_a_replica_is_throttled_exactly_as_a_source_or_as_a_new_copy(
    current: dict[TopicPartition, Assignment], wanted: Plan
) -> None:
    """kafka-facts 4: leader list = current minus adding; follower list = target minus those."""
    plan = {one: target for one, target in wanted.items() if one in current}
    moving = moves(current, plan, known=KNOWN)
    leaders, followers = leader_throttles(moving), follower_throttles(moving)
    for (topic, number), now in current.items():
        end = plan.get((topic, number), tuple(b for b in now.replicas if b not in now.removing))
        holders = [b for b in now.replicas if b not in now.adding]
        created = [b for b in end if b not in holders]
        for broker in KNOWN:
            as_source = topic in leaders and leaders[topic].includes(number, broker)
            as_copy = topic in followers and followers[topic].includes(number, broker)
            assert as_source is (broker in holders and bool(created))
            assert as_copy is (broker in created)
            assert broker in brokers_involved(moving) or not (as_source or as_copy)


# --- refusals say what to change ---


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({partition("foo", 9): brokers(1)}, "foo-9 does not exist; take it out of the plan"),
        (
            {partition("baz", 0): brokers(1, 99)},
            "baz-0: broker 99 is not known; this cluster has 1, 2, 3, 4, 5, 6, 7, 8",
        ),
        (
            {partition("baz", 0): brokers(1, 2, 1)},
            "baz-0: broker 1 is listed more than once; name each broker once",
        ),
        ({partition("baz", 0): ()}, "baz-0: the replica list is empty; name at least one broker"),
    ],
)
def test_an_invalid_plan_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(BadPlan) as refusal:
        moves(CURRENT, plan, known=KNOWN)
    assert str(refusal.value) == message


# --- KIP-73: MoveRatio = #partitions-to-be-moved / #total-partition-count ---


@pytest.mark.parametrize(
    ("partitions_to_move", "partitions_total", "ratio"),
    [(20, 100, Fraction(1, 5)), (1, 3, Fraction(1, 3)), (0, 7, 0), (7, 7, 1)],
)
def test_move_ratio(partitions_to_move: int, partitions_total: int, ratio: Fraction) -> None:
    assert ratio == move_ratio(
        partitions_to_move=partitions_to_move, partitions_total=partitions_total
    )


def test_a_cluster_without_partitions_has_no_ratio() -> None:
    with pytest.raises(BadPlan, match="no partitions; there is nothing to move"):
        move_ratio(partitions_to_move=0, partitions_total=0)


@pytest.mark.parametrize("partitions_to_move", [-1, 8])
def test_moving_more_than_exists_fails_an_assertion(partitions_to_move: int) -> None:
    with pytest.raises(AssertionError):
        move_ratio(partitions_to_move=partitions_to_move, partitions_total=7)
