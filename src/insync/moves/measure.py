"""How large everything is and how fast it grows: two looks, some seconds apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from insync.client import log_sizes
from insync.client.admin import Admin
from insync.client.log_sizes import Sizes
from insync.moves.cluster import ClusterNow
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId


class CannotMeasure(Refusal):
    """The brokers do not tell how large their logs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Sizes and PartitionBytesInRate are those of each partition's leader."""

    leaders: Mapping[TopicPartition, BrokerId]
    sizes: Mapping[TopicPartition, int]
    rates: Mapping[TopicPartition, int]
    held: Mapping[BrokerId, Mapping[TopicPartition, int]]  # by every broker that tells
    problems: tuple[str, ...] = ()

    @property
    def log_bytes(self) -> dict[BrokerId, int]:
        """All that a broker has."""
        return {broker: sum(logs.values()) for broker, logs in self.held.items()}

    def client_bytes_in(self, broker: BrokerId) -> int:
        """BytesInPerSec: what clients write to it."""
        return sum(
            rate for partition, rate in self.rates.items() if self.leaders[partition] == broker
        )

    def all_bytes_in(self, broker: BrokerId, cluster: ClusterNow) -> int:
        """What it takes in as leader and as follower."""
        return sum(
            rate
            for partition, rate in self.rates.items()
            if broker in cluster.partitions[partition].replicas
        )


async def sizes_only(admin: Admin, cluster: ClusterNow) -> Measured:
    """One look: what is there, not how it grows."""
    return between(cluster, await _look(admin, cluster), None, elapsed_ms=1)


async def measure(
    admin: Admin,
    cluster: ClusterNow,
    *,
    for_s: int,
    clock_ms: Callable[[], int],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Measured:
    first, first_ms = await _look(admin, cluster), clock_ms()
    await pause(for_s)
    last, last_ms = await _look(admin, cluster), clock_ms()
    return between(cluster, last, first, elapsed_ms=max(1, last_ms - first_ms))


async def _look(admin: Admin, cluster: ClusterNow) -> Sizes:
    wanted = cluster.hosted(cluster.partitions)
    found = await log_sizes.look(admin.connections, wanted)
    told = [each.size_bytes for logs in found.of.values() for each in logs.values()]
    if told and all(size is None for size in told):
        raise CannotMeasure("these brokers do not tell the sizes of logs (DescribeLogDirs)")
    return found


def between(cluster: ClusterNow, last: Sizes, first: Sizes | None, *, elapsed_ms: int) -> Measured:
    """What two looks tell together."""
    leaders: dict[TopicPartition, BrokerId] = {}
    sizes: dict[TopicPartition, int] = {}
    rates: dict[TopicPartition, int] = {}
    for partition, now in sorted(cluster.partitions.items()):
        if now.leader is None:
            continue
        size = last.bytes_on(now.leader, partition)
        if size is not None:
            leaders[partition] = now.leader
            sizes[partition] = size
            grown = 0 if first is None else _grown(first, last, now.leader, partition)
            rates[partition] = grown * 1_000 // elapsed_ms
    return Measured(
        leaders=leaders,
        sizes=sizes,
        rates=rates,
        held={
            broker: {partition: each.size_bytes or 0 for partition, each in logs.items()}
            for broker, logs in last.of.items()
        },
        problems=tuple(
            f"broker {broker} {problem}" for broker, problem in sorted(last.problems.items())
        ),
    )


def _grown(first: Sizes, last: Sizes, leader: BrokerId, partition: TopicPartition) -> int:
    """Bytes appended; where retention took more away meanwhile, from the offsets."""
    before, now = first.bytes_on(leader, partition), last.bytes_on(leader, partition)
    if before is None or now is None:
        return 0
    start, end = first.end_on(leader, partition), last.end_on(leader, partition)
    if now >= before or start is None or not end:
        return max(0, now - before)
    return max(0, end - start) * max(before, now) // end
