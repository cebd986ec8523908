"""Sizes of logs and how fast they grow.

Insync's leaders report how much producers appended lately. Apache Kafka's brokers report sizes
only, so the growth is that between two samples: an earlier command may have taken the first one
(`size_samples`), else it is taken now and this takes some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from insync.client import inbound_bytes, log_sizes
from insync.client.admin import Admin
from insync.client.log_sizes import LogSize, LogSizes
from insync.moves.cluster import ClusterNow
from insync.moves.size_samples import AGE_MS_MIN, Clocks, SampleFile, SizeSample
from insync.rules.move_plan import TopicPartition
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId
from insync.wire.apis import Api

LED_MS_MIN: Final = 3_000
"""A leader that has counted for less is given the time: its first batches would be the rate."""

Pause = Callable[[float], Awaitable[None]]
T = TypeVar("T")


class CannotMeasure(Refusal):
    """The brokers do not report the sizes of their logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """LogSizes and PartitionBytesInRate are those of each partition's leader."""

    leaders: Mapping[TopicPartition, BrokerId]
    sizes: Mapping[TopicPartition, int]
    rates: Mapping[TopicPartition, int]
    held: Mapping[BrokerId, Mapping[TopicPartition, int]]  # log sizes by broker and partition
    over_ms: int  # the time that the rates are of
    problems: tuple[str, ...] = ()
    is_past: bool = False  # the rates are of before this command

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


async def sizes_only(admin: Admin, cluster: ClusterNow, samples: SampleFile | None) -> Measured:
    """One measurement: sizes, and rates of zero. It is kept for a later one, if that needs it."""
    sizes = await _read_sizes(admin, cluster)
    if samples is not None:
        await _keep(admin, samples, _sample(cluster, sizes, samples.clocks))
    return between(cluster, sizes, None, elapsed_ms=1)


async def measure(
    admin: Admin,
    cluster: ClusterNow,
    *,
    for_s: int | None,
    samples: SampleFile,
    pause: Pause = asyncio.sleep,
) -> Measured:
    """Sizes and rates; `pause` is awaited if that takes time.

    Without `for_s`: at once if all brokers report what producers appended lately, or if an earlier
    sample serves; else over 10 s.
    """
    if for_s is not None:
        return await _measure_anew(
            admin, cluster, for_ms=for_s * 1_000, samples=samples, pause=pause
        )
    measured = await _measure_reported(admin, cluster, pause)
    if measured is None:
        measured = await _measure_from_sample(admin, cluster, samples, pause)
    return measured


async def measure_and_check(
    admin: Admin,
    cluster: ClusterNow,
    *,
    for_s: int | None,
    samples: SampleFile,
    check: Callable[[Measured], T],
    pause: Pause = asyncio.sleep,
) -> T:
    """What `check` returns. Where it refuses rates of the past, it gets those of the next 10 s: a
    load that has ended must not refuse a throttle."""
    measured = await measure(admin, cluster, for_s=for_s, samples=samples, pause=pause)
    try:
        return check(measured)
    except Refusal:
        if not measured.is_past:
            raise
    measured = await _measure_anew(admin, cluster, for_ms=AGE_MS_MIN, samples=samples, pause=pause)
    return check(measured)


async def _measure_reported(admin: Admin, cluster: ClusterNow, pause: Pause) -> Measured | None:
    """From the leaders' own counts; None unless all report them."""
    reported = await inbound_bytes.read_inbound_bytes(admin.connections)
    if reported is None:
        return None
    led_ms = min((each.over_ms for each in reported.values()), default=LED_MS_MIN)
    if led_ms < LED_MS_MIN:
        await pause((LED_MS_MIN - led_ms) / 1_000)
        reported = await inbound_bytes.read_inbound_bytes(admin.connections)
        if reported is None:
            return None
    sizes = await _read_sizes(admin, cluster)
    rates = {
        partition: each.bytes * 1_000 // max(each.over_ms, 1_000)
        for partition, each in reported.items()
    }
    over_ms = max((each.over_ms for each in reported.values()), default=0)
    return replace(_measured(cluster, sizes, rates, over_ms=over_ms), is_past=True)


async def _measure_from_sample(
    admin: Admin, cluster: ClusterNow, samples: SampleFile, pause: Pause
) -> Measured:
    """From an earlier sample if one serves, else from two of now."""
    sizes = await _read_sizes(admin, cluster)
    serving = [
        (age_ms, sample)
        for age_ms, sample in samples.read()
        if _is_of_these_logs(cluster, sample.sizes, sizes)
    ]
    old_enough = [each for each in serving if each[0] >= AGE_MS_MIN]
    if old_enough:
        age_ms, sample = old_enough[-1]
    elif serving:
        age_ms, sample = serving[0]
        await pause((AGE_MS_MIN - age_ms) / 1_000)
        sizes = await _read_sizes(admin, cluster)
        age_ms = samples.clocks.monotonic_ms() - sample.monotonic_ms
    else:
        return await _measure_anew(
            admin, cluster, for_ms=AGE_MS_MIN, samples=samples, pause=pause, first=sizes
        )
    await _keep(admin, samples, _sample(cluster, sizes, samples.clocks))
    measured = between(cluster, sizes, sample.sizes, elapsed_ms=max(1, age_ms))
    return replace(measured, is_past=True)


async def _measure_anew(
    admin: Admin,
    cluster: ClusterNow,
    *,
    for_ms: int,
    samples: SampleFile,
    pause: Pause,
    first: LogSizes | None = None,
) -> Measured:
    first = first or await _read_sizes(admin, cluster)
    first_sample = _sample(cluster, first, samples.clocks)
    await pause(for_ms / 1_000)
    last = await _read_sizes(admin, cluster)
    last_sample = _sample(cluster, last, samples.clocks)
    await _keep(admin, samples, first_sample, last_sample)
    elapsed_ms = max(1, last_sample.monotonic_ms - first_sample.monotonic_ms)
    return between(cluster, last, first, elapsed_ms=elapsed_ms)


async def _keep(admin: Admin, samples: SampleFile, *taken: SizeSample) -> None:
    """For a later command; Insync's brokers report rates themselves."""
    if not await admin.connections.offers(Api.DESCRIBE_REPLICAS):
        for sample in taken:
            samples.add(sample)


async def _read_sizes(admin: Admin, cluster: ClusterNow) -> LogSizes:
    sizes = await log_sizes.read_sizes(admin.connections, cluster.hosted(cluster.partitions))
    reported = [each.size_bytes for logs in sizes.of.values() for each in logs.values()]
    if reported and all(size is None for size in reported):
        raise CannotMeasure("these brokers do not report the sizes of logs (DescribeLogDirs)")
    return sizes


def _leaders(cluster: ClusterNow, sizes: LogSizes) -> dict[TopicPartition, BrokerId]:
    """The leader of each partition whose leader reports its log."""
    return {
        partition: now.leader
        for partition, now in sorted(cluster.partitions.items())
        if now.leader is not None and sizes.bytes_on(now.leader, partition) is not None
    }


def _sample(cluster: ClusterNow, sizes: LogSizes, clocks: Clocks) -> SizeSample:
    logs: dict[BrokerId, dict[TopicPartition, LogSize]] = {}
    for partition, leader in _leaders(cluster, sizes).items():
        logs.setdefault(leader, {})[partition] = sizes.of[leader][partition]
    wall_ms, monotonic_ms = clocks.read()
    return SizeSample(
        wall_ms=wall_ms, monotonic_ms=monotonic_ms, sizes=LogSizes(of=logs, problems={})
    )


def _is_of_these_logs(cluster: ClusterNow, first: LogSizes, last: LogSizes) -> bool:
    """Whether the same brokers led the same logs: no new partition, no other topic of a name."""
    for partition, leader in _leaders(cluster, last).items():
        start, end = first.end_on(leader, partition), last.end_on(leader, partition)
        if start is None or end is None or end < start:
            return False
    return True


def between(
    cluster: ClusterNow, last: LogSizes, first: LogSizes | None, *, elapsed_ms: int
) -> Measured:
    """Sizes and rates from two measurements."""
    rates = {}
    if first is not None:
        rates = {
            partition: _grown(first, last, leader, partition) * 1_000 // elapsed_ms
            for partition, leader in _leaders(cluster, last).items()
        }
    return _measured(cluster, last, rates, over_ms=elapsed_ms)


def _measured(
    cluster: ClusterNow, sizes: LogSizes, rates: Mapping[TopicPartition, int], *, over_ms: int
) -> Measured:
    leaders = _leaders(cluster, sizes)
    return Measured(
        leaders=leaders,
        sizes={
            partition: sizes.of[leader][partition].size_bytes or 0
            for partition, leader in leaders.items()
        },
        rates={partition: rates.get(partition, 0) for partition in leaders},
        held={
            broker: {partition: each.size_bytes or 0 for partition, each in logs.items()}
            for broker, logs in sizes.of.items()
        },
        over_ms=over_ms,
        problems=tuple(
            f"broker {broker} {problem}" for broker, problem in sorted(sizes.problems.items())
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
