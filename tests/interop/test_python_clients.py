"""confluent-kafka, kafka-python and aiokafka write; they, kcat and Apache Kafka's tool read."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as PyPartition

from insync.testing.cluster import Cluster
from support.cluster.clients import QUIET, admin
from support.interop.kafka_clients import (
    ACKS,
    CODECS,
    LIBRARIES,
    READERS,
    WRITERS,
    Manner,
    Record,
    check_times,
    confluent_reads,
    confluent_writes,
    librdkafka_sends,
    stored_codecs,
)

pytestmark = pytest.mark.interop
NOON_MS = 1_700_000_000_000
each_writer = pytest.mark.parametrize("writer", LIBRARIES)

PLAIN = [
    Record(value=b"first", timestamp_ms=NOON_MS),
    Record(value=b"with a key", key=b"key", timestamp_ms=NOON_MS + 1),
    Record(
        value="ümlaut".encode(),
        key=b"key",
        timestamp_ms=NOON_MS + 5_000,
        headers=(("one", b"1"), ("two", b"2"), ("one", b"again")),
    ),
    Record(value=None, key=b"deleted", timestamp_ms=NOON_MS - 5_000),
    Record(value=b"long " * 20_000, timestamp_ms=NOON_MS),
    *(Record(value=b"%d" % number, timestamp_ms=NOON_MS + 6_000 + number) for number in range(500)),
]


@each_writer
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_each_client_writes(
    cluster: Cluster, topic: str, writer: str, codec: str
) -> None:
    WRITERS[writer](cluster.bootstrap, topic, PLAIN, Manner(codec=codec))
    is_librdkafka = writer == "confluent-kafka"
    sent = librdkafka_sends(codec, cluster) if is_librdkafka else codec
    assert stored_codecs(cluster, topic) == {sent}, "passed through untouched"
    for name, read in READERS.items():
        assert read(cluster.bootstrap, topic, len(PLAIN)) == PLAIN, name
    check_times(cluster, topic, PLAIN)


@each_writer
def test_bytes_of_any_kind(cluster: Cluster, topic: str, writer: str) -> None:
    every_byte = bytes(range(256))
    records = [
        Record(value=every_byte, key=every_byte, timestamp_ms=1, headers=(("any", every_byte),)),
        Record(value=b"", key=b"", timestamp_ms=NOON_MS),
    ]
    WRITERS[writer](cluster.bootstrap, topic, records, Manner())
    for name in LIBRARIES:
        assert READERS[name](cluster.bootstrap, topic, len(records)) == records, name


@each_writer
def test_large_messages(cluster: Cluster, topic: str, writer: str) -> None:
    """Larger than a follower requests in one fetch (1 MiB): each is still replicated and read."""
    records = [
        Record(value=bytes([number]) * (4 << 20), timestamp_ms=NOON_MS) for number in range(3)
    ]
    WRITERS[writer](cluster.bootstrap, topic, records, Manner())
    for name in LIBRARIES:
        assert READERS[name](cluster.bootstrap, topic, len(records)) == records, name


@each_writer
@pytest.mark.parametrize("acks", ACKS)
def test_every_kind_of_acknowledgement(
    cluster: Cluster, topic: str, writer: str, acks: str
) -> None:
    WRITERS[writer](cluster.bootstrap, topic, PLAIN, Manner(acks=acks))
    assert confluent_reads(cluster.bootstrap, topic, len(PLAIN)) == PLAIN


@each_writer
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_idempotent_producers(cluster: Cluster, topic: str, writer: str, codec: str) -> None:
    how = Manner(codec=codec, is_idempotent=True)
    for _ in range(2):  # two producers, two ids
        WRITERS[writer](cluster.bootstrap, topic, PLAIN, how)
    assert confluent_reads(cluster.bootstrap, topic, 2 * len(PLAIN)) == PLAIN * 2


# Where reading begins: four records, the newest of them second.

TIMES_MS = (NOON_MS, NOON_MS + 3_000, NOON_MS + 1_000, NOON_MS + 2_000)
OFFSETS_BY_TIME = {NOON_MS - 1: 0, NOON_MS: 0, NOON_MS + 1: 1, NOON_MS + 3_000: 1}
TOO_LATE_MS = NOON_MS + 3_001


@pytest.fixture
def timed(cluster: Cluster, topic: str) -> str:
    records = [Record(value=b"%d" % each, timestamp_ms=each) for each in TIMES_MS]
    confluent_writes(cluster.bootstrap, topic, records, Manner())
    return topic


def test_confluent_kafka_finds_offsets(cluster: Cluster, timed: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        | QUIET
    )
    assert consumer.get_watermark_offsets(TopicPartition(timed, 0), timeout=10) == (0, 4)
    for time_ms, offset in OFFSETS_BY_TIME.items():
        (offset_and_time,) = consumer.offsets_for_times(
            [TopicPartition(timed, 0, time_ms)], timeout=10
        )
        assert offset_and_time.offset == offset, time_ms
    (none,) = consumer.offsets_for_times([TopicPartition(timed, 0, TOO_LATE_MS)], timeout=10)
    assert none.offset == -1, "the end"
    consumer.close()
    client = admin(cluster)
    partition = TopicPartition(timed, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 4),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(NOON_MS + 1), 1),
    ):
        assert client.list_offsets({partition: spec})[partition].result(10).offset == offset


def test_kafka_python_finds_offsets(cluster: Cluster, timed: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","))
    partition = PyPartition(timed, 0)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 4}
    for time_ms, offset in OFFSETS_BY_TIME.items():
        offset_and_time = consumer.offsets_for_times({partition: time_ms})[partition]
        assert (offset_and_time.offset, offset_and_time.timestamp) == (offset, TIMES_MS[offset])
    assert consumer.offsets_for_times({partition: TOO_LATE_MS}) == {partition: None}
    consumer.close()
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    for spec, offset in ((-2, 0), (-1, 4), (-3, 1), (NOON_MS + 1, 1)):
        assert client.list_partition_offsets({partition: spec})[partition].offset == offset
    client.close()


def test_aiokafka_finds_offsets(cluster: Cluster, timed: str) -> None:
    async def find() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap)
        await consumer.start()
        try:
            partition = AioPartition(timed, 0)
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 4}
            for time_ms, offset in OFFSETS_BY_TIME.items():
                offset_and_time = (await consumer.offsets_for_times({partition: time_ms}))[
                    partition
                ]
                assert (offset_and_time.offset, offset_and_time.timestamp) == (
                    offset,
                    TIMES_MS[offset],
                )
            offset_and_time = await consumer.offsets_for_times({partition: TOO_LATE_MS})
            assert offset_and_time == {partition: None}
        finally:
            await consumer.stop()

    asyncio.run(find())


def test_a_consumer_that_starts_at_the_end_gets_later_records(cluster: Cluster, timed: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), consumer_timeout_ms=30_000
    )
    partition = PyPartition(timed, 0)
    consumer.assign([partition])
    consumer.seek_to_end(partition)
    assert consumer.position(partition) == 4
    confluent_writes(
        cluster.bootstrap, timed, [Record(value=b"next", timestamp_ms=NOON_MS)], Manner()
    )
    message = next(iter(consumer))
    assert (message.offset, message.value) == (4, b"next")
    consumer.close()


# Transactions are not offered, and a transactional producer gets an error at once.


def test_confluent_kafka_gets_a_fatal_error_for_transactions(cluster: Cluster) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "mine", **QUIET}
    )
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(30)
    assert refused.value.args[0].fatal()


def test_aiokafka_gets_an_error_for_transactions(cluster: Cluster) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="mine")
        try:
            async with asyncio.timeout(30):
                await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(KafkaError):
        asyncio.run(start())
