"""Episodes of one partition without Spark, compared with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.pipeline.tables.partition_episodes import (
    APPEND_COLUMNS,
    FETCH_COLUMNS,
    PartitionRecord,
    episodes_of,
)
from insync.telemetry.schemas import REASSIGNMENT
from support.pipeline.episodes_oracle import (
    Partition,
    decided_at_ms,
    number,
    partitions_of,
)
from support.pipeline.episodes_oracle import episodes as expected_episodes
from support.pipeline.random_tables import made_up

Row = dict[str, Any]
OF_BROKERS = ("leader_stall_ms", "held_back_ms")  # joined by Spark


def record_of(known: Partition) -> PartitionRecord:
    own = tables = known.tables

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
        limit_ms = settings["lag_time_max_ms"]
        more["is_broker_silent"] = known.is_silent(row["replica"], decided_at_ms(row), limit_ms)
        return row | more | settings | {"held_back_ms_before": 1_000 * len(held)}

    def stays(follower: int) -> dict[int | None, list[Row]]:
        """Its fetches after each move away; refused ones do not make a replica of it again."""
        moves = {row["leader_epoch"] for row in known.removals(follower)}
        by_move: dict[int | None, list[Row]] = {}
        for row in own["fetches"]:
            gone = max((each for each in moves if each <= row["leader_epoch"]), default=None)
            if row["follower"] == follower and (gone is None or row["outcome"] == "ok"):
                by_move.setdefault(gone, []).append(row)
        return by_move

    def fetches_of(gone_epoch: int | None, rows: list[Row]) -> Row:
        first = min(rows, key=lambda row: (row["at_ms"], row["seq"]))
        last = max(rows, key=lambda row: (row["leader_epoch"], row["at_ms"], row["leader"]))
        served = [row for row in rows if row["outcome"] == "ok"]
        below = [row["offset"] < (row["high_watermark"] or 0) for row in served]
        names = ("follower", "at_ms", "offset", "leader_end_low", "log_start")
        return (
            {name: first[name] for name in names}
            | {"is_below_watermark": bool(below) and all(below)}
            | {"leader": last["leader"], "leader_epoch": last["leader_epoch"], "reason": None}
            | {"first_epoch": min(row["leader_epoch"] for row in rows), "gone_epoch": gone_epoch}
            | known._settings(last["leader"], 2**62)
        )

    fetches = [row | {"is_ok": row["outcome"] == "ok"} for row in own["fetches"]]
    followers = {row["follower"] for row in fetches} | {row["replica"] for row in own["isr"]}
    return PartitionRecord(
        record_end_ms=known.record_end_ms,
        removals=[
            row | {"follower": follower}
            for follower in followers
            for row in known.removals(follower)
        ],
        added=frozenset(each for each in followers if known.is_added(each)),
        changes=[change(row) for row in own["isr"]],
        first_and_last_fetches=[
            fetches_of(gone_epoch, rows)
            for follower in {row["follower"] for row in fetches}
            for gone_epoch, rows in stays(follower).items()
        ],
        led=[row | {"last_epoch": row["leader_epoch"]} for row in own["appends"]],
        elections=[row for row in own["elections"] if row["leader_before"] != row["leader_after"]],
        fetches=columns(fetches, FETCH_COLUMNS),
        appends=columns(own["appends"], APPEND_COLUMNS),
    )


def columns(rows: list[Row], names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.array([int(row[name]) for row in rows], np.int64) for name in names}


@pytest.mark.property
@given(seed=st.integers(min_value=0, max_value=10**9))
def test_episodes_of_a_partition_agree_with_the_oracle_on_random_tables(seed: int) -> None:
    tables = made_up(seed, partitions=3)
    expected = expected_episodes(tables)
    episodes = [
        episode | {"topic": known.topic, "partition": known.partition}
        for known in partitions_of(tables)
        for episode in episodes_of(record_of(known))
    ]
    assert len(episodes) == len(expected)
    for ours, theirs in zip(episodes, expected, strict=True):
        differing = {
            name: (ours[name], value)
            for name, value in theirs.items()
            if name not in OF_BROKERS and ours[name] != value
        }
        assert not differing, (theirs, "found, expected:", differing)


def test_a_partition_without_rows_has_no_episodes() -> None:
    assert list(episodes_of(PartitionRecord(record_end_ms=0))) == []


# Edge cases, which random tables seldom have.

LIMIT_MS = 1_000
CHANGE = {
    "follower": 2, "leader": 1, "leader_epoch": 0, "reason": "", "policy": "caught-up",
    "lag_time_max_ms": LIMIT_MS, "min_isr": 1, "held_back_ms_before": 0, "decided_by": "leader",
    "decided_at_ms": None, "replica_end": None, "leader_end": None, "caught_up_at_ms": 4_000,
    "cause": None, "is_broker_silent": False,
}  # fmt: skip


def change(at_ms: int, number: int, kind: str, **more: Any) -> Row:
    before, after = ([1, 2], [1]) if kind == "shrink" else ([1], [1, 2])
    record = {"at_ms": at_ms, "number": number, "change": kind}
    return CHANGE | record | {"isr_before": before, "isr_after": after} | more


def fetched(**row: int) -> dict[str, np.ndarray[Any, Any]]:
    usual = dict.fromkeys(FETCH_COLUMNS, 0) | {"follower": 2, "is_ok": 1}
    fetch = usual | row
    return columns([fetch | {"last_at_ms": fetch["at_ms"]}], FETCH_COLUMNS)


@pytest.mark.parametrize(("heard_at_ms", "cause"), [(9_000, "slow"), (8_999, "stuck")])
def test_a_fetch_exactly_the_limit_ago_is_in_time(heard_at_ms: int, cause: str) -> None:
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[change(10_000, 1, "shrink")],
        fetches=fetched(at_ms=heard_at_ms),
    )
    (episode,) = episodes_of(record)
    assert episode["cause"] == cause
    assert episode["began_at_ms"] == (4_000 if cause == "slow" else heard_at_ms)
    assert (episode["ending"], episode["out_ms"]) == ("open", 10_000)


@pytest.mark.parametrize(("read_ms", "cause"), [(500, "leader-slow-reads"), (499, "slow")])
def test_reads_of_half_the_lag_limit_are_caused_by_the_leader(read_ms: int, cause: str) -> None:
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[change(10_000, 1, "shrink")],
        fetches=fetched(at_ms=9_500, read_ms=read_ms),
    )
    assert [episode["cause"] for episode in episodes_of(record)] == [cause]


@pytest.mark.parametrize(
    ("held_ms", "heard_at_ms", "throttled", "cause"),
    [
        (500, 9_000, 0, "throttled"),
        (499, 9_000, 0, "slow"),
        (499, 9_000, 1, "throttled"),
        (500, 8_999, 0, "stuck"),  # its broker held others back: this one it did not ask for
    ],
)
def test_being_held_back_for_half_the_lag_limit_is_caused_by_the_throttle(
    held_ms: int, heard_at_ms: int, throttled: int, cause: str
) -> None:
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[change(10_000, 1, "shrink", held_back_ms_before=held_ms)],
        fetches=fetched(at_ms=heard_at_ms, throttled=throttled),
    )
    assert [episode["cause"] for episode in episodes_of(record)] == [cause]


@pytest.mark.parametrize(("epoch", "began_at_ms"), [(2, 9_000), (1, 10_000)])
def test_a_broker_that_led_until_it_died_was_in_sync_until_then(
    epoch: int, began_at_ms: int
) -> None:
    """It fetched for the last time at 9 s, in this epoch; the leader before did in epoch 1."""
    died = change(10_000, 1, "shrink", decided_by="controller", cause="broker-gone", leader_epoch=3)
    record = PartitionRecord(
        record_end_ms=20_000, changes=[died], fetches=fetched(at_ms=9_000, leader_epoch=epoch)
    )
    (episode,) = episodes_of(record)
    assert (episode["cause"], episode["began_at_ms"]) == ("broker-down", began_at_ms)


@pytest.mark.parametrize(
    ("by_whom", "recorded", "cause"),
    [
        ("controller", "broker-gone", "broker-down"),
        ("controller", "broker-frozen", "frozen"),
        ("controller", "replica-offline", "replica-offline"),
        ("controller", None, "controller"),
        ("leader", "lag-time", "stuck"),
    ],
)
def test_a_dead_broker_a_frozen_one_and_a_failed_log_have_causes_of_their_own(
    by_whom: str, recorded: str | None, cause: str
) -> None:
    left = change(10_000, 1, "shrink", decided_by=by_whom, cause=recorded)
    (episode,) = episodes_of(PartitionRecord(record_end_ms=20_000, changes=[left]))
    assert episode["cause"] == cause


def test_a_replica_whose_broker_is_silent_everywhere_is_frozen() -> None:
    left = change(10_000, 1, "shrink", is_broker_silent=True)
    record = PartitionRecord(record_end_ms=20_000, changes=[left], fetches=fetched(at_ms=8_000))
    (episode,) = episodes_of(record)
    assert (episode["cause"], episode["began_at_ms"]) == ("frozen", 8_000)


@pytest.mark.parametrize(
    ("replica_end", "appended", "lag_ms"),
    [
        (99, True, 60_000),  # below the epoch's start: since it began
        (99, False, 60_000),
        (100, True, 10_000),  # since the first append that it lacked
        (149, True, 10_000),
        (150, True, 5_000),
        (200, True, 0),
    ],
)
def test_true_lag_counts_from_the_epochs_first_row(
    replica_end: int, *, appended: bool, lag_ms: int
) -> None:
    """An epoch begins at offset 100, has 50 records after 50 s and 50 more after 55."""
    rows = [(0, 100, 0), (50_000, 150, 70), (55_000, 200, 30)]
    appends = [
        {"leader_epoch": 0, "at_ms": at_ms, "end_offset": end, "bytes": size}
        for at_ms, end, size in (rows if appended else rows[:1])
    ]
    ends = {"replica_end": replica_end, "leader_end": 200 if appended else 100}
    record = PartitionRecord(
        record_end_ms=70_000,
        changes=[change(60_000, 1, "shrink", **ends)],
        appends=columns(appends, APPEND_COLUMNS),
    )
    (episode,) = episodes_of(record)
    assert (episode["lag_ms"], episode["lag_messages"]) == (
        lag_ms,
        ends["leader_end"] - replica_end,
    )


@pytest.mark.parametrize(("again_at_ms", "flaps"), [(12_000, [2, 2]), (12_001, [1, 1])])
def test_leaving_again_within_the_limit_is_the_same_group(
    again_at_ms: int, flaps: list[int]
) -> None:
    changes = [
        change(10_000, 1, "shrink"),
        change(11_000, 2, "expand"),
        change(again_at_ms, 3, "shrink"),
    ]
    episodes = list(episodes_of(PartitionRecord(record_end_ms=20_000, changes=changes)))
    assert [episode["flaps"] for episode in episodes] == flaps


# What was so before the record began, and what was lost.


def began(at_ms: int, number: int, isr: list[int], *, epoch: int = 0) -> Row:
    place = {"leader_epoch": epoch, "number": number, "at_ms": at_ms}
    return CHANGE | place | {"isr_before": isr, "reason": None}


@pytest.mark.parametrize(("isr", "fetches", "is_out"), [
    ([1, 3], [], True),  # its broker is down: it does not fetch
    ([1, 3], [4_000], True),
    ([1, 2, 3], [], False),
])  # fmt: skip
def test_a_replica_that_was_out_before_the_record_began_is_out(
    isr: list[int], fetches: list[int], *, is_out: bool
) -> None:
    """No row of `isr` says so: the ISR with which the epoch began does, and the replicas."""
    record = PartitionRecord(
        record_end_ms=20_000,
        begun=[began(1_000, 5, isr)],
        assigned=dict.fromkeys((1, 2, 3), (0, 5)),
        first_and_last_fetches=[met(at_ms, epoch=0) | {"offset": 7} for at_ms in fetches],
        led=[{"leader": 1, "leader_epoch": 0, "last_epoch": 0, "at_ms": 1_000}],
    )
    episodes = [
        (each["follower"], each["cause"], each["ending"], each["began_at_ms"], each["out_ms"])
        for each in episodes_of(record)
    ]
    since_ms = (fetches or [1_000])[0]
    expected = (2, "unrecorded", "open", since_ms, 20_000 - since_ms)
    assert episodes == ([expected] if is_out else [])


def test_a_replica_that_is_assigned_later_is_not_out_before() -> None:
    record = PartitionRecord(
        record_end_ms=20_000, begun=[began(1_000, 5, [1])], assigned={1: (0, 5), 2: (0, 6)}
    )
    assert list(episodes_of(record)) == []


@pytest.mark.parametrize(
    "evidence",
    [
        {"led": [{"leader": 2, "leader_epoch": 3, "last_epoch": 3, "at_ms": 15_000}]},
        {"begun": [began(15_000, 8, [1, 2], epoch=3)]},
    ],
)
def test_a_return_that_was_lost_with_its_leader_ends_an_episode(evidence: Any) -> None:
    """The replica leads later, or is in the ISR when a later epoch begins."""
    left = change(10_000, 1, "shrink")
    (episode,) = episodes_of(PartitionRecord(record_end_ms=20_000, changes=[left], **evidence))
    assert (episode["ending"], episode["rejoined_at_ms"]) == ("unrecorded", None)
    assert episode["out_ms"] is None
    again = change(17_000, 9, "shrink", leader_epoch=4, isr_before=[1, 2])
    record = PartitionRecord(record_end_ms=20_000, changes=[left, again], **evidence)
    assert [each["ending"] for each in episodes_of(record)] == ["unrecorded", "open"]


def test_a_shrink_that_was_lost_with_its_leader_is_seen_when_the_next_epoch_begins() -> None:
    record = PartitionRecord(
        record_end_ms=20_000,
        begun=[began(1_000, 5, [1, 2]), began(9_000, 7, [1], epoch=1)],
        assigned={1: (0, 5), 2: (0, 5)},
        changes=[change(12_000, 8, "expand", leader_epoch=1)],
    )
    (episode,) = episodes_of(record)
    assert (episode["cause"], episode["began_at_ms"]) == ("unrecorded", 9_000)
    assert (episode["ending"], episode["out_ms"]) == ("rejoined", 3_000)


def test_a_leader_whose_clock_is_behind_makes_no_negative_time() -> None:
    """The next leader's clock is an hour behind, and it lets the replica in."""
    back = change(10_000, 2, "expand", leader_epoch=1)
    record = PartitionRecord(
        record_end_ms=3_700_000, changes=[change(3_610_000, 1, "shrink"), back]
    )
    (episode,) = episodes_of(record)
    assert (episode["ending"], episode["out_ms"]) == ("rejoined", 0)


# Moves.


def moved_away(at_ms: int, number: int, *, epoch: int) -> Row:
    by = {"cause": REASSIGNMENT, "decided_by": "controller", "leader_epoch": epoch}
    return change(at_ms, number, "shrink", **by)


def met(at_ms: int, *, epoch: int, gone_epoch: int | None = None, **more: Any) -> Row:
    epochs = {"leader_epoch": epoch, "first_epoch": epoch, "gone_epoch": gone_epoch}
    usual = {"offset": 0, "leader_end_low": 50, "log_start": 0, "is_below_watermark": False}
    return CHANGE | epochs | {"at_ms": at_ms} | usual | more


LED = [{"leader": 1, "leader_epoch": 0, "last_epoch": 2, "at_ms": 0}]


def test_moving_away_is_no_episode() -> None:
    record = PartitionRecord(
        record_end_ms=20_000, changes=[moved_away(10_000, 1, epoch=1)] * 2, led=LED
    )
    assert list(episodes_of(record)) == []


@pytest.mark.parametrize("is_back", [False, True])
def test_a_replica_that_is_added_again_after_a_move_bootstraps(*, is_back: bool) -> None:
    back = [change(14_000, 3, "expand", leader_epoch=2)] if is_back else []
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[moved_away(10_000, 1, epoch=1), *back],
        first_and_last_fetches=[met(0, epoch=0), met(12_000, epoch=2, gone_epoch=1)],
        led=LED,
    )
    (episode,) = episodes_of(record)
    assert (episode["cause"], episode["began_at_ms"]) == ("bootstrapping", 12_000)
    assert episode["lag_messages"] == 50
    end = ("rejoined", 14_000, 2_000) if is_back else ("open", None, 8_000)
    assert (episode["ending"], episode["rejoined_at_ms"], episode["out_ms"]) == end


def test_a_move_away_ends_an_episode() -> None:
    """For example, its leader learned of the eviction and the move at once."""
    changes = [change(10_000, 1, "shrink"), moved_away(13_000, 3, epoch=1)]
    (episode,) = episodes_of(PartitionRecord(record_end_ms=20_000, changes=changes, led=LED))
    assert (episode["ending"], episode["rejoined_at_ms"]) == ("moved-away", None)
    assert episode["out_ms"] == 3_000


@pytest.mark.parametrize("ending", ["moved-away", "move-cancelled", "topic-deleted"])
def test_a_removal_that_changes_no_isr_ends_an_episode(ending: str) -> None:
    """It was out of sync when it was removed: only `assignments` have it."""
    removal = {"follower": 2, "leader_epoch": 1, "at_ms": 13_000, "ending": ending}
    record = PartitionRecord(
        record_end_ms=20_000, changes=[change(10_000, 1, "shrink")], led=LED, removals=[removal]
    )
    (episode,) = episodes_of(record)
    assert (episode["ending"], episode["out_ms"]) == (ending, 3_000)


def test_a_replica_of_a_cancelled_reassignment_is_out_until_then() -> None:
    """No ISR changes, and it is at the watermark: only `assignments` tell that it was new."""
    removal = {"follower": 2, "leader_epoch": 1, "at_ms": 5_000, "ending": "move-cancelled"}
    known: dict[str, Any] = {"record_end_ms": 20_000, "led": LED}
    known["first_and_last_fetches"] = [met(1_000, epoch=0)]
    (episode,) = episodes_of(PartitionRecord(**known, removals=[removal], added=frozenset([2])))
    assert (episode["cause"], episode["ending"]) == ("bootstrapping", "move-cancelled")
    assert episode["out_ms"] == 4_000
    assert list(episodes_of(PartitionRecord(**known))) == []


# A record that begins in the middle of an episode.


@pytest.mark.parametrize(
    ("offset", "log_start", "cause"),
    [
        (0, 0, "bootstrapping"),
        (300, 300, "bootstrapping"),  # an empty log may begin where the leader's does
        (5_000, None, "bootstrapping"),
        (1, 0, "unrecorded"),
        (5_000, 0, "unrecorded"),
    ],
)
@pytest.mark.parametrize("is_back", [False, True])
def test_a_follower_that_resumes_at_its_log_end_was_in_sync_before(
    offset: int, log_start: int | None, cause: str, *, is_back: bool
) -> None:
    """Broker 2 is out of sync at first: the first row is of broker 3, with the ISR 1 and 3."""
    others = change(2_000, 1, "shrink", follower=3, isr_before=[1, 3], isr_after=[1])
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[others, *([change(9_000, 2, "expand")] if is_back else [])],
        first_and_last_fetches=[
            met(1_000, epoch=0, offset=offset, log_start=log_start, leader_end_low=6_000)
        ],
        led=LED,
    )
    (episode,) = (each for each in episodes_of(record) if each["follower"] == 2)
    assert (episode["cause"], episode["began_at_ms"]) == (cause, 1_000)
    assert (episode["left_at_ms"], episode["lag_messages"]) == (None, 6_000 - offset)
    assert episode["out_ms"] == (8_000 if is_back else 19_000)


@pytest.mark.parametrize(("is_below", "causes"), [(True, ["unrecorded"]), (False, [])])
def test_a_follower_that_stays_below_the_watermark_is_out_of_sync(
    *, is_below: bool, causes: list[str]
) -> None:
    """No change of the ISR is recorded."""
    fetches = [met(1_000, epoch=0, offset=7, is_below_watermark=is_below)]
    episodes = list(
        episodes_of(PartitionRecord(record_end_ms=20_000, first_and_last_fetches=fetches, led=LED))
    )
    assert [(each["cause"], each["ending"]) for each in episodes] == [
        (each, "open") for each in causes
    ]


@pytest.mark.parametrize(("min_isr", "under_ms"), [(2, 7_000), (1, 0)])
def test_below_min_isr_before_the_first_change(min_isr: int, under_ms: int) -> None:
    """Rows of the partition begin at 0, those of broker 2 at 1 s; it joins after 8 s."""
    record = PartitionRecord(
        record_end_ms=20_000,
        changes=[change(8_000, 1, "expand", min_isr=min_isr)],
        first_and_last_fetches=[met(1_000, epoch=0)],
        led=LED,
    )
    (episode,) = episodes_of(record)
    assert (episode["out_ms"], episode["under_min_isr_ms"]) == (7_000, under_ms)
