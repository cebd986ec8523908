"""When a follower is out of sync, and how far the watermark goes.

The twin of `rules.policy`, `rules.append_times`, `rules.eviction` and `rules.membership`.
"""

from __future__ import annotations

from insync.pipeline.replay.compiling import inner
from insync.pipeline.replay.state import (
    ALWAYS,
    CAUGHT_UP,
    LAG_BEGIN,
    MESSAGES,
    NEVER,
    NONE,
    UNKNOWN,
    Replay,
    Watermark,
    is_long_stall,
    raise_watermark,
)
from insync.rules.append_times import RESOLUTION_PARTS


@inner
def lacks_since(replay: Replay, number: int) -> int:
    """The time of the first append that the follower lacks, as coarse as the policy keeps it."""
    partition, follower = replay.partition, replay.followers[number]
    if follower.end < partition.start:
        return partition.started_at + partition.shift_ms
    entry = max(follower.entry, partition.first_entry)
    return replay.entries[entry].last_at + partition.shift_ms


@inner
def out_at(replay: Replay, number: int) -> int:
    """The first millisecond at which the policy calls the follower out of sync."""
    partition, follower = replay.partition, replay.followers[number]
    scenario = replay.scenario
    policy, end = scenario.policy, follower.end
    if policy == CAUGHT_UP:
        if end == partition.end:
            return ALWAYS
        since = follower.caught_up_served_at if scenario.holds_reads else follower.caught_up_at
        return since + scenario.limit_ms + 1
    if policy == MESSAGES:
        if end != UNKNOWN and partition.end - end > scenario.max_messages:
            return NEVER
        return follower.fetched_at + scenario.limit_ms + 1
    if policy == LAG_BEGIN:
        since = follower.fetched_at
        if follower.lag_began_at != NONE:
            since = min(since, follower.lag_began_at)
        return since + scenario.limit_ms + 1
    if end >= partition.end:
        return ALWAYS
    since = lacks_since(replay, number)
    fetched_at = follower.fetched_at
    if scenario.holds_reads:
        since = max(since, follower.caught_up_served_at)
        fetched_at = follower.served_at
    return min(since, fetched_at) + scenario.limit_ms + 1


@inner
def held_until(replay: Replay, number: int) -> int:
    """`rules.policy.holds_watermark_until_ms`."""
    partition, follower = replay.partition, replay.followers[number]
    at = out_at(replay, number)
    policy = replay.scenario.policy
    if policy not in (MESSAGES, LAG_BEGIN) or follower.end == partition.end:
        return at
    return min(at, follower.caught_up_at + replay.scenario.limit_ms + 1)


@inner
def next_check_at(at: int, limit_ms: int, first: int) -> int:
    """`rules.policy.half_period_check_at_ms`."""
    period = max(1, limit_ms // 2)
    periods = -((first - at) // period)
    return first + max(0, periods) * period


@inner
def set_due(replay: Replay, number: int) -> None:
    """When to look at this follower next: it leaves the ISR, or the watermark stops waiting."""
    partition, follower = replay.partition, replay.followers[number]
    scenario = replay.scenario
    now = partition.now
    if number == partition.leader:
        follower.due_at = ALWAYS
        return
    if not follower.in_isr:
        at = ALWAYS
        if follower.end >= partition.start:
            at = held_until(replay, number)
        follower.due_at = at if at > now else ALWAYS
        return
    if scenario.holds_reads and follower.held_by_reads > 0:
        follower.due_at = ALWAYS
        return
    at = out_at(replay, number)
    if at != ALWAYS:
        if follower.has_grace:
            at = max(at, partition.drained_at + scenario.fetch_wait_ms)
        if scenario.has_half_period_check:
            at = next_check_at(max(at, now + 1), scenario.limit_ms, partition.began_at)
        else:
            at = max(at, now)
    follower.due_at = at


@inner
def set_all_due(replay: Replay) -> None:
    for number in range(len(replay.followers)):
        set_due(replay, number)


@inner
def holds_watermark(replay: Replay, number: int) -> bool:
    """Whether the watermark waits for the follower: it is in the ISR or in the pseudo-ISR."""
    partition, follower = replay.partition, replay.followers[number]
    if follower.in_isr:
        return True
    return follower.end >= partition.start and partition.now < held_until(replay, number)


@inner
def advance_watermark(replay: Replay) -> None:
    partition = replay.partition
    lowest = partition.end
    for number in range(len(replay.followers)):
        follower = replay.followers[number]
        if number == partition.leader or follower.end >= lowest:
            continue
        if follower.in_isr or holds_watermark(replay, number):
            lowest = follower.end
            if lowest <= partition.watermark:
                return
    if lowest > partition.watermark:
        end_stall(replay)
    watermark = raise_watermark(
        Watermark(partition.watermark, partition.blocked_since),
        lowest,
        partition.end,
        partition.now,
    )
    partition.watermark, partition.blocked_since = watermark.offset, watermark.blocked_since


@inner
def end_stall(replay: Replay) -> None:
    """The watermark moves, or the epoch ends: acks=all waited until now."""
    partition, verdicts = replay.partition, replay.verdicts
    if partition.blocked_since != NONE:
        stall_ms = partition.now - partition.blocked_since
        verdicts.acks_all_stall_ms_max = max(verdicts.acks_all_stall_ms_max, stall_ms)
        if is_long_stall(stall_ms, replay.scenario.fetch_wait_ms):
            verdicts.acks_all_stall_ms += stall_ms


# The append times that the policy true-lag keeps.


@inner
def add_entry(replay: Replay, at: int, end: int) -> None:
    """`AppendTimes.append`."""
    partition, entries = replay.partition, replay.entries
    limit_ms = replay.scenario.limit_ms
    resolution = max(1, limit_ms // RESOLUTION_PARTS)
    count = partition.entries
    if count > 0 and at - entries[count - 1].opened_at < resolution:
        entries[count - 1].end = end
        entries[count - 1].last_at = at
        return
    while (
        partition.first_entry + 1 < count
        and at - entries[partition.first_entry + 1].last_at > limit_ms
    ):
        partition.first_entry += 1
    entry = entries[count]
    entry.end, entry.opened_at, entry.last_at = end, at, at
    partition.entries = count + 1


@inner
def find_entry(replay: Replay, number: int) -> None:
    """The first entry past the follower's end. Entries before `first_entry` were dropped."""
    follower, entries = replay.followers[number], replay.entries
    entry, end = follower.entry, follower.end
    while entry < replay.partition.entries and entries[entry].end <= end:
        entry += 1
    while entry > 0 and entries[entry - 1].end > end:
        entry -= 1
    follower.entry = entry
