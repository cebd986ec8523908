"""Marks in a partition's history, so that a replay can skip stretches without a decision.

What a fetch says of its follower is the same under every policy; only the ISR differs. So while all
followers are in sync, the state follows from the traffic alone. `add_marks` walks a partition once.
Every few events it stores that state, and how far the measure of each policy went until the next
mark. A replay whose followers are all in sync goes from mark to mark while the measure stays within
its limit. Where it does not, the replay sets the state of the mark and walks the events from there
(`kernel.py`).

A replica that is not present (removed by a reassignment, or not seen yet) is not waited for. A
stretch in which one appears is walked.

Only a stall moves times by an amount that depends on the limit. From a stall that counts to the end
of its epoch nothing is skipped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from insync.pipeline.replay.compiling import compiled, inlined, inner
from insync.pipeline.replay.state import (
    ALWAYS,
    APPEND,
    BEGAN,
    CAUGHT_UP,
    FETCH,
    GONE,
    LAG_BEGIN,
    MESSAGES,
    NEVER,
    NONE,
    NOT_SEEN,
    PRESENT,
    UNKNOWN,
    Array,
    History,
    Record,
    Replay,
    Watermark,
    apply_fetch,
    begin_facts,
    copy_facts,
    has_facts,
    integers,
    is_long_stall,
    raise_watermark,
)

STRETCH: Final = 128  # events between two marks; a mark costs about as much as ten events

MARK: Final = integers(
    "event", "now", "end", "watermark", "blocked_since", "appends",
    # From here to the next mark: how long it is, and the largest value of each policy's measure.
    "until", "caught_up_ms", "caught_up_served_ms", "lag_began_ms", "silent_ms", "messages",
    "true_lag_ms", "lacking_ms",
    # Of the stalls of acks=all that ended in it: those longer than the record resolves, added up,
    # and the longest.
    "stall_ms", "stall_ms_max",
)  # fmt: skip


class Moment(NamedTuple):
    """A time in an epoch, and what a follower may lack then: the epoch's appends by number.

    Without their array, whose references Numba would count for every event."""

    now: int
    end: int
    appends: int
    start: int
    began: int  # what a follower lacks from before the epoch, it lacks since then


@inner
def may_skip(mark: Record, scenario: Record) -> bool:
    """Whether the scenario evicts and misses no follower here, if all are in sync."""
    limit_ms, policy = scenario.limit_ms, scenario.policy
    if mark.lacking_ms > limit_ms:
        return False
    if policy == CAUGHT_UP:
        measured_ms = mark.caught_up_served_ms if scenario.holds_reads else mark.caught_up_ms
    elif policy == MESSAGES:
        if mark.messages > scenario.max_messages:
            return False
        measured_ms = mark.silent_ms
    elif policy == LAG_BEGIN:
        measured_ms = mark.lag_began_ms
    else:
        measured_ms = mark.true_lag_ms  # finer than the policy's own measure: never smaller
    return measured_ms <= limit_ms


@inner
def is_as_marked(replay: Replay, mark: Record, facts: Array) -> bool:
    """Whether the state is as if the followers, now all in sync, had always been."""
    partition = replay.partition
    if partition.watermark != mark.watermark or partition.blocked_since != mark.blocked_since:
        return False
    for number in range(len(replay.followers)):
        follower = replay.followers[number]
        # A follower that began the epoch out of sync may never have been caught up in it.
        if follower.over_since != NONE or not has_facts(follower, facts[number]):
            return False
    return True


@compiled
def add_marks(history: History, followers: Array, stretch: int, least: Array) -> None:
    """Fills `marks` and `facts`, each epoch's range of marks, and what each fetch lacks.

    Measures within `least`, the smallest limits of all scenarios, need not be exact."""
    count = move = 0
    for number in range(len(followers)):
        followers[number].last_fetch_at = NEVER
        followers[number].presence = PRESENT if history.in_isr_at_start[number] else NOT_SEEN
    for index in range(len(history.epochs)):
        epoch = history.epochs[index]
        while move < len(history.moves) and history.moves[move].epoch <= epoch.number:
            followers[history.moves[move].replica].presence = GONE
            move += 1
        followers[epoch.leader].presence = PRESENT
        count = mark_epoch(history, followers, epoch, stretch, least[0], count)


@compiled
def mark_epoch(
    history: History, followers: Array, epoch: Record, stretch: int, least: Record, count: int
) -> int:
    """Returns the number of marks so far."""
    events, marks, facts = history.events, history.marks, history.facts
    own = slice(epoch.first_append, epoch.past_append)
    append_at, ends = history.append_at[own], history.append_ends[own]
    leader, start = epoch.leader, epoch.start
    began = events[epoch.first_event].time
    now, end, watermark = began, start, Watermark(start, NONE)
    appends = reads = 0
    for number in range(len(followers)):
        is_present = followers[number].presence == PRESENT
        begin_facts(followers[number], began, began if is_present else NEVER)
    epoch.first_mark = count
    mark = marks[count]
    moment = Moment(now, end, appends, start, began)
    begin_mark(mark, facts[count], followers, epoch.first_event, moment, watermark)
    next_mark = epoch.first_event + stretch
    for at in range(epoch.first_event, epoch.past_event):
        moment = Moment(now, end, appends, start, began)
        if at >= next_mark and reads == 0:
            mark.until = now
            measure_all(mark, followers, leader, moment, append_at, least)
            count += 1
            mark = marks[count]
            begin_mark(mark, facts[count], followers, at, moment, watermark)
            next_mark = at + stretch
        event = events[at]
        now = event.time
        moment = Moment(now, end, appends, start, began)
        if event.kind == FETCH:
            follower = followers[event.follower]
            if follower.presence == PRESENT:
                measure(mark, follower, moment, append_at, least)
            else:  # each policy decides whether it is in sync
                follower.presence = PRESENT
                mark.lacking_ms = ALWAYS
            reads -= event.requested_at != now
            was_lowest = follower.end <= watermark.offset and follower.end != event.offset
            event.missing = first_missing(ends, follower.missing, event.offset)
            apply_fetch(follower, event, event.requested_at)
            follower.judged_until = now
            follower.last_fetch_at = now
            if was_lowest:
                lowest = lowest_end(followers, leader, end)
                if lowest > watermark.offset and watermark.blocked_since != NONE:
                    add_stall(mark, now - watermark.blocked_since, least.fetch_wait_ms)
                watermark = raise_watermark(watermark, lowest, end, now)
        elif event.kind == APPEND:
            if event.offset > end:
                for number in range(len(followers)):
                    # Its fetch was past the end that is recorded; it is at the end from now on.
                    if followers[number].end == event.offset:
                        measure(mark, followers[number], moment, append_at, least)
                was_at_end = watermark.offset == end
                end = event.offset
                appends += 1
                if was_at_end:
                    lowest = lowest_end(followers, leader, end)
                    watermark = raise_watermark(Watermark(watermark.offset, now), lowest, end, now)
        elif event.kind == BEGAN:
            reads += 1
        else:
            reads -= 1
            followers[event.follower].judged_until = now
            if followers[event.follower].presence != PRESENT:
                mark.lacking_ms = ALWAYS
    mark.until = now
    moment = Moment(now, end, appends, start, began)
    measure_all(mark, followers, leader, moment, append_at, least)
    count += 1
    begin_mark(marks[count], facts[count], followers, epoch.past_event, moment, watermark)
    epoch.last_mark = count
    return count + 1


@inlined
def add_stall(mark: Record, stall_ms: int, fetch_wait_ms: int) -> None:
    mark.stall_ms_max = max(mark.stall_ms_max, stall_ms)
    if is_long_stall(stall_ms, fetch_wait_ms):
        mark.stall_ms += stall_ms


@inlined
def first_missing(ends: Array, near: int, offset: int) -> int:
    """The first append that ends past an offset; `near` is where to begin to look."""
    while near < len(ends) and ends[near] <= offset:
        near += 1
    while near > 0 and ends[near - 1] > offset:
        near -= 1
    return near


@inner
def begin_mark(
    mark: Record, facts: Array, followers: Array, event: int, moment: Moment, watermark: Watermark
) -> None:
    mark.event, mark.now, mark.end, mark.appends = event, moment.now, moment.end, moment.appends
    mark.watermark, mark.blocked_since = watermark.offset, watermark.blocked_since
    mark.until = mark.caught_up_ms = mark.caught_up_served_ms = mark.lag_began_ms = -ALWAYS
    mark.silent_ms = mark.messages = mark.true_lag_ms = mark.lacking_ms = -ALWAYS
    mark.stall_ms = mark.stall_ms_max = 0
    for number in range(len(followers)):
        copy_facts(followers[number], facts[number])


@inner
def measure_all(
    mark: Record, followers: Array, leader: int, moment: Moment, append_at: Array, least: Record
) -> None:
    for number in range(len(followers)):
        if number != leader and followers[number].presence == PRESENT:
            measure(mark, followers[number], moment, append_at, least)


@inlined
def measure(
    mark: Record, follower: Record, moment: Moment, append_at: Array, least: Record
) -> None:
    """How near the follower came to leaving since its last fetch, by every policy's measure."""
    now, own, caught_up_at = moment.now, follower.end, follower.caught_up_at
    fetched_at = behind_since = follower.fetched_at
    if follower.lag_began_at != NONE:
        behind_since = min(behind_since, follower.lag_began_at)
    mark.lag_began_ms = max(mark.lag_began_ms, now - behind_since)
    lacking_since = ALWAYS
    if own < moment.start:
        lacking_since = moment.began
    elif follower.missing < moment.appends:
        lacking_since = append_at[follower.missing]
    # A follower is neither served nor fetches last before it was caught up: mostly this decides.
    behind = moment.end - own
    if now - min(caught_up_at, lacking_since) <= least.limit_ms and behind <= least.max_messages:
        return
    mark.lacking_ms = max(mark.lacking_ms, now - lacking_since)
    mark.silent_ms = max(mark.silent_ms, now - fetched_at)
    if own != moment.end:
        mark.caught_up_ms = max(mark.caught_up_ms, now - caught_up_at)
        served_ms = now - follower.caught_up_served_at
        mark.caught_up_served_ms = max(mark.caught_up_served_ms, served_ms)
    if own != UNKNOWN:
        mark.messages = max(mark.messages, behind)
    if own < moment.end:
        mark.true_lag_ms = max(mark.true_lag_ms, now - min(lacking_since, fetched_at))


@inlined
def lowest_end(followers: Array, leader: int, end: int) -> int:
    """How far the watermark goes if all replicas are in sync."""
    for number in range(len(followers)):
        if number != leader and followers[number].presence == PRESENT:
            end = min(end, followers[number].end)
    return end
