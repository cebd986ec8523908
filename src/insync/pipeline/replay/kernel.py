"""The replay of a what-if, compiled: one partition's ordered events under one scenario.

`insync.telemetry.replay.what_if` is its definition, on frozen values where these are records of
integers. `tests/pipeline` compares the two, verdict by verdict. `deadlines.py` has the policies and
the watermark, `truth.py` what their decisions are judged by. Nothing here allocates per event.
"""

from __future__ import annotations

from insync.pipeline.replay.compiling import compiled, inner
from insync.pipeline.replay.deadlines import (
    add_entry,
    advance_watermark,
    end_stall,
    find_entry,
    holds_watermark,
    out_at,
    set_all_due,
    set_due,
)
from insync.pipeline.replay.skip_index import is_as_marked, may_skip
from insync.pipeline.replay.state import (
    ALWAYS,
    APPEND,
    BEGAN,
    CAUGHT_UP,
    FAILED,
    FETCH,
    GONE,
    LAG_BEGIN,
    MESSAGES,
    NEVER,
    NONE,
    NOT_SEEN,
    PRESENT,
    TRUE_LAG,
    Array,
    History,
    Record,
    Replay,
    apply_fetch,
    begin_facts,
    copy_facts,
)
from insync.pipeline.replay.truth import (
    advance_time,
    close_episode,
    is_silent,
    judge_lag,
    open_episode,
)
from insync.rules.stalls import STALL_MS_MIN, STALL_PARTS

LEAVING = -1  # in `in_isr`, while the others that leave at the same time are judged


@compiled
def replay_scenario(history: History, replay: Replay) -> None:
    """`replay.partition.delays` says where its detection delays go, and then the next one's."""
    begin_record(history, replay)
    partition = replay.partition
    move = 0
    for index in range(len(history.epochs)):
        epoch = history.epochs[index]
        partition.now = history.events[epoch.first_event].time
        while move < len(history.moves) and history.moves[move].epoch <= epoch.number:
            remove_replica(replay, history.moves[move].replica)
            move += 1
        begin_epoch(replay, epoch)
        replay_epoch(history, replay, epoch)
        apply_due(replay, partition.now)
        end_stall(replay)
        for number in range(len(replay.followers)):
            if number != epoch.leader:
                judge_lag(replay, number)
        if index + 1 < len(history.epochs):
            next_event = history.events[history.epochs[index + 1].first_event]
            advance_time(replay, max(partition.now, next_event.time))
    for number in range(len(replay.followers)):
        close_episode(replay, number, False)


@inner
def replay_epoch(history: History, replay: Replay, epoch: Record) -> None:
    """Every event, or from mark to mark where the policy has nothing to decide."""
    marks, facts, stalls = history.marks, history.facts, history.stalls
    limit_ms = replay.scenario.limit_ms
    stall = next_that_counts(stalls, epoch.first_stall, epoch.past_stall, limit_ms)
    has_stalled, has_skipped = False, False
    can_skip = is_isr_complete(replay)
    for mark in range(epoch.first_mark, epoch.last_mark):
        stalled_at = stalls[stall].ended if stall < epoch.past_stall else ALWAYS
        if can_skip and marks[mark].until < stalled_at and may_skip(marks[mark], replay.scenario):
            has_skipped = True
            skip_stalls(replay, marks[mark])
            continue
        if has_skipped:
            resume(history, replay, mark, epoch.first_append)
            has_skipped = False
        for at in range(marks[mark].event, marks[mark + 1].event):
            event = history.events[at]
            while stall < epoch.past_stall and stalls[stall].ended <= event.time:
                apply_stall(replay, stalls[stall].began, stalls[stall].ended)
                has_stalled = True
                stall = next_that_counts(stalls, stall + 1, epoch.past_stall, limit_ms)
            apply_event(replay, event)
        can_skip = (
            not has_stalled
            and is_isr_complete(replay)
            and is_as_marked(replay, marks[mark + 1], facts[mark + 1])
        )
    if has_skipped:
        resume(history, replay, epoch.last_mark, epoch.first_append)


@inner
def skip_stalls(replay: Replay, mark: Record) -> None:
    """Add the stalls of acks=all that ended in a stretch that is skipped."""
    verdicts = replay.verdicts
    verdicts.acks_all_stall_ms += mark.stall_ms
    verdicts.acks_all_stall_ms_max = max(verdicts.acks_all_stall_ms_max, mark.stall_ms_max)


@inner
def apply_event(replay: Replay, event: Record) -> None:
    apply_due(replay, event.time)
    advance_time(replay, event.time)
    number = event.follower
    if event.kind == APPEND:
        if event.offset > replay.partition.end:
            apply_append(replay, event.offset)
        return
    if event.kind == BEGAN:
        begin_read(replay, event)
        set_due(replay, number)
        return
    judge_lag(replay, number)
    requested_at = event.requested_at
    if requested_at != event.time or event.kind == FAILED:
        requested_at = end_read(replay, event)
    if event.kind == FETCH:
        serve_fetch(replay, event, requested_at)
    else:
        set_due(replay, number)


# Deadlines: `rules.leadership`.


@inner
def apply_due(replay: Replay, until: int) -> None:
    """All deadlines up to then, in order."""
    while True:
        due_at = ALWAYS
        for number in range(len(replay.followers)):
            due_at = min(due_at, replay.followers[number].due_at)
        if due_at > until:
            return
        advance_time(replay, due_at)
        advance_watermark(replay)
        shrink_isr(replay)
        set_all_due(replay)


@inner
def shrink_isr(replay: Replay) -> None:
    """Followers whose deadline has come leave together."""
    partition, followers = replay.partition, replay.followers
    now = partition.now
    lowest, second, holder = partition.end, partition.end, partition.leader
    for number in range(len(followers)):
        if number != partition.leader and holds_watermark(replay, number):
            if followers[number].end < lowest:
                lowest, second, holder = followers[number].end, lowest, number
            elif followers[number].end < second:
                second = followers[number].end
    does_shrink = False
    for number in range(len(followers)):
        follower = followers[number]
        if not follower.in_isr or follower.due_at > now:
            continue
        does_shrink = True
        if number == holder and lowest < second and partition.blocked_since != NONE:
            since = max(partition.blocked_since, partition.blocked_counted)
            replay.verdicts.watermark_stall_ms += max(0, now - since)
            partition.blocked_counted = now
        judge_lag(replay, number)
        replay.verdicts.shrinks += 1
        follower.in_isr = LEAVING
        open_episode(replay, number)
    if does_shrink:
        for number in range(len(followers)):
            if followers[number].in_isr == LEAVING:
                followers[number].in_isr = 0
                partition.isr_size -= 1
        advance_watermark(replay)


# Appends, fetches and reads: `rules.leadership`.


@inner
def apply_append(replay: Replay, end: int) -> None:
    partition, followers = replay.partition, replay.followers
    policy = replay.scenario.policy
    if partition.end == partition.watermark:
        partition.blocked_since = partition.now
    if policy == TRUE_LAG:
        add_entry(replay, partition.now - partition.shift_ms, end)
        for number in range(len(followers)):  # a follower that lacked nothing lacks this
            follower = followers[number]
            if follower.end >= partition.end and follower.end < end:
                follower.entry = partition.entries - 1
    before = partition.end
    partition.end = end
    replay.unstalled_at[partition.appends] = partition.now - partition.stalled_ms
    partition.appends += 1
    # A follower that holds the watermark still does, unless it is now too many messages behind.
    if partition.watermark == before or policy in (MESSAGES, LAG_BEGIN):
        advance_watermark(replay)
    # The deadline changes only for a follower that was or is at the end.
    if policy in (CAUGHT_UP, LAG_BEGIN):
        for number in range(len(followers)):
            if followers[number].end == before or followers[number].end == end:
                set_due(replay, number)
    else:
        set_all_due(replay)


@inner
def serve_fetch(replay: Replay, event: Record, requested_at: int) -> None:
    """`Follower.on_fetch` and what follows from it."""
    partition, number, offset = replay.partition, event.follower, event.offset
    follower = replay.followers[number]
    # Only a follower that holds the watermark back moves it, or one whose log went back.
    may_advance = offset != follower.end and (
        follower.end <= partition.watermark or offset < follower.end
    )
    apply_fetch(follower, event, requested_at)
    follower.forgiven_ms = 0
    if replay.scenario.policy == TRUE_LAG:
        find_entry(replay, number)
    if may_advance:
        advance_watermark(replay)
    was_in_isr = follower.in_isr
    if not was_in_isr:
        add_present(replay, number)
        if follower.out_since == NONE:
            follower.out_since = partition.now
            follower.is_evicted = 0
        else:
            if is_silent(replay, number):
                follower.keeps_fetching = 0
            if follower.back_since == NONE:
                follower.back_since = partition.now
    follower.last_fetch_at = partition.now
    if (
        not was_in_isr
        and offset >= partition.watermark
        and offset >= partition.start
        and partition.now < out_at(replay, number)
    ):
        replay.verdicts.expands += 1
        close_episode(replay, number, True)
        follower.in_isr = 1
        partition.isr_size += 1
        advance_watermark(replay)
    set_due(replay, number)


@inner
def begin_read(replay: Replay, event: Record) -> None:
    partition, follower = replay.partition, replay.followers[event.follower]
    if follower.leader_end != NONE:
        is_holding = event.offset >= follower.leader_end
    else:
        is_holding = follower.in_isr == 1 and event.offset >= partition.watermark
    read = replay.reads[partition.reads]
    read.row, read.follower = event.row, event.follower
    read.requested_at, read.is_holding = event.requested_at, is_holding
    follower.held_by_reads += is_holding
    partition.reads += 1


@inner
def end_read(replay: Replay, event: Record) -> int:
    """When its request arrived, moved by the stalls since."""
    partition, reads = replay.partition, replay.reads
    requested_at = event.requested_at
    for at in range(partition.reads):
        if reads[at].row == event.row:
            requested_at = reads[at].requested_at
            replay.followers[reads[at].follower].held_by_reads -= reads[at].is_holding
            partition.reads -= 1
            for rest in range(at, partition.reads):
                reads[rest] = reads[rest + 1]
            break
    return requested_at


# Stalls: `rules.stalls` and `Leadership.stalled`.


@inner
def next_that_counts(stalls: Array, at: int, past: int, limit_ms: int) -> int:
    while at < past:
        length = stalls[at].length
        if length >= STALL_MS_MIN and length * STALL_PARTS >= limit_ms:
            return at
        at += 1
    return past


@inner
def move_time(at: int, shift_ms: int, ended: int) -> int:
    return at if at == NEVER else min(at + shift_ms, ended)


@inner
def apply_stall(replay: Replay, began: int, ended: int) -> None:
    """The rules move times forward by the stall; the true lag leaves it out as well."""
    partition, entries = replay.partition, replay.entries
    apply_due(replay, max(partition.now, began))
    if partition.now < began:
        advance_time(replay, began)
    length = ended - began
    for number in range(len(replay.followers)):
        if number != partition.leader:
            judge_lag(replay, number)
            forgive_stall(replay, number, began, ended)
    newest = partition.started_at
    if partition.entries > 0:
        newest = entries[partition.entries - 1].last_at
    partition.shift_ms += max(0, min(length, ended - (newest + partition.shift_ms)))
    # An append after the begin of the stall moves no further than its end.
    latest = began - partition.stalled_ms
    index = partition.appends - 1
    while index >= 0 and replay.unstalled_at[index] > latest:
        replay.unstalled_at[index] = latest
        index -= 1
    partition.started_unstalled_at = min(partition.started_unstalled_at, latest)
    partition.stalled_ms += length
    partition.drained_at = ended
    advance_time(replay, ended)
    advance_watermark(replay)
    set_all_due(replay)


@inner
def forgive_stall(replay: Replay, number: int, began: int, ended: int) -> None:
    follower, limit_ms = replay.followers[number], replay.scenario.limit_ms
    follower.judged_until = ended
    follower.has_grace = began < out_at(replay, number)
    shift_ms = min(ended - began, max(0, limit_ms - follower.forgiven_ms))
    follower.fetched_at = move_time(follower.fetched_at, shift_ms, ended)
    follower.caught_up_at = move_time(follower.caught_up_at, shift_ms, ended)
    follower.caught_up_served_at = move_time(follower.caught_up_served_at, shift_ms, ended)
    follower.served_at = move_time(follower.served_at, shift_ms, ended)
    if follower.lag_began_at != NONE:
        follower.lag_began_at = move_time(follower.lag_began_at, shift_ms, ended)
    follower.forgiven_ms += shift_ms
    for at in range(replay.partition.reads):
        read = replay.reads[at]
        if read.follower == number:
            read.requested_at = min(read.requested_at + shift_ms, ended)


# The record, its epochs and its replicas.


@inner
def begin_record(history: History, replay: Replay) -> None:
    partition = replay.partition
    partition.known = len(replay.followers)
    partition.isr_size = 0
    for number in range(len(replay.followers)):
        follower = replay.followers[number]
        in_isr = history.in_isr_at_start[number]
        follower.in_isr = in_isr
        follower.out_since = NONE
        follower.is_evicted = 0
        follower.last_fetch_at = NEVER
        follower.presence = PRESENT if in_isr else NOT_SEEN
        partition.isr_size += in_isr
    partition.present = partition.isr_size


@inner
def begin_epoch(replay: Replay, epoch: Record) -> None:
    partition = replay.partition
    now, leader, start = partition.now, epoch.leader, epoch.start
    partition.leader = leader
    partition.minimum, partition.past_minimum = epoch.first_minimum, epoch.past_minimum
    partition.min_isr_max = 0
    for at in range(epoch.first_minimum, epoch.past_minimum):
        partition.min_isr_max = max(partition.min_isr_max, replay.minimums[at].min_isr)
    if not replay.followers[leader].in_isr:
        add_present(replay, leader)
        replay.followers[leader].in_isr = 1
        partition.isr_size += 1
        close_episode(replay, leader, False)
    partition.start = partition.end = partition.watermark = start
    partition.began_at = partition.started_at = partition.started_unstalled_at = now
    partition.drained_at = NEVER
    partition.blocked_since, partition.blocked_counted = NONE, now
    partition.entries = partition.first_entry = partition.shift_ms = 0
    partition.appends = partition.stalled_ms = partition.reads = 0
    for number in range(len(replay.followers)):
        follower = replay.followers[number]
        begin_facts(follower, now, now if follower.in_isr else NEVER)
        follower.over_since = NONE
        follower.forgiven_ms = follower.has_grace = follower.held_by_reads = 0
        follower.entry = follower.is_missed = 0
    set_all_due(replay)


@inner
def remove_replica(replay: Replay, number: int) -> None:
    """A reassignment removed it, which is no verdict."""
    partition, follower = replay.partition, replay.followers[number]
    close_episode(replay, number, False)
    partition.isr_size -= follower.in_isr
    partition.present -= follower.presence == PRESENT
    partition.known -= follower.presence != GONE
    follower.in_isr, follower.presence = 0, GONE


@inner
def add_present(replay: Replay, number: int) -> None:
    partition, follower = replay.partition, replay.followers[number]
    partition.present += follower.presence != PRESENT
    partition.known += follower.presence == GONE
    follower.presence = PRESENT


@inner
def is_isr_complete(replay: Replay) -> bool:
    """All are in the ISR, and enough: as long as none leaves, time changes no verdict."""
    partition = replay.partition
    min_isr_max = min(partition.min_isr_max, partition.known)
    return partition.isr_size == partition.present and partition.isr_size >= min_isr_max


@inner
def resume(history: History, replay: Replay, mark: int, first_append: int) -> None:
    """Set the state of a mark, all followers having been in sync up to it."""
    partition, marked = replay.partition, history.marks[mark]
    has_entries = replay.scenario.policy == TRUE_LAG
    for number in range(len(replay.followers)):
        copy_facts(history.facts[mark, number], replay.followers[number])
    for index in range(partition.appends, marked.appends):
        at = history.append_at[first_append + index]
        replay.unstalled_at[index] = at
        if has_entries:
            add_entry(replay, at, history.append_ends[first_append + index])
    partition.now, partition.end, partition.watermark = marked.now, marked.end, marked.watermark
    partition.blocked_since, partition.appends = marked.blocked_since, marked.appends
    if has_entries:
        for number in range(len(replay.followers)):
            find_entry(replay, number)
    set_all_due(replay)
