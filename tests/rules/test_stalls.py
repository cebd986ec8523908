"""The leader's own stalls, by the design ("Stalls of the leader itself")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.stalls import Stall, StallRecord, is_stall
from support.rules.partition_states import searched


class TestIsStall:
    """The design: a gap between two ticks of at least max(100 ms, T/20)."""

    @pytest.mark.parametrize(
        ("lag_time_max_ms", "gap_ms", "expected"),
        [
            pytest.param(500, 99, False, id="short T: below 100 ms"),
            pytest.param(500, 100, True, id="short T: at 100 ms"),
            pytest.param(2_000, 99, False, id="both limits are 100 ms: below"),
            pytest.param(2_000, 100, True, id="both limits are 100 ms: at"),
            pytest.param(10_000, 499, False, id="T of 10 s: below a twentieth"),
            pytest.param(10_000, 500, True, id="T of 10 s: a twentieth"),
            pytest.param(30_000, 1_499, False, id="the default T: below a twentieth"),
            pytest.param(30_000, 1_500, True, id="the default T: a twentieth"),
        ],
    )
    def test_a_stall_is_measured_against_the_lag_limit(
        self, lag_time_max_ms: int, gap_ms: int, *, expected: bool
    ) -> None:
        assert is_stall(gap_ms, lag_time_max_ms=lag_time_max_ms) is expected

    def test_less_than_a_twentieth_of_t_is_no_stall_even_when_t_is_no_multiple_of_twenty(
        self,
    ) -> None:
        """T/20 is 100.95 ms here, so 100 ms is below it and 101 ms is not."""
        assert not is_stall(100, lag_time_max_ms=2_019)
        assert is_stall(101, lag_time_max_ms=2_019)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "expected"),
    [
        pytest.param(0, 100, 0, id="before"),
        pytest.param(0, 130, 30, id="its beginning"),
        pytest.param(120, 150, 30, id="its middle"),
        pytest.param(180, 500, 20, id="its end"),
        pytest.param(0, 500, 100, id="all of it"),
        pytest.param(200, 500, 0, id="after"),
    ],
)
def test_overlap_of_a_stall_with_a_span(from_ms: int, to_ms: int, expected: int) -> None:
    stall = Stall(began_at_ms=100, ended_at_ms=200)
    assert stall.overlap_ms(from_ms=from_ms, to_ms=to_ms) == expected


def record(*spans: tuple[int, int], lag_time_max_ms: int = 10_000) -> StallRecord:
    kept = StallRecord(lag_time_max_ms=lag_time_max_ms)
    for began_at_ms, ended_at_ms in spans:
        kept = kept.after(Stall(began_at_ms=began_at_ms, ended_at_ms=ended_at_ms))
    return kept


class TestTooOften:
    """The design: a leader stalled for more than half of the last 2 T resigns. T is 10 s here."""

    def test_stalling_exactly_half_of_the_time_is_not_too_often(self) -> None:
        assert not record((0, 4_000), (10_000, 16_000)).exceeds_half(now_ms=20_000)

    def test_a_millisecond_more_than_half_is_too_often(self) -> None:
        assert record((0, 4_000), (10_000, 16_001)).exceeds_half(now_ms=20_000)

    def test_one_long_stall_is_too_often(self) -> None:
        assert record((0, 10_001)).exceeds_half(now_ms=10_001)

    def test_stalls_further_back_no_longer_count(self) -> None:
        stalled = record((0, 10_001))
        assert stalled.exceeds_half(now_ms=20_000)
        assert not stalled.exceeds_half(now_ms=20_001)

    def test_no_stalls_are_not_too_often(self) -> None:
        assert not record().exceeds_half(now_ms=20_000)

    def test_stalls_that_ended_2_t_ago_are_forgotten(self) -> None:
        kept = record((0, 1_000), (5_000, 6_000), (20_000, 21_000))
        assert [stall.ended_at_ms for stall in kept.stalls] == [6_000, 21_000]

    def test_overlapping_stalls_fail_an_assertion(self) -> None:
        with pytest.raises(AssertionError, match="do not overlap"):
            record((0, 1_000), (999, 2_000))


@pytest.mark.property
@searched
@given(
    lag_time_max_ms=st.integers(1, 30),
    gaps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=8),
    idle_ms=st.integers(0, 20),
)
def test_design_too_often_is_counted_millisecond_by_millisecond(
    lag_time_max_ms: int, gaps: list[tuple[int, int]], idle_ms: int
) -> None:
    stalled_ms: set[int] = set()
    spans: list[tuple[int, int]] = []
    now_ms = 0
    for running_ms, stall_ms in gaps:
        began_at_ms, now_ms = now_ms + running_ms, now_ms + running_ms + stall_ms
        spans.append((began_at_ms, now_ms))
        stalled_ms.update(range(began_at_ms, now_ms))
    now_ms += idle_ms
    lately = stalled_ms.intersection(range(now_ms - 2 * lag_time_max_ms, now_ms))
    exceeds_half = record(*spans, lag_time_max_ms=lag_time_max_ms).exceeds_half(now_ms=now_ms)
    assert exceeds_half is (len(lately) > lag_time_max_ms)
