"""How long a level follower's fetch waited: until there was more, or its time was up."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from random import Random

import pytest

from insync.sim.cluster import Cluster
from support.telemetry.recorded_runs import Tables, as_rows, record_faults

LONGEST_MS = 100
SETTINGS = {"replica.fetch.wait.max.ms": str(LONGEST_MS)}


async def calm(_cluster: Cluster, _random: Random) -> None:
    await asyncio.sleep(6.0)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return as_rows(record_faults(4, calm, SETTINGS))


def test_a_wait_ends_with_the_next_append_or_when_its_time_is_up(tables: Tables) -> None:
    ended_by_append = ended_by_time = 0
    for row in tables["fetches"]:
        if row["wait_ms"] is None or row["bytes"] or row["repeats"] > 1:
            continue
        appends = sorted(each["at_ms"] for each in tables["appends"]
                         if each["partition"] == row["partition"])  # fmt: skip
        following = bisect_right(appends, row["at_ms"])
        appended_at_ms = appends[following] if following < len(appends) else 1 << 62
        # Another partition of the same two brokers may end it sooner, never later.
        assert row["at_ms"] + row["wait_ms"] <= min(appended_at_ms, row["at_ms"] + LONGEST_MS)
        ended_by_append += row["at_ms"] + row["wait_ms"] == appended_at_ms
        ended_by_time += row["wait_ms"] == LONGEST_MS
    assert ended_by_append > 50
    assert ended_by_time > 0


def test_rows_that_stand_for_several_fetches_have_all_their_waits(tables: Tables) -> None:
    merged = [row for row in tables["fetches"] if row["repeats"] > 1 and row["wait_ms"] is not None]
    unknown = [row for row in tables["fetches"] if row["wait_ms"] is None]
    assert len(merged) > len(unknown)
    for row in merged:
        span_ms = row["last_at_ms"] - row["at_ms"]
        assert row["wait_ms"] <= span_ms + LONGEST_MS
    # Of those that had time to wait, all but the last and the way there and back are in the span.
    patient = [
        row
        for row in merged
        if row["repeats"] > 2 and row["last_at_ms"] - row["at_ms"] > 80 * (row["repeats"] - 1)
    ]
    assert patient
    for row in patient:
        assert row["wait_ms"] >= 0.8 * (row["last_at_ms"] - row["at_ms"])
