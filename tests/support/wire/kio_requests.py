"""The requests that tests of the protocol send most, and what they want to know of the answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from support.wire.kio_client import KioClient

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 19, 20, 22, 23
CREATE_PARTITIONS, DESCRIBE_CLUSTER = 37, 60
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5
CONSUMER, DEBUG_REPLICA = -1, -2
NO_OFFSET = (-1, -1)
TIMEOUT = timedelta(seconds=10)


def batch(*times_ms: int, values: tuple[bytes, ...] = ()) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset, time_ms in enumerate(times_ms):
        value = values[offset] if values else b"value %d" % offset
        builder.append(offset, time_ms, b"key", value, [("name", b"header")])
    return bytes(builder.build())


def records_of(data: bytes | None) -> list[Any]:
    batches = MemoryRecords(bytes(data or b""))
    records: list[Any] = []
    while (each := batches.next_batch()) is not None:
        records += each
    return records


def produce(
    kio: KioClient, version: int, topic: tuple[str, UUID], data: bytes, *, acks: int = -1
) -> Any:
    kio.send(PRODUCE, version, produce_values(topic, data, acks=acks))
    response = kio.receive(PRODUCE, version).responses[0]
    assert identity(response) in topic
    return response.partition_responses[0]


def produce_values(topic: tuple[str, UUID], data: bytes, *, acks: int) -> dict[str, Any]:
    name, topic_id = topic
    part = {"index": 0, "records": data}
    return {
        "acks": acks,
        "timeout": TIMEOUT,
        "topic_data": [{"name": name, "topic_id": topic_id, "partition_data": [part]}],
    }


def identity(topic: Any) -> str | UUID:
    """What an answer calls its topic: name or id, as its version has it."""
    for field in ("topic_id", "name", "topic"):
        if hasattr(topic, field):
            name_or_id: str | UUID = getattr(topic, field)
            return name_or_id
    raise AssertionError(topic)


def fetch(
    kio: KioClient,
    version: int,
    topic: tuple[str, UUID],
    offset: int,
    *,
    epoch: int = -1,
    partition: int = 0,
    wait_ms: int = 0,
    bytes_max: int = 1 << 20,
) -> Any:
    name, topic_id = topic
    part = {
        "partition": partition,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "partition_max_bytes": bytes_max,
    }
    answer = kio.request(
        FETCH,
        version,
        {
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "session_id": 0,
            "session_epoch": -1,  # no session
            "topics": [{"topic": name, "topic_id": topic_id, "partitions": [part]}],
        },
    )
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
    (response,) = answer.responses
    assert identity(response) in topic
    assert response.partitions[0].partition_index == partition
    return response.partitions[0]


def list_offset(
    kio: KioClient,
    version: int,
    name: str,
    timestamp: int,
    *,
    replica: int = CONSUMER,
    epoch: int = -1,
    partition: int = 0,
    leader_epoch: int = 0,
) -> tuple[ErrorCode, int, int]:
    """Error, offset and timestamp."""
    request = {
        "partition_index": partition,
        "timestamp": timestamp,
        "current_leader_epoch": epoch,
    }
    answer = kio.request(
        LIST_OFFSETS,
        version,
        {
            "replica_id": replica,
            "topics": [{"name": name, "partitions": [request]}],
            "timeout": TIMEOUT,
        },
    )
    (topic,) = answer.topics
    (part,) = topic.partitions
    assert (topic.name, part.partition_index) == (name, partition)
    if version >= 4:
        assert part.leader_epoch == (leader_epoch if part.offset >= 0 else -1)
    return part.error_code, part.offset, part.timestamp


def epoch_end(
    kio: KioClient, version: int, name: str, epoch: int, *, current: int = -1, partition: int = 0
) -> tuple[ErrorCode, int, int]:
    """Error, epoch and where it ended."""
    request = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
    values = {"replica_id": -1, "topics": [{"topic": name, "partitions": [request]}]}
    (topic,) = kio.request(OFFSET_FOR_LEADER_EPOCH, version, values).topics
    (part,) = topic.partitions
    assert (topic.topic, part.partition) == (name, partition)
    return part.error_code, part.leader_epoch, part.end_offset


def create(kio: KioClient, version: int, *, validate_only: bool = False, **wanted: Any) -> Any:
    topic = {"num_partitions": 1, "replication_factor": 1, **wanted}
    values = {"topics": [topic], "timeout": TIMEOUT, "validate_only": validate_only}
    (created,) = kio.request(CREATE_TOPICS, version, values).topics
    assert created.name == wanted["name"]
    return created
