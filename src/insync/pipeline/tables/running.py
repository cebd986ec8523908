"""The settings in force, as `configs` has them, and the scenarios to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame

from insync.pipeline.local.dispatch import F
from insync.pipeline.scenarios import LIMIT_MAX, WhatIfGrid
from insync.pipeline.tables.advice import Recorded, Running, floor_ms, readable_limit_ms
from insync.rules.settings import POLICY_NAMES

LAG_TIME_MAX: Final = "replica.lag.time.max.ms"
FETCH_WAIT_MAX: Final = "replica.fetch.wait.max.ms"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _policy(text: str) -> str | None:
    return text if text in POLICY_NAMES else None


def _is_true(text: str) -> bool:
    return text == "true"


CAUGHT_UP, PENDING_READS = "caught-up", "pending-reads"
_RUNNING: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "replica.in.sync.policy": ("policy", _policy),
    LAG_TIME_MAX: ("lag_time_max_ms", _number),
    "replica.lag.max.messages": ("lag_max_messages", _number),
    FETCH_WAIT_MAX: ("fetch_wait_max_ms", _number),
    # The older name of the policy.
    "follower.fetch.pending.reads.insync.enable": ("holds_pending_reads", _is_true),
}


def running_settings(configs: DataFrame | None, *, is_apache_kafka: bool = False) -> Running:
    """The latest values of brokers, and a sentence for each setting that had others.

    Values of single topics do not count: an advice is for all.
    """
    if configs is None:
        return Running(is_apache_kafka=is_apache_kafka)
    is_of_broker = ~F.col("scope").contains("/topic:")
    rows = configs.where(F.col("name").isin(*_RUNNING) & is_of_broker)
    settings = rows.select("at_ms", "scope", "name", "value").distinct().collect()
    return replace(running_of([tuple(row) for row in settings]), is_apache_kafka=is_apache_kafka)


def running_of(settings: Sequence[tuple[int, str, str, str]]) -> Running:
    """Of rows of `configs`: at_ms, scope, name and value."""
    values: dict[str, Any] = {}
    changes: list[str] = []
    for name, (field, parse) in _RUNNING.items():
        own = sorted(row for row in settings if row[2] == name and parse(row[3]) is not None)
        if not own:
            continue
        latest = own[-1][3]
        values[field] = parse(latest)
        if name == FETCH_WAIT_MAX:  # a follower that waits so long is silent so long
            values[field] = max(parse(value) for *_, value in own)
        taken = f"latest, {latest}" if name != FETCH_WAIT_MAX else f"longest, {values[field]}"
        in_force = {scope: value for _, scope, _, value in own}  # of each broker the last
        before = list(dict.fromkeys(value for *_, value in own if value != latest))
        if len(set(in_force.values())) > 1:
            words = ", ".join(f"{value} on {scope}" for scope, value in sorted(in_force.items()))
            changes.append(f"{name} differs ({words}): the advice takes the {taken}.")
        elif before:
            words = ", ".join(before)
            changes.append(f"{name} was {words} before: the advice takes the {taken}.")
    if values.pop("holds_pending_reads", False) and values.get("policy", CAUGHT_UP) == CAUGHT_UP:
        values["policy"] = PENDING_READS
    return Running(**values, changes=tuple(changes))


def grid_of(
    options: Mapping[str, Any], configs: DataFrame, recorded: Recorded | None
) -> WhatIfGrid:
    """The scenarios that the caller set, and those that advice needs: every limit that was in
    force, and the lowest that may be advised.

    Of several fetch waits it is the longest: below twice that the record does not resolve.
    """
    running, numbers = running_settings(configs), _recorded_numbers(configs)
    defaults = WhatIfGrid()
    limits_ms = [*options.get("lag_time_max_ms", defaults.lag_time_max_ms)]
    limits_ms += [running.lag_time_max_ms, *numbers[LAG_TIME_MAX]]
    messages = [*options.get("lag_max_messages", defaults.lag_max_messages)]
    if running.policy == "messages":
        messages.append(running.lag_max_messages)
    if recorded is not None:
        lowest_ms = floor_ms(recorded, fetch_wait_max_ms=running.fetch_wait_max_ms)
        limits_ms.append(readable_limit_ms(lowest_ms))
    waits = {"fetch_wait_max_ms": max(numbers[FETCH_WAIT_MAX])} if numbers[FETCH_WAIT_MAX] else {}
    return WhatIfGrid(
        **{
            **waits,
            **options,
            "lag_time_max_ms": [limit_ms for limit_ms in limits_ms if limit_ms],
            "lag_max_messages": messages,
        }
    )


def _recorded_numbers(configs: DataFrame) -> dict[str, list[int]]:
    values: dict[str, list[int]] = {LAG_TIME_MAX: [], FETCH_WAIT_MAX: []}
    number = F.col("value").try_cast("long")
    numbers = configs.where(F.col("name").isin(*values)).select("name", number.alias("number"))
    for row in numbers.where(F.col("number").between(0, LIMIT_MAX)).distinct().collect():
        values[row["name"]].append(row["number"])
    return values
