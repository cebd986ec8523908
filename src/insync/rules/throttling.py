"""Leader's and follower's decisions under a throttle, and a fair order among those held back.

A leader asks when it fills a response, a follower when it writes a request. Both ask the same:

    not throttled             -> FREE     passes, not counted
    throttled and in sync     -> COUNTED  passes, counted (KAFKA-4313)
    throttled and out of sync -> LIMITED  passes as the bucket admits, else it is left out

Unthrottled and throttled partitions share one request and one response; a partition that is left
out costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from insync.rules.quota_bucket import Bucket
from insync.rules.values import Offset

Partition = TypeVar("Partition")


class Treatment(Enum):
    FREE = "not throttled"
    COUNTED = "throttled, in sync: passes and is counted"
    LIMITED = "throttled, out of sync: passes as the quota allows"


def treatment(*, is_throttled: bool, is_in_sync: bool) -> Treatment:
    if not is_throttled:
        return Treatment.FREE
    return Treatment.COUNTED if is_in_sync else Treatment.LIMITED


def follower_is_in_sync(*, next_offset: Offset, leader_high_watermark: Offset | None) -> bool:
    """A follower's own view: it has all below the last watermark it received, if any."""
    return leader_high_watermark is not None and next_offset >= leader_high_watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Generic[Partition]):
    """Which of the partitions that wait may go now, and when to look again for the others."""

    bucket: Bucket
    admitted: tuple[Partition, ...]
    held_back: tuple[Partition, ...]
    wake_at_ms: int | None  # None: nothing waits, or the rate is 0


def admit(
    bucket: Bucket, waiting: Iterable[tuple[Partition, int]], *, now_ms: int
) -> Admission[Partition]:
    """Let batches (partition, bytes) go in order, as far as the bucket allows.

    The first that does not fit stops the rest: small batches overtaking a large one would keep
    the bucket from ever being full enough for it.
    """
    queue = list(waiting)
    admitted: list[Partition] = []
    bucket = bucket.at(now_ms)
    for partition, size_bytes in queue:
        if not bucket.admits(size_bytes, now_ms=now_ms):
            break
        bucket = bucket.spend(size_bytes, now_ms=now_ms)
        admitted.append(partition)
    rest = queue[len(admitted) :]
    return Admission(
        bucket=bucket,
        admitted=tuple(admitted),
        held_back=tuple(partition for partition, _ in rest),
        wake_at_ms=bucket.admits_at_ms(rest[0][1]) if rest else None,
    )


def rotated(order: tuple[Partition, ...], served: Iterable[Partition]) -> tuple[Partition, ...]:
    """The order for the next round: partitions that were served go last, in the same order.

    KIP-73 shuffles. Taking turns is as fair, starves no partition, and can be replayed.
    """
    were_served = set(served)
    waiting = tuple(partition for partition in order if partition not in were_served)
    return (*waiting, *(partition for partition in order if partition in were_served))
