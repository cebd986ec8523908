"""A telemetry topic that a test writes itself: blocks made by pyarrow alone, good and bad ones."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC
from insync.telemetry.tables import arrow_schema
from insync.testing.cluster import Cluster
from support.cluster.clients import admin, eventually, partitions_of

SETTINGS = {"telemetry.enable": "false"}  # only the test writes

Row = dict[str, Any]


def append_row(seq: int, **others: Any) -> Row:
    row: Row = dict.fromkeys(TABLES["appends"].names, 0)
    row |= {"at_ms": 1_000 + seq, "seq": seq, "topic": "orders", "end_offset": seq + 1}
    return row | {"base_offset": seq, "leader": 1} | others


class Topic:
    """Every block as it was sent: what a reader must find."""

    def __init__(self, cluster: Cluster, *, partitions: int = 2) -> None:
        self._cluster = cluster
        self._numbers = count()
        client = admin(cluster)
        factor = min(3, len(cluster.brokers))
        new = NewTopic(TELEMETRY_TOPIC, partitions, factor)
        client.create_topics([new])[TELEMETRY_TOPIC].result(10)
        eventually(
            lambda: all(p.leader > 0 for p in partitions_of(cluster, TELEMETRY_TOPIC).values()),
            within_s=10,
            what="the topic is led",
        )
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def send(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        failed: list[Any] = []

        def check_delivery(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        self._producer.produce(
            TELEMETRY_TOPIC, partition=partition, key=key, value=value, on_delivery=check_delivery
        )
        assert self._producer.flush(20) == 0
        assert not failed, failed

    def label(self, table: str, rows: int, **others: Any) -> bytes:
        values = {"table": table, "broker": 1, "started_at_ms": 7, "block": next(self._numbers)}
        return json.dumps(values | {"rows": rows, "dropped": {}} | others).encode()

    def block(
        self, partition: int, table: str, rows: list[Row], **label: Any
    ) -> tuple[bytes, bytes]:
        """Returns key and value, to send them again."""
        key, value = self.label(table, len(rows), **label), block_of(table, rows)
        self.send(partition, key, value)
        return key, value


def block_of(table: str, rows: list[Row]) -> bytes:
    data = pa.Table.from_pylist(rows, arrow_schema(TABLES[table]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    written: bytes = sink.getvalue().to_pybytes()
    return written
