"""A shard through the kernel: every partition, every scenario, in one pass over the events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from insync.pipeline import kernel
from insync.pipeline.calm import M_FIELDS, STRETCH, mark
from insync.pipeline.compiling import compiled
from insync.pipeline.events import Changes, Shard, moves_of
from insync.pipeline.ordering import E_TIME, Dealt, in_order, numbered
from insync.pipeline.scenarios import Asked
from insync.pipeline.state import (
    ALWAYS,
    CAUGHT_UP,
    F_FACTS,
    F_FIELDS,
    MESSAGES,
    O_EVENT,
    O_LEADER,
    O_PAST,
    O_PAST_STALLS,
    O_STALL,
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
            shard.dealt, shard.changes, shard.stalls, scenarios, stretch, verdicts, delays
        )  # fmt: skip
        if needed <= room:
            return Replayed(verdicts, delays[:needed])
        room = needed


@compiled
def replay_partitions(
    dealt: Dealt, changes: Changes, all_stalls: Array, scenarios: Array, stretch: int,
    verdicts: Array, delays: Array,
) -> int:  # fmt: skip
    delay = 0
    least = np.full(P_FIELDS, ALWAYS, np.int64)
    for scenario in scenarios:
        least[P_LIMIT] = min(least[P_LIMIT], scenario[P_LIMIT])
        if scenario[P_POLICY] == MESSAGES:
            least[P_MESSAGES] = min(least[P_MESSAGES], scenario[P_MESSAGES])
    events, append_at, append_ends = dealt.events, dealt.append_at, dealt.append_ends
    largest = len(events)
    entries, taus = np.empty((largest + 1, 3), np.int64), np.empty(largest + 1, np.int64)
    for code in range(len(changes.has_any)):
        found = in_order(dealt, code)
        epochs, known = found.epochs, found.brokers
        if len(epochs) == 0:
            continue
        low, high = changes.first_bounds[code], changes.first_bounds[code + 1]
        is_at_start = np.zeros(known + high - low, np.int64)
        if changes.has_any[code]:
            for member in changes.first_members[low:high]:
                one, known = numbered(dealt.ids, known, member)
                is_at_start[one] = 1
        else:
            is_at_start[: found.brokers_at_start] = 1
        at_start = is_at_start[:known]
        at_start[epochs[0, O_LEADER]] = 1
        count = epochs[-1, O_PAST]
        moves = moves_of(changes, code, dealt.ids[:known])
        stalls = stalls_of(all_stalls, epochs, events[:, E_TIME], dealt.ids)
        f = np.empty((known, F_FIELDS), np.int64)
        reads = np.empty((found.slow_reads + 1, 4), np.int64)
        mark_count = count // stretch + 2 * len(epochs) + 1
        marks = np.empty((mark_count, M_FIELDS), np.int64)
        facts = np.empty((mark_count, known, F_FACTS), np.int64)
        mark(
            events, epochs, append_at, append_ends, f, stretch, least, at_start, moves, marks,
            facts,
        )  # fmt: skip
        for scenario in range(len(scenarios)):
            delay = kernel.replay(
                events, epochs, marks, facts, append_at, append_ends, moves, stalls,
                at_start, scenarios[scenario], verdicts[code, scenario], f, entries, taus, reads,
                delays, delay,
            )  # fmt: skip
    return delay


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
