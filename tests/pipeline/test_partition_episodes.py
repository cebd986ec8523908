"""What is decided of one partition, tied to the dumb computation without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from episodes_oracle import Partition, decided_at_ms, number
from episodes_oracle import episodes as expected_episodes
from hypothesis import given
from hypothesis import strategies as st
from made_up_telemetry import Tables, made_up

from insync.pipeline.partition_episodes import (
    APPEND_COLUMNS,
    FETCH_COLUMNS,
    Told,
    episodes_of,
)

Row = dict[str, Any]
OF_BROKERS = ("leader_stall_ms", "held_back_ms")  # joined by Spark


def told_of(tables: Tables, topic: str, partition: int, record_end_ms: int) -> Told:
    own = {
        name: [
            row for row in rows if (row.get("topic"), row.get("partition")) == (topic, partition)
        ]
        for name, rows in tables.items()
    }
    known = Partition(own | {"configs": tables["configs"]}, topic, partition, record_end_ms)

    def change(row: Row) -> Row:
        settings = known._settings(row["leader"], decided_at_ms(row))
        from_ms = decided_at_ms(row) - settings["lag_time_max_ms"]
        held = {
            each["at_ms"] // 1_000
            for each in tables["throttle"]
            if (each["broker"], each["side"]) == (row["replica"], "follower")
            and each["held_back_partitions"]
            and from_ms <= each["at_ms"] <= decided_at_ms(row)
        }
        more = {"follower": row["replica"], "number": number(row)}
        return row | more | settings | {"held_back_ms_before": 1_000 * len(held)}

    def heard(follower: int) -> Row:
        rows = [row for row in own["fetches"] if row["follower"] == follower]
        first = min(rows, key=lambda row: (row["at_ms"], row["seq"]))
        last = max(rows, key=lambda row: (row["leader_epoch"], row["at_ms"], row["leader"]))
        return (
            {name: first[name] for name in ("follower", "at_ms", "offset", "leader_end_low")}
            | {"leader": last["leader"], "leader_epoch": last["leader_epoch"], "reason": None}
            | {"first_epoch": min(row["leader_epoch"] for row in rows)}
            | known._settings(last["leader"], 2**62)
        )

    fetches = [row | {"is_ok": row["outcome"] == "ok"} for row in own["fetches"]]
    appends = [row for row in own["appends"] if row["end_offset"] > row["base_offset"]]
    return Told(
        record_end_ms=record_end_ms,
        changes=[change(row) for row in own["isr"]],
        heard=[heard(follower) for follower in {row["follower"] for row in fetches}],
        led=own["appends"],
        elections=own["elections"],
        fetches=columns(fetches, FETCH_COLUMNS),
        appends=columns(appends, APPEND_COLUMNS),
    )


def columns(rows: list[Row], names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.array([int(row[name]) for row in rows], np.int64) for name in names}


@pytest.mark.property
@given(seed=st.integers(min_value=0, max_value=10**9))
def test_whatever_happened(seed: int) -> None:
    tables = made_up(seed, partitions=3)
    expected = expected_episodes(tables)
    record_end_ms = max(
        *(row["at_ms"] for row in (*tables["isr"], *tables["appends"])),
        *(row["last_at_ms"] for row in tables["fetches"]),
    )
    places = sorted({(row["topic"], row["partition"]) for row in tables["appends"]})
    found = [
        episode | {"topic": topic, "partition": partition}
        for topic, partition in places
        for episode in episodes_of(told_of(tables, topic, partition, record_end_ms))
    ]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        differing = {
            name: (ours[name], value)
            for name, value in theirs.items()
            if name not in OF_BROKERS and ours[name] != value
        }
        assert not differing, (theirs, "found, expected:", differing)


def test_a_partition_of_which_nothing_is_told() -> None:
    assert list(episodes_of(Told(record_end_ms=0))) == []


# The edges, which chance seldom meets.

LIMIT_MS = 1_000
CHANGE = {
    "follower": 2, "leader": 1, "leader_epoch": 0, "reason": "", "policy": "caught-up",
    "lag_time_max_ms": LIMIT_MS, "min_isr": 1, "held_back_ms_before": 0, "decided_by": "leader",
    "decided_at_ms": None, "replica_end": None, "leader_end": None, "caught_up_at_ms": 4_000,
}  # fmt: skip


def change(at_ms: int, number: int, kind: str, **more: Any) -> Row:
    before, after = ([1, 2], [1]) if kind == "shrink" else ([1], [1, 2])
    told = {"at_ms": at_ms, "number": number, "change": kind}
    return CHANGE | told | {"isr_before": before, "isr_after": after} | more


def fetched(**row: int) -> dict[str, np.ndarray[Any, Any]]:
    usual = dict.fromkeys(FETCH_COLUMNS, 0) | {"follower": 2, "is_ok": 1}
    found = usual | row
    return columns([found | {"last_at_ms": found["at_ms"]}], FETCH_COLUMNS)


@pytest.mark.parametrize(("heard_at_ms", "cause"), [(9_000, "slow"), (8_999, "stuck")])
def test_a_fetch_exactly_the_limit_ago_is_in_time(heard_at_ms: int, cause: str) -> None:
    told = Told(
        record_end_ms=20_000,
        changes=[change(10_000, 1, "shrink")],
        fetches=fetched(at_ms=heard_at_ms),
    )
    (episode,) = episodes_of(told)
    assert episode["cause"] == cause
    assert episode["began_at_ms"] == (4_000 if cause == "slow" else heard_at_ms)
    assert (episode["ending"], episode["out_ms"]) == ("open", 10_000)


@pytest.mark.parametrize(("read_ms", "cause"), [(500, "leader-slow-reads"), (499, "slow")])
def test_half_of_the_limit_in_reads_is_the_leaders_doing(read_ms: int, cause: str) -> None:
    told = Told(
        record_end_ms=20_000,
        changes=[change(10_000, 1, "shrink")],
        fetches=fetched(at_ms=9_500, read_ms=read_ms),
    )
    assert [episode["cause"] for episode in episodes_of(told)] == [cause]


@pytest.mark.parametrize(("held_ms", "cause"), [(500, "throttled"), (499, "stuck")])
def test_held_back_for_half_of_the_limit_is_the_throttles_doing(held_ms: int, cause: str) -> None:
    changes = [change(10_000, 1, "shrink", held_back_ms_before=held_ms)]
    told = Told(record_end_ms=20_000, changes=changes)
    assert [episode["cause"] for episode in episodes_of(told)] == [cause]


@pytest.mark.parametrize(("again_at_ms", "flaps"), [(12_000, [2, 2]), (12_001, [1, 1])])
def test_leaving_again_within_the_limit_is_the_same_group(
    again_at_ms: int, flaps: list[int]
) -> None:
    changes = [
        change(10_000, 1, "shrink"),
        change(11_000, 2, "expand"),
        change(again_at_ms, 3, "shrink"),
    ]
    found = list(episodes_of(Told(record_end_ms=20_000, changes=changes)))
    assert [episode["flaps"] for episode in found] == flaps
