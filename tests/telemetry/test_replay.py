"""The contract of the tables: replayed through the rules they give the brokers' own decisions."""

from __future__ import annotations

from typing import Any

import pytest

from insync.rules.settings import InSyncSettings
from insync.telemetry.replay.contract import epochs
from support.search_effort import tried
from support.telemetry.recorded_runs import Tables, as_rows, everything, record_a_run, record_faults
from support.telemetry.replay_contract import PAUSE_MS_MAX, agreed


@pytest.mark.property
@pytest.mark.parametrize("seed", tried(range(4)))
def test_a_replay_repeats_the_decisions_of_the_brokers(seed: int) -> None:
    assert agreed(as_rows(record_faults(seed, everything))), "no follower left or joined"


@pytest.mark.property
@pytest.mark.parametrize("policy", tried(["true-lag", "messages", "lag-begin", "pending-reads"]))
def test_a_replay_repeats_the_decisions_under_every_policy(policy: str) -> None:
    settings = {"replica.in.sync.policy": policy, "replica.lag.max.messages": "20"}
    assert agreed(as_rows(record_faults(5, everything, settings)))


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.parametrize("seed", tried([11, 1, 2]))
def test_a_replay_repeats_the_decisions_of_a_run_with_every_fault(seed: int) -> None:
    assert agreed(record_a_run(seed, seconds=15.0), late_ms_max=PAUSE_MS_MAX)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_replay_repeats_the_decisions_of_many_runs(seed: int) -> None:
    agreed(record_a_run(seed, seconds=20.0), late_ms_max=PAUSE_MS_MAX)


@pytest.fixture(scope="module")
def recorded() -> Tables:
    return as_rows(record_faults(1, everything))


def test_a_replay_by_another_rule_differs(recorded: Tables) -> None:
    """So the agreement above is no accident of replaying what was decided anyway."""
    tables = recorded | {
        "configs": [
            row | ({"value": "1501"} if row["name"] == "replica.lag.time.max.ms" else {})
            for row in recorded["configs"]
        ]
    }
    with pytest.raises(AssertionError):
        agreed(tables)


@pytest.mark.parametrize("change", ["shrink", "expand"])
def test_a_decision_that_no_leader_made_is_noticed(recorded: Tables, change: str) -> None:
    """No other row depends on it: the last of its kind, and what followed."""
    tables = recorded.copy()
    last = max(
        (row for row in tables["isr"] if (row["decided_by"], row["change"]) == ("leader", change)),
        key=lambda row: row["at_ms"],
    )
    key = [last[name] for name in ("topic", "partition", "leader_epoch")]

    def is_before(row: dict[str, Any], version: int) -> bool:
        other = [row[name] for name in ("topic", "partition", "leader_epoch")] != key
        return other or row["version"] < version

    tables["isr"] = [row for row in tables["isr"] if is_before(row, last["version"])]
    tables["isr_events"] = [  # these have the version that a change builds on
        row for row in tables["isr_events"] if is_before(row, last["version"] - 1)
    ]
    with pytest.raises(AssertionError, match=f"no leader proposed.*{change}"):
        agreed(tables)


# One partition that broker 1 leads, by hand. T is that of the default settings.

LAG_MS = InSyncSettings().replica_lag_time_max_ms
KEY = {"topic": "t", "partition": 0, "leader_epoch": 0, "leader": 1}
ALL = [1, 2, 3]


def of_rows(
    rows: list[dict[str, Any]],
    isr: list[dict[str, Any]],
    stalls: list[dict[str, Any]] | None = None,
) -> Tables:
    events = [row for row in isr if "event" in row]
    return {
        "fetches": [row | KEY for row in rows if "follower" in row],
        "appends": [row | KEY for row in rows if "follower" not in row],
        "isr": [row | KEY for row in isr if "event" not in row],
        "isr_events": [row | KEY | {"number": at} for at, row in enumerate(events)],
        "stalls": stalls or [],
    }


def event(
    at_ms: int, name: str, after: list[int], *, seq: int, before: list[int] = ALL, version: int = 0,
    late_ms: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {"at_ms": at_ms, "event": name, "isr_before": before, "isr_after": after,
            "version": version, "late_ms": late_ms, "seq": seq}  # fmt: skip


def committed(
    at_ms: int, decided_at_ms: int | None, replica: int, after: list[int], *, seq: int,
    before: list[int] = ALL, version: int = 1, late_ms: int = 0,
) -> dict[str, Any]:  # fmt: skip
    return {"at_ms": at_ms, "decided_at_ms": decided_at_ms, "replica": replica,
            "decided_by": "controller" if decided_at_ms is None else "leader",
            "version": version, "isr_before": before, "isr_after": after,
            "change": "shrink" if replica in before else "expand", "reason": "silent",
            "cause": None, "late_ms": late_ms, "seq": seq}  # fmt: skip


def append(at_ms: int, *, seq: int, base: int, end: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "seq": seq, "base_offset": base, "end_offset": end}


def fetch(at_ms: int, *, seq: int, follower: int, offset: int = 0) -> dict[str, Any]:
    return {"at_ms": at_ms, "seq": seq, "follower": follower, "offset": offset,
            "leader_end_low": offset,
            "high_watermark": 0, "log_start": 0, "read_ms": 0, "outcome": "ok", "repeats": 1,
            "last_at_ms": at_ms}  # fmt: skip


BEGAN = event(0, "began", ALL, seq=0)


def test_a_late_timer_evicts_every_follower_that_is_due() -> None:
    """One is due a millisecond after the other; a later check evicts both."""
    rows = [append(0, seq=0, base=0, end=0), fetch(10, seq=1, follower=2),
            fetch(11, seq=2, follower=3), append(12, seq=3, base=0, end=1)]  # fmt: skip
    decided_at_ms = LAG_MS + 31
    tables = of_rows(
        rows,
        [
            *(BEGAN, event(decided_at_ms, "proposed", [1], seq=4, late_ms=20)),
            *(
                committed(decided_at_ms + 4, decided_at_ms, replica, [1], seq=4, late_ms=20)
                for replica in (2, 3)
            ),
        ],
    )
    assert [each.replica for each in agreed(tables, late_ms_max=20)] == [2, 3]
    with pytest.raises(AssertionError):
        agreed(tables, late_ms_max=19)
    for late_ms in (19, 21):  # it was due at another time than it said
        for row in (*tables["isr"], tables["isr_events"][1]):
            row["late_ms"] = late_ms
        with pytest.raises(AssertionError):
            agreed(tables, late_ms_max=30)


SILENT = [append(0, seq=0, base=0, end=0), fetch(10, seq=1, follower=2),
          append(11, seq=2, base=0, end=1), fetch(12, seq=3, follower=3, offset=1)]  # fmt: skip
DUE_MS = LAG_MS + 11
"""Follower 2 is silent since 10 ms; follower 3 has all."""
STAYED = fetch(DUE_MS + 5_000, seq=4, follower=3, offset=1)


def test_a_proposal_whose_outcome_is_not_known_is_pending() -> None:
    """The store is out of reach; nothing else is proposed, however long that takes."""
    proposed = event(DUE_MS, "proposed", [1, 3], seq=4)
    assert agreed(of_rows([*SILENT, STAYED], [BEGAN, proposed])) == []
    with pytest.raises(AssertionError, match="no leader proposed"):
        agreed(of_rows([*SILENT, STAYED], [BEGAN]))


@pytest.mark.parametrize(("end", "version"), [("refused", 0), ("superseded", 1)])
def test_a_proposal_that_was_not_committed_is_made_again(end: str, version: int) -> None:
    """At another version of the partition state, if the ISR is as it was."""
    again_at_ms = DUE_MS + 700
    isr = [
        BEGAN,
        event(DUE_MS, "proposed", [1, 3], seq=4, late_ms=0),
        event(again_at_ms, end, [1, 3], seq=4),
        event(again_at_ms, "proposed", [1, 3], seq=4, version=version, late_ms=0),
        committed(again_at_ms + 9, DUE_MS, 2, [1, 3], seq=4, version=version + 1),
    ]
    (decision,) = agreed(of_rows([*SILENT, STAYED], isr))
    assert decision.decided_at_ms == DUE_MS
    with pytest.raises(AssertionError):  # it ended sooner than the leader made it again
        agreed(of_rows([*SILENT, STAYED], [*isr[:2], isr[2] | {"at_ms": DUE_MS + 1}, *isr[3:]]))


def test_a_proposal_overtaken_by_the_controller_is_not_mistaken_for_the_next() -> None:
    """Broker 3 dies; the state without it supersedes the shrink, which is proposed again."""
    again_at_ms = DUE_MS + 40
    isr = [
        BEGAN,
        event(DUE_MS, "proposed", [1, 3], seq=4, late_ms=0),
        committed(again_at_ms, None, 3, [1, 2], seq=4),
        event(again_at_ms, "superseded", [1, 3], seq=4),
        event(again_at_ms, "proposed", [1], before=[1, 2], seq=4, version=1, late_ms=0),
        committed(again_at_ms + 5, again_at_ms, 2, [1], before=[1, 2], seq=4, version=2),
    ]
    assert len(agreed(of_rows([*SILENT, append(DUE_MS + 90, seq=4, base=1, end=2)], isr))) == 1


def stall(began_at_ms: int, stall_ms: int, drained_at_ms: int) -> dict[str, Any]:
    return {"at_ms": began_at_ms, "broker": 1, "stall_ms": stall_ms, "drained_at_ms": drained_at_ms}


WAIT_MS = InSyncSettings().replica_fetch_wait_max_ms


def shrunk(at_ms: int) -> list[dict[str, Any]]:
    proposed = event(at_ms, "proposed", [1, 3], seq=4, late_ms=0)
    return [BEGAN, proposed, committed(at_ms + 5, at_ms, 2, [1, 3], seq=4)]


def test_nothing_is_due_until_the_sockets_are_drained() -> None:
    """The stall is over at once, but a slow append holds up the drain."""
    stalled_ms = max(100, LAG_MS // 20)
    stalls = [stall(DUE_MS - 1, stalled_ms, DUE_MS + 9_000)]
    shrinks = shrunk(DUE_MS + 9_000 + WAIT_MS)
    later = append(DUE_MS + 12_000, seq=4, base=1, end=2)
    assert agreed(of_rows([*SILENT, later], shrinks, stalls))
    with pytest.raises(AssertionError):
        agreed(of_rows([*SILENT, later], shrinks, [stall(DUE_MS - 1, stalled_ms, DUE_MS + 9_001)]))


@pytest.mark.parametrize("is_met", [True, False])
def test_a_deadline_in_the_millisecond_in_which_a_stall_began(*, is_met: bool) -> None:
    """The timer ran before the loop stopped, or did not."""
    stalled_ms = max(100, LAG_MS // 20)
    ended_at_ms = DUE_MS + stalled_ms
    shrinks = shrunk(DUE_MS if is_met else ended_at_ms)
    if is_met:
        shrinks[2] |= {"at_ms": ended_at_ms}
    stalls = [stall(DUE_MS, stalled_ms, ended_at_ms)]
    assert agreed(of_rows([*SILENT, append(DUE_MS + 9_000, seq=4, base=1, end=2)], shrinks, stalls))


def test_a_drain_comes_before_the_first_shrink_of_its_millisecond() -> None:
    """The follower fetches in that millisecond, too late: it had left."""
    stalled_ms = max(100, LAG_MS // 20)
    ended_at_ms = DUE_MS + stalled_ms
    rows = [*SILENT, fetch(ended_at_ms, seq=4, follower=2, offset=1)]
    shrinks = shrunk(ended_at_ms)
    shrinks[2] |= {"seq": 5}
    assert agreed(of_rows(rows, shrinks, [stall(DUE_MS, stalled_ms, ended_at_ms)]))


def test_the_isr_at_the_start_of_an_epoch_is_recorded() -> None:
    """Replica 3 is being added: it fetches, and is no member that could leave."""
    rows = [
        *SILENT[:3],
        fetch(12, seq=3, follower=3) | {"leader_end_low": 1},
        fetch(13, seq=4, follower=2, offset=1),
        append(LAG_MS * 3, seq=5, base=1, end=2),
    ]
    assert agreed(of_rows(rows, [event(0, "began", [1, 2], before=[1, 2], seq=0)])) == []
    with pytest.raises(AssertionError, match="no leader proposed"):
        agreed(of_rows(rows, [BEGAN]))


def test_rows_without_the_first_isr_of_an_epoch_are_incomplete() -> None:
    (epoch,) = epochs(of_rows(SILENT, [BEGAN, event(DUE_MS, "proposed", [1, 3], seq=4)]))
    assert epoch.is_whole
    del epoch.isr_events[0]
    assert not epoch.is_whole
