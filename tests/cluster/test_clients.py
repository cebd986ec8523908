"""Other people's clients, producing and consuming by assigned partitions."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from cluster_helpers import create_topic
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PyTopicPartition

from insync.testing.cluster import Cluster

pytestmark = pytest.mark.process
VALUES = [str(number).encode() for number in range(200)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_with_every_codec(insync_cluster: Cluster, compression: str) -> None:
    create_topic(insync_cluster, "t", partitions=1)
    producer = Producer(
        {"bootstrap.servers": insync_cluster.bootstrap, "compression.type": compression}
    )
    for value in VALUES:
        producer.produce("t", value, partition=0)
    assert producer.flush(20) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": insync_cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        messages = consumer.consume(len(VALUES) - len(found), 10)
        assert messages, "nothing more came"
        found += [message.value() for message in messages]
    consumer.close()
    assert found == VALUES


def test_kafka_python(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "t", partitions=1)
    servers = insync_cluster.bootstrap.split(",")
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    for value in VALUES:
        producer.send("t", value=value, partition=0)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=10_000)
    partition = PyTopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found = []
    for message in consumer:
        found.append(message.value)
        if len(found) == len(VALUES):
            break
    assert consumer.end_offsets([partition]) == {partition: len(VALUES)}
    consumer.close()
    assert found == VALUES


def test_aiokafka(insync_cluster: Cluster) -> None:
    create_topic(insync_cluster, "t", partitions=1)

    async def there_and_back() -> list[bytes | None]:
        producer = AIOKafkaProducer(
            bootstrap_servers=insync_cluster.bootstrap, acks="all", enable_idempotence=True
        )
        await producer.start()
        for value in VALUES:
            await producer.send("t", value, partition=0)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=insync_cluster.bootstrap)
        await consumer.start()
        partition = AioTopicPartition("t", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            found.append((await asyncio.wait_for(consumer.getone(), 10)).value)
        await consumer.stop()
        return found

    assert asyncio.run(there_and_back()) == VALUES
