"""Why a follower is in sync or not, and its numbers, as text for operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from insync.client.replica_lag import FollowerRow, Problem
from insync.moves.progress import size_text
from insync.wire.describe_replicas import Obstacles, OfflineSeen

SECOND_MS = 1_000
TENTHS_BELOW_MS = 100 * SECOND_MS


class Reason(StrEnum):
    """Why a replica is in sync or not, without numbers: replicas with the same one are folded.

    The worst first.
    """

    NO_LEADER = "no leader"
    LEADER_SILENT = "leader does not respond"
    LOG_DAMAGED = "log damaged"
    LOG_FAILED = "log failed"
    BROKER_DOWN = "broker down"
    NOT_REPORTED = "not reported"
    FORMER_INCARNATION = "former incarnation"
    STOPPED_FETCHING = "stopped fetching"
    NEVER_FETCHED = "never fetched"
    PENDING_READ = "pending read"
    FALLING_BACK = "falling back"
    BEHIND = "behind"
    THROTTLED = "throttled"
    CATCHING_UP = "catching up"
    LEADER_CHANGING = "leader changing"
    LEAVING = "leaving"
    BELOW_EPOCH_START = "below epoch start"
    BELOW_WATERMARK = "below watermark"
    CAUGHT_UP_OUTSIDE = "caught up but out of sync"
    JOINS_NEXT = "joins next"
    JOINING = "joining"
    HEALTHY = "healthy"


PROBLEM_REASONS: Final = {
    Problem.NO_LEADER: Reason.NO_LEADER,
    Problem.LEADER_SILENT: Reason.LEADER_SILENT,
    Problem.LEADER_CHANGING: Reason.LEADER_CHANGING,
    Problem.NOT_REPORTED: Reason.NOT_REPORTED,
}


def reason(row: FollowerRow) -> Reason:
    if row.offline is not None:
        return Reason.LOG_DAMAGED if row.offline.is_damaged else Reason.LOG_FAILED
    if row.problem is not None:
        return PROBLEM_REASONS[row.problem]
    if row.is_changing:
        return Reason.LEAVING if row.in_sync else Reason.JOINING
    if not row.is_registered:
        return Reason.BROKER_DOWN
    return _reason_in(row) if row.in_sync else _reason_out(row)


def _reason_in(row: FollowerRow) -> Reason:
    if row.is_held:
        return Reason.PENDING_READ
    if not row.has_fetched and row.silent_ms is None:
        return Reason.NEVER_FETCHED
    if row.is_silent:  # else it fetches, and its first fetch from a new leader is on its way
        return Reason.STOPPED_FETCHING if row.has_fetched else Reason.NEVER_FETCHED
    # More than half of the time that it may be behind has passed.
    is_at_risk = row.leaves_in_ms is not None and (row.lag_ms or 0) > row.leaves_in_ms
    if row.is_caught_up or not is_at_risk:
        return Reason.HEALTHY
    return _movement_reason(row)


def _reason_out(row: FollowerRow) -> Reason:
    if Obstacles.STALE_INCARNATION in row.obstacles and row.has_fetched:
        return Reason.FORMER_INCARNATION
    if not row.has_fetched:  # a throttled follower fetches as its quota allows
        return Reason.THROTTLED if row.is_throttled else Reason.NEVER_FETCHED
    if row.is_silent and not row.is_throttled:
        return Reason.STOPPED_FETCHING
    if row.messages:
        return Reason.THROTTLED if row.is_throttled else _movement_reason(row)
    for bar, standing_reason, _ in STANDING_BARS:
        if bar in row.obstacles:
            return standing_reason
    return Reason.CAUGHT_UP_OUTSIDE


def _movement_reason(row: FollowerRow) -> Reason:
    if row.catches_up_in_ms is not None:
        return Reason.CATCHING_UP
    return Reason.FALLING_BACK if row.falls_back else Reason.BEHIND


def why(row: FollowerRow) -> str:
    """Why it is in sync or not, and whether it catches up."""
    state = None if row.offline is None else offline_text(row.offline)
    problem = None if row.problem is None else problem_text(row)
    if state or problem:
        return "; ".join(filter(None, (problem, state)))
    text = WORDS.get(reason(row))
    if text is not None:
        return text(row)
    start = "throttled: " if row.is_throttled and not row.in_sync else ""
    if not row.has_fetched:
        return f"{start}{_never_fetched_text(row)}"
    if row.messages or (row.in_sync and not row.is_caught_up):
        return f"{start}{_movement(row)}"
    return next((text for bar, _, text in STANDING_BARS if bar in row.obstacles), "caught up")


def _pending_read_text(row: FollowerRow) -> str:
    assert row.oldest_read_ms is not None, "a pending read holds it"
    return f"held in by a pending read, for {duration(row.oldest_read_ms)} now"


def _never_fetched_text(row: FollowerRow) -> str:
    if not row.in_sync:
        return "has not fetched under this leader"
    return f"has not fetched for {_silence(row)}: not once under this leader"


def _stopped_text(row: FollowerRow) -> str:
    is_current = row.in_sync and row.is_caught_up
    return f"{'caught up, but ' if is_current else ''}stopped fetching for {_silence(row)}"


WORDS: Final[Mapping[Reason, Callable[[FollowerRow], str]]] = {
    Reason.LEAVING: lambda _: "leaving: not committed yet",
    Reason.JOINING: lambda _: "joining: not committed yet",
    Reason.BROKER_DOWN: lambda _: "its broker is down",
    Reason.PENDING_READ: _pending_read_text,
    Reason.NEVER_FETCHED: _never_fetched_text,
    Reason.STOPPED_FETCHING: _stopped_text,
    Reason.FORMER_INCARNATION: lambda _: (
        "not the registered incarnation: it has not fetched since its restart"
    ),
}


def problem_text(row: FollowerRow) -> str:
    """Why its lag is unknown."""
    if row.problem is Problem.LEADER_SILENT:
        return f"broker {row.leader} leads it and does not respond"
    assert row.problem is not None
    return str(row.problem.value)


def offline_text(seen: OfflineSeen) -> str:
    """What is wrong with a replica that cannot lead."""
    if not seen.is_damaged:
        return f"its log failed: {seen.reason}"
    lost = max(0, seen.high_watermark - seen.end)
    return f"its log is damaged: {seen.reason}; {lost:,} committed records are not in it"


STANDING_BARS: Final = (
    (Obstacles.BELOW_EPOCH_START, Reason.BELOW_EPOCH_START, "below the epoch's start"),
    (Obstacles.BELOW_WATERMARK, Reason.BELOW_WATERMARK, "below the watermark"),
    (Obstacles.LAGGING, Reason.JOINS_NEXT, "caught up only now: its next fetch counts"),
    (Obstacles.CHANGE_PENDING, Reason.JOINS_NEXT, "waits for another change of the ISR"),
)


def _movement(row: FollowerRow) -> str:
    if row.catches_up_in_ms is not None:
        text = f"catching up, {duration(row.catches_up_in_ms)} left"
    else:
        behind = "behind" if row.lag_ms is None else f"{lag(row)} behind"
        text = f"{behind} and falling back" if row.falls_back else behind
    if Obstacles.BELOW_EPOCH_START in row.obstacles:
        return f"{text}; below the epoch's start"
    if Obstacles.BELOW_WATERMARK in row.obstacles:
        return f"{text}; below the watermark"
    return text


def _silence(row: FollowerRow) -> str:
    return "ever" if row.silent_ms is None else duration(row.silent_ms)


def lag(row: FollowerRow) -> str:
    """`~` marks an estimate, `>` a lower bound."""
    if row.lag_ms is None:
        return "?"
    sign = ">" if row.lag_is_at_least else "~" if row.lag_is_estimated and row.lag_ms else ""
    return f"{sign}{duration(row.lag_ms)}"


def duration(length_ms: int) -> str:
    if length_ms < SECOND_MS:
        return f"{length_ms} ms"
    if length_ms < TENTHS_BELOW_MS:
        return f"{length_ms / SECOND_MS:.1f} s"
    minutes, seconds = divmod(length_ms // SECOND_MS, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def size(count: int | None) -> str:
    return "?" if count is None else size_text(count)


def count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
