"""The metric PartitionBytesInRate: of the busiest partitions, or on request of all.

An exporter that lists every partition in every scrape makes most of a time series database's load,
so `/metrics` lists the busiest ones. `/metrics?partitions=all` lists every partition that this
broker leads, idle ones too; its lines are made in turns of `PARTITIONS_PER_TURN`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from insync.broker.cluster_view import TopicPartition
from insync.broker.replication.replicas import Replicas

NAME: Final = "kafka_server_partitionbytesinrate"
PARTITIONS_PER_TURN: Final = 200
"""Well below a millisecond of the event loop."""


def busiest_partitions(replicas: Replicas, *, limit: int, now_ms: int) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        NAME,
        f"Bytes per second that producers appended to a partition in the last 10 s; the {limit} "
        "busiest, or with /metrics?partitions=all every partition that this broker leads.",
        labels=("topic", "partition"),
    )
    rates: Iterator[tuple[float, TopicPartition]] = (
        (rate, replica.key)
        for replica in replicas.partitions.values()
        if replica.term is not None and (rate := replica.inbound.read(now_ms).bytes_per_s) > 0
    )
    for rate, (topic, number) in heapq.nlargest(limit, rates):
        family.add_metric((topic, str(number)), rate)
    return family


def all_partitions(replicas: Replicas) -> Iterator[bytes]:
    """The metric's lines in Prometheus' text format; each item is one turn's work."""
    yield (
        f"# HELP {NAME} Bytes per second that producers appended to a partition in the last 10 s.\n"
        f"# TYPE {NAME} gauge\n"
    ).encode()
    keys = iter(list(replicas.partitions))
    while turn := list(islice(keys, PARTITIONS_PER_TURN)):
        now_ms = replicas.loop.clock_ms()
        lines = []
        for key in turn:
            replica = replicas.partitions.get(key)  # it may have been deleted since
            if replica is not None and replica.term is not None:
                rate = replica.inbound.read(now_ms).bytes_per_s
                # A topic's name has no character that Prometheus escapes.
                lines.append(f'{NAME}{{topic="{key[0]}",partition="{key[1]}"}} {rate}\n')
        yield "".join(lines).encode()
