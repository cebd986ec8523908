"""Recorded telemetry on Spark: tables of lag, episodes, what-if and throttles.

    from insync.pipeline import Asked, episodes, health, lag, recommendation, throttle, what_if

Each takes DataFrames and gives one, whose schema is a constant; the session is the caller's. Those
that end in `_exported` take the folder of `insync telemetry export` and read it much faster.
`tables_from_kafka` makes telemetry tables of what Spark's own Kafka connector reads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insync.pipeline.connector import tables_from_kafka
    from insync.pipeline.episodes_table import episodes
    from insync.pipeline.health_table import health
    from insync.pipeline.lag_table import lag, lag_exported
    from insync.pipeline.problems_table import problems, problems_exported
    from insync.pipeline.recommendation_table import Running, recommendation
    from insync.pipeline.scenarios import Asked
    from insync.pipeline.throttle_table import throttle
    from insync.pipeline.what_if_table import what_if, what_if_exported

# Found when asked for: commands that name a policy need not start with Spark and numba. No module
# has a table's own name: once imported it would stand in the place of the function.
_PLACES = {
    "Asked": "scenarios",
    "Running": "recommendation_table",
    "episodes": "episodes_table",
    "health": "health_table",
    "lag": "lag_table",
    "lag_exported": "lag_table",
    "problems": "problems_table",
    "problems_exported": "problems_table",
    "recommendation": "recommendation_table",
    "tables_from_kafka": "connector",
    "throttle": "throttle_table",
    "what_if": "what_if_table",
    "what_if_exported": "what_if_table",
}

__all__ = [
    "Asked",
    "Running",
    "episodes",
    "health",
    "lag",
    "lag_exported",
    "problems",
    "problems_exported",
    "recommendation",
    "tables_from_kafka",
    "throttle",
    "what_if",
    "what_if_exported",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
