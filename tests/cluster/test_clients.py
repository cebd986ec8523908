"""A real client, there and back: a smoke test. All clients, and all they can do: tests/interop."""

from __future__ import annotations

import pytest
from cluster_helpers import QUIET, create_topic
from confluent_kafka import Consumer, Producer, TopicPartition

from insync.testing.cluster import Cluster

pytestmark = pytest.mark.process
VALUES = [str(number).encode() for number in range(200)]


def test_confluent_kafka(insync_cluster: Cluster) -> None:
    """Every codec, one topic each."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        create_topic(insync_cluster, codec, partitions=1)
        servers = {"bootstrap.servers": insync_cluster.bootstrap, **QUIET}
        producer = Producer({**servers, "compression.type": codec})
        for value in VALUES:
            producer.produce(codec, value, partition=0)
        assert producer.flush(20) == 0
        consumer = Consumer({**servers, "group.id": "unused", "enable.auto.commit": False})
        consumer.assign([TopicPartition(codec, 0, 0)])
        found: list[bytes] = []
        while len(found) < len(VALUES):
            messages = consumer.consume(len(VALUES) - len(found), 10)
            assert messages, "nothing more came"
            found += [message.value() for message in messages]
        consumer.close()
        assert found == VALUES
