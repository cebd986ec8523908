"""PartitionBytesInRate: what producers appended in the last ten seconds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.broker.broker_loop import BrokerLoop
from insync.broker.replication.inbound_rate import WINDOW_MS, BytesIn, InboundRate
from insync.broker.replication.replica import Replica
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch

STARTED_MS = 7


def rate_of(appends: list[tuple[int, int]]) -> InboundRate:
    """Led since `STARTED_MS`; each append is milliseconds after the one before it, and bytes."""
    rate, now_ms = InboundRate(), STARTED_MS
    rate.restart(now_ms)
    for after_ms, size_bytes in appends:
        now_ms += after_ms
        rate.add(size_bytes, now_ms=now_ms)
    return rate


def test_a_new_leader_says_how_long_it_has_counted() -> None:
    rate = rate_of([(1_000, 500), (1_000, 500)])
    assert rate.read(STARTED_MS + 4_000) == BytesIn(1_000, 4_000)
    assert rate.read(STARTED_MS + 4_000).bytes_per_s == 250
    assert rate_of([(10, 500)]).read(STARTED_MS + 20).bytes_per_s == 500, "not 25 000"
    rate.restart(STARTED_MS + 5_000)
    assert rate.read(STARTED_MS + 6_000) == BytesIn(0, 1_000)


@pytest.mark.parametrize("seconds", [11, 15, 19, 20, 25, 99])
def test_a_steady_rate_is_that_rate_at_any_time(seconds: int) -> None:
    rate = rate_of([(10, 70)] * seconds * 100)
    read = rate.read(STARTED_MS + seconds * 1_000)
    assert read.over_ms == WINDOW_MS
    assert read.bytes_per_s == pytest.approx(7_000, rel=0.005)


def test_a_partition_that_falls_silent_falls_to_zero_in_two_windows() -> None:
    rate = rate_of([(100, 1_000)] * 200)
    at_ms = STARTED_MS + 20_000
    rates = [rate.read(at_ms + each * 1_000).bytes_per_s for each in range(25)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(10_000, rel=0.02)
    assert rates[20:] == [0] * 5
    rate.add(500, now_ms=at_ms + 60_000)
    assert rate.read(at_ms + 60_000) == BytesIn(500, WINDOW_MS)


@pytest.mark.property
@given(
    appends=st.lists(st.tuples(st.integers(0, 3 * WINDOW_MS), st.integers(1, 10**6)), max_size=30),
    later_ms=st.integers(0, 3 * WINDOW_MS),
)
def test_it_counts_every_byte_of_this_window_and_a_part_of_the_one_before(
    appends: list[tuple[int, int]], later_ms: int
) -> None:
    """Against all appends, with windows that begin with the leader's term."""
    at_ms, times = STARTED_MS, []
    for after_ms, size_bytes in appends:
        at_ms += after_ms
        times.append((at_ms - STARTED_MS, size_bytes))
    led_ms = at_ms + later_ms - STARTED_MS
    window = led_ms // WINDOW_MS
    now = sum(size for at, size in times if at // WINDOW_MS == window)
    before = sum(size for at, size in times if at // WINDOW_MS == window - 1)
    left_ms = WINDOW_MS - led_ms % WINDOW_MS
    read = rate_of(appends).read(at_ms + later_ms)
    assert read == BytesIn(now + before * left_ms // WINDOW_MS, min(led_ms, WINDOW_MS))


class EmptyLog:
    end = 0


def test_a_new_epoch_of_the_same_leader_goes_on_counting() -> None:
    now_ms = 0
    log: Any = EmptyLog()
    loop = BrokerLoop(lambda: now_ms)
    replica = Replica(("t", 0), UUID(int=1), log, high_watermark=0, report=print, loop=loop)

    def apply(*, leader: int, epoch: int) -> None:
        one, two = BrokerId(1), BrokerId(2)
        replica.apply_state(
            PartitionState(
                replicas=(one, two),
                isr=(one, two),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(epoch),
            )
        )

    apply(leader=1, epoch=0)
    now_ms = 2_000
    replica.count_produced(600)
    apply(leader=1, epoch=1)
    now_ms = 3_000
    assert replica.inbound.read(now_ms) == BytesIn(600, 3_000)
    apply(leader=2, epoch=2)
    now_ms = 4_000
    apply(leader=1, epoch=3)
    now_ms = 5_000
    assert replica.inbound.read(now_ms) == BytesIn(0, 1_000)
