"""A row of the table `recommendation` in words, the same on the page and on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from insync.pipeline.tables.advice import KEEP, SET
from insync.pipeline.words import duration

TRADE_COLUMNS: Final = (
    "limit",
    "",
    "evictions",
    "false evictions",
    "flaps",
    "longest acks=all stall",
    "longest below min ISR",
)
"""The last two are of one partition each: the one that waited longest, and the one that was below
min ISR for longest."""

Row = Mapping[str, Any]


def advice_sentences(row: Row) -> list[str]:
    """What to do and why first, then what that rests on."""
    return [_headline(row), *row["statements"]]


def _headline(row: Row) -> str:
    reason = row["reason"]
    if row["verdict"] == SET:
        return f"Set {_settings(row)}: {reason}."
    if row["verdict"] == KEEP:
        floor_ms, limit_ms = row.get("floor_ms"), row["lag_time_max_ms"]
        although = ""
        if floor_ms is not None and limit_ms < floor_ms:
            although = (
                f", although {duration(limit_ms)} is below the floor of {duration(floor_ms)} and "
                "not known to be safe"
            )
        return f"Keep {_settings(row)}{although}: {reason}."
    return f"No advice: {reason}."


def advice_commands(row: Row) -> list[tuple[str, str]]:
    """What each command does, and the command."""
    if row["apply_command"] is None:
        return []
    return [("apply", row["apply_command"]), ("revert", row["revert_command"])]


def trade_rows(row: Row) -> list[dict[str, str]]:
    """A line per limit, under `TRADE_COLUMNS`."""
    return [_trade_row(each, row["policy"]) for each in row["trade"]]


def _trade_row(each: Row, policy: str) -> dict[str, str]:
    rule = "" if each["policy"] == policy else f" ({each['policy']})"
    floor = "below the floor" if each["is_below_floor"] else ""
    cells = (
        duration(each["lag_time_max_ms"]) + rule,
        ", ".join(word for word in (each["role"], floor) if word),
        f"{each['evictions']:,}",
        f"{each['false_evictions']:,}",
        f"{each['flaps']:,}",
        duration(each["acks_all_stall_ms_max"]),
        duration(each["under_min_isr_ms_max"]),
    )
    return dict(zip(TRADE_COLUMNS, cells, strict=True))


def _settings(row: Row) -> str:
    settings = [f"replica.in.sync.policy={row['policy']}"]
    if row["lag_max_messages"] is not None:
        settings.append(f"replica.lag.max.messages={row['lag_max_messages']}")
    settings.append(f"replica.lag.time.max.ms={row['lag_time_max_ms']}")
    return " and ".join(settings)
