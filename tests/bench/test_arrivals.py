from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import Sample, mean_rate, moving, worst_rate


def test_the_mean_rate_excludes_time_before_the_first_byte_and_after_the_last() -> None:
    waited = [Sample(at_s, 0) for at_s in range(5)]
    moved = [Sample(5, 100), Sample(6, 200)]
    stayed = [Sample(at_s, 200) for at_s in range(7, 20)]
    samples = [*waited, *moved, *stayed]
    assert moving(samples) == [Sample(4, 0), *moved]
    assert mean_rate(samples) == 200 / 2


def test_a_burst_shows_in_the_window_it_fills() -> None:
    # 10 a second, and 50 in the one second from 4 to 5.
    steady = [10] * 4 + [50] + [10] * 5
    samples = [
        Sample(at_s, total) for at_s, total in enumerate(accumulate(steady, initial=0), start=100)
    ]
    assert worst_rate(samples, window_s=1) == 50
    assert worst_rate(samples, window_s=2) == 30
    assert worst_rate(samples, window_s=10) == mean_rate(samples) == 14


def test_a_move_shorter_than_the_window_is_spread_over_it() -> None:
    assert worst_rate([Sample(0, 0), Sample(1, 50)], window_s=10) == 5


@given(
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=2, max_size=40),
    window=st.integers(1, 100),
)
def test_the_worst_window_agrees_with_a_check_of_every_window(
    steps: list[tuple[int, int]], window: int
) -> None:
    times = list(accumulate(length for length, _ in steps))
    totals = list(accumulate((size for _, size in steps), initial=0))
    samples = [Sample(at_s, total) for at_s, total in zip(times, totals, strict=False)]
    samples.append(Sample(times[-1] + 1, totals[-1] + 1))
    under_way = moving(samples)
    rates = []
    for first in under_way:
        later = [each for each in under_way if each.at_s >= first.at_s + window]
        last = later[0] if later else under_way[-1]
        rates.append((last.bytes - first.bytes) / max(window, last.at_s - first.at_s))
    assert worst_rate(samples, window_s=window) == pytest.approx(max(rates))
