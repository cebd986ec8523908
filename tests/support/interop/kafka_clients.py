"""Third-party clients behind two signatures: write these records, read so many from the start."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PyPartition

from insync.testing.cluster import Cluster
from peers.apache_kafka import java_tool
from support.cluster.clients import QUIET, admin
from support.wire.kio_client import KioClient
from support.wire.kio_requests import API_VERSIONS

# In the order of their numbers in a batch's attributes.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")
REQUEST_BYTES_MAX = 6 << 20
WITHIN_S = 30.0
FIND_COORDINATOR = 10
TOOLS = "org.apache.kafka.tools."


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    value: bytes | None
    timestamp_ms: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The settings of a producer."""

    codec: str = "none"
    acks: str = "all"
    is_idempotent: bool = False


Writer = Callable[[str, str, Sequence[Record], Manner], None]
Reader = Callable[[str, str, int], list[Record]]


def run(command: Sequence[str], *, stdin: str = "", within_s: float = WITHIN_S) -> str:
    """The output of a third-party program; it must exit with 0."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def stored_codecs(cluster: Cluster, topic: str) -> set[str]:
    """What the batches in the brokers' files are compressed with, by the bytes of their headers.

    Clients send a batch plain that would not shrink; that does not count when others did.
    """
    codecs: set[str] = set()
    for broker in cluster.brokers.values():
        for segment in (broker.log_dir / f"{topic}-0").glob("*.log"):
            data = segment.read_bytes()
            position = 0
            while position < len(data):
                (length,) = struct.unpack_from(">i", data, position + 8)
                (attributes,) = struct.unpack_from(">h", data, position + 21)
                codecs.add(CODECS[attributes & 7])
                position += 12 + length
    return codecs - {"none"} or codecs


def librdkafka_sends(codec: str, cluster: Cluster) -> str:
    """It sends lz4 only to a broker that advertises FindCoordinator."""
    with KioClient(cluster.brokers[1].port) as client:
        advertised = {each.api_key for each in client.request(API_VERSIONS, 0, {}).api_keys}
    return "none" if codec == "lz4" and FIND_COORDINATOR not in advertised else codec


def check_times(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """A time leads to the first record at least as new, the largest to the first that has it."""
    times_ms = [each.timestamp_ms for each in records]
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        | QUIET
    )
    distinct_ms = sorted(set(times_ms))
    for time_ms in {*distinct_ms[:5], *distinct_ms[::50], distinct_ms[-1]}:
        first = next(offset for offset, each_ms in enumerate(times_ms) if each_ms >= time_ms)
        (offset_and_time,) = consumer.offsets_for_times(
            [TopicPartition(topic, 0, time_ms)], timeout=WITHIN_S
        )
        assert offset_and_time.offset == first, time_ms
    consumer.close()
    partition, client = TopicPartition(topic, 0), admin(cluster)
    newest = client.list_offsets({partition: OffsetSpec.max_timestamp()})[partition]
    expected = times_ms.index(distinct_ms[-1]), distinct_ms[-1]
    assert (newest.result(WITHIN_S).offset, newest.result().timestamp) == expected


def java(tool: str, *arguments: str, stdin: str = "") -> str:
    """One of Apache Kafka's own tools. A virtual machine takes its time on a busy computer."""
    return run(java_tool(TOOLS + tool, *arguments), stdin=stdin, within_s=120)


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    return run(["kcat", "-b", bootstrap, *arguments], stdin=stdin)


# confluent-kafka: librdkafka.


def confluent_writes(bootstrap: str, topic: str, records: Sequence[Record], how: Manner) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": how.codec,
            "acks": how.acks,
            "enable.idempotence": how.is_idempotent,
            "message.max.bytes": REQUEST_BYTES_MAX,
            **QUIET,
        }
    )
    errors: list[Any] = []
    for each in records:
        producer.produce(
            topic,
            each.value,
            each.key,
            partition=0,
            timestamp=each.timestamp_ms,
            headers=list(each.headers),
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(WITHIN_S) == 0
    assert errors == []


def confluent_reads(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            **QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records: list[Record] = []
        while len(records) < count:
            messages = consumer.consume(count - len(records), WITHIN_S)
            assert messages, f"{len(records)} of {count} came"
            for message in messages:
                assert message.error() is None, message.error()
                records.append(
                    Record(
                        value=message.value(),
                        key=message.key(),
                        timestamp_ms=message.timestamp()[1],
                        headers=tuple(message.headers() or ()),
                    )
                )
        return records
    finally:
        consumer.close()


# kafka-python.


def kafka_python_writes(bootstrap: str, topic: str, records: Sequence[Record], how: Manner) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        compression_type=None if how.codec == "none" else how.codec,
        acks=how.acks if how.acks == "all" else int(how.acks),
        enable_idempotence=how.is_idempotent,
        max_request_size=REQUEST_BYTES_MAX,
    )
    try:
        sent = [
            producer.send(
                topic,
                value=each.value,
                key=each.key,
                headers=list(each.headers),
                partition=0,
                timestamp_ms=each.timestamp_ms,
            )
            for each in records
        ]
        for each in sent:
            each.get(WITHIN_S)
    finally:
        producer.close()


def kafka_python_reads(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), consumer_timeout_ms=int(WITHIN_S * 1_000)
    )
    try:
        partition = PyPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        records: list[Record] = []
        for message in consumer:
            records.append(
                Record(
                    value=message.value,
                    key=message.key,
                    timestamp_ms=message.timestamp,
                    headers=tuple((name, value) for name, value in message.headers),
                )
            )
            if len(records) == count:
                break
        return records
    finally:
        consumer.close()


# aiokafka.


def aiokafka_writes(bootstrap: str, topic: str, records: Sequence[Record], how: Manner) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if how.codec == "none" else how.codec,
            acks=how.acks if how.acks == "all" else int(how.acks),
            enable_idempotence=how.is_idempotent,
            max_request_size=REQUEST_BYTES_MAX,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                    headers=list(each.headers),
                )
                for each in records
            ]
            async with asyncio.timeout(WITHIN_S):
                await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(write())


def aiokafka_reads(bootstrap: str, topic: str, count: int) -> list[Record]:
    async def read() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            partition = AioPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            records: list[Record] = []
            async with asyncio.timeout(WITHIN_S):
                while len(records) < count:
                    message = await consumer.getone()
                    records.append(
                        Record(
                            value=message.value,
                            key=message.key,
                            timestamp_ms=message.timestamp,
                            headers=tuple(message.headers),
                        )
                    )
            return records
        finally:
            await consumer.stop()

    return asyncio.run(read())


# Programs, which print: for values that are text on one line.


def kcat_reads(bootstrap: str, topic: str, count: int) -> list[Record]:
    output = kcat(
        bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J"
    )
    return [_of_kcat(json.loads(line)) for line in output.splitlines()]


def _of_kcat(message: dict[str, Any]) -> Record:
    headers = message.get("headers", [])
    pairs = zip(headers[::2], headers[1::2], strict=True)
    return Record(
        value=_encoded(message["payload"]),
        key=_encoded(message["key"]),
        timestamp_ms=message["ts"],
        headers=tuple((name, value.encode()) for name, value in pairs),
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def java_reads(bootstrap: str, topic: str, count: int) -> list[Record]:
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0"]
    arguments += ["--offset", "earliest", "--max-messages", str(count)]
    for shown in ("timestamp", "headers", "key"):
        arguments += ["--formatter-property", f"print.{shown}=true"]
    output = java("consumer.ConsoleConsumer", *arguments)
    return [_of_java(*line.split("\t")) for line in output.splitlines()]


def _of_java(time: str, headers: str, key: str, value: str) -> Record:
    pairs = [] if headers == "NO_HEADERS" else [each.split(":") for each in headers.split(",")]
    return Record(
        value=None if value == "null" else value.encode(),
        key=None if key == "null" else key.encode(),
        timestamp_ms=int(time.removeprefix("CreateTime:")),
        headers=tuple((name, content.encode()) for name, content in pairs),
    )


WRITERS: dict[str, Writer] = {
    "confluent-kafka": confluent_writes,
    "kafka-python": kafka_python_writes,
    "aiokafka": aiokafka_writes,
}
READERS: dict[str, Reader] = {
    "confluent-kafka": confluent_reads,
    "kafka-python": kafka_python_reads,
    "aiokafka": aiokafka_reads,
    "kcat": kcat_reads,
    "kafka-console-consumer": java_reads,
}
LIBRARIES = tuple(WRITERS)
