"""What a throttle sets, by hand-made examples."""

from __future__ import annotations

from insync.rules.move_plan import Move
from insync.rules.throttle_lease import Configs, begin, end
from insync.rules.throttle_settings import (
    beyond,
    is_rebuilt_from_leader,
    of_bootstrap,
    of_moves,
    union,
)
from insync.rules.throttled_replicas import FOLLOWER_LIST, FOLLOWER_RATE, LEADER_LIST, LEADER_RATE
from insync.rules.values import BrokerId, PartitionId

ONE, TWO, THREE, ALL = BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(-1)
T0, T1, U0 = (("t", PartitionId(0)), ("t", PartitionId(1)), ("u", PartitionId(0)))


def test_moves_are_throttled_on_the_brokers_named() -> None:
    moving = {T0: Move(sources=frozenset({ONE, TWO}), destinations=frozenset({THREE}))}
    throttle = of_moves(moving, bytes_per_s=10, brokers=[THREE, ONE])
    assert throttle.rates == {
        (1, LEADER_RATE): 10,
        (1, FOLLOWER_RATE): 10,
        (3, LEADER_RATE): 10,
        (3, FOLLOWER_RATE): 10,
    }
    assert {name: str(each) for name, each in throttle.lists.items()} == {
        ("t", LEADER_LIST): "0:1,0:2",
        ("t", FOLLOWER_LIST): "0:3",
    }
    assert (throttle.brokers, throttle.topics) == ((1, 3), ("t",))


def test_a_bootstrapping_broker_is_throttled_with_the_leaders_it_fetches_from() -> None:
    """No other traffic is throttled: no follower rate on leaders, no leader rate on the broker."""
    throttle = of_bootstrap({T0: ONE, T1: TWO, U0: None}, THREE, bytes_per_s=10, set_on=THREE)
    assert throttle.rates == {(1, LEADER_RATE): 10, (2, LEADER_RATE): 10, (3, FOLLOWER_RATE): 10}
    assert {name: str(each) for name, each in throttle.lists.items()} == {
        ("t", LEADER_LIST): "0:1,1:2",
        ("t", FOLLOWER_LIST): "0:3,1:3",
        ("u", FOLLOWER_LIST): "0:3",
    }


def test_the_rate_of_a_bootstrapping_broker_may_be_a_cluster_default() -> None:
    throttle = of_bootstrap({T0: ONE}, THREE, bytes_per_s=10, set_on=ALL)
    assert throttle.rates == {(1, LEADER_RATE): 10, (-1, FOLLOWER_RATE): 10}


def test_a_lease_of_a_bootstrapping_broker_restores_earlier_values() -> None:
    before = Configs(
        topics={"t": {LEADER_LIST: "7-7", "retention.ms": "1"}},
        brokers={ONE: {LEADER_RATE: "77", FOLLOWER_RATE: "88"}},
    )
    throttle = of_bootstrap({T0: ONE}, THREE, bytes_per_s=10, set_on=THREE)
    lease, change = begin(throttle, configs=before)
    assert change.brokers == {
        1: {LEADER_RATE: "10", FOLLOWER_RATE: "88"},
        3: {FOLLOWER_RATE: "10"},
    }
    assert change.topics["t"] == {
        LEADER_LIST: "0:1,7:7",
        FOLLOWER_LIST: "0:3",
        "retention.ms": "1",
    }
    assert lease.partitions == frozenset(), "no move decides when it ends"
    after = end(lease, configs=change)
    assert after.topics == before.topics
    assert after.brokers == {**before.brokers, THREE: {}}


def test_a_follower_of_a_partition_with_other_replicas_is_rebuilt_from_its_leader() -> None:
    one, two = BrokerId(1), BrokerId(2)
    assert is_rebuilt_from_leader(two, replicas=(one, two), leader=one)
    assert is_rebuilt_from_leader(two, replicas=(one, two), leader=None)
    assert not is_rebuilt_from_leader(one, replicas=(one, two), leader=one)
    assert not is_rebuilt_from_leader(two, replicas=(one,), leader=one)
    assert not is_rebuilt_from_leader(two, replicas=(two,), leader=None)


def test_a_throttle_is_the_union_of_a_part_and_what_is_beyond_it() -> None:
    whole = of_bootstrap({T0: ONE, T1: TWO, U0: ONE}, THREE, bytes_per_s=10, set_on=THREE)
    part = of_bootstrap({T0: ONE}, THREE, bytes_per_s=10, set_on=THREE)
    rest = beyond(whole, rates=part.rates, lists=part.lists)
    assert dict(rest.rates) == {(TWO, LEADER_RATE): 10}
    assert {name: str(each) for name, each in rest.lists.items()} == {
        ("t", LEADER_LIST): "1:2",
        ("t", FOLLOWER_LIST): "1:3",
        ("u", LEADER_LIST): "0:1",
        ("u", FOLLOWER_LIST): "0:3",
    }
    assert union(part, rest) == whole
    none = beyond(whole, rates=whole.rates, lists=whole.lists)
    assert (none.rates, none.lists) == ({}, {})
