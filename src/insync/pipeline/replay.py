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
    O_PAST_APPENDS,
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
    while True:
        verdicts = np.zeros((len(shard.partitions), len(scenarios), V_FIELDS), np.int64)
        delays = np.empty(room, np.int64)
        needed = replay_partitions(
            shard.dealt, shard.isr_bounds, shard.isr_members, shard.has_isr,
            shard.stalls, scenarios, stretch, verdicts, delays,
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
    scenarios: Array, stretch: int, verdicts: Array, delays: Array,
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
    ids, is_at_start = np.empty((2, 2 * largest + len(isr_members)), np.int64)
    for code in range(len(has_isr)):
        count = in_order(dealt, code)
        if count == 0:
            continue
        epochs = epochs_of(events, count)
        known, began_count = survey(events, epochs, ids, is_at_start, append_at, append_ends)
        if has_isr[code]:
            is_at_start[:known] = 0
            for at in range(isr_bounds[code], isr_bounds[code + 1]):
                one, known = numbered(ids, known, isr_members[at])
                is_at_start[one] = 1
        at_start = is_at_start[:known]
        at_start[epochs[0, O_LEADER]] = 1
        stalls = stalls_of(all_stalls, epochs, events[E_TIME], ids)
        f = np.empty((known, F_FIELDS), np.int64)
        reads = np.empty((began_count + 1, 4), np.int64)
        mark_count = count // stretch + 2 * len(epochs) + 1
        marks = np.empty((mark_count, M_FIELDS), np.int64)
        facts = np.empty((mark_count, known, F_FACTS), np.int64)
        mark(events, epochs, append_at, append_ends, f, stretch, least, marks, facts)
        for scenario in range(len(scenarios)):
            delay = kernel.replay(
                events, epochs, marks, facts, append_at, append_ends, stalls, at_start,
                scenarios[scenario], verdicts[code, scenario], f, entries, taus, reads, delays,
                delay,
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
def survey(
    events: Array, epochs: Array, ids: Array, is_at_start: Array, append_at: Array,
    append_ends: Array,
) -> tuple[int, int]:  # fmt: skip
    """Numbers brokers, those who lead first, says who fetches in the first epoch, and collects
    appends; returns how many brokers there are, and how many reads that took time."""
    known = began_count = appends = 0
    for epoch in range(len(epochs)):
        leader = events[E_LEADER, epochs[epoch, O_EVENT]]
        epochs[epoch, O_LEADER], known = numbered(ids, known, leader)
    is_at_start[:known] = 0
    for epoch in range(len(epochs)):
        end = epochs[epoch, O_START]
        epochs[epoch, O_APPEND] = appends
        for at in range(epochs[epoch, O_EVENT], epochs[epoch, O_PAST]):
            kind = events[E_KIND, at]
            if kind != APPEND:
                before = known
                one, known = numbered(ids, known, events[E_WHO, at])
                if known > before:
                    is_at_start[one] = 0
                if epoch == 0:
                    is_at_start[one] = 1
                events[E_WHO, at] = one
                began_count += kind == BEGAN
            elif events[E_OFFSET, at] > end:
                end = events[E_OFFSET, at]
                append_at[appends], append_ends[appends] = events[E_TIME, at], end
                appends += 1
        epochs[epoch, O_PAST_APPENDS] = appends
    return known, began_count


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
