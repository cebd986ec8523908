"""Medians per side, the median of pairwise ratios, and whether that is what was asked for.

A machine's speed drifts from minute to minute, for both sides alike. The two runs of one pair are
neighbours in time, so their ratio holds much less of that drift than the ratio of two medians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One figure as it was measured: by side, the value of each pair that has one."""

    ours: Mapping[int, float]
    theirs: Mapping[int, float]

    @property
    def our_median(self) -> float | None:
        return median(self.ours.values()) if self.ours else None

    @property
    def their_median(self) -> float | None:
        return median(self.theirs.values()) if self.theirs else None

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, of pairs in which both were measured and theirs is not nothing."""
        both = sorted(self.ours.keys() & self.theirs.keys())
        return [self.ours[pair] / self.theirs[pair] for pair in both if self.theirs[pair] > 0]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None


class Reach(Protocol):
    """What was asked of a figure."""

    def is_met(self, samples: Samples) -> bool | None:
        """None when it was not measured, or has nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """Of our own median, whatever the other side has."""

    limit: float
    unit: str

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.our_median is None else samples.our_median <= self.limit

    def __str__(self) -> str:
        return f"<= {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Of our own median, whatever the other side has."""

    limit: float
    unit: str

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.our_median is None else samples.our_median >= self.limit

    def __str__(self) -> str:
        return f">= {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class RatioAtLeast:
    limit: float

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.ratio is None else samples.ratio >= self.limit

    def __str__(self) -> str:
        return f">= {self.limit:g}x"


@dataclass(frozen=True, slots=True)
class RatioAtMost:
    limit: float

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.ratio is None else samples.ratio <= self.limit

    def __str__(self) -> str:
        return f"<= {self.limit:g}x"


@dataclass(frozen=True, slots=True)
class JustShown:
    def is_met(self, samples: Samples) -> bool | None:  # noqa: ARG002 - there is nothing to meet
        return None

    def __str__(self) -> str:
        return ""
