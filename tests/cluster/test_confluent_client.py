"""A real client, there and back: a smoke test. All clients, and all they can do: tests/interop."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from insync.testing.cluster import Cluster
from support.cluster.clients import QUIET, admin, create_topic

pytestmark = pytest.mark.process
VALUES = [str(number).encode() for number in range(200)]


def test_confluent_kafka(insync_cluster: Cluster) -> None:
    """Every codec, one topic each; records are found by their times inside a batch, too."""
    first_ms = round(time.time() * 1_000)
    times_ms = [first_ms + 10 * number for number in range(len(VALUES))]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        create_topic(insync_cluster, codec, partitions=1)
        servers = {"bootstrap.servers": insync_cluster.bootstrap, **QUIET}
        # So long to wait for more that all go in one batch, which the flush sends at once.
        producer = Producer({**servers, "compression.type": codec, "linger.ms": 10_000})
        for value, time_ms in zip(VALUES, times_ms, strict=True):
            producer.produce(codec, value, partition=0, timestamp=time_ms)
        assert producer.flush(20) == 0
        consumer = Consumer({**servers, "group.id": "unused", "enable.auto.commit": False})
        for number in (0, 1, 77, len(VALUES) - 1):
            for time_ms in (times_ms[number] - 9, times_ms[number]):
                query = TopicPartition(codec, 0, time_ms)
                assert consumer.offsets_for_times([query], 10)[0].offset == number, codec
        consumer.assign([TopicPartition(codec, 0, 0)])
        values: list[bytes] = []
        while len(values) < len(VALUES):
            messages = consumer.consume(len(VALUES) - len(values), 10)
            assert messages, "nothing more came"
            values += [message.value() for message in messages]
        consumer.close()
        assert values == VALUES
        partition, client = TopicPartition(codec, 0), admin(insync_cluster)
        newest = client.list_offsets({partition: OffsetSpec.max_timestamp()})[partition]
        assert newest.result(10).offset == len(VALUES) - 1, codec
