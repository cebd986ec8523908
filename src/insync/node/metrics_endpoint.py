"""The /metrics endpoint of a broker with `metrics.port`."""

from __future__ import annotations

from collections.abc import Mapping

from insync.broker.broker_loop import BrokerLoop
from insync.broker.cluster_view import ClusterView
from insync.broker.observability.isr_counters import IsrCounters
from insync.broker.observability.metrics_http import MetricsHttp
from insync.broker.quotas.quotas import Quotas
from insync.broker.replication.replicas import Replicas
from insync.broker.settings import Settings
from insync.node.listeners import open_listener
from insync.node.world import Listener, NodeNetwork


class MetricsEndpoint:
    def __init__(self, *, isr_counters: IsrCounters, http: MetricsHttp, listener: Listener) -> None:
        self._isr_counters = isr_counters
        self._http = http
        self._listener = listener

    async def stop(self) -> None:
        self._isr_counters.stop()
        self._listener.close()
        self._http.close()
        await self._listener.wait_closed()


async def start_metrics_endpoint(
    *,
    settings: Settings,
    network: NodeNetwork,
    replicas: Replicas,
    view: ClusterView,
    loop: BrokerLoop,
    quotas: Quotas,
    telemetry_drops: Mapping[str, int],
) -> MetricsEndpoint | None:
    """None if `metrics.port` is 0."""
    port = settings.broker.metrics_port
    if not port:
        return None
    # Importing prometheus-client takes longer than the rest of a broker's start.
    from insync.broker.observability.metrics import Metrics  # noqa: PLC0415

    isr_counters = IsrCounters(replicas.broker, replicas.store)
    metrics = Metrics(
        replicas=replicas,
        view=view,
        loop=loop,
        isr_counters=isr_counters,
        quotas=quotas,
        telemetry_drops=telemetry_drops,
    )
    http = MetricsHttp(
        metrics.text, collect_all=metrics.text_of_all_partitions, clock_ms=loop.clock_ms
    )
    listener = await open_listener(
        network,
        setting="metrics.port",
        host=settings.broker.metrics_host,
        port=port,
        protocol=http.connection,
    )
    return MetricsEndpoint(isr_counters=isr_counters, http=http, listener=listener)
