"""Every partition of a shard through the kernel, under every scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from insync.pipeline.replay.compiling import compiled
from insync.pipeline.replay.events import IsrChanges, Minimums, Shard, minimums_of, moves_of
from insync.pipeline.replay.kernel import replay_scenario
from insync.pipeline.replay.ordering import (
    OrderedPartition,
    ShardEvents,
    number_of,
    order_partition,
)
from insync.pipeline.replay.skip_index import MARK, STRETCH, add_marks
from insync.pipeline.replay.state import (
    ALWAYS,
    CAUGHT_UP,
    ENTRY,
    FACTS,
    FOLLOWER,
    MESSAGES,
    PARTITION,
    PENDING_READS,
    READ,
    SCENARIO,
    STALL,
    VERDICTS,
    Array,
    History,
    Replay,
)
from insync.pipeline.scenarios import WhatIfGrid
from insync.rules.settings import POLICY_NAMES

DELAYS_AT_FIRST: Final = 4_096


@dataclass(frozen=True, slots=True)
class Replayed:
    verdicts: Array  # per partition and scenario, the numbers of VERDICTS
    delays: Array  # detection delays in the same order; `verdicts[..., DELAYS]` counts them


def parameters(grid: WhatIfGrid) -> Array:
    rows = np.zeros(len(grid.scenarios()), SCENARIO)
    for row, scenario in zip(rows, grid.scenarios(), strict=True):
        policy = POLICY_NAMES.index(scenario.policy)
        row["policy"] = CAUGHT_UP if policy == PENDING_READS else policy
        row["holds_reads"] = policy == PENDING_READS
        row["limit_ms"] = scenario.lag_time_max_ms
        row["max_messages"] = scenario.lag_max_messages or 0
        row["has_half_period_check"] = scenario.half_period_check
        row["fetch_wait_ms"] = grid.fetch_wait_max_ms
    return rows


def replay(
    shard: Shard, scenarios: Array, *, room: int = DELAYS_AT_FIRST, stretch: int = STRETCH
) -> Replayed:
    shape = (len(shard.partitions), len(scenarios))
    while True:
        verdicts = np.zeros(shape, VERDICTS)
        delays = np.empty(room, np.int64)
        output = Output(verdicts, delays)
        needed = replay_partitions(
            shard.events, shard.changes, shard.stalls, shard.minimums, _with_least(scenarios),
            output, stretch,
        )  # fmt: skip
        if needed <= room:
            return Replayed(verdicts.view(np.int64).reshape(*shape, len(VERDICTS)), delays[:needed])
        room = needed


class Scenarios(NamedTuple):
    rows: Array  # SCENARIO
    least: Array  # one, with the smallest limits of all


class Output(NamedTuple):
    verdicts: Array  # VERDICTS, per partition and scenario
    delays: Array


def _with_least(rows: Array) -> Scenarios:
    least = np.zeros(1, SCENARIO)
    least["limit_ms"] = rows["limit_ms"].min(initial=ALWAYS)
    of_messages = rows["max_messages"][rows["policy"] == MESSAGES]
    least["fetch_wait_ms"] = rows["fetch_wait_ms"].max(initial=0)  # all have the same
    least["max_messages"] = of_messages.min(initial=ALWAYS)
    return Scenarios(rows, least)


@compiled
def replay_partitions(
    shard: ShardEvents, changes: IsrChanges, all_stalls: Array, minimums: Minimums,
    scenarios: Scenarios, output: Output, stretch: int,
) -> int:  # fmt: skip
    """Returns how many detection delays there are, also those that found no room."""
    largest = len(shard.events)
    partition = np.zeros(1, PARTITION)
    entries, unstalled_at = np.empty(largest + 1, ENTRY), np.empty(largest + 1, np.int64)
    for code in range(len(changes.has_any)):
        ordered = order_partition(shard, code)
        epochs = ordered.epochs
        if len(epochs) == 0:
            continue
        in_isr_at_start = isr_at_start(shard, changes, code, ordered)
        replicas = len(in_isr_at_start)
        ids = shard.ids[:replicas]
        marks = epochs[-1].past_event // stretch + 2 * len(epochs) + 1
        history = History(
            shard.events, epochs, shard.append_at, shard.append_ends, moves_of(changes, code, ids),
            stalls_of(all_stalls, epochs, shard.events, ids),
            minimums_of(minimums, code, epochs, ids), in_isr_at_start,
            np.empty(marks, MARK), np.empty((marks, replicas), FACTS),
        )  # fmt: skip
        followers = np.empty(replicas, FOLLOWER)
        reads = np.empty(ordered.slow_reads + 1, READ)
        add_marks(history, followers, stretch, scenarios.least)
        for number in range(len(scenarios.rows)):
            replay_scenario(
                history,
                Replay(
                    followers, partition[0], scenarios.rows[number], output.verdicts[code, number],
                    entries, unstalled_at, reads, history.minimums, output.delays,
                ),
            )  # fmt: skip
    return partition[0].delays


@compiled
def isr_at_start(
    shard: ShardEvents, changes: IsrChanges, code: int, ordered: OrderedPartition
) -> Array:
    """Of every replica, whether it was in the ISR when the record began.

    Without a change of the ISR: all that lead or fetch in the first epoch, except those that a
    reassignment was adding."""
    low, high = changes.first_bounds[code], changes.first_bounds[code + 1]
    known = ordered.replicas
    is_member = np.zeros(known + high - low, np.int64)
    if changes.has_any[code]:
        for member in changes.first_members[low:high]:
            number, known = number_of(shard.ids, known, member)
            is_member[number] = 1
    else:
        is_member[: ordered.replicas_at_start] = 1
        for added in changes.added[changes.added_bounds[code] : changes.added_bounds[code + 1]]:
            for number in range(ordered.replicas_at_start):
                if shard.ids[number] == added:
                    is_member[number] = 0
    is_member[ordered.epochs[0].leader] = 1
    return is_member[:known]


@compiled
def stalls_of(all_stalls: Array, epochs: Array, events: Array, ids: Array) -> Array:
    """Stalls of each epoch's leader, in the order in which they ended."""
    stalls = np.empty(len(all_stalls) * len(epochs), STALL)
    count = 0
    for index in range(len(epochs)):
        epoch = epochs[index]
        begins, ends = events[epoch.first_event].time, events[epoch.past_event - 1].time
        leader = ids[epoch.leader]
        epoch.first_stall = first = count
        low = np.searchsorted(all_stalls[:, 0], leader)
        for at in range(low, len(all_stalls)):
            if all_stalls[at, 0] != leader or all_stalls[at, 1] >= ends:
                break
            began, length = all_stalls[at, 1], all_stalls[at, 2]
            ended = min(began + length, ends)
            if ended < begins or length <= 0:
                continue
            to = count
            while to > first and stalls[to - 1].ended > ended:
                stalls[to] = stalls[to - 1]
                to -= 1
            stalls[to].began, stalls[to].ended, stalls[to].length = began, ended, length
            count += 1
        epoch.past_stall = count
    return stalls[:count]
