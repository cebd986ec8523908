"""Sizes of logs and how fast they grow: two measurements, some seconds apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from insync.client import log_sizes
from insync.client.admin import Admin
from insync.client.log_sizes import LogSizes
from insync.moves.cluster import ClusterNow
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId


class CannotMeasure(Refusal):
    """The brokers do not report the sizes of their logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """LogSizes and PartitionBytesInRate are those of each partition's leader."""

    leaders: Mapping[TopicPartition, BrokerId]
    sizes: Mapping[TopicPartition, int]
    rates: Mapping[TopicPartition, int]
    held: Mapping[BrokerId, Mapping[TopicPartition, int]]  # log sizes by broker and partition
    problems: tuple[str, ...] = ()

    @property
    def log_bytes(self) -> dict[BrokerId, int]:
        """The total of each broker's logs."""
        return {broker: sum(logs.values()) for broker, logs in self.held.items()}

    def client_bytes_in(self, broker: BrokerId) -> int:
        """BytesInPerSec: what clients write to it."""
        return sum(
            rate for partition, rate in self.rates.items() if self.leaders[partition] == broker
        )

    def all_bytes_in(self, broker: BrokerId, cluster: ClusterNow) -> int:
        """What it receives as leader and as follower."""
        return sum(
            rate
            for partition, rate in self.rates.items()
            if broker in cluster.partitions[partition].replicas
        )


async def sizes_only(admin: Admin, cluster: ClusterNow) -> Measured:
    """One measurement: sizes, and rates of zero."""
    return between(cluster, await _read_sizes(admin, cluster), None, elapsed_ms=1)


async def measure(
    admin: Admin,
    cluster: ClusterNow,
    *,
    for_s: int,
    clock_ms: Callable[[], int],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Measured:
    first, first_ms = await _read_sizes(admin, cluster), clock_ms()
    await pause(for_s)
    last, last_ms = await _read_sizes(admin, cluster), clock_ms()
    return between(cluster, last, first, elapsed_ms=max(1, last_ms - first_ms))


async def _read_sizes(admin: Admin, cluster: ClusterNow) -> LogSizes:
    sizes = await log_sizes.read_sizes(admin.connections, cluster.hosted(cluster.partitions))
    reported = [each.size_bytes for logs in sizes.of.values() for each in logs.values()]
    if reported and all(size is None for size in reported):
        raise CannotMeasure("these brokers do not report the sizes of logs (DescribeLogDirs)")
    return sizes


def between(
    cluster: ClusterNow, last: LogSizes, first: LogSizes | None, *, elapsed_ms: int
) -> Measured:
    """Sizes and rates from two measurements."""
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


def _grown(first: LogSizes, last: LogSizes, leader: BrokerId, partition: TopicPartition) -> int:
    """Bytes appended; from the offsets, if retention deleted more meanwhile."""
    before, now = first.bytes_on(leader, partition), last.bytes_on(leader, partition)
    if before is None or now is None:
        return 0
    start, end = first.end_on(leader, partition), last.end_on(leader, partition)
    if now >= before or start is None or not end:
        return max(0, now - before)
    return max(0, end - start) * max(before, now) // end
