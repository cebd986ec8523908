"""Who is in sync: the rule each document proposes, behind one interface.

| name            | from                   | out of sync when (T: `lag_time_max_ms`)               |
|-----------------|------------------------|-------------------------------------------------------|
| `messages`      | before KIP-16, article | too many messages behind, or no fetch for T           |
| `lag-begin`     | KIP-16                 | every fetch short of the end for T, or no fetch for T |
| `caught-up`     | KAFKA-4485             | behind, and last caught up more than T ago            |
| `true-lag`      | KAFKA-4485, literally  | lacks a record older than T, or behind, no fetch for T|
| `pending-reads` | KIP-501                | as `caught-up`, but not while a read is pending       |

"For T" always means *more than* T: equality is in sync. `lag-begin` counts from the first fetch
that was short of the leader's end.

While nothing happens a follower only gets staler, so one question answers everything: the first
millisecond at which it is out (`leaves_at_ms`). It is in sync before that millisecond, and a
broker that sets its timer to it evicts on the deadline instead of at some later tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from insync.rules.append_times import AppendTimes
from insync.rules.follower import Follower
from insync.rules.values import NEVER_MS, UNKNOWN_OFFSET, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLog:
    """What a policy may know of the leader's own log."""

    end: Offset
    append_times: AppendTimes


class Limit(Enum):
    """What a follower that is out of sync has exceeded."""

    LAG_TIME = "lag-time"  # it was behind for T, as its policy counts that
    LAG_MESSAGES = "lag-messages"
    FETCH_SILENCE = "fetch-silence"  # no fetch for T


class Policy(Protocol):
    """One criterion for joining and for staying: a follower at the limit does not flap."""

    @property
    def name(self) -> str: ...
    @property
    def lag_time_max_ms(self) -> int: ...
    @property
    def pending_reads(self) -> bool:
        """Whether KIP-501's pending reads block eviction under this policy."""

    @property
    def reads_append_times(self) -> bool:
        """Whether the leader must keep `AppendTimes` for it."""

    @property
    def is_by_time_lag(self) -> bool:
        """Whether it judges by time lag, as KAFKA-4485's pseudo-ISR does."""

    def leaves_at_ms(
        self, follower: Follower, log: LeaderLog, *, session_fetched_at_ms: int
    ) -> int | None:
        """The first millisecond at which it is out if nothing more happens; None for never.

        `session_fetched_at_ms` is the last request of the follower's fetch session, which counts
        as a fetch of this partition while the follower is caught up.
        """

    def exceeded(self, follower: Follower, log: LeaderLog) -> Limit:
        """The limit that a follower which is out has exceeded.

        Too many messages come before any time; of two times, the one that passed first.
        """


def in_sync(
    policy: Policy,
    follower: Follower,
    log: LeaderLog,
    *,
    now_ms: int,
    session_fetched_at_ms: int = NEVER_MS,
) -> bool:
    leaves_at_ms = policy.leaves_at_ms(follower, log, session_fetched_at_ms=session_fetched_at_ms)
    return leaves_at_ms is None or now_ms < leaves_at_ms


def holds_watermark_until_ms(policy: Policy, follower: Follower, log: LeaderLog) -> int | None:
    """The first millisecond at which a replica outside the ISR lets the watermark go; None: never.

    KAFKA-4485 defines the pseudo-ISR by time lag. So under a policy that judges otherwise, a
    replica holds the watermark only while it was also caught up within T: a returning replica that
    still has far to go would else stop every acks=all producer, which those rules never did.
    """
    leaves_at_ms = policy.leaves_at_ms(follower, log, session_fetched_at_ms=NEVER_MS)
    if policy.is_by_time_lag or follower.end == log.end:
        return leaves_at_ms
    behind_at_ms = follower.caught_up_at_ms + policy.lag_time_max_ms + 1
    return behind_at_ms if leaves_at_ms is None else min(leaves_at_ms, behind_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Before KIP-16. The article's prose says "at" the limit, the code it quotes says past it."""

    lag_time_max_ms: int
    lag_max_messages: int
    name: str = "messages"
    pending_reads: bool = False
    reads_append_times: bool = False
    is_by_time_lag: bool = False

    def leaves_at_ms(
        self, follower: Follower, log: LeaderLog, *, session_fetched_at_ms: int
    ) -> int | None:
        if self._lacks_too_many(follower, log):
            return NEVER_MS
        return _last_fetch_ms(follower, log, session_fetched_at_ms) + self.lag_time_max_ms + 1

    def exceeded(self, follower: Follower, log: LeaderLog) -> Limit:
        is_far = self._lacks_too_many(follower, log)
        return Limit.LAG_MESSAGES if is_far else Limit.FETCH_SILENCE

    def _lacks_too_many(self, follower: Follower, log: LeaderLog) -> bool:
        is_known = follower.end != UNKNOWN_OFFSET
        return is_known and log.end - follower.end > self.lag_max_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBegin:
    """KIP-16: the clock starts at the first fetch below the leader's end, and stops at the end."""

    lag_time_max_ms: int
    name: str = "lag-begin"
    pending_reads: bool = False
    reads_append_times: bool = False
    is_by_time_lag: bool = False

    def leaves_at_ms(
        self, follower: Follower, log: LeaderLog, *, session_fetched_at_ms: int
    ) -> int | None:
        since_ms = _last_fetch_ms(follower, log, session_fetched_at_ms)
        if follower.lag_began_at_ms is not None:
            since_ms = min(since_ms, follower.lag_began_at_ms)
        return since_ms + self.lag_time_max_ms + 1

    def exceeded(self, follower: Follower, log: LeaderLog) -> Limit:
        # The lag begins with a fetch: if with the last one, nothing was heard since then either.
        began_at_ms = follower.lag_began_at_ms
        is_silent = began_at_ms is None or began_at_ms >= follower.fetched_at_ms
        return Limit.FETCH_SILENCE if is_silent else Limit.LAG_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kafka4485:
    """What its two policies share. With `pending_reads`, KIP-501 holds as well.

    A follower at the leader's end never leaves, so the fetches of its session do not count.
    """

    lag_time_max_ms: int
    pending_reads: bool = False
    is_by_time_lag: bool = True

    names: ClassVar[tuple[str, str]]  # without and with pending reads

    @property
    def name(self) -> str:
        return self.names[self.pending_reads]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp(_Kafka4485):
    """KAFKA-4485; with `pending_reads`, KIP-501."""

    names = ("caught-up", "pending-reads")
    reads_append_times: bool = False

    def leaves_at_ms(
        self, follower: Follower, log: LeaderLog, *, session_fetched_at_ms: int
    ) -> int | None:
        if follower.end == log.end:
            return None
        since_ms = (
            follower.caught_up_served_at_ms if self.pending_reads else follower.caught_up_at_ms
        )
        return since_ms + self.lag_time_max_ms + 1

    def exceeded(self, follower: Follower, log: LeaderLog) -> Limit:
        return Limit.LAG_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueLag(_Kafka4485):
    """KAFKA-4485's definition of lag taken at its word, with the times KIP-16 wanted."""

    names = ("true-lag", "true-lag+pending-reads")
    reads_append_times: bool = True

    def leaves_at_ms(
        self, follower: Follower, log: LeaderLog, *, session_fetched_at_ms: int
    ) -> int | None:
        if follower.end >= log.end:
            return None
        return min(self._since_ms(follower, log)) + self.lag_time_max_ms + 1

    def exceeded(self, follower: Follower, log: LeaderLog) -> Limit:
        missing_since_ms, fetched_at_ms = self._since_ms(follower, log)
        return Limit.FETCH_SILENCE if fetched_at_ms <= missing_since_ms else Limit.LAG_TIME

    def _since_ms(self, follower: Follower, log: LeaderLog) -> tuple[int, int]:
        """Since when it lacks a record, and when it last fetched."""
        missing_since_ms = log.append_times.first_past_ms(follower.end)
        assert missing_since_ms is not None, "behind, yet nothing was appended"
        if self.pending_reads:
            later_ms = max(missing_since_ms, follower.caught_up_served_at_ms)
            return later_ms, follower.served_at_ms
        return missing_since_ms, follower.fetched_at_ms


def _last_fetch_ms(follower: Follower, log: LeaderLog, session_fetched_at_ms: int) -> int:
    if follower.end == log.end:
        return max(follower.fetched_at_ms, session_fetched_at_ms)
    return follower.fetched_at_ms


def half_period_check_at_ms(
    leaves_at_ms: int, *, lag_time_max_ms: int, first_check_at_ms: int
) -> int:
    """When Apache Kafka would notice: its task looks every T/2, so up to 1.5 T pass (KIP-501)."""
    period_ms = max(1, lag_time_max_ms // 2)
    periods = -((first_check_at_ms - leaves_at_ms) // period_ms)
    return first_check_at_ms + max(0, periods) * period_ms
