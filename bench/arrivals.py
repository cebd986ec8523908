"""How steadily bytes arrived, from samples of how many were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    at_s: float
    bytes: int  # all that has arrived until then


def moving(samples: Sequence[Sample]) -> list[Sample]:
    """The samples from the last one with no bytes to the first with all bytes."""
    first = max((i for i, each in enumerate(samples) if each.bytes == 0), default=0)
    last = min(i for i, each in enumerate(samples) if each.bytes == samples[-1].bytes)
    return list(samples[first : last + 1])


def mean_rate(samples: Sequence[Sample]) -> float:
    """Mean bytes per second while bytes arrived."""
    under_way = moving(samples)
    first, last = under_way[0], under_way[-1]
    return (last.bytes - first.bytes) / (last.at_s - first.at_s)


def worst_rate(samples: Sequence[Sample], *, window_s: float) -> float:
    """The most bytes per second between samples at least so far apart, but no further than need be.

    What comes in less than a window is as much as came in it: a move that ends sooner has one.
    """
    under_way = moving(samples)
    worst, right = 0.0, 0
    for left, first in enumerate(under_way):
        right = max(right, left)
        while under_way[right].at_s - first.at_s < window_s and right < len(under_way) - 1:
            right += 1
        last = under_way[right]
        length_s = max(window_s, last.at_s - first.at_s)
        worst = max(worst, (last.bytes - first.bytes) / length_s)
    return worst
