"""Recorded telemetry on Spark: tables of lag, episodes, what-if and throttles.

    from insync.pipeline import WhatIfGrid, episodes, health, lag, throttle
    from insync.pipeline import inbound, plans, recommendation, record, what_if

Each function takes DataFrames of the caller's session and returns one, whose schema is a constant.
Those that end in `_exported` take the folder of `insync telemetry export` and read it much faster.
`tables_from_kafka` makes telemetry tables of what Spark's own Kafka connector reads.

Folders, from the top: `job.py` and `stream.py` run the tables from a source to files, `report/`
draws the page, `tables/` has one module per table, `replay/` is the compiled what-if and lag,
whose slow definition is `insync.telemetry.replay.what_if`, `scenarios.py` the scenarios of a
what-if, `io/` reads and writes and chooses the engine, `local/` executes the tables without Spark,
`words.py` writes numbers as people read them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insync.pipeline.io.connector import tables_from_kafka
    from insync.pipeline.scenarios import WhatIfGrid
    from insync.pipeline.tables.episodes import episodes
    from insync.pipeline.tables.health import health
    from insync.pipeline.tables.inbound import inbound
    from insync.pipeline.tables.incidents import incidents
    from insync.pipeline.tables.lag import lag, lag_exported
    from insync.pipeline.tables.plans import plans
    from insync.pipeline.tables.problems import problems, problems_exported
    from insync.pipeline.tables.recommendation import recommendation
    from insync.pipeline.tables.record import record, record_exported
    from insync.pipeline.tables.throttle import throttle
    from insync.pipeline.tables.what_if import what_if, what_if_exported

# Imported on first use: a command that only names a policy does not load Spark and Numba.
# No module or folder beside this file may have the name of a function: an import would replace it.
_MODULES = {
    "WhatIfGrid": "scenarios",
    "episodes": "tables.episodes",
    "health": "tables.health",
    "inbound": "tables.inbound",
    "incidents": "tables.incidents",
    "lag": "tables.lag",
    "lag_exported": "tables.lag",
    "plans": "tables.plans",
    "problems": "tables.problems",
    "problems_exported": "tables.problems",
    "recommendation": "tables.recommendation",
    "record": "tables.record",
    "record_exported": "tables.record",
    "tables_from_kafka": "io.connector",
    "throttle": "tables.throttle",
    "what_if": "tables.what_if",
    "what_if_exported": "tables.what_if",
}

__all__ = [
    "WhatIfGrid",
    "episodes",
    "health",
    "inbound",
    "incidents",
    "lag",
    "lag_exported",
    "plans",
    "problems",
    "problems_exported",
    "recommendation",
    "record",
    "record_exported",
    "tables_from_kafka",
    "throttle",
    "what_if",
    "what_if_exported",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
