"""The what-if table by the rules: each partition through `replay.what_if`, then added up."""

from __future__ import annotations

from typing import Any

from insync.pipeline.scenarios import WhatIfGrid
from insync.pipeline.tables.schemas import COUNTS, PEAKS, WHAT_IF
from insync.telemetry.replay import what_if
from insync.telemetry.replay.histories import by_creation, histories
from support.pipeline.table_strategies import Tables


def by_rules(tables: Tables, grid: WhatIfGrid) -> list[dict[str, Any]]:
    """Every level, by adding up and sorting."""
    sums: dict[tuple[Any, ...], tuple[dict[str, int], list[int]]] = {}
    each = (pair for some in by_creation(tables) for pair in histories(some).items())
    for (topic, number), history in each:
        for scenario in grid.scenarios():
            verdicts = what_if.replay(
                history,
                scenario,
                min_insync_replicas=grid.min_insync_replicas,
                fetch_wait_max_ms=grid.fetch_wait_max_ms,
            )
            for level in (
                ("partition", topic, number),
                ("topic", topic, None),
                ("all", None, None),
            ):
                counts, delays = sums.setdefault((level, scenario), (dict.fromkeys(COUNTS, 0), []))
                for name in COUNTS:
                    value = getattr(verdicts, name)
                    counts[name] = (
                        max(counts[name], value) if name in PEAKS else counts[name] + value
                    )
                delays.extend(verdicts.detection_ms)
    rows = []
    for (level, scenario), (counts, delays) in sums.items():
        ordered = sorted(delays)
        rows.append(
            counts
            | dict(zip(("level", "topic", "partition"), level, strict=True))
            | {
                "policy": scenario.policy,
                "lag_time_max_ms": scenario.lag_time_max_ms,
                "lag_max_messages": scenario.lag_max_messages,
                "half_period_check": scenario.half_period_check,
                "detection_ms_p50": nearest_rank(ordered, 0.50),
                "detection_ms_p99": nearest_rank(ordered, 0.99),
                "below_resolution": scenario.lag_time_max_ms < 2 * grid.fetch_wait_max_ms,
            }
        )
    return sorted(rows, key=in_order)


def nearest_rank(ordered: list[int], part: float) -> int | None:
    """The smallest value that at least this part of them does not exceed."""
    reached = (v for at, v in enumerate(ordered, start=1) if at / len(ordered) >= part)
    return next(reached, None)


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    key = [row[name] for name in WHAT_IF.names[:7]]
    return tuple((value is not None, value) for value in key)
