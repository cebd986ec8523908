"""One value per side, the median of pairwise ratios, and whether it meets the target.

What a side shows is the median of all it has seen, in whatever pair; of some figures the least or
the most. A pair sees one value, or as many as it tried.

A machine's speed drifts from minute to minute, for both sides alike. The two runs of one pair are
neighbours in time, so their ratio holds much less of that drift than the ratio of two medians.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Values = float | Sequence[float]
Summary = Callable[[Sequence[float]], float]


def as_many(values: Values) -> Sequence[float]:
    return values if isinstance(values, Sequence) else [values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One figure as it was measured: by side, the values of each pair that has any."""

    ours: Mapping[int, Sequence[float]]
    theirs: Mapping[int, Sequence[float]]
    summary: Summary = median

    @property
    def our_value(self) -> float | None:
        return self._over_all(self.ours)

    @property
    def their_value(self) -> float | None:
        return self._over_all(self.theirs)

    def _over_all(self, by_pair: Mapping[int, Sequence[float]]) -> float | None:
        values = [value for seen in by_pair.values() for value in seen]
        return self.summary(values) if values else None

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, of pairs in which both were measured and theirs is not nothing."""
        both = sorted(self.ours.keys() & self.theirs.keys())
        values = [(self.summary(self.ours[pair]), self.summary(self.theirs[pair])) for pair in both]
        return [ours / theirs for ours, theirs in values if theirs > 0]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None


class Reach(Protocol):
    """The target of a figure."""

    def is_met(self, samples: Samples) -> bool | None:
        """None when it was not measured, or has nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """Of our own value, whatever the other side has."""

    limit: float
    unit: str

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.our_value is None else samples.our_value <= self.limit

    def __str__(self) -> str:
        return f"<= {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Of our own value, whatever the other side has."""

    limit: float
    unit: str

    def is_met(self, samples: Samples) -> bool | None:
        return None if samples.our_value is None else samples.our_value >= self.limit

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
