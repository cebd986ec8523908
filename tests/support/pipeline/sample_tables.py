"""Tables of one simulated run, and random tables of many partitions."""

from __future__ import annotations

from support.pipeline.random_tables import made_up
from support.pipeline.table_strategies import Tables
from support.telemetry.recorded_runs import as_rows, everything, record_faults

TOPICS = 7  # of what is made up


def one_recorded_run() -> Tables:
    return as_rows(record_faults(0, everything))


def some_partitions(count: int = 42) -> Tables:
    """Of several topics, each numbering its own from 0."""
    return {
        name: [
            row | ({"partition": row["partition"] // TOPICS} if "partition" in row else {})
            for row in rows
        ]
        for name, rows in made_up(2, partitions=count).items()
    }


def many_partitions() -> Tables:
    return some_partitions(150)
