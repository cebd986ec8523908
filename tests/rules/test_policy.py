"""Each policy against an oracle that restates the design's table over raw history."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.append_times import AppendTimes
from insync.rules.follower import Fetch, Follower
from insync.rules.policy import (
    CaughtUp,
    LagBegin,
    LeaderLog,
    Limit,
    Messages,
    Policy,
    TrueLag,
    half_period_check_at_ms,
    in_sync,
)
from insync.rules.values import NEVER_MS, Offset

MESSAGES_MAX = 6


@dataclass
class History:
    """All that happened to one follower, kept whole."""

    starts_as_member: bool
    lag_time_max_ms: int
    fetches: list[Fetch] = field(default_factory=list)
    appends: list[tuple[int, int]] = field(default_factory=list)  # (time, end after it)

    @property
    def end(self) -> int:
        return self.appends[-1][1] if self.appends else 0

    def follower(self) -> Follower:
        follower = (
            Follower.member(epoch_started_at_ms=0) if self.starts_as_member else Follower.outsider()
        )
        for fetch in self.fetches:
            follower = follower.on_fetch(fetch)
        return follower

    def log(self) -> LeaderLog:
        times = AppendTimes(epoch_start=Offset(0), epoch_started_at_ms=0)
        for at_ms, end in self.appends:
            times = times.append(end=Offset(end), at_ms=at_ms, lag_time_max_ms=self.lag_time_max_ms)
        return LeaderLog(end=Offset(self.end), append_times=times)

    # The table, word by word. A follower that has not fetched and did not start as a member is
    # out; one that did counts from the epoch's start.

    @property
    def last_fetch_ms(self) -> int:
        return self.fetches[-1].at_ms if self.fetches else 0

    @property
    def is_unheard_outsider(self) -> bool:
        return not self.starts_as_member and not self.fetches

    def messages_out(self, t: int) -> bool:
        if self.is_unheard_outsider:
            return True
        behind = self.fetches and self.end - self.fetches[-1].offset > MESSAGES_MAX
        return bool(behind) or t - self.last_fetch_ms > self.lag_time_max_ms

    def lag_begin_out(self, t: int) -> bool:
        if self.is_unheard_outsider:
            return True
        begin = None
        for fetch in self.fetches:
            if fetch.offset >= fetch.leader_end:
                begin = None
            elif begin is None:
                begin = fetch.at_ms
        lags = begin is not None and t - begin > self.lag_time_max_ms
        return lags or t - self.last_fetch_ms > self.lag_time_max_ms

    def caught_up_out(self, t: int, *, dated_at_completion: bool = False) -> bool:
        if self.fetches and self.fetches[-1].offset == self.end:
            return False
        proofs = [0] if self.starts_as_member else []
        for index, fetch in enumerate(self.fetches):
            earlier = self.fetches[:index]
            at_end = fetch.offset >= fetch.leader_end
            at_previous = bool(earlier) and fetch.offset >= max(f.leader_end for f in earlier)
            if dated_at_completion and (at_end or at_previous):
                proofs.append(fetch.served_at_ms)
            elif at_end:
                proofs.append(fetch.at_ms)
            elif at_previous:
                proofs.append(earlier[-1].at_ms)
        return not proofs or t - max(proofs) > self.lag_time_max_ms

    def pending_reads_out(self, t: int) -> bool:
        return self.caught_up_out(t, dated_at_completion=True)

    def true_lag_ms(self, t: int) -> int:
        """KAFKA-4485's definition, from every append there was."""
        end = self.fetches[-1].offset if self.fetches else -1
        if end < 0:
            return t
        missing = [at_ms for at_ms, after in self.appends if after > end]
        return t - missing[0] if missing else 0


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, int]:
    """A history and a moment after all of it. Small numbers, so that boundaries are hit."""
    history = History(
        starts_as_member=draw(st.booleans()), lag_time_max_ms=draw(st.integers(1, 30))
    )
    now_ms, offset = 0, 0
    for _ in range(draw(st.integers(0, 14))):
        now_ms += draw(st.integers(0, 12))
        if draw(st.booleans()):
            history.appends.append((now_ms, history.end + draw(st.integers(1, 4))))
        else:
            offset = draw(st.integers(offset, history.end))
            read_ms = draw(st.sampled_from((0, 0, 0, 3, 20)))
            history.fetches.append(
                Fetch(
                    offset=Offset(offset),
                    leader_end=Offset(history.end),
                    at_ms=now_ms,
                    served_at_ms=now_ms + read_ms,
                )
            )
            now_ms += read_ms
    return history, now_ms


def first_out_ms(history: History, twin: str, now_ms: int) -> int | None:
    """Look at every millisecond from now on."""
    out = getattr(history, twin)
    for t in range(now_ms, now_ms + 3 * history.lag_time_max_ms + 5):
        if out(t):
            return t
    return None


def check_deadline(policy: Policy, twin: str, history: History, now_ms: int) -> None:
    follower, log = history.follower(), history.log()
    leaves_at_ms = policy.leaves_at_ms(follower, log, session_fetched_at_ms=NEVER_MS)
    expected = first_out_ms(history, twin, now_ms)
    if expected == now_ms:
        assert leaves_at_ms is not None
        assert leaves_at_ms <= now_ms
    else:
        assert leaves_at_ms == expected
    assert in_sync(policy, follower, log, now_ms=now_ms) == (expected != now_ms)


@pytest.mark.property
@given(histories())
def test_messages_evicts_exactly_when_the_table_says(drawn: tuple[History, int]) -> None:
    history, now_ms = drawn
    policy = Messages(lag_time_max_ms=history.lag_time_max_ms, lag_max_messages=MESSAGES_MAX)
    check_deadline(policy, "messages_out", history, now_ms)


@pytest.mark.property
@given(histories())
def test_lag_begin_evicts_exactly_when_the_table_says(drawn: tuple[History, int]) -> None:
    history, now_ms = drawn
    policy = LagBegin(lag_time_max_ms=history.lag_time_max_ms)
    check_deadline(policy, "lag_begin_out", history, now_ms)


@pytest.mark.property
@given(histories())
def test_caught_up_evicts_exactly_when_the_table_says(drawn: tuple[History, int]) -> None:
    history, now_ms = drawn
    policy = CaughtUp(lag_time_max_ms=history.lag_time_max_ms)
    check_deadline(policy, "caught_up_out", history, now_ms)


@pytest.mark.property
@given(histories())
def test_pending_reads_evicts_exactly_when_the_table_says(drawn: tuple[History, int]) -> None:
    history, now_ms = drawn
    policy = CaughtUp(lag_time_max_ms=history.lag_time_max_ms, pending_reads=True)
    check_deadline(policy, "pending_reads_out", history, now_ms)


@st.composite
def fast_logs(draw: st.DrawFn) -> tuple[History, int]:
    """Appends close together under a limit large enough for entries to span several of them."""
    history = History(starts_as_member=True, lag_time_max_ms=draw(st.integers(200, 900)))
    now_ms, offset = 0, 0
    for _ in range(draw(st.integers(1, 40))):
        now_ms += draw(st.integers(0, 60))
        history.appends.append((now_ms, history.end + draw(st.integers(1, 3))))
        if draw(st.integers(0, 3)) == 0:
            offset = draw(st.integers(offset, history.end))
            history.fetches.append(
                Fetch(
                    offset=Offset(offset),
                    leader_end=Offset(history.end),
                    at_ms=now_ms,
                    served_at_ms=now_ms,
                )
            )
    return history, now_ms


@pytest.mark.property
@given(fast_logs())
def test_true_lag_never_evicts_within_the_limit_and_never_keeps_past_its_resolution(
    drawn: tuple[History, int],
) -> None:
    """KAFKA-4485's definition against a record of every append."""
    history, now_ms = drawn
    limit_ms = history.lag_time_max_ms
    resolution_ms = max(1, limit_ms // 100)
    policy = TrueLag(lag_time_max_ms=limit_ms)
    follower, log = history.follower(), history.log()
    for t in range(now_ms, now_ms + 2 * limit_ms, 7):
        lag_ms = history.true_lag_ms(t)
        is_silent = t - history.last_fetch_ms > limit_ms
        if lag_ms <= limit_ms and not is_silent:
            assert in_sync(policy, follower, log, now_ms=t)
        if lag_ms > limit_ms + resolution_ms or (is_silent and lag_ms > 0):
            assert not in_sync(policy, follower, log, now_ms=t)


@pytest.mark.property
@given(st.lists(st.integers(0, 40), max_size=400), st.integers(1, 900))
def test_the_record_of_append_times_stays_small(gaps_ms: list[int], limit_ms: int) -> None:
    times = AppendTimes(epoch_start=Offset(0), epoch_started_at_ms=0)
    now_ms = 0
    for index, gap_ms in enumerate(gaps_ms):
        now_ms += gap_ms
        times = times.append(end=Offset(index + 1), at_ms=now_ms, lag_time_max_ms=limit_ms)
    # One entry per resolution step within the limit, one older, one being filled. A resolution
    # rounded down fits more than a hundred times, never two hundred.
    assert len(times.entries) <= limit_ms // max(1, limit_ms // 100) + 2 <= 202


def test_appends_close_together_take_the_time_of_the_last_of_them() -> None:
    """The design: an offset's time is its entry's last append, in the follower's favour."""
    times = AppendTimes(epoch_start=Offset(100), epoch_started_at_ms=5)
    for end, at_ms in ((110, 20), (120, 29), (130, 30)):  # entries last 10 ms at a limit of 1 s
        times = times.append(end=Offset(end), at_ms=at_ms, lag_time_max_ms=1_000)
    assert [entry.end for entry in times.entries] == [120, 130]
    assert times.first_past_ms(Offset(100)) == 29
    assert times.first_past_ms(Offset(120)) == 30
    assert times.first_past_ms(Offset(130)) is None
    assert times.first_past_ms(Offset(99)) == 5  # from before the epoch: since it began


def test_true_lag_with_pending_reads_counts_from_the_completion() -> None:
    """The flag combines with true-lag: a slow read of the leader's is not the follower's lag."""
    history = History(starts_as_member=True, lag_time_max_ms=10_000)
    history.appends = [(0, 1_002), (2_000, 1_100)]
    slow = Fetch(offset=Offset(1_002), leader_end=Offset(1_100), at_ms=2_000, served_at_ms=27_000)
    history.fetches = [
        Fetch(offset=Offset(950), leader_end=Offset(1_002), at_ms=0, served_at_ms=0),
        slow,
    ]
    follower, log = history.follower(), history.log()
    off = TrueLag(lag_time_max_ms=10_000)
    on = TrueLag(lag_time_max_ms=10_000, pending_reads=True)
    assert (off.name, on.name) == ("true-lag", "true-lag+pending-reads")
    assert off.leaves_at_ms(follower, log, session_fetched_at_ms=NEVER_MS) == 12_001
    assert on.leaves_at_ms(follower, log, session_fetched_at_ms=NEVER_MS) == 37_001


def test_a_level_follower_takes_its_sessions_last_fetch() -> None:
    history = History(starts_as_member=True, lag_time_max_ms=100)
    follower = history.follower().on_fetch(
        Fetch(offset=Offset(0), leader_end=Offset(0), at_ms=5, served_at_ms=5)
    )
    for policy in (
        Messages(lag_time_max_ms=100, lag_max_messages=1),
        LagBegin(lag_time_max_ms=100),
    ):
        leaves_at_ms = policy.leaves_at_ms(follower, history.log(), session_fetched_at_ms=60)
        assert leaves_at_ms == 161


# Which limit was exceeded.


@pytest.mark.property
@given(histories())
def test_the_limit_exceeded_is_the_one_that_the_table_names(drawn: tuple[History, int]) -> None:
    """Of each policy's two limits, looked at alone, the one that is passed first."""
    history, _ = drawn
    if history.is_unheard_outsider:
        return  # no member, and so never due to leave
    follower, log, limit_ms = history.follower(), history.log(), history.lag_time_max_ms
    is_far = bool(history.fetches) and history.end - history.fetches[-1].offset > MESSAGES_MAX
    messages = Messages(lag_time_max_ms=limit_ms, lag_max_messages=MESSAGES_MAX)
    assert (messages.exceeded(follower, log) is Limit.LAG_MESSAGES) == is_far
    assert (messages.exceeded(follower, log) is Limit.FETCH_SILENCE) == (not is_far)

    out_ms = first_out_ms(history, "lag_begin_out", history.last_fetch_ms)
    assert out_ms is not None, "in the end it is silent"
    is_silent = out_ms > history.last_fetch_ms + limit_ms
    expected = Limit.FETCH_SILENCE if is_silent else Limit.LAG_TIME
    assert LagBegin(lag_time_max_ms=limit_ms).exceeded(follower, log) is expected
    for pending_reads in (False, True):
        caught_up = CaughtUp(lag_time_max_ms=limit_ms, pending_reads=pending_reads)
        assert caught_up.exceeded(follower, log) is Limit.LAG_TIME


@pytest.mark.parametrize(
    ("fetched_at_ms", "appended_at_ms", "limit"),
    [
        (500, 499, Limit.LAG_TIME),  # it fetched, and not what was there
        (500, 500, Limit.FETCH_SILENCE),
        (500, 501, Limit.FETCH_SILENCE),  # there was nothing more when it fetched last
    ],
)
@pytest.mark.parametrize("pending_reads", [False, True])
def test_true_lag_is_exceeded_by_a_record_or_by_silence(
    fetched_at_ms: int, appended_at_ms: int, limit: Limit, *, pending_reads: bool
) -> None:
    history = History(starts_as_member=True, lag_time_max_ms=100)
    history.appends = [(0, 10), (appended_at_ms, 12)]
    end = 12 if appended_at_ms <= fetched_at_ms else 10
    history.fetches = [
        Fetch(offset=Offset(10), leader_end=Offset(10), at_ms=100, served_at_ms=100),
        Fetch(
            offset=Offset(10),
            leader_end=Offset(end),
            at_ms=fetched_at_ms,
            served_at_ms=fetched_at_ms,
        ),
    ]
    policy = TrueLag(lag_time_max_ms=100, pending_reads=pending_reads)
    follower, log = history.follower(), history.log()
    if pending_reads and limit is Limit.LAG_TIME:
        limit = Limit.FETCH_SILENCE  # caught up, by KIP-501's dating, when its read was done
    assert policy.exceeded(follower, log) is limit


class TestKafkaIsrExpiration:
    """Apache Kafka's IsrExpirationTest: limit 100 ms, leader's end 20."""

    policy = CaughtUp(lag_time_max_ms=100)

    def is_in_sync(self, fetches: list[tuple[int, int]], *, now_ms: int) -> bool:
        """Fetches are (offset, time), all against the leader's end of 20."""
        history = History(starts_as_member=True, lag_time_max_ms=100)
        history.appends = [(0, 20)]
        history.fetches = [
            Fetch(offset=Offset(offset), leader_end=Offset(20), at_ms=at_ms, served_at_ms=at_ms)
            for offset, at_ms in fetches
        ]
        return in_sync(self.policy, history.follower(), history.log(), now_ms=now_ms)

    def test_one_short_of_the_end_then_silence(self) -> None:
        assert not self.is_in_sync([(19, 0)], now_ms=150)

    def test_never_fetched(self) -> None:
        assert not self.is_in_sync([], now_ms=150)

    def test_always_short_of_the_end_then_at_it(self) -> None:
        assert self.is_in_sync([(18, 0), (19, 75)], now_ms=100)
        assert not self.is_in_sync([(18, 0), (19, 75)], now_ms=150)
        assert self.is_in_sync([(18, 0), (19, 75), (20, 150)], now_ms=151)

    def test_at_the_end_then_silence(self) -> None:
        assert self.is_in_sync([(20, 0)], now_ms=150)


@pytest.mark.parametrize(
    ("leaves_at_ms", "noticed_at_ms"),
    [(10_000, 10_000), (10_001, 15_000), (10_002, 15_000), (15_000, 15_000), (-5, 0), (0, 0)],
)
def test_kafkas_check_falls_on_multiples_of_half_the_lag_time(
    leaves_at_ms: int, noticed_at_ms: int
) -> None:
    """KIP-501: its interval is 0.5 * replica.lag.time.max.ms, so up to 1.5 of it may pass."""
    check_at_ms = half_period_check_at_ms(leaves_at_ms, lag_time_max_ms=10_000, first_check_at_ms=0)
    assert check_at_ms == noticed_at_ms
