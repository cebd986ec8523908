"""What brokers carry during a move: figures worked out by hand from KIP-73's sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.move_loads import BrokerLoad, loads, total_time_ms
from insync.rules.move_plan import Move, TopicPartition
from insync.rules.values import BrokerId, PartitionId

MB = 1_000_000
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def partition(number: int) -> TopicPartition:
    return "t", PartitionId(number)


def move(sources: set[BrokerId], destinations: set[BrokerId]) -> Move:
    return Move(sources=frozenset(sources), destinations=frozenset(destinations))


def test_two_nodes_idle_and_with_produce() -> None:
    """r=1 from 1 to 2: idle at the quota, with produce at the quota minus what comes in."""
    moving = {partition(n): move({ONE}, {TWO}) for n in range(100)}
    leaders = dict.fromkeys(moving, ONE)
    sizes = dict.fromkeys(moving, 3 * MB)
    idle = loads(moving, leaders=leaders, sizes=sizes, rates={})
    assert idle == {ONE: BrokerLoad(out_bytes=300 * MB), TWO: BrokerLoad(in_bytes=300 * MB)}
    assert total_time_ms(idle.values(), 10 * MB) == 30_000
    busy = loads(moving, leaders=leaders, sizes=sizes, rates=dict.fromkeys(moving, MB // 50))
    assert busy[TWO].inbound_bytes_per_s == 2 * MB
    assert total_time_ms(busy.values(), 10 * MB) == 37_500
    assert total_time_ms(busy.values(), 2 * MB) is None, "replicas fall behind as fast"


def test_a_leader_also_feeds_the_replicas_it_has() -> None:
    moving = {partition(0): move({ONE, TWO}, {THREE})}
    brokers = loads(
        moving,
        leaders={partition(0): ONE},
        sizes={partition(0): 10 * MB},
        rates={partition(0): MB},
    )
    assert brokers[ONE] == BrokerLoad(out_bytes=10 * MB, out_bytes_per_s=2 * MB)
    assert brokers[THREE] == BrokerLoad(in_bytes=10 * MB, in_bytes_per_s=MB)
    assert TWO not in brokers
    assert brokers[ONE].time_ms(4 * MB) == 5_000
    assert brokers[THREE].time_ms(4 * MB) == 3_334


def test_a_partition_without_a_leader_adds_no_outbound_load() -> None:
    brokers = loads({partition(0): move({ONE}, {TWO})}, leaders={}, sizes={}, rates={})
    assert brokers == {TWO: BrokerLoad()}
    assert total_time_ms(brokers.values(), 1) == 0


@pytest.mark.property
@given(st.integers(1, 10**12), st.integers(0, 10**9), st.integers(1, 10**6))
def test_the_quota_to_finish_is_the_least_that_does(size: int, rate: int, within_s: int) -> None:
    load = BrokerLoad(in_bytes=size, in_bytes_per_s=rate)
    quota = load.quota_to_finish(within_s)
    time_ms = load.time_ms(quota)
    assert time_ms is not None
    assert time_ms <= within_s * 1_000
    less = load.time_ms(quota - 1)
    assert less is None or less > within_s * 1_000 - 1_000 * within_s // (quota - rate)


def test_nothing_to_do_needs_no_quota() -> None:
    assert BrokerLoad(in_bytes_per_s=5).quota_to_finish(60) == 0
    assert total_time_ms([], 1) == 0
