"""What a lease sets and undoes, by examples and by an oracle of the whole lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.move_plan import Move
from insync.rules.refusals import BadThrottledReplicas
from insync.rules.throttle_lease import (
    NO_LEASE,
    Configs,
    ThrottleLease,
    begin,
    end,
    extend,
    follow_leaders,
)
from insync.rules.throttle_settings import Throttle, of_bootstrap
from insync.rules.throttled_replicas import FOLLOWER_LIST, FOLLOWER_RATE, LEADER_LIST, LEADER_RATE
from insync.rules.values import BrokerId, PartitionId


def move(sources: set[int], destinations: set[int]) -> Move:
    return Move(
        sources=frozenset(BrokerId(b) for b in sources),
        destinations=frozenset(BrokerId(b) for b in destinations),
    )


T0, T1, U0 = (("t", PartitionId(0)), ("t", PartitionId(1)), ("u", PartitionId(0)))
ONE_MOVE = {T0: move({1, 2}, {3})}
NOTHING = Configs()


def applied(before: Configs, change: Configs) -> Configs:
    return Configs(
        topics={**before.topics, **change.topics}, brokers={**before.brokers, **change.brokers}
    )


def rates(value: str) -> dict[str, str]:
    return {LEADER_RATE: value, FOLLOWER_RATE: value}


def test_exact_lists_and_a_rate_on_every_broker_involved() -> None:
    """KIP-73: existing replicas on the leader's side, new ones on the follower's."""
    lease, after = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=NOTHING)
    assert after.topics == {"t": {LEADER_LIST: "0:1,0:2", FOLLOWER_LIST: "0:3"}}
    assert after.brokers == {1: rates("1000"), 2: rates("1000"), 3: rates("1000")}
    assert lease.partitions == {T0}
    gone = end(lease, configs=after)
    assert (gone.topics, gone.brokers) == ({"t": {}}, {1: {}, 2: {}, 3: {}})


def test_earlier_values_are_restored_exactly() -> None:
    before = Configs(
        topics={"t": {LEADER_LIST: "5-1, 0:1", FOLLOWER_LIST: "", "retention.ms": "7"}},
        brokers={BrokerId(1): rates("77"), BrokerId(3): {"x": "y"}},
    )
    lease, change = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=before)
    during = applied(before, change)
    assert during.topics["t"][LEADER_LIST] == "0:1,0:2,5:1"
    assert applied(during, end(lease, configs=during)) == applied(
        before, Configs(brokers={BrokerId(2): {}})
    )


def test_values_set_by_an_operator_meanwhile_are_kept() -> None:
    lease, during = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=NOTHING)
    during = Configs(
        topics={"t": {LEADER_LIST: "0:1,0:2,9:9", FOLLOWER_LIST: "*"}},
        brokers={**during.brokers, BrokerId(1): {**rates("1000"), LEADER_RATE: "5"}},
    )
    change = end(lease, configs=during)
    assert change.topics == {"t": {LEADER_LIST: "9:9", FOLLOWER_LIST: "*"}}
    assert change.brokers[BrokerId(1)] == {LEADER_RATE: "5"}


@pytest.mark.parametrize("text", ["nonsense", "*"])
def test_a_list_that_an_operator_changed_is_kept(text: str) -> None:
    lease, _ = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=NOTHING)
    during = Configs(topics={"t": {LEADER_LIST: text, FOLLOWER_LIST: text}})
    assert end(lease, configs=during) == NOTHING


def test_a_list_that_an_operator_emptied_is_not_restored() -> None:
    before = Configs(topics={"t": {LEADER_LIST: "5:5"}})
    lease, during = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1, configs=before)
    during = applied(during, Configs(topics={"t": {LEADER_LIST: "0:1"}}))
    assert end(lease, configs=during).topics == {"t": {}}


def test_a_star_needs_no_entries_and_survives() -> None:
    before = Configs(topics={"t": {LEADER_LIST: "*"}})
    lease, change = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1, configs=before)
    assert change.topics["t"] == {LEADER_LIST: "*", FOLLOWER_LIST: "0:3"}
    during = applied(before, change)
    assert applied(during, end(lease, configs=during)).topics == before.topics


def test_a_list_that_cannot_be_read_is_refused() -> None:
    before = Configs(topics={"t": {LEADER_LIST: "nonsense"}})
    with pytest.raises(BadThrottledReplicas):
        extend(NO_LEASE, ONE_MOVE, bytes_per_s=1, configs=before)


def rebuilding(**leaders: int) -> Throttle:
    """Broker 3 rebuilds its replicas from these leaders, at 1000 B/s."""
    names = {"t0": T0, "t1": T1, "u0": U0}
    return of_bootstrap(
        {names[name]: BrokerId(leader) for name, leader in leaders.items()},
        BrokerId(3),
        bytes_per_s=1000,
        set_on=BrokerId(3),
    )


def test_a_leader_that_leads_since_is_added_and_removed_with_the_rest() -> None:
    before = Configs(topics={"t": {LEADER_LIST: "9:9"}}, brokers={BrokerId(2): {LEADER_RATE: "7"}})
    lease, change = begin(rebuilding(t0=1, t1=1), configs=before)
    during = applied(before, change)
    assert follow_leaders(lease, rebuilding(t0=1, t1=1), configs=during) is None
    extension = follow_leaders(lease, rebuilding(t0=2, t1=1), configs=during)
    assert extension is not None
    lease, change = extension
    during = applied(during, change)
    assert during.topics == {"t": {LEADER_LIST: "0:1,0:2,1:1,9:9", FOLLOWER_LIST: "0:3,1:3"}}
    assert during.brokers == {
        1: {LEADER_RATE: "1000"},
        2: {LEADER_RATE: "1000"},
        3: {FOLLOWER_RATE: "1000"},
    }
    assert follow_leaders(lease, rebuilding(t0=2, t1=1), configs=during) is None
    assert follow_leaders(lease, rebuilding(t0=1, t1=1), configs=during) is None, "it is listed"
    after = applied(during, end(lease, configs=during))
    assert after.topics == before.topics
    assert after.brokers == {**before.brokers, BrokerId(1): {}, BrokerId(3): {}}


def test_what_an_operator_changed_since_is_not_set_again_for_a_new_leader() -> None:
    lease, during = begin(rebuilding(t0=1, t1=2), configs=NOTHING)
    during = Configs(
        topics={"t": {LEADER_LIST: "0:2", FOLLOWER_LIST: "*"}},
        brokers={**during.brokers, BrokerId(2): {LEADER_RATE: "5"}},
    )
    assert follow_leaders(lease, rebuilding(t0=1, t1=2), configs=during) is None
    assert follow_leaders(lease, rebuilding(t0=2, t1=2), configs=during) is None, "listed by hand"
    extension = follow_leaders(lease, rebuilding(t0=1, t1=1), configs=during)
    assert extension is not None
    assert extension[1] == Configs(topics={"t": {LEADER_LIST: "0:2,1:1", FOLLOWER_LIST: "*"}})


def test_a_partition_that_it_follows_since_is_added() -> None:
    lease, during = begin(rebuilding(t0=1), configs=NOTHING)
    extension = follow_leaders(lease, rebuilding(t0=1, u0=1), configs=during)
    assert extension is not None
    assert extension[1] == Configs(topics={"u": {LEADER_LIST: "0:1", FOLLOWER_LIST: "0:3"}})


def test_an_extension_sets_the_rate_everywhere_and_keeps_the_earliest_values() -> None:
    before = Configs(brokers={BrokerId(1): rates("77")})
    first, change = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=before)
    during = applied(before, change)
    both = {**ONE_MOVE, U0: move({2}, {4})}
    second, change = extend(first, both, bytes_per_s=2000, configs=during)
    during = applied(during, change)
    assert dict(during.brokers.items()) == {b: rates("2000") for b in (1, 2, 3, 4)}
    assert second.partitions == {T0, U0}
    after = applied(during, end(second, configs=during))
    assert after.brokers == {1: rates("77"), 2: {}, 3: {}, 4: {}}
    assert after.topics == {"t": {}, "u": {}}


def test_a_rate_changed_by_hand_is_what_an_extension_goes_back_to() -> None:
    first, during = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=NOTHING)
    during = applied(during, Configs(brokers={BrokerId(3): rates("5")}))
    second, change = extend(first, ONE_MOVE, bytes_per_s=2000, configs=during)
    during = applied(during, change)
    assert during.brokers[BrokerId(3)] == rates("2000")
    assert end(second, configs=during).brokers[BrokerId(3)] == rates("5")


def test_brokers_whose_moves_are_over_get_the_new_rate_too() -> None:
    """They are still in the lists until the lease ends."""
    first, during = extend(NO_LEASE, ONE_MOVE, bytes_per_s=1000, configs=NOTHING)
    second, change = extend(first, {T1: move({4}, {5})}, bytes_per_s=2, configs=during)
    assert sorted(change.brokers) == [1, 2, 3, 4, 5]
    assert second.partitions == {T1}


brokers = st.frozensets(st.integers(1, 5).map(BrokerId), min_size=1, max_size=3)
moves = st.builds(Move, sources=brokers, destinations=brokers)
keys = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2).map(PartitionId))
entries = st.frozensets(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4)
lists = entries.map(lambda pairs: ",".join(f"{p}:{b}" for p, b in sorted(pairs)))
topic_configs = st.dictionaries(st.sampled_from([LEADER_LIST, FOLLOWER_LIST]), lists)
broker_configs = st.dictionaries(st.sampled_from([LEADER_RATE, FOLLOWER_RATE]), st.just("9"))


@pytest.mark.property
@given(
    before_topics=st.dictionaries(st.sampled_from(["t", "u"]), topic_configs),
    before_brokers=st.dictionaries(st.integers(1, 5).map(BrokerId), broker_configs),
    extensions=st.lists(
        st.tuples(st.dictionaries(keys, moves, min_size=1, max_size=3), st.integers(1, 99)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_lease_restores_everything_however_often_it_was_extended(
    before_topics: dict[str, dict[str, str]],
    before_brokers: dict[BrokerId, dict[str, str]],
    extensions: list[tuple[dict[tuple[str, PartitionId], Move], int]],
) -> None:
    during = Configs(topics=before_topics, brokers=before_brokers)
    lease: ThrottleLease = NO_LEASE
    for moving, rate in extensions:
        lease, change = extend(lease, moving, bytes_per_s=rate, configs=during)
        during = applied(during, change)
        for (topic, number), each in moving.items():
            for name, listed in (
                (LEADER_LIST, each.sources),
                (FOLLOWER_LIST, each.destinations),
            ):
                now = during.topics[topic][name].split(",")
                assert all(f"{number}:{broker}" in now for broker in listed)
                assert all(during.brokers[broker] == rates(str(rate)) for broker in listed)
    after = applied(during, end(lease, configs=during))
    assert {t: c for t, c in after.topics.items() if c} == {
        t: c for t, c in before_topics.items() if c
    }
    assert {b: c for b, c in after.brokers.items() if c} == {
        b: c for b, c in before_brokers.items() if c
    }
