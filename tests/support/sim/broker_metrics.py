"""The metrics of a broker on virtual time, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from insync.broker.observability.isr_counters import IsrCounters
from insync.broker.observability.metrics import Metrics
from insync.node.node import Node

Samples = dict[tuple[str, str], float]


def metrics_of(node: Node) -> Metrics:
    return Metrics(
        replicas=node.replicas,
        view=node.view,
        loop=node.loop,
        isr_counters=IsrCounters(node.broker, node.world.store),
        quotas=node.quotas,
        telemetry_drops=node.telemetry_drops,
    )


def samples(metrics: Metrics) -> Samples:
    """By name and by follower, if it has one."""
    return {
        (sample.name, sample.labels.get("follower", "")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if "partition" not in sample.labels
    }
