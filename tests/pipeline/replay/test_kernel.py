"""The compiled replay computes the verdicts of the rules on any tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.pipeline.io.columns import BadTables
from insync.pipeline.replay.assignments import by_creation
from insync.pipeline.replay.driver import parameters, replay
from insync.pipeline.replay.events import COLUMNS, Shard, shard
from insync.pipeline.replay.skip_index import STRETCH
from insync.pipeline.replay.state import DELAYS
from insync.pipeline.scenarios import WhatIfGrid
from insync.telemetry.replay import histories, what_if
from insync.telemetry.schemas import REASSIGNMENT
from support.pipeline.table_strategies import Tables, arrow, recorded
from support.search_effort import tried

GRID = WhatIfGrid(
    lag_time_max_ms=tried((60, 900, 1, 150)),
    lag_max_messages=tried((4, 0)),
    half_period_check=tried((False, True), quickly=2),
    min_insync_replicas=2,
    fetch_wait_max_ms=50,
)
FIELDS = (
    "shrinks", "expands", "flaps", "out_of_sync_ms", "false_evictions", "missed", "missed_ms",
    "under_min_isr_ms", "under_min_isr_fetching_ms", "watermark_stall_ms", "catch_up_ms",
    "acks_all_stall_ms", "acks_all_stall_ms_max",
)  # fmt: skip
Key = tuple[str, int, int]
VerdictsByKey = dict[Key, tuple[dict[str, int], list[int]]]


def by_rules(tables: Tables, grid: WhatIfGrid = GRID) -> Iterator[tuple[Key, Any]]:
    """Of each creation of a topic all scenarios, numbered on."""
    each = (
        (creation * len(grid.scenarios()), key, history)
        for creation, some in enumerate(histories.by_creation(tables))
        for key, history in histories.histories(some).items()
    )
    for first, (topic, number), history in each:
        for index, scenario in enumerate(grid.scenarios(), start=first):
            verdicts = what_if.replay(
                history,
                scenario,
                min_insync_replicas=grid.min_insync_replicas,
                fetch_wait_max_ms=grid.fetch_wait_max_ms,
            )
            counts = {name: int(getattr(verdicts, name)) for name in FIELDS}
            yield (topic, number, index), (counts, sorted(verdicts.detection_ms))


def by_kernel(
    tables: Tables, grid: WhatIfGrid = GRID, room: int = 4, stretch: int = STRETCH
) -> Iterator[tuple[Key, Any]]:
    for creation, some in enumerate(by_creation(arrow(tables))):
        first = creation * len(grid.scenarios())
        yield from by_kernel_once(some, grid, room, stretch, first)


def by_kernel_once(
    tables: dict[str, pa.Table], grid: WhatIfGrid, room: int, stretch: int, first: int
) -> Iterator[tuple[Key, Any]]:
    events = shard(
        **{name: tables[name] for name in COLUMNS}, min_insync_replicas=grid.min_insync_replicas
    )
    replayed = replay(events, parameters(grid), room=room, stretch=stretch)
    at = 0
    for code, (topic, number) in enumerate(zip(events.topics, events.partitions, strict=True)):
        for index, row in enumerate(replayed.verdicts[code], start=first):
            some = replayed.delays[at : at + row[DELAYS]]
            at += row[DELAYS]
            if has_events(events, code):
                counts = dict(zip(FIELDS, row[:DELAYS].tolist(), strict=True))
                yield (topic, int(number), index), (counts, sorted(some.tolist()))


def has_events(events: Shard, code: int) -> bool:
    """Of fetches that cannot be judged nothing is left."""
    return any(
        bounds[code] < bounds[code + 1]
        for bounds in (events.events.fetch_bounds, events.events.append_bounds)
    )


def differences(
    expected: VerdictsByKey, results: VerdictsByKey, grid: WhatIfGrid
) -> Sequence[object]:
    assert expected.keys() == results.keys()
    return [
        (key, grid.scenarios()[key[2]], expected[key], results[key])
        for key in expected
        if expected[key] != results[key]
    ][:3]


@pytest.mark.slow
@pytest.mark.property
@given(
    tables=recorded(),
    stretch=st.sampled_from((1, 2, 5, STRETCH)),
    min_insync_replicas=st.sampled_from((None, None, 2, 3)),
)
def test_the_kernel_agrees_with_the_rules_on_every_verdict(
    tables: Tables, stretch: int, min_insync_replicas: int | None
) -> None:
    """Also where the replay skips most of the events."""
    grid = replace(GRID, min_insync_replicas=min_insync_replicas)
    expected, results = dict(by_rules(tables, grid)), dict(by_kernel(tables, grid, stretch=stretch))
    assert not differences(expected, results, grid)


def two_topics_with_a_silent_follower() -> Tables:
    """From 2 s to 6 s follower 2 of `strict` and of `lax` is silent: with a limit of 1 s it leaves
    at 3 s. At 4 s the minimum of `strict` goes from 2 to 1, and at 5 s back."""
    tables: Tables = {"appends": [], "fetches": [], "isr": [], "stalls": [], "configs": []}
    for topic in ("strict", "lax"):
        named = {"topic": topic, "partition": 0, "leader": 1, "leader_epoch": 0, "seq": None}
        for end, at_ms in enumerate(range(0, 10_001, 100), start=1):
            append = {"at_ms": at_ms, "base_offset": end - 1, "end_offset": end}
            tables["appends"].append(named | append)
            if not 2_000 < at_ms < 6_000:
                tables["fetches"].append(
                    named
                    | {"at_ms": at_ms, "follower": 2, "offset": end, "read_ms": 0}
                    | {"leader_end_low": end, "leader_end_high": end, "outcome": "ok"}
                    | {"repeats": 1, "last_at_ms": at_ms}
                )
    minimums = [(0, "", 1), (0, "/topic:strict", 2), (4_000, "/topic:strict", 1)]
    for at_ms, topic, value in (*minimums, (5_000, "/topic:strict", 2), (0, "/topic:gone", 3)):
        scope = f"broker:1{topic}"
        tables["configs"].append(
            {"at_ms": at_ms, "scope": scope, "name": "min.insync.replicas", "value": str(value)}
        )
    return tables


@pytest.mark.parametrize(
    ("min_insync_replicas", "under_ms"),
    [(None, {"strict": 1_999, "lax": 0}), (2, {"strict": 2_999, "lax": 2_999})],
)
def test_min_isr_is_each_topics_own_at_each_moment(
    min_insync_replicas: int | None, under_ms: dict[str, int]
) -> None:
    grid = WhatIfGrid(
        policies=["caught-up"], lag_time_max_ms=[1_000], min_insync_replicas=min_insync_replicas
    )
    tables = two_topics_with_a_silent_follower()
    for results in (by_rules(tables, grid), *(by_kernel(tables, grid, stretch=n) for n in (1, 50))):
        under = {topic: row["under_min_isr_ms"] for (topic, _, _), (row, _) in results}
        assert under == under_ms


def test_a_garbled_minimum_is_ignored() -> None:
    """It failed in a worker."""
    tables = two_topics_with_a_silent_follower()
    garbled = tables["configs"][1] | {"at_ms": 3_500}
    tables["configs"] += [garbled | {"value": value} for value in ("two", "", "9" * 12, "-1")]
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[1_000])
    for results in (by_rules(tables, grid), by_kernel(tables, grid)):
        assert dict(results)["strict", 0, 0][0]["under_min_isr_ms"] == 1_999


@pytest.mark.parametrize(("started_ms", "under_ms"), [(-1, 1_999), (3_500, 499)])
def test_a_topics_value_holds_until_its_leader_starts_again(started_ms: int, under_ms: int) -> None:
    """Then what does not differ from the broker's own value, 1, is not recorded again.

    Out from 3 s to 6 s, with a minimum of 2 until 4 s and from 5 s on."""
    tables = two_topics_with_a_silent_follower()
    start = {"at_ms": started_ms, "scope": "broker:1", "name": "node.id", "value": "1"}
    tables["configs"].append(start)
    if started_ms == 3_500:
        tables["configs"] = [row for row in tables["configs"] if row["at_ms"] < 4_000]
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[1_000])
    for results in (by_rules(tables, grid), *(by_kernel(tables, grid, stretch=n) for n in (1, 50))):
        under = {topic: row["under_min_isr_ms"] for (topic, _, _), (row, _) in results}
        assert under == {"strict": under_ms, "lax": 0}


@pytest.mark.parametrize(
    ("limit_ms", "longest_ms", "added_ms"),
    [(1_000, 901, 0), (3_000, 2_901, 2_901), (30_000, 3_900, 3_900)],
)
def test_a_stall_of_acks_all_counts_whether_the_follower_leaves_or_comes_back(
    limit_ms: int, longest_ms: int, added_ms: int
) -> None:
    """The first append that it lacks is of 2.1 s; below two fetch waits nothing is added up."""
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[limit_ms])
    tables = two_topics_with_a_silent_follower()
    for results in (by_rules(tables, grid), *(by_kernel(tables, grid, stretch=n) for n in (1, 50))):
        row, _ = dict(results)["lax", 0, 0]
        assert (row["acks_all_stall_ms_max"], row["acks_all_stall_ms"]) == (longest_ms, added_ms)


def test_a_follower_out_of_sync_at_the_start_of_an_epoch_has_no_grace_of_the_lag_limit() -> None:
    """Back in sync because it is level, without ever having been seen to be caught up, it leaves
    with the next append. A follower that was in sync when the epoch began would have a limit's
    time."""
    named = {"topic": "t", "partition": 0, "leader": 1, "seq": None}
    appended = [(0, 0, 0, 0), (0, 10, 0, 5), (0, 2_000, 5, 6)]  # epoch, time, base, end
    appended += [(1, 3_000, 6, 6), (1, 3_020, 6, 7), (1, 3_030, 7, 8)]
    fetched = [(0, 5, 0, 0), (1, 3_010, 6, 8)]  # epoch, time, offset, the leader's end
    tables: Tables = {
        "appends": [
            named | {"leader_epoch": epoch, "at_ms": at, "base_offset": base, "end_offset": end}
            for epoch, at, base, end in appended
        ],
        "fetches": [
            named
            | {"leader_epoch": epoch, "at_ms": at, "follower": 2, "offset": offset}
            | {"leader_end_low": end, "leader_end_high": end, "read_ms": 0, "outcome": "ok"}
            | {"repeats": 1, "last_at_ms": at}
            for epoch, at, offset, end in fetched
        ],
    }
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[900])
    expected = dict(by_rules(tables, grid))
    assert expected["t", 0, 0][0]["shrinks"] == 2
    for stretch in (1, 2, STRETCH):
        assert dict(by_kernel(tables, grid, stretch=stretch)) == expected


def test_a_follower_may_stop_holding_the_watermark_in_a_stall() -> None:
    """Then another follower that reaches its offset is not close enough to join any more."""
    named = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 0, "seq": None}
    appended = [(0, 0, 4), (101, 4, 10), (281, 10, 11)]  # time, base, end
    fetched = [
        (0, 3, 3, 3),
        (101, 2, 0, 4),
        (281, 3, 4, 11),
    ]  # time, follower, offset, leader's end
    tables: Tables = {
        "appends": [
            named | {"at_ms": at, "base_offset": base, "end_offset": end}
            for at, base, end in appended
        ],
        "fetches": [
            named
            | {"at_ms": at, "follower": follower, "offset": offset, "read_ms": 0, "outcome": "ok"}
            | {"leader_end_low": end, "leader_end_high": end, "repeats": 1, "last_at_ms": at}
            for at, follower, offset, end in fetched
        ],
        "stalls": [{"broker": 1, "at_ms": 0, "stall_ms": 250}],
    }
    grid = WhatIfGrid(policies=["lag-begin"], lag_time_max_ms=[60], fetch_wait_max_ms=50)
    expected = dict(by_rules(tables, grid))
    assert expected["t", 0, 0][0]["expands"] == 0
    for stretch in (1, STRETCH):
        assert dict(by_kernel(tables, grid, stretch=stretch)) == expected


def test_rows_of_a_second_leader_in_an_epoch_are_ignored() -> None:
    """Also where its rows have the sequence numbers of the first leader's."""
    named = {"topic": "t", "partition": 0, "leader_epoch": 0}
    own = [(0, 0, 0, 5), (1_500, 4, 5, 6)]  # time, seq, base, end
    fetched = [(10, 1, 0), (20, 2, 5), (1_510, 5, 5), (1_520, 6, 6)]  # time, seq, offset
    # As if the follower had never fetched, and as if more had been appended.
    others, other_fetches = [(15, 4, 5, 50)], [(12, 2, 0), (1_200, 6, 0)]

    def tables(leaders: dict[int, Any]) -> Tables:
        rows: Tables = {"appends": [], "fetches": []}
        for leader, (appends, fetches) in leaders.items():
            row = named | {"leader": leader}
            rows["appends"] += [
                row | {"at_ms": at, "seq": seq, "base_offset": base, "end_offset": end}
                for at, seq, base, end in appends
            ]
            rows["fetches"] += [
                row
                | {"at_ms": at, "seq": seq, "follower": 2, "offset": offset, "read_ms": 0}
                | {"leader_end_low": 5, "leader_end_high": 5, "outcome": "ok"}
                | {"repeats": 1, "last_at_ms": at}
                for at, seq, offset in fetches
            ]
        return rows

    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[900])
    alone = dict(by_kernel(tables({4: (own, fetched)}), grid))
    assert alone == dict(by_rules(tables({4: (own, fetched)}), grid))
    both = tables({4: (own, fetched), 1: (others, other_fetches)})
    assert dict(by_kernel(both, grid)) == alone
    assert dict(by_rules(both, grid)) == alone


def moved_away(replica: int, *, epoch: int) -> dict[str, Any]:
    named = {"topic": "t", "partition": 0, "leader_epoch": epoch, "version": 7}
    return named | {"isr_before": [1, 2, 3], "replica": replica, "cause": REASSIGNMENT}


@pytest.mark.parametrize(
    ("third_until_ms", "changes", "shrinks", "out_of_sync_ms"),
    [
        (4_900, [], 1, 9_000),  # stuck from its second epoch on, as far as is recorded
        (4_900, [moved_away(3, epoch=1)], 0, 0),
        (4_900, [moved_away(3, epoch=1)] * 2, 0, 0),
        (4_900, [moved_away(4, epoch=1)], 1, 9_000),  # of whom nothing is known
        (4_900, [moved_away(3, epoch=2)], 1, 9_000),  # an epoch that has yet to begin
        (900, [moved_away(3, epoch=1)], 1, 3_100),  # it left before, and was out until then
    ],
)
def test_a_replica_that_was_moved_away_is_neither_stuck_nor_missed(
    third_until_ms: int, changes: list[dict[str, Any]], shrinks: int, out_of_sync_ms: int
) -> None:
    """Two epochs of 5 s and 10 s, a record every 100 ms, fetched at once by every replica."""
    named = {"topic": "t", "partition": 0, "leader": 1, "seq": None}
    tables: Tables = {"appends": [], "fetches": [], "isr": changes}
    for end, at_ms in enumerate(range(0, 15_001, 100), start=1):
        row = named | {"leader_epoch": int(at_ms >= 5_000)}
        tables["appends"].append(row | {"at_ms": at_ms, "base_offset": end - 1, "end_offset": end})
        tables["fetches"] += [
            row
            | {"at_ms": at_ms, "follower": follower, "offset": end, "read_ms": 0, "outcome": "ok"}
            | {"leader_end_low": end, "leader_end_high": end, "repeats": 1, "last_at_ms": at_ms}
            for follower in (2, 3)
            if follower == 2 or at_ms <= third_until_ms
        ]
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[999], min_insync_replicas=3)
    for results in (by_rules(tables, grid), *(by_kernel(tables, grid, stretch=n) for n in (1, 50))):
        verdicts, delays = dict(results)["t", 0, 0]
        assert (verdicts["shrinks"], verdicts["out_of_sync_ms"]) == (shrinks, out_of_sync_ms)
        assert verdicts["under_min_isr_ms"] == out_of_sync_ms  # of two that are known two are in
        assert (delays, verdicts["missed"]) == ([0] * shrinks, 0)


def assigned(
    at_ms: int, epoch: int, replicas: list[int], adding: tuple[int, ...] = ()
) -> dict[str, Any]:
    named = {"topic": "t", "partition": 0, "leader_epoch": epoch, "version": at_ms, "leader": 1}
    named |= {"at_ms": at_ms, "topic_id": "first", "removing": []}
    return named | {"replicas": replicas, "adding": list(adding)}


@pytest.mark.parametrize(
    ("assignments", "out_of_sync_ms"),
    [
        ([], 14_000),  # since 1 s, as far as is recorded
        ([assigned(0, 0, [1, 2]), assigned(9, 0, [1, 2, 3], (3,)), assigned(5_000, 1, [1, 2])],
         2_900),
    ],
)  # fmt: skip
def test_a_cancelled_reassignment_ends_the_time_out_of_sync(
    assignments: list[dict[str, Any]], out_of_sync_ms: int
) -> None:
    """3 fetches once, at 2.1 s and far behind, and is removed when the second epoch begins.

    Without `assignments` it counts as in sync when the record begins.
    """
    named = {"topic": "t", "partition": 0, "leader": 1, "seq": None}
    tables: Tables = {"appends": [], "fetches": [], "isr": [], "assignments": assignments}
    for end, at_ms in enumerate(range(0, 15_001, 100), start=1):
        row = named | {"leader_epoch": int(at_ms >= 5_000)}
        tables["appends"].append(row | {"at_ms": at_ms, "base_offset": end - 1, "end_offset": end})
        fetch = row | {"at_ms": at_ms, "outcome": "ok", "read_ms": 0, "repeats": 1}
        fetch |= {"last_at_ms": at_ms, "leader_end_low": end, "leader_end_high": end}
        tables["fetches"].append(fetch | {"follower": 2, "offset": end})
        if at_ms == 2_100:
            tables["fetches"].append(fetch | {"follower": 3, "offset": 1})
    grid = WhatIfGrid(policies=["caught-up"], lag_time_max_ms=[999], min_insync_replicas=3)
    for results in (by_rules(tables, grid), by_kernel(tables, grid)):
        verdicts, _ = dict(results)["t", 0, 0]
        assert verdicts["shrinks"] == (0 if assignments else 1)
        assert verdicts["out_of_sync_ms"] == out_of_sync_ms


def test_without_recorded_causes_no_replica_counts_as_moved_away() -> None:
    """Tables of earlier versions: the sentence in `reason` is for people, and is not read."""
    identity = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 0, "seq": None}
    change = moved_away(3, epoch=0) | {"reason": "moved away"}
    tables: Tables = {
        "appends": [identity | {"at_ms": 0, "base_offset": 0, "end_offset": 1}],
        "fetches": [],
        "isr": [change],
    }
    rows = arrow(tables)

    def moves(isr: pa.Table) -> list[list[int]]:
        result = shard(rows["fetches"], rows["appends"], isr, rows["stalls"])
        return result.changes.moves.tolist()  # type: ignore[no-any-return]

    def moves_by_rules(changes: list[dict[str, Any]]) -> list[tuple[int, int]]:
        return histories.histories(tables | {"isr": changes})["t", 0].moved_away

    assert moves(rows["isr"]) == [[0, 3]]
    assert moves_by_rules([change]) == [(0, 3)]
    assert moves(rows["isr"].drop_columns(["cause", "late_ms"])) == []
    del change["cause"]
    assert moves_by_rules([change]) == []
    with pytest.raises(BadTables, match="isr has no column version"):
        moves(rows["isr"].drop_columns(["version"]))
