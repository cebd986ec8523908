"""A shard through the kernel: every partition, every scenario, in one pass over the events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from insync.pipeline import kernel
from insync.pipeline.calm import M_FIELDS, STRETCH, mark
from insync.pipeline.compiling import compiled, inlined, inner
from insync.pipeline.events import (
    E_EPOCH,
    E_KIND,
    E_LEADER,
    E_OFFSET,
    E_POSITION,
    E_TIME,
    E_WHO,
    Dealt,
    Shard,
    in_order,
)
from insync.pipeline.scenarios import Asked
from insync.pipeline.state import (
    ALWAYS,
    APPEND,
    BEGAN,
    CAUGHT_UP,
    F_FACTS,
    F_FIELDS,
    MESSAGES,
    O_APPEND,
    O_EVENT,
    O_FIELDS,
    O_LEADER,
    O_PAST,
    O_PAST_STALLS,
    O_STALL,
    O_START,
    P_FIELDS,
    P_HALF,
    P_HOLDS,
    P_LIMIT,
    P_MESSAGES,
    P_MINIMUM,
    P_POLICY,
    P_WAIT,
    PENDING_READS,
    V_FIELDS,
    Array,
)
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
    return rows


def replay(
    shard: Shard, scenarios: Array, *, room: int = DELAYS_AT_FIRST, stretch: int = STRETCH
) -> Replayed:
    who, missing = np.empty((2, shard.dealt.events.shape[1]), np.int64)
    while True:
        verdicts = np.zeros((len(shard.partitions), len(scenarios), V_FIELDS), np.int64)
        delays = np.empty(room, np.int64)
        needed = replay_partitions(
            shard.dealt, shard.isr_bounds, shard.isr_members, shard.has_isr,
            shard.stalls, scenarios, stretch, who, missing, verdicts, delays,
        )  # fmt: skip
        if needed <= room:
            return Replayed(verdicts, delays[:needed])
        room = needed


@inlined
def numbered(ids: Array, known: int, broker: int) -> tuple[int, int]:
    """A broker's number, and how many have one now; there is room for all."""
    for at in range(known):
        if ids[at] == broker:
            return at, known
    ids[known] = broker
    return known, known + 1


@compiled
def replay_partitions(
    dealt: Dealt, isr_bounds: Array, isr_members: Array, has_isr: Array, all_stalls: Array,
    scenarios: Array, stretch: int, who: Array, missing: Array, verdicts: Array, delays: Array,
) -> int:  # fmt: skip
    delay = 0
    least = np.full(P_FIELDS, ALWAYS, np.int64)
    for scenario in scenarios:
        least[P_LIMIT] = min(least[P_LIMIT], scenario[P_LIMIT])
        if scenario[P_POLICY] == MESSAGES:
            least[P_MESSAGES] = min(least[P_MESSAGES], scenario[P_MESSAGES])
    events = dealt.events
    largest = events.shape[1]
    append_at, append_ends = np.empty(largest, np.int64), np.empty(largest, np.int64)
    entries, taus = np.empty((largest + 1, 3), np.int64), np.empty(largest + 1, np.int64)
    ids = np.empty(2 * largest + len(isr_members), np.int64)
    for code in range(len(has_isr)):
        count = in_order(dealt, code)
        if count == 0:
            continue
        epochs = epochs_of(events, count)
        known = number_brokers(events, count, who, epochs, ids)
        for at in range(isr_bounds[code], isr_bounds[code + 1]):
            _, known = numbered(ids, known, isr_members[at])
        at_start = np.zeros(known, np.int64)
        at_start[epochs[0, O_LEADER]] = 1
        if has_isr[code]:
            for at in range(isr_bounds[code], isr_bounds[code + 1]):
                one, _ = numbered(ids, known, isr_members[at])
                at_start[one] = 1
        else:
            for at in range(epochs[0, O_EVENT], epochs[0, O_PAST]):
                if events[E_KIND, at] != APPEND:
                    at_start[who[at]] = 1
        find_missing(events, who, missing, epochs, known, append_at, append_ends)
        stalls = stalls_of(all_stalls, epochs, events[E_TIME], ids)
        began_count = 0
        for at in range(count):
            began_count += events[E_KIND, at] == BEGAN
        f = np.empty((known, F_FIELDS), np.int64)
        reads = np.empty((began_count + 1, 4), np.int64)
        mark_count = count // stretch + 2 * len(epochs) + 1
        marks = np.empty((mark_count, M_FIELDS), np.int64)
        facts = np.empty((mark_count, known, F_FACTS), np.int64)
        mark(events, who, missing, epochs, append_at, f, stretch, least, marks, facts)
        for scenario in range(len(scenarios)):
            delay = kernel.replay(
                events, who, missing, epochs, marks, facts, append_at, append_ends, stalls,
                at_start, scenarios[scenario], verdicts[code, scenario], f, entries, taus, reads,
                delays, delay,
            )  # fmt: skip
    return delay


@compiled
def epochs_of(events: Array, count: int) -> Array:
    changes = 0
    for at in range(1, count):
        changes += events[E_EPOCH, at] != events[E_EPOCH, at - 1]
    epochs = np.empty((changes + 1, O_FIELDS), np.int64)
    epoch = -1
    for at in range(count):
        if at == 0 or events[E_EPOCH, at] != events[E_EPOCH, at - 1]:
            epoch += 1
            epochs[epoch, O_EVENT] = at
            epochs[epoch, O_START] = events[E_POSITION, at]
        epochs[epoch, O_PAST] = at + 1
    return epochs


@inner
def number_brokers(events: Array, count: int, who: Array, epochs: Array, ids: Array) -> int:
    """Who leads each epoch and whose each fetch is, by number; returns how many there are."""
    known = 0
    for epoch in range(len(epochs)):
        leader = events[E_LEADER, epochs[epoch, O_EVENT]]
        epochs[epoch, O_LEADER], known = numbered(ids, known, leader)
    for at in range(count):
        who[at] = 0
        if events[E_KIND, at] != APPEND:
            who[at], known = numbered(ids, known, events[E_WHO, at])
    return known


@compiled
def find_missing(
    events: Array, who: Array, missing: Array, epochs: Array, known: int, append_at: Array,
    append_ends: Array,
) -> None:  # fmt: skip
    """What was appended; for each fetch the first append of its epoch that it lacks, by number."""
    base = 0
    for epoch in range(len(epochs)):
        low, high = epochs[epoch, O_EVENT], epochs[epoch, O_PAST]
        end = epochs[epoch, O_START]
        epochs[epoch, O_APPEND] = base
        past = base
        for at in range(low, high):
            if events[E_KIND, at] == APPEND and events[E_OFFSET, at] > end:
                end = events[E_OFFSET, at]
                append_at[past], append_ends[past] = events[E_TIME, at], end
                past += 1
        place = np.full(known, base, np.int64)
        for at in range(low, high):
            if events[E_KIND, at] == APPEND:
                missing[at] = 0
                continue
            here, offset = place[who[at]], events[E_OFFSET, at]
            while here < past and append_ends[here] <= offset:
                here += 1
            while here > base and append_ends[here - 1] > offset:
                here -= 1
            place[who[at]] = here
            missing[at] = here - base
        base = past


@compiled
def stalls_of(all_stalls: Array, epochs: Array, times: Array, ids: Array) -> Array:
    """Those of each epoch's leader, in the order in which they ended: began, ended, length."""
    found = np.empty((len(all_stalls) * len(epochs), 3), np.int64)
    count = 0
    for epoch in range(len(epochs)):
        begins, ends = times[epochs[epoch, O_EVENT]], times[epochs[epoch, O_PAST] - 1]
        leader = ids[epochs[epoch, O_LEADER]]
        first = epochs[epoch, O_STALL] = count
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
        epochs[epoch, O_PAST_STALLS] = count
    return found[:count]
