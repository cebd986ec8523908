"""Why a follower is in sync or not, and its numbers, as text for operators."""

from __future__ import annotations

from insync.client.replica_lag import FollowerRow
from insync.moves.progress import size_text
from insync.wire.describe_replicas import Obstacles, OfflineSeen

SECOND_MS = 1_000
TENTHS_BELOW_MS = 100 * SECOND_MS


def why(row: FollowerRow) -> str:
    """Why it is in sync or not, and whether it catches up."""
    if row.offline is not None:
        state = offline_text(row.offline)
        return state if row.problem is None else f"{row.problem}; {state}"
    if row.problem is not None:
        return row.problem
    if row.is_changing:
        return "leaving: not committed yet" if row.in_sync else "joining: not committed yet"
    if not row.is_registered:
        return "its broker is down"
    return _in(row) if row.in_sync else _out(row)


def offline_text(seen: OfflineSeen) -> str:
    """What is wrong with a replica that cannot lead."""
    if not seen.is_damaged:
        return f"its log failed: {seen.reason}"
    lost = max(0, seen.high_watermark - seen.end)
    return f"its log is damaged: {seen.reason}; {lost:,} committed records are not in it"


def _in(row: FollowerRow) -> str:
    if row.is_held:
        assert row.oldest_read_ms is not None, "a pending read holds it"
        return f"held in by a pending read, for {duration(row.oldest_read_ms)} now"
    if not row.has_fetched:
        return f"has not fetched for {_silence(row)}: not once under this leader"
    if row.is_silent:
        return (
            f"{'caught up, but ' if row.is_caught_up else ''}stopped fetching for {_silence(row)}"
        )
    return "caught up" if row.is_caught_up else _movement(row)


def _out(row: FollowerRow) -> str:
    if Obstacles.STALE_INCARNATION in row.obstacles and row.has_fetched:
        return "not the registered incarnation: it has not fetched since its restart"
    if not row.has_fetched:
        return "has not fetched under this leader"
    if row.is_silent and not row.is_throttled:  # a throttled follower fetches as its quota allows
        return f"stopped fetching for {_silence(row)}"
    if row.messages:
        return f"{'throttled: ' if row.is_throttled else ''}{_movement(row)}"
    for bar, words in STANDING_BARS:
        if bar in row.obstacles:
            return words
    return "caught up"


STANDING_BARS = (
    (Obstacles.BELOW_EPOCH_START, "below the epoch's start"),
    (Obstacles.BELOW_WATERMARK, "below the watermark"),
    (Obstacles.LAGGING, "caught up only now: its next fetch counts"),
    (Obstacles.CHANGE_PENDING, "waits for another change of the ISR"),
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
