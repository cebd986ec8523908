"""Recorded telemetry on Spark: tables of lag, episodes, what-if and throttles.

    from insync.pipeline import Asked, lag, problems, recommendation, what_if

Each takes DataFrames and gives one, whose schema is a constant; the session is the caller's. Those
that end in `_exported` take the folder of `insync telemetry export` and read it much faster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insync.pipeline.lag import lag, lag_exported
    from insync.pipeline.problems import problems, problems_exported
    from insync.pipeline.recommendation import Running, recommendation
    from insync.pipeline.scenarios import Asked
    from insync.pipeline.what_if import what_if, what_if_exported

# Found when asked for: commands that name a policy need not start with Spark and numba.
_PLACES = {
    "Asked": "scenarios",
    "Running": "recommendation",
    "lag": "lag",
    "lag_exported": "lag",
    "problems": "problems",
    "problems_exported": "problems",
    "recommendation": "recommendation",
    "what_if": "what_if",
    "what_if_exported": "what_if",
}

__all__ = [
    "Asked",
    "Running",
    "lag",
    "lag_exported",
    "problems",
    "problems_exported",
    "recommendation",
    "what_if",
    "what_if_exported",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
