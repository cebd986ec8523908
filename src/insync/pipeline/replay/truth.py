"""What was true while a policy decided: time out of sync, true lag, false and missed evictions.

The twin of `_Partition` and `_Term` in `insync.telemetry.replay.what_if`.
"""

from __future__ import annotations

from insync.pipeline.replay.compiling import inner
from insync.pipeline.replay.state import ALWAYS, NONE, Replay


@inner
def advance_time(replay: Replay, to: int) -> None:
    """In steps that end where min.insync.replicas changes."""
    partition, minimums = replay.partition, replay.minimums
    if to == partition.now or partition.isr_size == len(replay.followers):
        partition.now = to
        return
    while True:
        following = partition.minimum + 1
        while following < partition.past_minimum and minimums[following].since <= partition.now:
            following += 1
        partition.minimum = following - 1
        until = to
        if following < partition.past_minimum:
            until = min(to, minimums[following].since)
        pass_time(replay, until, minimums[partition.minimum].min_isr)
        if until == to:
            return


@inner
def pass_time(replay: Replay, to: int, min_isr: int) -> None:
    partition, verdicts = replay.partition, replay.verdicts
    passed = to - partition.now
    partition.now = to
    is_under = partition.isr_size < min(min_isr, partition.known)
    for number in range(len(replay.followers)):
        follower = replay.followers[number]
        if follower.out_since != NONE:
            verdicts.out_ms += passed
            if is_under and follower.is_evicted:
                follower.under_min_ms += passed
    if is_under:
        verdicts.under_min_ms += passed


@inner
def passes_limit_at(replay: Replay, number: int) -> int:
    """When the follower's true lag exceeds the limit, if it does not fetch again."""
    partition, follower = replay.partition, replay.followers[number]
    limit_ms = replay.scenario.limit_ms
    if follower.end < partition.start:
        return partition.started_unstalled_at + partition.stalled_ms + limit_ms + 1
    if follower.missing >= partition.appends:
        return ALWAYS
    return replay.unstalled_at[follower.missing] + partition.stalled_ms + limit_ms + 1


@inner
def confirm_eviction(replay: Replay, number: int) -> None:
    """The true lag of an evicted follower exceeds the limit: its eviction is not false."""
    partition, follower = replay.partition, replay.followers[number]
    if follower.out_since != NONE and follower.is_evicted and not follower.has_passed:
        follower.has_passed = 1
        if partition.delays < len(replay.delays):
            replay.delays[partition.delays] = follower.detection_ms
        partition.delays += 1  # past the end: the caller makes room and replays again
        replay.verdicts.delays += 1


@inner
def judge_lag(replay: Replay, number: int) -> None:
    """Compare the follower's true lag with the limit, up to now."""
    follower, verdicts = replay.followers[number], replay.verdicts
    begin, until = follower.judged_until, replay.partition.now
    if until <= begin:
        return
    follower.judged_until = until
    over = max(begin, passes_limit_at(replay, number))
    if over >= until:
        follower.over_since = NONE
        follower.is_missed = 0
        return
    if over > begin or follower.over_since == NONE:
        follower.over_since = over
        follower.is_missed = 0
    if not follower.in_isr:
        follower.is_missed = 0
        confirm_eviction(replay, number)
        return
    if not follower.is_missed:
        follower.is_missed = 1
        verdicts.missed += 1
    verdicts.missed_ms += until - over


@inner
def is_silent(replay: Replay, number: int) -> bool:
    silent_ms = replay.partition.now - replay.followers[number].last_fetch_at
    return silent_ms > replay.scenario.limit_ms


@inner
def open_episode(replay: Replay, number: int) -> None:
    """The follower is evicted now."""
    follower, now = replay.followers[number], replay.partition.now
    follower.out_since = now
    follower.is_evicted = 1
    follower.has_passed = 0
    follower.under_min_ms = 0
    follower.back_since = NONE
    follower.detection_ms = 0 if follower.over_since == NONE else now - follower.over_since
    follower.keeps_fetching = not is_silent(replay, number)
    if passes_limit_at(replay, number) <= now:
        confirm_eviction(replay, number)


@inner
def close_episode(replay: Replay, number: int, has_returned: bool) -> None:
    follower, verdicts = replay.followers[number], replay.verdicts
    since = follower.out_since
    follower.out_since = NONE
    if since == NONE or not follower.is_evicted:
        return
    if not follower.has_passed:
        verdicts.false_evictions += 1
    if follower.back_since != NONE:
        verdicts.catch_up_ms += replay.partition.now - follower.back_since
    if has_returned and replay.partition.now - since <= replay.scenario.limit_ms:
        verdicts.flaps += 1
    if follower.keeps_fetching and not is_silent(replay, number):
        verdicts.under_min_fetching_ms += follower.under_min_ms
