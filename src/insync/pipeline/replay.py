"""A shard through the kernel: every partition, every scenario, in one pass over the events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from insync.pipeline import kernel
from insync.pipeline.compiling import compiled
from insync.pipeline.events import (
    E_AT,
    E_EPOCH,
    E_KIND,
    E_LEADER,
    E_OFFSET,
    E_POSITION,
    E_ROW,
    E_SEQ,
    E_TIME,
    E_WHO,
    NO_SEQ,
    Shard,
)
from insync.pipeline.kernel import (
    APPEND,
    BEGAN,
    CAUGHT_UP,
    F_FIELDS,
    P_FIELDS,
    P_HALF,
    P_HOLDS,
    P_IS_PLAIN,
    P_LIMIT,
    P_MESSAGES,
    P_MINIMUM,
    P_POLICY,
    P_WAIT,
    PENDING_READS,
    TRUE_LAG,
    V_FIELDS,
    Array,
)
from insync.pipeline.scenarios import Asked
from insync.rules.settings import POLICY_NAMES

DELAYS_AT_FIRST = 4_096


@dataclass(frozen=True, slots=True)
class Replayed:
    verdicts: Array  # per partition and scenario, V_FIELDS numbers
    delays: Array  # of detection, in the same order: V_DELAYS says how many each has


def parameters(asked: Asked) -> Array:
    rows = np.zeros((len(asked.scenarios()), P_FIELDS), np.int64)
    for row, scenario in zip(rows, asked.scenarios(), strict=True):
        policy = POLICY_NAMES.index(scenario.policy)
        row[P_POLICY] = CAUGHT_UP if policy == PENDING_READS else policy
        row[P_HOLDS] = policy == PENDING_READS
        row[P_LIMIT] = scenario.lag_time_max_ms
        row[P_MESSAGES] = scenario.lag_max_messages or 0
        row[P_HALF] = scenario.half_period_check
        row[P_WAIT] = asked.fetch_wait_max_ms
        row[P_MINIMUM] = asked.min_insync_replicas
        row[P_IS_PLAIN] = scenario.policy == "caught-up" and not scenario.half_period_check
    return rows


def replay(shard: Shard, scenarios: Array, *, room: int = DELAYS_AT_FIRST) -> Replayed:
    while True:
        verdicts = np.zeros((len(shard.partitions), len(scenarios), V_FIELDS), np.int64)
        delays = np.empty(room, np.int64)
        needed = replay_partitions(
            shard.events, shard.bounds, shard.isr_bounds, shard.isr_members, shard.has_isr,
            shard.stalls, scenarios, verdicts, delays,
        )  # fmt: skip
        if needed <= room:
            return Replayed(verdicts, delays[:needed])
        room = needed


@compiled
def find(ids: Array, count: int, broker: int) -> int:
    for at in range(count):
        if ids[at] == broker:
            return at
    return -1


@compiled
def keep_first(events: Array, low: int, high: int, is_kept: Array) -> None:
    """Of rows with the same number only the first stays."""
    latest_fetch = latest_append = -1
    is_plain = True
    for at in range(low, high):
        seq = events[at, E_SEQ]
        if seq == NO_SEQ or not is_kept[at]:
            continue
        if events[at, E_KIND] == APPEND:
            is_plain = is_plain and seq > latest_append
            latest_append = seq
        else:
            is_plain = is_plain and seq > latest_fetch
            latest_fetch = seq
    if is_plain:
        return
    keys = np.empty(high - low, np.int64)
    for at in range(low, high):
        # A number and whether it is an append's; without one, or not kept: its own key.
        if events[at, E_SEQ] == NO_SEQ or not is_kept[at]:
            keys[at - low] = -1 - at
        else:
            keys[at - low] = 2 * events[at, E_SEQ] + (events[at, E_KIND] == APPEND)
    ordered = np.argsort(keys, kind="mergesort")
    first = ordered[0]
    for one in ordered:
        if keys[one] != keys[first]:
            first = one
        elif events[low + one, E_ROW] != events[low + first, E_ROW]:
            is_kept[low + one] = False


@compiled
def replay_partitions(
    events: Array, bounds: Array, isr_bounds: Array, isr_members: Array, has_isr: Array,
    all_stalls: Array, scenarios: Array, verdicts: Array, delays: Array,
) -> int:  # fmt: skip
    delay = 0
    is_kept = np.ones(len(events), np.bool_)
    for code in range(len(bounds) - 1):
        low, high = bounds[code], bounds[code + 1]
        if low == high:
            continue
        # Epochs, each with the leader that its first row names.
        epoch_count = appends_max = began_count = 0
        leader = -1
        for at in range(low, high):
            if at == low or events[at, E_EPOCH] != events[at - 1, E_EPOCH]:
                epoch_count += 1
                leader = events[at, E_LEADER]
            is_kept[at] = events[at, E_LEADER] == leader
            appends_max += events[at, E_KIND] == APPEND
            began_count += events[at, E_KIND] == BEGAN
        epochs = np.empty((epoch_count, 6), np.int64)
        start = low
        for at in range(low + 1, high + 1):
            if at == high or events[at, E_EPOCH] != events[start, E_EPOCH]:
                keep_first(events, start, at, is_kept)
                start = at
        # Columns of what stays, brokers by number.
        size = high - low
        kinds = np.empty(size, np.int8)
        who = np.empty(size, np.int32)
        times, offsets = np.empty(size, np.int64), np.empty(size, np.int64)
        leader_ends, ats = np.empty(size, np.int64), np.empty(size, np.int64)
        rows, missing = np.empty(size, np.int64), np.empty(size, np.int64)
        ids = np.empty(16, np.int64)
        known = 0
        to = 0
        epoch = -1
        previous = 0
        for at in range(low, high):
            if not is_kept[at]:
                continue
            kind = events[at, E_KIND]
            if epoch < 0 or events[at, E_EPOCH] != previous:
                previous = events[at, E_EPOCH]
                epoch += 1
                epochs[epoch, 0] = to
                epochs[epoch, 3] = events[at, E_POSITION]
                one = find(ids, known, events[at, E_LEADER])
                if one < 0:
                    ids, known = remember(ids, known, events[at, E_LEADER])
                    one = known - 1
                epochs[epoch, 2] = one
            epochs[epoch, 1] = to + 1
            kinds[to] = kind
            times[to] = events[at, E_TIME]
            ats[to] = events[at, E_AT]
            rows[to] = events[at, E_ROW]
            if kind == APPEND:
                offsets[to] = events[at, E_WHO]
                leader_ends[to] = who[to] = 0
            else:
                offsets[to] = events[at, E_OFFSET]
                leader_ends[to] = events[at, E_POSITION]
                one = find(ids, known, events[at, E_WHO])
                if one < 0:
                    ids, known = remember(ids, known, events[at, E_WHO])
                    one = known - 1
                who[to] = one
            to += 1
        for at in range(isr_bounds[code], isr_bounds[code + 1]):
            if find(ids, known, isr_members[at]) < 0:
                ids, known = remember(ids, known, isr_members[at])
        at_start = np.zeros(known, np.int64)
        at_start[epochs[0, 2]] = 1
        if has_isr[code]:
            for at in range(isr_bounds[code], isr_bounds[code + 1]):
                at_start[find(ids, known, isr_members[at])] = 1
        else:
            for at in range(epochs[0, 0], epochs[0, 1]):
                if kinds[at] != APPEND:
                    at_start[who[at]] = 1
        find_missing(kinds, who, offsets, missing, epochs, known)
        stalls = stalls_of(all_stalls, epochs, times, ids)
        f = np.empty((known, F_FIELDS), np.int64)
        entries = np.empty((appends_max + 1, 3), np.int64)
        taus = np.empty(appends_max + 1, np.int64)
        reads = np.empty((began_count + 1, 4), np.int64)
        is_quiet = np.zeros(len(scenarios), np.bool_)
        for scenario in range(len(scenarios)):
            is_quiet[scenario] = any_stricter(scenarios, scenario, is_quiet)
            if is_quiet[scenario]:
                continue  # nothing happens here either
            delay = kernel.replay(
                kinds, times, who, offsets, leader_ends, ats, rows, missing, epochs, stalls,
                at_start, scenarios[scenario], verdicts[code, scenario], f, entries, taus, reads,
                delays, delay,
            )  # fmt: skip
            is_quiet[scenario] = (
                len(stalls) == 0 and np.all(at_start == 1) and np.all(verdicts[code, scenario] == 0)
            )
    return delay


@compiled
def any_stricter(scenarios: Array, one: int, is_quiet: Array) -> bool:
    """Whether nothing happened under the same rule with a smaller limit.

    Where all are in sync from the start and nobody leaves or is missed, a larger limit changes
    nothing, looked at in time or late. Two things could: stalls, which a larger limit may not take
    for such, so there must be none; and the times of `true-lag`, coarser by 1 % of the limit.
    """
    mine = scenarios[one]
    for other in range(one):
        theirs = scenarios[other]
        if (
            is_quiet[other]
            and not theirs[P_HALF]
            and theirs[P_POLICY] == mine[P_POLICY]
            and theirs[P_HOLDS] == mine[P_HOLDS]
            and theirs[P_MESSAGES] == mine[P_MESSAGES]
            and theirs[P_LIMIT] * (2 if mine[P_POLICY] == TRUE_LAG else 1) <= mine[P_LIMIT]
        ):
            return True
    return False


@compiled
def remember(ids: Array, count: int, broker: int) -> tuple[Array, int]:
    if count == len(ids):
        more = np.empty(2 * count, np.int64)
        more[:count] = ids
        ids = more
    ids[count] = broker
    return ids, count + 1


@compiled
def find_missing(
    kinds: Array, who: Array, offsets: Array, missing: Array, epochs: Array, known: int
) -> None:
    """For each fetch the first append of its epoch that it lacks, by number."""
    for epoch in range(len(epochs)):
        low, high, end = epochs[epoch, 0], epochs[epoch, 1], epochs[epoch, 3]
        ends = np.empty(high - low + 1, np.int64)
        count = 0
        for at in range(low, high):
            if kinds[at] == APPEND and offsets[at] > end:
                end = offsets[at]
                ends[count] = end
                count += 1
        place = np.zeros(known, np.int64)
        for at in range(low, high):
            if kinds[at] == APPEND:
                missing[at] = 0
                continue
            here = place[who[at]]
            while here < count and ends[here] <= offsets[at]:
                here += 1
            while here > 0 and ends[here - 1] > offsets[at]:
                here -= 1
            place[who[at]] = missing[at] = here


@compiled
def stalls_of(all_stalls: Array, epochs: Array, times: Array, ids: Array) -> Array:
    """Those of each epoch's leader, in the order in which they ended: began, ended, length."""
    found = np.empty((len(all_stalls) * len(epochs), 3), np.int64)
    count = 0
    for epoch in range(len(epochs)):
        begins, ends = times[epochs[epoch, 0]], times[epochs[epoch, 1] - 1]
        leader = ids[epochs[epoch, 2]]
        first = epochs[epoch, 4] = count
        low = np.searchsorted(all_stalls[:, 0], leader)
        for at in range(low, len(all_stalls)):
            if all_stalls[at, 0] != leader or all_stalls[at, 1] >= ends:
                break
            began, length = all_stalls[at, 1], all_stalls[at, 2]
            ended = min(began + length, ends)
            if ended < begins or length <= 0:
                continue
            to = count
            while to > first and found[to - 1, 1] > ended:
                found[to] = found[to - 1]
                to -= 1
            found[to, 0], found[to, 1], found[to, 2] = began, ended, length
            count += 1
        epochs[epoch, 5] = count
    return found[:count]
