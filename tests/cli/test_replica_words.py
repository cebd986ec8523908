"""A follower's standing in words: each reason an operator may meet, and which one comes first."""

from __future__ import annotations

import pytest

from insync.broker.admin.describe_replicas import describe_partition
from insync.broker.broker_loop import BrokerLoop
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.replica import Replica
from insync.cli.replica_words import duration, lag, size, why
from insync.client.replica_lag import FollowerRow, Problem, _exact_row
from insync.rules.follower import Fetch
from insync.rules.leadership import Leadership, Rule
from insync.rules.policy import CaughtUp, Policy
from insync.rules.values import BrokerId, Incarnation, LeaderEpoch, Offset
from insync.wire.describe_replicas import Obstacles

LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
INCARNATION = Incarnation(77)


def row(**values: object) -> FollowerRow:
    fields = {"topic": "t", "partition": 0, "leader": 1, "follower": 2, "in_sync": True, **values}
    return FollowerRow(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"messages": 0, "lag_ms": 0}, "caught up"),
        ({"messages": 5, "lag_ms": 300}, "300 ms behind"),
        ({"messages": 5, "lag_ms": 3_100, "falls_back": True}, "3.1 s behind and falling back"),
        (
            {"messages": 5, "lag_ms": 3_100, "catches_up_in_ms": 40_000},
            "catching up, 40.0 s left",
        ),
        (
            {"messages": 5, "lag_ms": 12_400, "is_silent": True, "silent_ms": 12_400},
            "stopped fetching for 12.4 s",
        ),
        (
            {"messages": 0, "is_silent": True, "silent_ms": 12_400},
            "caught up, but stopped fetching for 12.4 s",
        ),
        (
            {"messages": 5, "is_held": True, "oldest_read_ms": 2_500, "is_silent": True},
            "held in by a pending read, for 2.5 s now",
        ),
        ({"messages": 5, "is_changing": True}, "leaving: not committed yet"),
        ({"messages": 5, "is_registered": False}, "its broker is down"),
        ({"problem": Problem.NO_LEADER}, "it has no leader"),
        (
            {"in_sync": False, "messages": 9, "obstacles": Obstacles.STALE_INCARNATION},
            "not the registered incarnation: it has not fetched since its restart",
        ),
        (
            {"in_sync": False, "has_fetched": False, "obstacles": Obstacles.STALE_INCARNATION},
            "has not fetched under this leader",
        ),
        (
            {"in_sync": False, "has_fetched": False, "is_throttled": True},
            "throttled: has not fetched under this leader",
        ),
        (
            {"has_fetched": False, "silent_ms": 80},
            "has not fetched for 80 ms: not once under this leader",
        ),
        (
            {
                "in_sync": False,
                "messages": 9,
                "lag_ms": 9_000,
                "catches_up_in_ms": 150_000,
                "obstacles": Obstacles.LAGGING | Obstacles.BELOW_WATERMARK,
            },
            "catching up, 2 min 30 s left; below the watermark",
        ),
        (
            {
                "in_sync": False,
                "messages": 9,
                "obstacles": Obstacles.BELOW_WATERMARK | Obstacles.BELOW_EPOCH_START,
            },
            "behind; below the epoch's start",
        ),
        ({"in_sync": False, "messages": 0, "is_changing": True}, "joining: not committed yet"),
        (
            {"in_sync": False, "messages": 0, "obstacles": Obstacles.CHANGE_PENDING},
            "waits for another change of the ISR",
        ),
    ],
)
def test_every_replica_standing_has_a_text(values: dict[str, object], words: str) -> None:
    assert why(row(**values)) == words


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (61_000, "61.0 s"),
        (100_000, "1 min 40 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 00 min"),
        (90_000_000, "25 h 00 min"),
    ],
)
def test_durations(length_ms: int, text: str) -> None:
    assert duration(length_ms) == text


def test_estimated_values_are_marked() -> None:
    assert lag(row()) == "?"
    assert lag(row(lag_ms=0, lag_is_estimated=True)) == "0 ms"
    assert lag(row(lag_ms=1_500, lag_is_estimated=True)) == "~1.5 s"
    assert lag(row(lag_ms=1_500, lag_is_estimated=True, lag_is_at_least=True)) == ">1.5 s"
    assert [size(count) for count in (None, 0, 999, 1_500, 5 << 20, 3 << 30, 7 << 40)] == [
        "?",
        "0 B",
        "999 B",
        "1.5 kB",
        "5.2 MB",
        "3.2 GB",
        "7.7 TB",
    ]


# From the leader's own state to the words.


class EmptyLog:
    end = 0

    def bytes_from(self, offset: int) -> int:
        return 10 * max(0, self.end - offset)


def described(term: Leadership, *, now_ms: int) -> FollowerRow:
    log = EmptyLog()
    log.end = term.end
    replica = Replica(("t", 0), None, log, high_watermark=0, report=print, loop=None)  # type: ignore[arg-type]
    quotas = Quotas(LEADER, BrokerLoop(lambda: now_ms))
    seen = describe_partition(replica, term, quotas, now_ms=now_ms)
    return _exact_row(LEADER, seen, seen.followers[0])


def begun(policy: Policy, *, members: tuple[BrokerId, ...] = (LEADER, FOLLOWER)) -> Leadership:
    return Leadership.begin(
        rule=Rule(policy=policy, fetch_wait_max_ms=500),
        leader=LEADER,
        epoch=LeaderEpoch(3),
        replicas=(LEADER, FOLLOWER),
        members=frozenset(members),
        end=Offset(0),
        high_watermark=Offset(0),
        registered={LEADER: Incarnation(70), FOLLOWER: INCARNATION},
        now_ms=1_000,
    )


def fetch(
    offset: int, at_ms: int, leader_end: int, incarnation: Incarnation = INCARNATION
) -> Fetch:
    return Fetch(
        offset=Offset(offset),
        leader_end=Offset(leader_end),
        at_ms=at_ms,
        served_at_ms=at_ms,
        incarnation=incarnation,
    )


def test_a_pending_read_that_holds_a_replica_in_the_isr_is_reported() -> None:
    term = begun(CaughtUp(lag_time_max_ms=2_000, pending_reads=True))
    term = term.fetch(FOLLOWER, fetch(0, 1_100, 0))
    term = term.append(end=Offset(4), now_ms=1_200)
    term = term.read_began(FOLLOWER, read_id=1, connection=1, offset=Offset(0), parsed_at_ms=1_300)
    held = described(term, now_ms=9_800)
    assert why(held) == "held in by a pending read, for 8.5 s now"
    assert (held.pending_reads, held.leaves_in_ms, held.messages, held.bytes) == (1, None, 4, 40)
    free = described(term.read_failed(FOLLOWER, read_id=1), now_ms=2_000)
    assert why(free) == "900 ms behind"
    assert free.leaves_in_ms == 1_100 + 2_000 + 1 - 2_000


def test_a_former_incarnation_is_reported() -> None:
    term = begun(CaughtUp(lag_time_max_ms=2_000), members=(LEADER,))
    assert why(described(term, now_ms=1_050)) == "has not fetched under this leader"
    term = term.append(end=Offset(4), now_ms=1_080)
    term = term.fetch(FOLLOWER, fetch(4, 1_100, 4, Incarnation(5)))
    row = described(term, now_ms=1_150)
    assert row.obstacles == Obstacles.STALE_INCARNATION
    assert why(row).startswith("not the registered incarnation")
    term = term.fetch(FOLLOWER, fetch(4, 1_200, 4))
    assert described(term, now_ms=1_250).obstacles == Obstacles(0)
    gone = term.registration({LEADER: Incarnation(70)}, now_ms=1_300)
    assert why(described(gone, now_ms=1_350)) == "its broker is down"
    joining = described(term.propose_join(FOLLOWER), now_ms=1_250)
    assert why(joining) == "joining: not committed yet"
