"""/metrics: Kafka's names where dashboards know them, and what Kafka does not export.

Gauges are computed when they are asked for, from what the broker knows anyway, in one pass over
its partitions. What has one value per partition and follower is told only of followers that are
behind, the worst first and at most `DETAIL_MAX`: a thousand level ones would cost a scrape tens
of milliseconds of the broker's loop and say nothing. Each follower's worst is always told.

Importing this costs 0.1 s and 9 MB (prometheus-client), so only a broker with `metrics.port` does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from insync.broker.awake import Awake
from insync.broker.changes import Changes
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.quotas import Quotas
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.rules import isr as isr_rules
from insync.rules.isr import Stable
from insync.rules.leadership import Leadership
from insync.rules.values import UNKNOWN_OFFSET, BrokerId

DETAIL_MAX: Final = 100
SECOND_MS: Final = 1_000
LEVEL_MAY_LEAVE: Final = frozenset({"messages", "lag-begin"})
"""Policies under which silence alone puts out a follower that lacks nothing."""


@dataclass(slots=True)
class FollowerSum:
    """One broker as a follower of everything led here."""

    lag_ms_max: int = 0
    messages_max: int = 0
    outside: int = 0
    reads: int = 0
    oldest_read_ms: int = 0


@dataclass(slots=True)
class Sums:
    """One pass over the partitions of this broker."""

    partitions: int = 0
    leaders: int = 0
    offline_logs: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    changes_pending: int = 0
    fetcher_lag_max: int = 0
    replica_lag: int = 0
    next_eviction_at_ms: int | None = None
    followers: dict[BrokerId, FollowerSum] = field(default_factory=dict)
    behind: list[tuple[int, int, TopicPartition, BrokerId]] = field(default_factory=list)


class Metrics(Collector):
    def __init__(
        self,
        *,
        replicas: Replicas,
        view: ClusterView,
        awake: Awake,
        changes: Changes,
        quotas: Quotas,
        telemetry_drops: Mapping[str, int],
    ) -> None:
        self._quotas = quotas
        self._telemetry_drops = telemetry_drops
        self._inbound = Inbound()
        self._replicas = replicas
        self._view = view
        self._awake = awake
        self._changes = changes
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        now_ms = self._replicas.clock_ms()
        sums = self._sums(now_ms)
        yield from self._of_replicas(sums)
        yield from self._of_traffic()
        yield from self._of_controller()
        yield from self._of_followers(sums, now_ms=now_ms)
        yield from self._of_itself()
        yield from self._of_moves(sums, now_ms=now_ms)

    # Looking.

    def _sums(self, now_ms: int) -> Sums:
        sums = Sums(
            followers={
                broker: FollowerSum()
                for broker in self._view.brokers
                if broker != self._replicas.broker
            }
        )
        is_alive = self._replicas.store.is_alive(now_ms)
        for found in self._replicas.held.values():
            sums.partitions += 1
            sums.offline_logs += found.log.has_failed
            if found.term is None:
                behind = found.leader_watermark - found.log.end
                sums.fetcher_lag_max = max(sums.fetcher_lag_max, behind)
                sums.replica_lag += max(0, behind)
            elif is_alive:
                self._add_led(sums, found, found.term, now_ms=now_ms)
        return sums

    def _add_led(self, sums: Sums, found: Replica, term: Leadership, *, now_ms: int) -> None:
        sums.leaders += 1
        members = isr_rules.committed(term.isr)
        state = self._view.states.get(found.key)
        adding = 0 if state is None else len(state.adding)
        sums.reassigning += state is not None and state.is_moving
        sums.under_replicated += len(members) < len(term.followers) + 1 - adding
        sums.under_min_isr += len(members) < found.min_isr
        sums.at_min_isr += len(members) == found.min_isr
        sums.changes_pending += not isinstance(term.isr, Stable)
        end, is_any_behind = term.end, False
        for broker, follower in term.followers.items():
            of_broker = sums.followers.get(broker)
            if of_broker is None:  # dead, and a follower still
                of_broker = sums.followers[broker] = FollowerSum()
            of_broker.outside += broker not in members
            if follower.reads.reads:
                of_broker.reads += len(follower.reads.reads)
                oldest_ms = follower.reads.oldest_parsed_at_ms
                assert oldest_ms is not None, "there is one"
                of_broker.oldest_read_ms = max(of_broker.oldest_read_ms, now_ms - oldest_ms)
            if follower.end == end:
                continue
            is_any_behind = True
            messages = end if follower.end == UNKNOWN_OFFSET else end - follower.end
            of_broker.messages_max = max(of_broker.messages_max, messages)
            lag_ms = follower.lag_ms(leader_end=end, now_ms=now_ms)
            if lag_ms is not None:
                of_broker.lag_ms_max = max(of_broker.lag_ms_max, lag_ms)
                sums.behind.append((lag_ms, messages, found.key, broker))
        if is_any_behind or term.policy.name in LEVEL_MAY_LEAVE:
            for at_ms in term.deadlines(found.session_fetched_at_ms).values():
                soonest = sums.next_eviction_at_ms
                sums.next_eviction_at_ms = at_ms if soonest is None else min(soonest, at_ms)

    # Telling.

    def _of_replicas(self, sums: Sums) -> Iterator[Metric]:
        prefix = "kafka_server_replicamanager_"
        changes = self._changes
        yield _gauge(f"{prefix}partitioncount", "Partitions held.", sums.partitions)
        yield _gauge(f"{prefix}leadercount", "Partitions led.", sums.leaders)
        yield _gauge(f"{prefix}offlinereplicacount", "Logs that failed.", sums.offline_logs)
        yield _gauge(
            f"{prefix}underreplicatedpartitions",
            "Led partitions with a replica out of sync.",
            sums.under_replicated,
        )
        yield _gauge(
            f"{prefix}underminisrpartitioncount",
            "Led partitions that refuse acks=all.",
            sums.under_min_isr,
        )
        yield _gauge(
            f"{prefix}atminisrpartitioncount",
            "Led partitions that can lose no replica.",
            sums.at_min_isr,
        )
        yield _gauge(
            f"{prefix}reassigningpartitions", "Led partitions on the move.", sums.reassigning
        )
        yield _counter(f"{prefix}isrshrinks", "ISRs that lost members.", changes.isr_shrinks)
        yield _counter(f"{prefix}isrexpands", "ISRs that gained members.", changes.isr_expands)
        yield _gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Messages this broker, as follower, is behind a leader's watermark at most.",
            max(0, sums.fetcher_lag_max),
        )

    def _of_traffic(self) -> Iterator[Metric]:
        prefix = "kafka_server_brokertopicmetrics_"
        counts = self._replicas.counts
        yield _counter(f"{prefix}messagesin", "Records produced here.", counts.messages_in)
        yield _counter(f"{prefix}bytesin", "Bytes produced here.", counts.bytes_in)
        yield _counter(f"{prefix}bytesout", "Bytes sent to consumers.", counts.bytes_out)
        yield _counter(
            f"{prefix}failedproducerequests",
            "Partitions of produce requests that were refused.",
            counts.produce_failures,
        )
        yield _counter(
            f"{prefix}replicationbytesin",
            "Bytes fetched from leaders.",
            counts.replication_bytes_in,
        )
        yield _counter(
            f"{prefix}replicationbytesout",
            "Bytes sent to followers.",
            counts.replication_bytes_out,
        )

    def _of_controller(self) -> Iterator[Metric]:
        """As Kafka: all but the active controller say nothing of the cluster."""
        prefix = "kafka_controller_kafkacontroller_"
        changes, view = self._changes, self._view
        is_active = changes.is_controller
        states = view.states.values() if is_active else ()
        yield _gauge(f"{prefix}activecontrollercount", "1: this one.", int(is_active))
        yield _gauge(
            f"{prefix}offlinepartitionscount",
            "Partitions that nobody leads.",
            sum(state.leader is None or state.leader not in view.brokers for state in states),
        )
        yield _gauge(
            f"{prefix}preferredreplicaimbalancecount",
            "Partitions not led by their first replica.",
            sum(state.leader != state.replicas[0] for state in states),
        )
        yield _gauge(f"{prefix}globalpartitioncount", "Partitions of the cluster.", len(states))
        yield _gauge(
            f"{prefix}globaltopiccount",
            "Topics of the cluster.",
            len(view.topics) if is_active else 0,
        )
        yield _gauge(
            f"{prefix}activebrokercount", "Brokers alive.", len(view.brokers) if is_active else 0
        )
        stats = "kafka_controller_controllerstats_"
        elections = UntypedMetricFamily(
            f"{stats}leaderelectionrateandtimems_count", "Elections made by this controller."
        )
        elections.add_metric((), changes.elections)
        yield elections
        yield _counter(
            f"{stats}uncleanleaderelections",
            "Of these, of replicas that were not in sync.",
            changes.unclean_elections,
        )

    def _of_followers(self, sums: Sums, *, now_ms: int) -> Iterator[Metric]:
        """What nobody else exports."""
        followers = sorted(sums.followers.items())

        def of_each(
            name: str, about: str, value: Callable[[FollowerSum], float]
        ) -> GaugeMetricFamily:
            samples = {str(broker): value(each) for broker, each in followers}
            return _by_follower(name, about, samples)

        yield of_each(
            "insync_follower_lag_seconds",
            "The longest any partition led here is ahead of this follower; 0: level.",
            lambda each: each.lag_ms_max / 1_000,
        )
        yield of_each(
            "insync_follower_lag_messages", "The same in messages.", lambda each: each.messages_max
        )
        yield of_each(
            "insync_follower_partitions_out_of_sync",
            "Partitions led here in whose ISR this follower is not.",
            lambda each: each.outside,
        )
        yield of_each(
            "insync_follower_pending_reads",
            "Fetches of this follower whose reads are under way.",
            lambda each: each.reads,
        )
        yield of_each(
            "insync_follower_pending_read_seconds",
            "How long the oldest of these has taken.",
            lambda each: each.oldest_read_ms / 1_000,
        )
        yield _details(sums.behind)
        soonest = sums.next_eviction_at_ms
        yield _gauge(
            "insync_next_eviction_seconds",
            "Until the next member leaves an ISR here if nothing more happens; +Inf: none is due.",
            math.inf if soonest is None else max(0, soonest - now_ms) / 1_000,
        )
        yield _gauge(
            "insync_isr_changes_pending",
            "Changes of an ISR on their way to the store.",
            sums.changes_pending,
        )
        yield _counter(
            "insync_resignations",
            "Leaderships this broker gave up for being too slow.",
            self._changes.resignations,
        )

    def _of_itself(self) -> Iterator[Metric]:
        """How this broker fares, and what its record of itself lacks."""
        yield _counter("insync_stalls", "Times this broker did not run.", self._awake.stalls)
        yield _counter(
            "insync_stalled_seconds",
            "How long it did not run, in all.",
            self._awake.stalled_ms / 1_000,
        )
        yield _gauge(
            "insync_broker_incarnation",
            "Which life of this broker this is.",
            self._replicas.incarnation,
        )
        dropped = CounterMetricFamily(
            "insync_telemetry_dropped_rows",
            "Rows of telemetry lost since the start: no room for them, or the topic refused.",
            labels=("table",),
        )
        for table, rows in self._telemetry_drops.items():
            dropped.add_metric((table,), rows)
        yield dropped

    def _of_moves(self, sums: Sums, *, now_ms: int) -> Iterator[Metric]:
        """KIP-73's, each under the document's name; the rates under Kafka's as well."""
        for quota in self._quotas.sides:
            rate = quota.bytes_per_s()
            about = f"Bytes a second of throttled replication, this broker as {quota.side}."
            yield _gauge(f"kafka_server_{quota.side}replicationthrottledrate", about, rate)
            yield _gauge(f"kafka_server_{quota.side}replication_byte_rate", about, rate)
            yield _gauge(
                f"insync_{quota.side}_replication_throttle_bytes_per_second",
                "The limit of it; +Inf: none is set, or no replica is listed.",
                quota.rate if quota.rate is not None and quota.is_set else math.inf,
            )
        yield _gauge(
            "kafka_server_sumreplicalag",
            "Messages that the replicas of this broker are behind their leaders' watermarks, "
            "of those that they were told.",
            sums.replica_lag,
        )
        family = GaugeMetricFamily(
            "kafka_server_partitionbytesinrate",
            f"Bytes a second produced to a partition led here, the {DETAIL_MAX} busiest.",
            labels=("topic", "partition"),
        )
        for rate, (topic, number) in self._inbound.rates(self._replicas, now_ms=now_ms):
            family.add_metric((topic, str(number)), rate)
        yield family


class Inbound:
    """What is produced to each partition, since the look before the last at the latest."""

    def __init__(self) -> None:
        self._at_ms = 0
        self._bytes: dict[TopicPartition, int] = {}
        self._told: list[tuple[float, TopicPartition]] = []

    def rates(self, replicas: Replicas, *, now_ms: int) -> list[tuple[float, TopicPartition]]:
        """The busiest first; looks less than a second apart are told the same."""
        passed_ms = now_ms - self._at_ms
        if passed_ms >= SECOND_MS:
            counted = {key: found.bytes_in for key, found in replicas.held.items()}
            rates = (
                ((count - self._bytes.get(key, count)) * SECOND_MS / passed_ms, key)
                for key, count in counted.items()
            )
            self._told = heapq.nlargest(DETAIL_MAX, (each for each in rates if each[0] > 0))
            self._at_ms, self._bytes = now_ms, counted
        return self._told


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def _counter(name: str, about: str, value: float) -> CounterMetricFamily:
    """Told as `name`_total."""
    return CounterMetricFamily(name, about, value=value)


def _by_follower(name: str, about: str, samples: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=("follower",))
    for follower, value in samples.items():
        family.add_metric((follower,), value)
    return family


def _details(behind: Iterable[tuple[int, int, TopicPartition, BrokerId]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "insync_partition_follower_lag_seconds",
        f"Followers of partitions led here that are behind, the worst {DETAIL_MAX}.",
        labels=("topic", "partition", "follower"),
    )
    for lag_ms, _, (topic, number), follower in heapq.nlargest(DETAIL_MAX, behind):
        family.add_metric((topic, str(number), str(follower)), lag_ms / 1_000)
    return family
