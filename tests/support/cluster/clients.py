"""What tests with real processes share: topics, integers produced and read, and waiting."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kio.schema.errors import ErrorCode

from insync.metadata import paths
from insync.testing.cluster import Cluster
from insync.wire.batches import NO_PRODUCER, whole_batches
from support.cluster.isr_log import log_of
from support.cluster.segment_files import check_identical, watermarks
from support.wire.raw_client import RawClient

QUIET = {"log_level": 0}
SENT_TWICE = "fetch from the end"  # logged by a follower, which then waits for a second


def eventually(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def admin(cluster: Cluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})


def create_topic(
    cluster: Cluster, name: str, *, partitions: int = 3, config: dict[str, str] | None = None
) -> None:
    topic = NewTopic(name, partitions, 3, config=config or {})
    client = admin(cluster)  # must outlive its requests
    client.create_topics([topic])[name].result(10)
    for each in cluster.brokers.values():
        with RawClient(each.port) as raw_client:

            def is_known(raw_client: RawClient = raw_client) -> bool:
                answer = raw_client.metadata(name, may_create=False)
                return bool(answer.topics[0].error_code is ErrorCode.none)

            eventually(is_known, within_s=10, what=f"broker {each.broker} knows the topic")


def partitions_of(cluster: Cluster, name: str) -> dict[int, Any]:
    """As one broker has them: another broker's metadata may be older."""
    client = admin(cluster)
    partitions: dict[int, Any] = client.list_topics(name, timeout=10).topics[name].partitions
    return partitions


def stored_isr(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    """As the store has it: the leader may not know it yet, but no later answer is older."""
    latest = stored(cluster, paths.partition_state(topic, partition))[-1]
    return list(latest.value["isr"])


def leader_of(cluster: Cluster, topic: str = "orders") -> int:
    """The leader of partition 0, once there is one."""
    leaders: list[int] = []

    def there_is_one() -> bool:
        leaders[:] = [partitions_of(cluster, topic)[0].leader]
        return leaders[0] > 0

    eventually(there_is_one, within_s=20, what="the partition has a leader")
    return leaders[0]


def await_in_sync(cluster: Cluster, topic: str, *, within_s: float = 30) -> None:
    def all_are() -> bool:
        partitions = partitions_of(cluster, topic).values()
        return bool(partitions) and all(len(part.isrs) == 3 for part in partitions)

    eventually(all_are, within_s=within_s, what="every replica is in sync")


def latest_offset(cluster: Cluster, topic: str, partition: int) -> int:
    client = admin(cluster)
    key = TopicPartition(topic, partition)
    futures = client.list_offsets({key: OffsetSpec.latest()}, request_timeout=10)
    return int(futures[key].result(10).offset)


@dataclass(frozen=True, slots=True)
class Stored:
    """A node of the store as one step of a broker left it."""

    revision: int
    path: str
    value: Any  # None: the step took it away


def stored(cluster: Cluster, *paths: str) -> list[Stored]:
    """What has become of these nodes since the cluster began, from the store's own file."""
    file = cluster.folder / "metadata" / "metadata.sqlite"
    query = "SELECT revision, path, value FROM changes ORDER BY number"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        rows = database.execute(query).fetchall()
    return [
        Stored(revision, path, None if value is None else json.loads(value))
        for revision, path, value in rows
        if path in paths
    ]


def incarnations(cluster: Cluster) -> dict[int, int]:
    """The registered incarnation of each broker."""
    latest = {
        broker: stored(cluster, f"/brokers/ids/{broker}")[-1].value for broker in cluster.brokers
    }
    return {broker: value["incarnation"] for broker, value in latest.items() if value is not None}


class IntegerProducer:
    """Sends 0, 1, 2, ... and remembers what was acknowledged, per partition."""

    def __init__(
        self, cluster: Cluster, topic: str, *, partitions: int = 3, digits: int = 1
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.digits = digits  # at least: zeros in front make a message as long as a test wants
        self.sent = 0
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.errors: list[str] = []
        self.acknowledged_at_s = time.monotonic()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                # A stopped broker does not respond, not even with NOT_LEADER_OR_FOLLOWER.
                "socket.timeout.ms": 2_000,
                "request.timeout.ms": 2_000,
                "message.timeout.ms": 60_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )

    @property
    def acknowledged_count(self) -> int:
        return sum(len(values) for values in self.acknowledged.values())

    def send(self, count: int) -> None:
        for _ in range(count):
            try:
                self._producer.produce(
                    self.topic,
                    value=str(self.sent).zfill(self.digits).encode(),
                    partition=self.sent % self.partitions,
                    on_delivery=self._delivered,
                )
            except BufferError:
                break
            self.sent += 1
        self._producer.poll(0.005)

    def flush(self, within_s: float = 60) -> None:
        assert self._producer.flush(within_s) == 0, "messages were left unsent"

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acknowledged_at_s = time.monotonic()
        self.acknowledged[message.partition()].append(int(message.value()))


def consumer_of(cluster: Cluster) -> Any:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )


def read_to_end(
    cluster: Cluster, topic: str, partitions: Iterable[int], *, within_s: float = 30
) -> dict[int, list[tuple[int, int]]]:
    """Offset and integer of every record there is, from the first ever to the last committed."""
    deadline_s = time.monotonic() + within_s
    consumer = consumer_of(cluster)
    records: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    try:
        unread = {}
        for partition in records:
            start, end = _bounds(consumer, TopicPartition(topic, partition), deadline_s)
            if start < end:
                unread[partition] = end
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            assert time.monotonic() < deadline_s, f"could not read everything back: {unread}"
            # As many as are left at most: it returns once it has so many.
            left = sum(end - _next_offset(records[partition]) for partition, end in unread.items())
            for message in consumer.consume(min(left, 1_000), 0.2):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                records[partition].append((offset, int(message.value())))
                if offset >= unread.get(partition, offset + 1) - 1:
                    del unread[partition]
    finally:
        consumer.close()
    return records


def _next_offset(records: Sequence[tuple[int, int]]) -> int:
    return records[-1][0] + 1 if records else 0


def _bounds(consumer: Any, partition: TopicPartition, deadline_s: float) -> tuple[int, int]:
    """Its first and next offset; a new leader may not know them yet."""
    while True:
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=5, cached=False)
        except KafkaException:
            assert time.monotonic() < deadline_s, f"no broker answered ListOffsets for {partition}"
            time.sleep(0.02)
        else:
            return start, end


def read_all(
    cluster: Cluster, topic: str, partitions: Iterable[int], *, within_s: float = 30
) -> dict[int, list[int]]:
    """Every integer there is, in order: what comes after the expected ones as well."""
    by_partition = read_to_end(cluster, topic, partitions, within_s=within_s)
    return {
        partition: [value for _, value in records] for partition, records in by_partition.items()
    }


def check_nothing_lost(cluster: Cluster, producer: IntegerProducer) -> None:
    """Every acknowledged integer is there exactly once and in order."""
    records = read_all(cluster, producer.topic, range(producer.partitions))
    for partition, there in records.items():
        twice = sorted(value for value, times in Counter(there).items() if times > 1)
        assert not twice, f"twice in partition {partition}: {twice[:5]}"
        assert there == sorted(there), f"partition {partition} is out of order"
        lost = set(producer.acknowledged[partition]) - set(there)
        assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
    assert SENT_TWICE not in log_of(cluster)
    # librdkafka begins another epoch when a broker answers as if batches were lost.
    assert producer_epochs(cluster, producer.topic) <= {0}


def producer_epochs(cluster: Cluster, topic: str) -> set[int]:
    """Of all idempotent batches on the brokers' disks."""
    segments = (
        segment
        for broker in cluster.brokers.values()
        for segment in broker.log_dir.glob(f"{topic}-*/*.log")
    )
    return {
        header.producer_epoch
        for segment in segments
        for header in whole_batches(segment.read_bytes())
        if header.producer_id != NO_PRODUCER
    }


def check_replicas_agree(cluster: Cluster, topic: str, partitions: int = 3) -> int:
    """Once all are in sync, their files are identical; returns the bytes that were compared."""
    await_in_sync(cluster, topic)
    compared = 0
    for partition in range(partitions):
        end, name = latest_offset(cluster, topic, partition), f"{topic}-{partition}"
        folders = [each.log_dir for each in cluster.brokers.values()]

        def all_know(end: int = end, name: str = name, folders: list[Path] = folders) -> bool:
            return all(watermarks(folder).get(name) == end for folder in folders)

        eventually(all_know, within_s=20, what=f"every replica of {name} knows {end} as committed")
        compared += check_identical([folder / name for folder in folders], up_to=end)
    return compared


def check_all_is_well(cluster: Cluster, producer: IntegerProducer) -> None:
    """Nothing was refused in the end, nothing acknowledged is lost, and the replicas agree."""
    assert producer.errors == []
    assert producer.acknowledged_count == producer.sent
    check_nothing_lost(cluster, producer)
    assert check_replicas_agree(cluster, producer.topic, producer.partitions) > 0
