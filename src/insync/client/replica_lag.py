"""How far every follower of a cluster is behind, ours or Apache Kafka's, look by look.

Our leaders are asked what they know (`wire.describe_replicas`); that is exact. Elsewhere each
replica's broker is asked where its own log ends (ListOffsets as replica -2, which followers answer
too) and how large it is (DescribeLogDirs, if offered). Lag as time is then an estimate: how long
ago the leader's end, as sampled at each look, was where the follower's end is now; behind all
samples it is at least as long as we have been looking.

Whether a follower catches up or falls back is seen between looks, on either kind.
A broker that does not answer costs its own rows only; the report says which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from insync.client import log_sizes
from insync.client.admin import Partition, Topic, TopicPartition
from insync.client.admin_connections import Connections
from insync.client.each_broker import of_each_broker
from insync.rules.values import BrokerId, PartitionId
from insync.wire import describe_replicas as wire
from insync.wire.apis import Api
from insync.wire.describe_replicas import NO_BAR, NONE, Bar, Flag, FollowerSeen, PartitionSeen

T = TypeVar("T")

SAMPLES_MAX: Final = 600
BROKER_WITHIN_MS: Final = 2_000
"""A broker that takes longer for this is not shown: one stopped broker must not hide the rest."""
SILENT_WITHIN_MS: Final = 200
"""The same for one that did not answer when it was asked last."""

TREND_MS: Final = 10_000
"""Followers fetch a lot at a time, or wait for their throttle: one look to the next says little."""

Place = tuple[str, int, int]  # topic, partition, follower


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
    catches_up_in_ms: int | None = None  # at its pace over the latest looks
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
    obstacles: Bar = NO_BAR
    problem: str | None = None  # why nothing more is known

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.follower

    @property
    def is_level(self) -> bool:
        return self.messages == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One look at a cluster."""

    is_exact: bool
    rows: tuple[FollowerRow, ...]
    problems: tuple[str, ...]  # brokers that did not answer; not empty: the rows are not all known


@dataclass(slots=True)
class _Ends:
    """The ends of one leader's log, as sampled: (when, end), the latest last."""

    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, at_ms: int, end: int) -> None:
        if self.samples and end < self.samples[-1][1]:
            self.samples.clear()  # cut, or made anew: the past is of another log
        self.samples.append((at_ms, end))

    def age_ms(self, end: int, *, now_ms: int) -> tuple[int, bool]:
        """How long ago the leader's end was here, and whether that is only the least it can be."""
        later_ms, later_end = now_ms, self.samples[-1][1]
        for at_ms, leader_end in reversed(self.samples):
            if leader_end <= end:
                grown = later_end - leader_end
                part = (end - leader_end) / grown if grown else 1.0
                return round(now_ms - (at_ms + part * (later_ms - at_ms))), False
            later_ms, later_end = at_ms, leader_end
        return now_ms - self.samples[0][0], True


class ReplicaLag:
    """Looks at a cluster again and again, and remembers enough to tell how things move."""

    def __init__(
        self,
        connections: Connections,
        *,
        clock_ms: Callable[[], int],
        is_wanted: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._connections = connections
        self._clock_ms = clock_ms
        self._is_wanted = is_wanted
        self._ends: dict[TopicPartition, _Ends] = {}
        self._silent: frozenset[int] = frozenset()  # did not answer the last time
        self._before: dict[Place, deque[tuple[int, int]]] = {}  # when, and messages behind

    async def look(self, topics: Sequence[Topic]) -> Report:
        """These topics' followers, as things stand now; `topics` is fresh from Metadata."""
        wanted = [topic for topic in topics if self._is_wanted(topic.name)]
        problems: dict[int, str] = {}
        offers = await self._of_each_broker(
            self._connections.brokers,
            lambda broker: self._connections.broker_offers(broker, Api.DESCRIBE_REPLICAS),
            problems,
        )
        ours = [broker for broker, is_ours in offers.items() if is_ours]
        if ours:
            rows = await self._exact(wanted, ours, problems)
        else:
            rows = await self._estimated(wanted, offers, problems)
        self._silent = frozenset(problems)
        return Report(
            is_exact=bool(ours),
            rows=tuple(self._with_trend(row) for row in rows),
            problems=tuple(f"broker {broker}: {problems[broker]}" for broker in sorted(problems)),
        )

    async def _of_each_broker(
        self,
        brokers: Iterable[int],
        question: Callable[[int], Awaitable[T]],
        problems: dict[int, str],
    ) -> dict[int, T]:
        """What each broker answers; why the others do not is added to `problems`."""

        def within_ms(broker: int) -> int:
            return SILENT_WITHIN_MS if broker in self._silent else BROKER_WITHIN_MS

        return await of_each_broker(brokers, question, problems, within_ms=within_ms)

    # From leaders that tell.

    async def _exact(
        self, topics: Sequence[Topic], brokers: Iterable[int], problems: dict[int, str]
    ) -> list[FollowerRow]:
        body = wire.write_request(sorted(topic.name for topic in topics))

        async def ask(broker: int) -> wire.ReplicasSeen:
            frame, at = await self._connections.ask_broker_bytes(
                broker, Api.DESCRIBE_REPLICAS, body
            )
            return wire.read_response(frame, at)

        answers = await self._of_each_broker(brokers, ask, problems)
        seen: dict[TopicPartition, tuple[int, PartitionSeen]] = {}
        for broker, answer in answers.items():
            for led in answer.partitions:
                key = led.topic, led.partition
                if key not in seen or seen[key][1].leader_epoch < led.leader_epoch:
                    seen[key] = broker, led
        rows = []
        for topic in topics:
            for part in topic.partitions:
                known = seen.get((topic.name, part.number))
                if known is None:
                    rows += _unknown(topic.name, part, problems)
                else:
                    rows += [_exact_row(*known, follower) for follower in known[1].followers]
        return rows

    # From anybody's logs.

    async def _estimated(
        self, topics: Sequence[Topic], brokers: Iterable[int], problems: dict[int, str]
    ) -> list[FollowerRow]:
        async def ask(broker: int) -> dict[TopicPartition, tuple[int, int | None]]:
            return await self._ends_and_sizes(broker, topics)

        answers = await self._of_each_broker(brokers, ask, problems)
        now_ms = self._clock_ms()
        rows = []
        for topic in topics:
            for part in topic.partitions:
                key = topic.name, part.number
                leader = part.leader
                known = {
                    broker: answers[broker][key] for broker in answers if key in answers[broker]
                }
                if leader is None or leader not in known:
                    rows += _unknown(topic.name, part, problems)
                    continue
                ends = self._ends.setdefault(key, _Ends())
                ends.add(now_ms, known[leader][0])
                for follower in part.replicas:
                    if follower != leader:
                        rows.append(
                            _estimated_row(topic.name, part, follower, known, ends, now_ms=now_ms)
                        )
        return rows

    async def _ends_and_sizes(
        self, broker: int, topics: Sequence[Topic]
    ) -> dict[TopicPartition, tuple[int, int | None]]:
        """Where each log of this broker ends, and its bytes if the broker tells."""
        here = [
            (topic.name, PartitionId(part.number))
            for topic in topics
            for part in topic.partitions
            if broker in part.replicas
        ]
        found = await log_sizes.of_broker(self._connections, BrokerId(broker), here)
        return {key: (log.end, log.size_bytes) for key, log in found.items() if log.end is not None}

    # How things move.

    def _with_trend(self, row: FollowerRow) -> FollowerRow:
        if row.messages is None:
            return row
        now_ms = self._clock_ms()
        looks = self._before.setdefault(row.place, deque(maxlen=SAMPLES_MAX))
        while len(looks) > 1 and looks[0][0] < now_ms - TREND_MS:
            looks.popleft()
        first_ms, behind_then = looks[0] if looks else (now_ms, row.messages)
        looks.append((now_ms, row.messages))
        if row.is_level or now_ms == first_ms:
            return row
        caught_up = behind_then - row.messages
        if caught_up > 0:
            left_ms = row.messages * (now_ms - first_ms) // caught_up
            return replace(row, catches_up_in_ms=left_ms)
        return replace(row, falls_back=caught_up < 0)


def _unknown(topic: str, part: Partition, problems: Mapping[int, str]) -> list[FollowerRow]:
    """All that is known of a partition whose leader did not tell is what Metadata says."""
    if part.leader is None:
        problem = "nobody leads it"
    elif part.leader in problems:
        problem = f"broker {part.leader} leads it and does not answer"
    else:
        problem = "its leadership is moving"
    return [
        FollowerRow(
            topic=topic,
            partition=part.number,
            leader=part.leader,
            follower=follower,
            in_sync=follower in part.isr,
            problem=problem,
        )
        for follower in part.replicas
        if follower != part.leader
    ]


def _exact_row(leader: int, part: PartitionSeen, follower: FollowerSeen) -> FollowerRow:
    is_known = follower.end != NONE
    # In peace a follower asks again within one wait, and its request takes some time too.
    is_silent = follower.silent_ms > 2 * part.fetch_wait_max_ms + 500
    return FollowerRow(
        topic=part.topic,
        partition=part.partition,
        leader=leader,
        follower=follower.broker,
        in_sync=Flag.MEMBER in follower.flags,
        lag_ms=_known(follower.lag_ms),
        messages=max(0, part.end - follower.end) if is_known else None,
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
    part: Partition,
    follower: int,
    known: Mapping[int, tuple[int, int | None]],
    ends: _Ends,
    *,
    now_ms: int,
) -> FollowerRow:
    row = FollowerRow(
        topic=topic,
        partition=part.number,
        leader=part.leader,
        follower=follower,
        in_sync=follower in part.isr,
        lag_is_estimated=True,
    )
    if follower not in known:
        return replace(row, problem="its broker does not answer for it", is_registered=False)
    assert part.leader is not None, "somebody leads"
    (leader_end, leader_bytes), (end, size_bytes) = known[part.leader], known[follower]
    messages = max(0, leader_end - end)  # the two were not asked at the same moment
    if messages == 0:
        return replace(row, lag_ms=0, messages=0, bytes=0)
    lag_ms, is_at_least = ends.age_ms(end, now_ms=now_ms)
    behind = None
    if leader_bytes is not None and size_bytes is not None:
        behind = max(0, leader_bytes - size_bytes)
    return replace(row, lag_ms=lag_ms, lag_is_at_least=is_at_least, messages=messages, bytes=behind)


def _known(value: int) -> int | None:
    return None if value == NONE else value
