"""The metrics of a broker: with Kafka's names where Kafka has them, and metrics of our own.

Gauges are computed for each scrape, in one pass over the broker's partitions. A metric with one
value per partition and follower lists only followers that are behind, the furthest behind first and
at most `DETAIL_MAX`: a thousand followers without lag would block the event loop for tens of
milliseconds and say nothing. The largest lag of each follower is always exported.

Importing this module costs 0.1 s and 9 MB (prometheus-client), so only brokers with `metrics.port`
do.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.observability.inbound_metrics import all_partitions, busiest_partitions
from insync.broker.observability.isr_counters import IsrCounters
from insync.broker.observability.partition_sums import FollowerSums, Sums, sum_partitions
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.replicas import Replicas
from insync.rules.values import BrokerId

DETAIL_MAX: Final = 100


class Metrics(Collector):
    def __init__(
        self,
        *,
        replicas: Replicas,
        view: ClusterView,
        loop: BrokerLoop,
        isr_counters: IsrCounters,
        quotas: Quotas,
        telemetry_drops: Mapping[str, int],
    ) -> None:
        self._quotas = quotas
        self._telemetry_drops = telemetry_drops
        self._replicas = replicas
        self._view = view
        self._loop = loop
        self._isr_counters = isr_counters
        self._registry = _registry_of(self)
        self._registry_without_rates = _registry_of(_Families(self._families))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def text_of_all_partitions(self) -> Iterator[bytes]:
        """The same with PartitionBytesInRate of every partition led here, a turn's work each."""
        yield generate_latest(self._registry_without_rates)
        yield from all_partitions(self._replicas)

    def collect(self) -> Iterator[Metric]:
        yield from self._families()
        yield busiest_partitions(self._replicas, limit=DETAIL_MAX, now_ms=self._loop.clock_ms())

    def _families(self) -> Iterator[Metric]:
        """All but PartitionBytesInRate."""
        now_ms = self._loop.clock_ms()
        sums = sum_partitions(
            self._replicas,
            self._view,
            is_throttled=self._quotas.follower.lists,
            now_ms=now_ms,
        )
        yield from self._replica_metrics(sums)
        yield from self._traffic_metrics()
        yield from self._controller_metrics()
        yield from self._follower_metrics(sums, now_ms=now_ms)
        yield from self._broker_metrics()
        yield from self._throttle_metrics(sums)

    def _replica_metrics(self, sums: Sums) -> Iterator[Metric]:
        prefix = "kafka_server_replicamanager_"
        counters = self._isr_counters
        yield _gauge(
            f"{prefix}partitioncount",
            "Number of partitions with a replica on this broker.",
            sums.partitions,
        )
        yield _gauge(
            f"{prefix}leadercount", "Number of partitions that this broker leads.", sums.leaders
        )
        yield _gauge(
            f"{prefix}offlinereplicacount",
            "Number of replicas on this broker whose log failed or is damaged.",
            sums.offline_logs,
        )
        yield _gauge(
            f"{prefix}underreplicatedpartitions",
            "Number of partitions led by this broker with an out-of-sync replica.",
            sums.under_replicated,
        )
        yield _gauge(
            f"{prefix}underminisrpartitioncount",
            "Number of partitions led by this broker whose ISR is below min.insync.replicas.",
            sums.under_min_isr,
        )
        yield _gauge(
            f"{prefix}atminisrpartitioncount",
            "Number of partitions led by this broker whose ISR is exactly min.insync.replicas.",
            sums.at_min_isr,
        )
        yield _gauge(
            f"{prefix}reassigningpartitions",
            "Number of partitions led by this broker that are being reassigned.",
            sums.reassigning,
        )
        yield _counter(
            f"{prefix}isrshrinks",
            "Times that the ISR of a partition led by this broker shrank.",
            counters.isr_shrinks,
        )
        yield _counter(
            f"{prefix}isrexpands",
            "Times that the ISR of a partition led by this broker expanded.",
            counters.isr_expands,
        )
        yield _gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Largest number of messages that a replica on this broker is behind its leader's high "
            "watermark.",
            max(0, sums.fetcher_lag_max),
        )

    def _traffic_metrics(self) -> Iterator[Metric]:
        prefix = "kafka_server_brokertopicmetrics_"
        counters = self._replicas.counters
        yield _counter(
            f"{prefix}messagesin", "Records that producers appended.", counters.messages_in
        )
        yield _counter(f"{prefix}bytesin", "Bytes that producers appended.", counters.bytes_in)
        yield _counter(f"{prefix}bytesout", "Bytes sent to consumers.", counters.bytes_out)
        yield _counter(
            f"{prefix}failedproducerequests",
            "Partitions of produce requests that were answered with an error.",
            counters.produce_failures,
        )
        yield _counter(
            f"{prefix}replicationbytesin",
            "Bytes that this broker fetched from leaders.",
            counters.replication_bytes_in,
        )
        yield _counter(
            f"{prefix}replicationbytesout",
            "Bytes sent to followers.",
            counters.replication_bytes_out,
        )

    def _controller_metrics(self) -> Iterator[Metric]:
        """As in Kafka, metrics of the cluster are 0 on brokers other than the active controller."""
        prefix = "kafka_controller_kafkacontroller_"
        counters, view = self._isr_counters, self._view
        is_active = counters.is_controller
        states = view.states.values() if is_active else ()
        yield _gauge(
            f"{prefix}activecontrollercount",
            "1 if this broker is the active controller, else 0.",
            int(is_active),
        )
        yield _gauge(
            f"{prefix}offlinepartitionscount",
            "Number of partitions without a leader.",
            sum(state.leader is None or state.leader not in view.brokers for state in states),
        )
        yield _gauge(
            f"{prefix}preferredreplicaimbalancecount",
            "Number of partitions whose leader is not their preferred replica.",
            sum(state.leader != state.replicas[0] for state in states),
        )
        yield _gauge(
            f"{prefix}globalpartitioncount", "Number of partitions of the cluster.", len(states)
        )
        yield _gauge(
            f"{prefix}globaltopiccount",
            "Number of topics of the cluster.",
            len(view.topics) if is_active else 0,
        )
        yield _gauge(
            f"{prefix}activebrokercount",
            "Number of live brokers.",
            len(view.brokers) if is_active else 0,
        )
        stats = "kafka_controller_controllerstats_"
        elections = UntypedMetricFamily(
            f"{stats}leaderelectionrateandtimems_count", "Leader elections by this controller."
        )
        elections.add_metric((), counters.elections)
        yield elections
        yield _counter(
            f"{stats}uncleanleaderelections",
            "Leader elections by this controller of a replica that was not in sync.",
            counters.unclean_elections,
        )

    def _follower_metrics(self, sums: Sums, *, now_ms: int) -> Iterator[Metric]:
        """Followers as the leaders on this broker see them; Kafka has no such metrics."""
        followers = sorted(sums.followers.items())

        def follower_gauge(
            name: str, documentation: str, value: Callable[[FollowerSums], float]
        ) -> GaugeMetricFamily:
            samples = {str(broker): value(follower) for broker, follower in followers}
            return _gauge_by_follower(name, documentation, samples)

        yield follower_gauge(
            "insync_follower_lag_seconds",
            "Largest lag of this follower over the partitions led by this broker; 0 if none.",
            lambda follower: follower.lag_ms_max / 1_000,
        )
        yield follower_gauge(
            "insync_follower_lag_messages",
            "Largest lag of this follower in messages, over the partitions led by this broker.",
            lambda follower: follower.messages_max,
        )
        yield follower_gauge(
            "insync_follower_partitions_out_of_sync",
            "Number of partitions led by this broker whose ISR lacks this follower.",
            lambda follower: follower.out_of_sync,
        )
        yield follower_gauge(
            "insync_follower_pending_reads",
            "Number of fetches of this follower whose records are still being read.",
            lambda follower: follower.reads,
        )
        yield follower_gauge(
            "insync_follower_pending_read_seconds",
            "Age of this follower's oldest fetch whose records are still being read.",
            lambda follower: follower.oldest_read_ms / 1_000,
        )
        yield _lag_details(sums.behind)
        soonest = sums.next_eviction_at_ms
        yield _gauge(
            "insync_next_eviction_seconds",
            "Time until the next eviction from an ISR if no follower fetches; +Inf if none is due.",
            math.inf if soonest is None else max(0, soonest - now_ms) / 1_000,
        )
        yield _gauge(
            "insync_isr_changes_pending",
            "Number of proposed ISR changes that are not committed yet.",
            sums.changes_pending,
        )
        yield _counter(
            "insync_resignations",
            "Partitions that this broker resigned: a read for a follower took too long, or the "
            "leader stalled.",
            self._isr_counters.resignations,
        )

    def _broker_metrics(self) -> Iterator[Metric]:
        """Stalls, the incarnation, damaged logs, and lost telemetry."""
        yield _counter(
            "insync_stalls",
            "Times that the event loop of this broker did not run.",
            self._loop.stalls,
        )
        yield _counter(
            "insync_stalled_seconds",
            "Total time that the event loop of this broker did not run.",
            self._loop.stalled_ms / 1_000,
        )
        yield _gauge(
            "insync_broker_incarnation",
            "Incarnation of this broker: a number that grows with every registration.",
            self._replicas.incarnation,
        )
        yield _gauge(
            "insync_damaged_replicas",
            "Number of replicas on this broker that may lack acknowledged records.",
            len(self._replicas.directory.damaged),
        )
        yield _counter(
            "insync_log_damage_found",
            "Times that reading the logs again found a damaged batch.",
            self._replicas.counters.damage_found,
        )
        yield _counter(
            "insync_log_scrubbed_bytes",
            "Bytes of logs that were read again to find damage.",
            self._replicas.counters.scrubbed_bytes,
        )
        dropped = CounterMetricFamily(
            "insync_telemetry_dropped_rows",
            "Telemetry rows dropped since the start, because the buffer was full or the topic "
            "refused them.",
            labels=("table",),
        )
        for table, rows in self._telemetry_drops.items():
            dropped.add_metric((table,), rows)
        yield dropped

    def _throttle_metrics(self, sums: Sums) -> Iterator[Metric]:
        """KIP-73's metrics with the names of the KIP, and rates with Kafka's names as well."""
        for quota in self._quotas.sides:
            rate = quota.bytes_per_s()
            documentation = f"Bytes per second of throttled replication as {quota.side}."
            yield _gauge(f"kafka_server_{quota.side}replicationthrottledrate", documentation, rate)
            yield _gauge(f"kafka_server_{quota.side}replication_byte_rate", documentation, rate)
            yield _gauge(
                f"insync_{quota.side}_replication_throttle_bytes_per_second",
                f"Throttle in bytes per second as {quota.side}; +Inf if no rate is set or no "
                "replica is listed.",
                quota.rate if quota.rate is not None and quota.is_set else math.inf,
            )
        yield _gauge(
            "kafka_server_sumreplicalag",
            "Number of messages of partitions led here that throttled followers, and replicas that "
            "a reassignment adds, lack in total.",
            sums.replica_lag,
        )


class _Families(Collector):
    """A collector of what a function yields."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _registry_of(collector: Collector) -> CollectorRegistry:
    """A registry of this collector and of prometheus-client's process_*."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=value)


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    """Exported as `name`_total."""
    return CounterMetricFamily(name, documentation, value=value)


def _gauge_by_follower(
    name: str, documentation: str, samples: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=("follower",))
    for follower, value in samples.items():
        family.add_metric((follower,), value)
    return family


def _lag_details(behind: Iterable[tuple[int, int, TopicPartition, BrokerId]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "insync_partition_follower_lag_seconds",
        f"Lag of followers of partitions led by this broker; the {DETAIL_MAX} largest.",
        labels=("topic", "partition", "follower"),
    )
    for lag_ms, _, (topic, number), follower in heapq.nlargest(DETAIL_MAX, behind):
        family.add_metric((topic, str(number), str(follower)), lag_ms / 1_000)
    return family
