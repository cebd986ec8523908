"""What is wrong with a cluster's replicas, grouped by the broker that causes it and by topic.

One event (a stopped broker) concerns hundreds of replicas. The operator needs the broker first:
what it does, since when, what comes next. Replicas of a topic with the same reason are one group.
Groups come the worst first, user topics before internal ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from insync.cli.replica_words import Reason, reason
from insync.client.admin import Partition, Topic
from insync.client.replica_lag import FollowerRow, Problem, Report
from insync.client.replica_limits import Limits

OF_THE_LEADER: Final = frozenset({Reason.LEADER_SILENT, Reason.PENDING_READ})
"""Reasons whose cause is the leader's broker, not the follower's."""
OF_NO_BROKER: Final = frozenset({Reason.HEALTHY, Reason.LEADER_CHANGING, Reason.NO_LEADER})
EVICTED_WITHIN_MS: Final = 3_000
"""After the end of its session a broker is evicted well within this time."""
RANKS: Final = {each: rank for rank, each in enumerate(Reason)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    brokers: int  # registered, or with replicas
    silent: int
    down: int
    partitions: int
    under_replicated: int
    under_min_isr: int | None  # None: the brokers do not tell min.insync.replicas
    without_leader: int
    replicas: int
    out_of_sync: int
    offline: int
    unknown: int  # replicas whose lag is not known
    healthy_topics: int
    healthy_partitions: int

    @property
    def data(self) -> dict[str, int | None]:
        return {
            "brokers": self.brokers,
            "brokers_not_responding": self.silent,
            "brokers_down": self.down,
            "partitions": self.partitions,
            "under_replicated_partitions": self.under_replicated,
            "under_min_isr_partitions": self.under_min_isr,
            "leaderless_partitions": self.without_leader,
            "replicas": self.replicas,
            "out_of_sync_replicas": self.out_of_sync,
            "offline_replicas": self.offline,
            "replicas_of_unknown_lag": self.unknown,
        }


@dataclass(frozen=True, kw_only=True)
class BrokerTrouble:
    """A broker that causes something: what it does, to how many partitions, and what comes next."""

    broker: int
    is_exact: bool
    is_registered: bool
    silence: str | None  # why it did not respond to this command
    rows: Mapping[Reason, Sequence[FollowerRow]]  # what it causes
    replicas: int  # on this broker
    out: int  # of them out of sync
    fetched_ms: int | None  # since the latest fetch of its healthy replicas
    leads: int
    leaderless: int  # partitions without a leader that wait for this broker
    others: frozenset[int]  # brokers whose replicas of its leaderless partitions may be intact
    offline: int  # replicas that Metadata lists as offline
    session_timeout_ms: int | None

    @property
    def rank(self) -> tuple[int, ...]:
        """The worst first: what clients cannot use, then what needs an operator."""
        unavailable = self.leaderless + (self.leads if self.silence is not None else 0)
        is_gone = not self.is_registered or self.silence is not None
        worst = min((RANKS[each] for each in self.rows), default=len(RANKS))
        return -unavailable, 0 if is_gone else 1, worst, -self.out, self.broker

    @property
    def state(self) -> str:
        if not self.is_registered:
            return "down"
        if self.silence is not None:
            return "not responding"
        return str(self.worst)

    @property
    def worst(self) -> Reason:
        return min(self.rows, key=RANKS.__getitem__)

    @cached_property
    def stopped_ms(self) -> int | None:
        """Since its latest fetch, if leaders report that it fetches no more."""
        stopped = [
            row.silent_ms
            for each in (Reason.STOPPED_FETCHING, Reason.NEVER_FETCHED, Reason.BROKER_DOWN)
            for row in self.rows.get(each, ())
            if row.silent_ms is not None
        ]
        return min(stopped, default=None)

    @property
    def evicted_in_ms(self) -> int | None:
        """Until its session ends, about: its latest heartbeat was near its latest fetch."""
        left_ms = self._session_left_ms
        return None if left_ms is None or self.outlives_its_fetches else max(0, left_ms)

    @property
    def outlives_its_fetches(self) -> bool:
        """It should have been evicted by now, so it seems to reach the metadata store still."""
        left_ms = self._session_left_ms
        return left_ms is not None and left_ms < -EVICTED_WITHIN_MS

    @property
    def _session_left_ms(self) -> int | None:
        """Of a broker that hangs: if its heartbeats had ended with its fetches."""
        hangs = self.is_registered and self.silence is not None and self.fetched_ms is None
        if not hangs or self.stopped_ms is None or self.session_timeout_ms is None:
            return None
        return self.session_timeout_ms - self.stopped_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replicas of one topic with the same reason, on the same broker."""

    reason: Reason
    in_sync: bool
    broker: int | None  # the leader's if that is the cause; None: no leader
    rows: Sequence[FollowerRow]

    @property
    def partitions(self) -> list[int]:
        return sorted({row.partition for row in self.rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTrouble:
    topic: str
    is_internal: bool
    partitions: int
    affected: int
    out_of_sync: int  # partitions with a replica out of sync
    under_min_isr: int | None
    without_leader: int
    groups: Sequence[Group]

    @property
    def rank(self) -> tuple[Any, ...]:
        return (
            self.is_internal,
            -self.without_leader,
            -(self.under_min_isr or 0),
            -self.out_of_sync,
            -self.affected,
            self.topic,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    totals: Totals
    brokers: Sequence[BrokerTrouble]  # the worst first
    topics: Sequence[TopicTrouble]


def diagnose(report: Report, limits: Limits) -> Diagnosis:
    """Group what is wrong; one pass over the replicas."""
    rows = [*report.rows, *_of_leaders_alone(report)]
    reasons = [reason(row) for row in rows]
    troubled: dict[str, list[tuple[Reason, FollowerRow]]] = defaultdict(list)
    for why, row in zip(reasons, rows, strict=True):
        if why is not Reason.HEALTHY:
            troubled[row.topic].append((why, row))
    topics = [
        _topic_trouble(topic, troubled[topic.name], limits)
        for topic in report.topics
        if topic.name in troubled
    ]
    brokers = _broker_troubles(report, rows, reasons, limits)
    return Diagnosis(
        totals=_totals(report, topics, limits),
        brokers=sorted(brokers, key=lambda each: each.rank),
        topics=sorted(topics, key=lambda each: each.rank),
    )


def _of_leaders_alone(report: Report) -> Iterator[FollowerRow]:
    """Partitions without followers whose leader does not respond: no row of a follower says so."""
    for topic in report.topics:
        for each in topic.partitions:
            if each.leader is None or each.leader not in report.silent:
                continue
            if each.replicas == (each.leader,):
                yield FollowerRow(
                    topic=topic.name,
                    partition=each.number,
                    leader=each.leader,
                    follower=each.leader,
                    in_sync=True,
                    problem=Problem.LEADER_SILENT,
                )


def _totals(report: Report, troubled: Sequence[TopicTrouble], limits: Limits) -> Totals:
    partitions = [each for topic in report.topics for each in topic.partitions]
    assigned = {broker for each in partitions for broker in each.replicas}
    under = [_under_min_isr(topic, limits) for topic in report.topics]
    affected = sum(topic.affected for topic in troubled)
    return Totals(
        brokers=len(report.brokers | assigned),
        silent=len(report.silent),
        down=len(assigned - report.brokers),
        partitions=len(partitions),
        under_replicated=sum(each.is_under_replicated for each in partitions),
        under_min_isr=None if None in under else sum(filter(None, under)),
        without_leader=sum(each.leader is None for each in partitions),
        replicas=sum(len(each.replicas) for each in partitions),
        out_of_sync=sum(not row.in_sync for row in report.rows),
        offline=len(_offline_replicas(report)),
        unknown=sum(row.problem is not None for row in report.rows),
        healthy_topics=len(report.topics) - len(troubled),
        healthy_partitions=len(partitions) - affected,
    )


def _offline_replicas(report: Report) -> set[tuple[str, int, int]]:
    """As Metadata has them, and those that brokers report, which it may not have yet."""
    return report.offline.keys() | {
        (topic.name, each.number, broker)
        for topic in report.topics
        for each in topic.partitions
        for broker in each.replicas
        if broker in each.offline or broker not in report.brokers
    }


def _under_min_isr(topic: Topic, limits: Limits) -> int | None:
    """Partitions that refuse acks=all; None: not known."""
    count = 0
    for partition in topic.partitions:
        if len(partition.isr) >= len(partition.replicas):
            continue
        required = limits.required_isr(topic.name, replication_factor=len(partition.replicas))
        if required is None:
            return None
        count += len(partition.isr) < required
    return count


def _topic_trouble(
    topic: Topic, troubled: Sequence[tuple[Reason, FollowerRow]], limits: Limits
) -> TopicTrouble:
    groups: dict[tuple[Reason, bool, int | None], list[FollowerRow]] = defaultdict(list)
    for why, row in troubled:
        if why is Reason.NO_LEADER or why in OF_THE_LEADER:
            groups[why, True, row.leader].append(row)
        else:
            groups[why, row.in_sync, row.follower].append(row)
    ordered = sorted(
        groups.items(), key=lambda each: (RANKS[each[0][0]], -len(each[1]), each[0][2] or 0)
    )
    return TopicTrouble(
        topic=topic.name,
        is_internal=topic.is_internal or topic.name.startswith("__"),
        partitions=len(topic.partitions),
        affected=len({row.partition for _, row in troubled}),
        out_of_sync=len({row.partition for _, row in troubled if not row.in_sync}),
        under_min_isr=_under_min_isr(topic, limits),
        without_leader=sum(each.leader is None for each in topic.partitions),
        groups=[
            Group(reason=why, in_sync=in_sync, broker=broker, rows=rows)
            for (why, in_sync, broker), rows in ordered
        ],
    )


def _broker_troubles(
    report: Report, rows: Sequence[FollowerRow], reasons: Sequence[Reason], limits: Limits
) -> list[BrokerTrouble]:
    replicas: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    leaderless: Counter[int] = Counter()
    others: dict[int, set[int]] = defaultdict(set)
    offline: Counter[int] = Counter()
    for topic in report.topics:
        for partition in topic.partitions:
            replicas.update(partition.replicas)
            offline.update(partition.offline)
            if partition.leader is not None:
                leads[partition.leader] += 1
            else:  # it waits for the last members of its ISR
                leaderless.update(partition.isr or partition.offline)
                intact = _may_be_intact(topic.name, partition, report)
                for replica in partition.replicas:
                    others[replica] |= intact - {replica}
    out: Counter[int] = Counter()
    fetched_ms: dict[int, int] = {}
    caused: dict[int, dict[Reason, list[FollowerRow]]] = defaultdict(lambda: defaultdict(list))
    for why, row in zip(reasons, rows, strict=True):
        out[row.follower] += not row.in_sync
        if why is Reason.HEALTHY and row.silent_ms is not None:
            earlier_ms = fetched_ms.get(row.follower, row.silent_ms)
            fetched_ms[row.follower] = min(row.silent_ms, earlier_ms)
        broker = row.leader if why in OF_THE_LEADER else row.follower
        if why not in OF_NO_BROKER and broker is not None:
            caused[broker][why].append(row)
    is_down = replicas.keys() - report.brokers
    return [
        BrokerTrouble(
            broker=broker,
            is_exact=report.is_exact,
            is_registered=broker not in is_down,
            silence=report.silent.get(broker),
            rows=caused[broker],
            replicas=replicas[broker],
            out=out[broker],
            fetched_ms=fetched_ms.get(broker),
            leads=leads[broker],
            leaderless=leaderless[broker],
            others=frozenset(others[broker]),
            offline=offline[broker],
            session_timeout_ms=limits.session_timeout_ms,
        )
        for broker in sorted(caused.keys() | report.silent.keys() | is_down)
    ]


def _may_be_intact(topic: str, partition: Partition, report: Report) -> frozenset[int]:
    """Brokers of a leaderless partition that may have every record: first those that may lead."""
    damaged = {
        broker
        for broker in partition.replicas
        if (seen := report.offline.get((topic, partition.number, broker))) and seen.is_damaged
    }
    may_lead = frozenset[int]((*partition.isr, *(partition.elr or ()))) - damaged
    return may_lead or frozenset[int](partition.replicas) - report.brokers - damaged
