"""KAFKA-4485's definitions: pseudo-ISR, high watermark, ISR, and the way in.

    pseudo-ISR      = replicas whose lag <= T (the leader among them)
    high watermark  = max(current, min(ends of the pseudo-ISR))
    ISR             = replicas of the pseudo-ISR whose end >= high watermark

A replica in the pseudo-ISR holds the watermark still until it has reached it, so a replica
within T joins, and every member has every committed record. Three things are added for a cluster
that fails:

- The watermark also waits for the maximal ISR (`isr.py`).
- Joining needs the start of the current leader epoch, not only the watermark. A new leader's
  watermark may be behind what its predecessor acknowledged; all of that lies below its own
  epoch's start, and so a replica that has reached that start lacks none of it.
- A replica that could not join on reaching the watermark does not hold it: a former incarnation,
  or a replica still below the epoch's start. One bootstrapping replica would otherwise stop every
  acks=all producer for T after each election.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from insync.rules.follower import Follower
from insync.rules.isr import Isr, maximal
from insync.rules.policy import LeaderLog, Policy, holds_watermark_until_ms, in_sync
from insync.rules.values import BrokerId, Incarnation, Offset


class Obstacle(Enum):
    """Why a replica outside the ISR is not let in."""

    LAGGING = "its policy says out of sync"
    BELOW_WATERMARK = "its end is below the high watermark"
    BELOW_EPOCH_START = "its end is below the start of the leader's epoch"
    STALE_INCARNATION = "it fetched as an incarnation that is not the registered one"
    CHANGE_PENDING = "another change of the ISR is not committed yet"


def obstacles(
    policy: Policy,
    follower: Follower,
    log: LeaderLog,
    *,
    high_watermark: Offset,
    registered: Incarnation | None,
    now_ms: int,
) -> tuple[Obstacle, ...]:
    """Why this follower may not join yet, right after a fetch took effect; empty: it joins."""
    conditions = (
        (Obstacle.LAGGING, not in_sync(policy, follower, log, now_ms=now_ms)),
        (Obstacle.BELOW_WATERMARK, follower.end < high_watermark),
        (Obstacle.BELOW_EPOCH_START, follower.end < log.append_times.epoch_start),
        (Obstacle.STALE_INCARNATION, follower.incarnation != registered),
    )
    return tuple(obstacle for obstacle, applies in conditions if applies)


def pseudo_isr(
    policy: Policy,
    leader: BrokerId,
    followers: Mapping[BrokerId, Follower],
    log: LeaderLog,
    *,
    registered: Mapping[BrokerId, Incarnation],
    now_ms: int,
) -> frozenset[BrokerId]:
    """The leader and every follower whose time lag is within T, but for the watermark."""
    epoch_start = log.append_times.epoch_start
    return frozenset(
        broker
        for broker, follower in followers.items()
        if follower.end >= epoch_start
        and follower.incarnation == registered.get(broker)
        and _holds_watermark(policy, follower, log, now_ms=now_ms)
    ) | {leader}


def _holds_watermark(policy: Policy, follower: Follower, log: LeaderLog, *, now_ms: int) -> bool:
    until_ms = holds_watermark_until_ms(policy, follower, log)
    return until_ms is None or now_ms < until_ms


def high_watermark(
    isr: Isr,
    pseudo: Iterable[BrokerId],
    ends: Mapping[BrokerId, Offset],
    *,
    current: Offset,
) -> Offset:
    """Never falls, never passes a replica that counts. Min ISR does not hold it."""
    counted = maximal(isr).union(pseudo)
    return Offset(max(current, min(ends[broker] for broker in counted)))


def isr_by_definition(
    pseudo: Iterable[BrokerId], ends: Mapping[BrokerId, Offset], *, high_watermark: Offset
) -> frozenset[BrokerId]:
    return frozenset(broker for broker in pseudo if ends[broker] >= high_watermark)
