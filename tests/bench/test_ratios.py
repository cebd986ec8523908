from __future__ import annotations

from statistics import median

import pytest

from bench.ratios import (
    AtLeast,
    AtMost,
    JustShown,
    RatioAtLeast,
    RatioAtMost,
    Reach,
    Samples,
    Summary,
)


def samples(ours: list[float], theirs: list[float]) -> Samples:
    return Samples(ours=one_each(ours), theirs=one_each(theirs))


def one_each(values: list[float]) -> dict[int, list[float]]:
    return {pair: [value] for pair, value in enumerate(values)}


def test_ratio_is_the_median_of_pairs_not_the_ratio_of_medians() -> None:
    # A machine that slowed tenfold for one pair: both sides saw it, the ratio did not.
    of = samples([20, 22, 240], [10, 11, 100])
    assert of.ratios == [2, 2, 2.4]
    assert of.ratio == 2
    assert (of.our_value, of.their_value) == (22, 11)


def test_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert samples([1, 2, 3, 10], [1, 1, 1, 1]).ratio == 2.5


@pytest.mark.parametrize(
    ("summary", "ours", "theirs", "ratios"),
    [(min, 1, 2, [0.5, 1.5]), (median, 4, 6, [0.5, 0.75]), (max, 9, 20, [0.45, 0.75])],
)
def test_repeated_samples_of_a_pair_are_summarised_over_all_samples(
    summary: Summary, ours: float, theirs: float, ratios: list[float]
) -> None:
    """Neither the median of two pairs' largest, nor of their medians: one pair tried more."""
    of = Samples(
        ours={1: [9, 1, 4, 4, 5], 2: [3, 6, 3]},
        theirs={1: [2, 8, 8, 20], 2: [8, 2, 4, 4]},
        summary=summary,
    )
    assert (of.our_value, of.their_value) == (ours, theirs)
    assert of.ratios == ratios


def test_only_whole_pairs_have_a_ratio() -> None:
    of = Samples(ours={1: [10], 2: [30]}, theirs={2: [10], 3: [99]})
    assert of.ratios == [3]
    assert Samples(ours={1: [10]}, theirs={}).ratio is None
    assert Samples(ours={}, theirs={}).our_value is None
    assert samples([1], [0]).ratio is None, "nothing is not a measure"


@pytest.mark.parametrize(
    ("reach", "ours", "theirs", "is_met"),
    [
        (AtMost(1, "s"), [0.5, 1.0, 9.0], [], True),
        (AtMost(1, "s"), [0.5, 1.1, 9.0], [], False),
        (AtMost(1, "s"), [], [5], None),
        (AtLeast(0.95, "quotas"), [0.9, 0.95, 1.0], [], True),
        (AtLeast(0.95, "quotas"), [0.9, 0.94, 1.0], [], False),
        (AtLeast(0.95, "quotas"), [], [1], None),
        (RatioAtLeast(1.2), [12], [10], True),
        (RatioAtLeast(1.2), [11], [10], False),
        (RatioAtLeast(1.2), [12], [], None),
        (RatioAtMost(0.5), [5], [10], True),
        (RatioAtMost(0.5), [6], [10], False),
        (RatioAtMost(0.5), [], [], None),
        (JustShown(), [1], [1], None),
    ],
)
def test_verdicts(
    *, reach: Reach, ours: list[float], theirs: list[float], is_met: bool | None
) -> None:
    assert reach.is_met(samples(ours, theirs)) is is_met
