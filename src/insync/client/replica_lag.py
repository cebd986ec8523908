"""The lag of every follower of a cluster, Insync's or Apache Kafka's, measured repeatedly.

Insync's leaders report what they know (`wire.describe_replicas`), which is exact. On Apache Kafka
each replica's broker reports its log end offset (ListOffsets as replica -2, which followers answer
too) and its size (DescribeLogDirs, if offered). Lag as time is then an estimate: how long ago the
leader's log end offset, as sampled by each report, was the follower's current one. If the follower
is behind all samples, its lag is at least the time since the first sample.

Two reports together show whether a follower catches up or falls back, on either kind.
If a broker does not respond, only its own rows are missing; the report says which.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeVar

from insync.client import log_sizes
from insync.client.admin import Partition, Topic, TopicPartition
from insync.client.admin_connections import Connections
from insync.client.each_broker import ask_each_broker
from insync.rules.move_plan import TopicPartition as LogKey
from insync.rules.values import BrokerId, PartitionId
from insync.wire import describe_replicas as wire
from insync.wire.apis import Api
from insync.wire.describe_replicas import (
    NO_OBSTACLES,
    NONE,
    Flag,
    FollowerSeen,
    Obstacles,
    OfflineSeen,
    PartitionSeen,
)

T = TypeVar("T")

SAMPLES_MAX: Final = 600
BROKER_WITHIN_MS: Final = 2_000
"""A broker that takes longer is not shown: one stopped broker must not delay the rest."""
SILENT_WITHIN_MS: Final = 200
"""How long a broker that did not respond the last time has for a request that is answered at once.

If it answers that, it has as long as the others again: its report of thousands of partitions may
take longer than this.
"""

TREND_MS: Final = 10_000
"""Followers fetch in large steps, or wait for their throttle: two successive reports say little."""

FollowerKey = tuple[str, int, int]  # topic, partition, follower


class Problem(Enum):
    """Why a follower's lag is unknown."""

    NO_LEADER = "it has no leader"
    LEADER_SILENT = "its leader does not respond"
    LEADER_CHANGING = "its leader is changing"
    NOT_REPORTED = "its broker does not report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerRow:
    """One follower; None is "not known"."""

    topic: str
    partition: int
    leader: int | None
    follower: int
    in_sync: bool
    lag_ms: int | None = None
    lag_is_estimated: bool = False
    lag_is_at_least: bool = False
    messages: int | None = None
    bytes: int | None = None
    catches_up_in_ms: int | None = None  # at its rate over the latest reports
    falls_back: bool = False
    leaves_in_ms: int | None = None
    silent_ms: int | None = None
    is_silent: bool = False
    has_fetched: bool = True  # in this leader epoch
    is_registered: bool = True
    pending_reads: int = 0
    oldest_read_ms: int | None = None
    is_held: bool = False
    is_changing: bool = False
    is_throttled: bool = False
    obstacles: Obstacles = NO_OBSTACLES
    problem: Problem | None = None
    offline: OfflineSeen | None = None  # its log failed or is damaged

    @property
    def key(self) -> FollowerKey:
        return self.topic, self.partition, self.follower

    @property
    def is_caught_up(self) -> bool:
        return self.messages == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The followers of a cluster at one moment."""

    is_exact: bool
    rows: tuple[FollowerRow, ...]
    problems: tuple[str, ...]  # brokers that did not respond; if any, rows may be incomplete
    topics: tuple[Topic, ...] = ()  # of Metadata
    brokers: frozenset[int] = frozenset()  # registered, of Metadata
    silent: Mapping[int, str] = field(default_factory=dict)  # which did not respond, and why
    offline: Mapping[FollowerKey, OfflineSeen] = field(default_factory=dict)  # also of leaders


@dataclass(slots=True)
class _LeaderEnds:
    """Samples of a leader's log end offset, the latest last.

    Arrays, because thousands of partitions have hundreds of samples each. Of samples with the same
    offset only the first and the last are kept.
    """

    times_ms: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))

    def add(self, at_ms: int, end: int) -> None:
        times_ms, ends = self.times_ms, self.ends
        if ends and end < ends[-1]:  # truncated, or a new topic: the samples are of another log
            del times_ms[:], ends[:]
        if len(ends) > 1 and ends[-2] == end:
            times_ms[-1] = at_ms
            return
        times_ms.append(at_ms)
        ends.append(end)
        if len(ends) > SAMPLES_MAX:
            del times_ms[: SAMPLES_MAX // 10], ends[: SAMPLES_MAX // 10]

    def age_ms(self, end: int, *, now_ms: int) -> tuple[int, bool]:
        """How long ago the leader's log ended at `end`, and whether that is only a minimum."""
        later = bisect_right(self.ends, end)  # the first sample of a longer log
        if later == 0:
            return now_ms - self.times_ms[0], True
        at_ms, leader_end = self.times_ms[later - 1], self.ends[later - 1]
        if later == len(self.ends):
            return 0, False
        grown = self.ends[later] - leader_end
        fraction = (end - leader_end) / grown
        return round(now_ms - (at_ms + fraction * (self.times_ms[later] - at_ms))), False


class ReplicaLag:
    """Reports the lag of followers, with trends from earlier reports."""

    def __init__(
        self,
        connections: Connections,
        *,
        clock_ms: Callable[[], int],
        is_included: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._connections = connections
        self._clock_ms = clock_ms
        self._is_included = is_included
        self._ends: dict[TopicPartition, _LeaderEnds] = {}
        self._silent: frozenset[int] = frozenset()  # did not respond the last time
        # Time, and messages behind.
        self._lag_samples: dict[FollowerKey, deque[tuple[int, int]]] = {}

    async def measure(self, topics: Sequence[Topic]) -> Report:
        """The lag of these topics' followers now; `topics` was read from Metadata just now."""
        included = [topic for topic in topics if self._is_included(topic.name)]
        problems: dict[int, str] = {}
        offers = await ask_each_broker(
            self._connections.brokers,
            self._is_exact,
            problems,
            within_ms=lambda broker: (
                SILENT_WITHIN_MS if broker in self._silent else BROKER_WITHIN_MS
            ),
        )
        exact = [broker for broker, offers_it in offers.items() if offers_it]
        offline: dict[FollowerKey, OfflineSeen] = {}
        if exact:
            rows = await self._exact_rows(included, exact, problems, offline)
        else:
            rows = await self._estimated_rows(included, offers, problems)
        self._silent = frozenset(problems)
        return Report(
            is_exact=bool(exact),
            rows=tuple(self._with_trends(rows)),
            problems=tuple(f"broker {broker}: {problems[broker]}" for broker in sorted(problems)),
            topics=tuple(included),
            brokers=frozenset(self._connections.brokers),
            silent=problems,
            offline=offline,
        )

    async def _is_exact(self, broker: int) -> bool:
        if broker in self._silent:
            await self._connections.ping_broker(broker)
        return await self._connections.broker_offers(broker, Api.DESCRIBE_REPLICAS)

    async def _of_each_broker(
        self,
        brokers: Iterable[int],
        request: Callable[[int], Awaitable[T]],
        problems: dict[int, str],
    ) -> dict[int, T]:
        """The result of each broker; for each that failed, `problems` gets the reason."""
        return await ask_each_broker(
            brokers, request, problems, within_ms=lambda _: BROKER_WITHIN_MS
        )

    # From Insync's leaders.

    async def _exact_rows(
        self,
        topics: Sequence[Topic],
        brokers: Iterable[int],
        problems: dict[int, str],
        offline: dict[FollowerKey, OfflineSeen],
    ) -> list[FollowerRow]:
        body = wire.write_request(sorted(topic.name for topic in topics))

        async def ask(broker: int) -> wire.ReplicasSeen:
            frame, at = await self._connections.ask_broker_bytes(
                broker, Api.DESCRIBE_REPLICAS, body
            )
            return wire.read_response(frame, at)

        responses = await self._of_each_broker(brokers, ask, problems)
        by_partition: dict[TopicPartition, tuple[int, PartitionSeen]] = {}
        for broker, response in responses.items():
            offline |= {(seen.topic, seen.partition, broker): seen for seen in response.offline}
            for led in response.partitions:
                key = led.topic, led.partition
                if key not in by_partition or by_partition[key][1].leader_epoch < led.leader_epoch:
                    by_partition[key] = broker, led
        rows = []
        for topic in topics:
            for partition in topic.partitions:
                led_by = by_partition.get((topic.name, partition.number))
                if led_by is None:
                    rows += _unknown(topic.name, partition, problems)
                else:
                    rows += [_exact_row(*led_by, follower) for follower in led_by[1].followers]
        if offline:
            rows = [replace(row, offline=offline.get(row.key)) for row in rows]
        return rows

    # From the logs of any brokers.

    async def _estimated_rows(
        self, topics: Sequence[Topic], brokers: Iterable[int], problems: dict[int, str]
    ) -> list[FollowerRow]:
        ends = await self._read_of_each(log_sizes.read_log_ends, _hosted(topics), brokers, problems)
        # Bytes only where a follower is behind: most of a cluster is not.
        behind = _hosted(topics, lambda key, replicas: _is_behind(key, replicas, ends))
        sizes = await self._read_of_each(
            log_sizes.read_log_bytes, behind, behind.keys() & ends.keys(), problems
        )
        now_ms = self._clock_ms()
        rows = []
        for topic in topics:
            for partition in topic.partitions:
                key, leader = (topic.name, PartitionId(partition.number)), partition.leader
                logs: dict[int, tuple[int, int | None]] = {
                    broker: (ends[broker][key], sizes.get(broker, {}).get(key))
                    for broker in partition.replicas
                    if key in ends.get(broker, {})
                }
                if leader is None or leader not in logs:
                    rows += _unknown(topic.name, partition, problems)
                    continue
                leader_ends = self._ends.setdefault(key, _LeaderEnds())
                leader_ends.add(now_ms, logs[leader][0])
                rows += [
                    _estimated_row(
                        topic.name, partition, follower, logs, leader_ends, now_ms=now_ms
                    )
                    for follower in partition.replicas
                    if follower != leader
                ]
        return rows

    async def _read_of_each(
        self,
        read: Callable[[Connections, BrokerId, Sequence[LogKey]], Awaitable[dict[LogKey, int]]],
        hosted: Mapping[int, Sequence[LogKey]],
        brokers: Iterable[int],
        problems: dict[int, str],
    ) -> dict[int, dict[LogKey, int]]:
        async def ask(broker: int) -> dict[LogKey, int]:
            return await read(self._connections, BrokerId(broker), hosted.get(broker, ()))

        return await self._of_each_broker(brokers, ask, problems)

    # Trends.

    def _with_trends(self, rows: Iterable[FollowerRow]) -> Iterator[FollowerRow]:
        now_ms = self._clock_ms()
        for row in rows:
            yield row if row.messages is None else self._with_trend(row, row.messages, now_ms)

    def _with_trend(self, row: FollowerRow, messages: int, now_ms: int) -> FollowerRow:
        samples = self._lag_samples.setdefault(row.key, deque(maxlen=SAMPLES_MAX))
        while len(samples) > 1 and samples[0][0] < now_ms - TREND_MS:
            samples.popleft()
        first_ms, behind_then = samples[0] if samples else (now_ms, messages)
        samples.append((now_ms, messages))
        if row.is_caught_up or now_ms == first_ms:
            return row
        caught_up = behind_then - messages
        if caught_up > 0:
            left_ms = messages * (now_ms - first_ms) // caught_up
            return replace(row, catches_up_in_ms=left_ms)
        return replace(row, falls_back=True) if caught_up < 0 else row


def _hosted(
    topics: Iterable[Topic],
    is_wanted: Callable[[LogKey, Sequence[int]], bool] = lambda _key, _replicas: True,
) -> dict[int, list[LogKey]]:
    """The partitions of each broker's replicas."""
    hosted: dict[int, list[LogKey]] = {}
    for topic in topics:
        for partition in topic.partitions:
            key = topic.name, PartitionId(partition.number)
            if is_wanted(key, partition.replicas):
                for broker in partition.replicas:
                    hosted.setdefault(broker, []).append(key)
    return hosted


def _is_behind(
    key: LogKey,
    replicas: Iterable[int],
    ends: Mapping[int, Mapping[LogKey, int]],
) -> bool:
    """Whether the brokers that reported it have logs of different length."""
    return len({ends[broker][key] for broker in replicas if key in ends.get(broker, {})}) > 1


def _unknown(topic: str, partition: Partition, problems: Mapping[int, str]) -> list[FollowerRow]:
    """Rows of a partition whose leader did not respond, from Metadata only."""
    if partition.leader is None:
        problem = Problem.NO_LEADER
    elif partition.leader in problems:
        problem = Problem.LEADER_SILENT
    else:
        problem = Problem.LEADER_CHANGING
    return [
        replace(_row_of_metadata(topic, partition, follower), problem=problem)
        for follower in partition.replicas
        if follower != partition.leader
    ]


def _row_of_metadata(topic: str, partition: Partition, follower: int) -> FollowerRow:
    return FollowerRow(
        topic=topic,
        partition=partition.number,
        leader=partition.leader,
        follower=follower,
        in_sync=follower in partition.isr,
    )


def _exact_row(leader: int, partition: PartitionSeen, follower: FollowerSeen) -> FollowerRow:
    is_known = follower.end != NONE
    # An idle follower fetches again after one wait, and its request takes some time too.
    is_silent = follower.silent_ms > 2 * partition.fetch_wait_max_ms + 500
    return FollowerRow(
        topic=partition.topic,
        partition=partition.partition,
        leader=leader,
        follower=follower.broker,
        in_sync=Flag.MEMBER in follower.flags,
        lag_ms=_known(follower.lag_ms),
        messages=max(0, partition.end - follower.end) if is_known else None,
        bytes=_known(follower.lag_bytes),
        leaves_in_ms=_known(follower.leaves_in_ms),
        silent_ms=_known(follower.silent_ms),
        is_silent=is_silent,
        has_fetched=is_known,
        is_registered=Flag.REGISTERED in follower.flags,
        pending_reads=follower.reads,
        oldest_read_ms=_known(follower.oldest_read_ms),
        is_held=Flag.HELD in follower.flags,
        is_changing=Flag.CHANGING in follower.flags,
        is_throttled=Flag.THROTTLED in follower.flags,
        obstacles=follower.obstacles,
    )


def _estimated_row(
    topic: str,
    partition: Partition,
    follower: int,
    logs: Mapping[int, tuple[int, int | None]],
    ends: _LeaderEnds,
    *,
    now_ms: int,
) -> FollowerRow:
    row = replace(_row_of_metadata(topic, partition, follower), lag_is_estimated=True)
    if follower not in logs:
        return replace(row, problem=Problem.NOT_REPORTED, is_registered=False)
    assert partition.leader is not None, "the caller checked it"
    (leader_end, leader_bytes), (end, size_bytes) = logs[partition.leader], logs[follower]
    messages = max(0, leader_end - end)  # the two were not read at the same moment
    if messages == 0:
        return replace(row, lag_ms=0, messages=0, bytes=0)
    lag_ms, is_at_least = ends.age_ms(end, now_ms=now_ms)
    behind = None
    if leader_bytes is not None and size_bytes is not None:
        behind = max(0, leader_bytes - size_bytes)
    return replace(row, lag_ms=lag_ms, lag_is_at_least=is_at_least, messages=messages, bytes=behind)


def _known(value: int) -> int | None:
    return None if value == NONE else value
