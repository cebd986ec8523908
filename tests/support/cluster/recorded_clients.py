"""Clients of real processes that record what they saw, for the checker of `insync.sim.history`."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from insync.sim.history import (
    ACKS_ALL,
    Append,
    History,
    Latest,
    Read,
    describe,
    find_missing,
)
from insync.testing.cluster import Cluster
from support.cluster.clients import QUIET, IntegerProducer, read_to_end

PRODUCER, CONSUMER = 1, 2
MESSAGES_MAX = 500
CONSUME_WITHIN_S = 0.1
LATEST_WITHIN_S = 1.0  # the leader may be stopped


class RecordingProducer(IntegerProducer):
    def __init__(self, cluster: Cluster, topic: str, history: History) -> None:
        super().__init__(cluster, topic)
        self._history = history

    def _delivered(self, error: Any, message: Any) -> None:
        super()._delivered(error, message)
        now_s = time.monotonic()
        self._history.add(
            Append(
                client=PRODUCER,
                partition=(self.topic, message.partition()),
                first_number=int(message.value()),
                values=[message.value()],
                acks=ACKS_ALL,
                invoked_at_s=now_s - message.latency(),
                returned_at_s=now_s if error is None else None,
                base_offset=message.offset() if error is None else None,
            )
        )


class RecordingConsumer:
    """Reads every partition in a thread, from the first record on, and asks for latest offsets."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, history: History) -> None:
        self._topic = topic
        self._history = history
        self._positions = dict.fromkeys(range(partitions), 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording consumer")
        self._failure: BaseException | None = None
        self.reads = self.latest = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # a position that does not exist is an anomaly
                "socket.timeout.ms": 2_000,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )

    def __enter__(self) -> RecordingConsumer:
        self._consumer.assign([TopicPartition(self._topic, each, 0) for each in self._positions])
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        if error is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for _ in self._positions:
                    self._read()
                self._ask_latest()
        except BaseException as failure:  # raised in the thread of the test
            self._failure = failure

    def _read(self) -> None:
        invoked_at_s = time.monotonic()
        messages = self._consumer.consume(MESSAGES_MAX, CONSUME_WITHIN_S)
        returned_at_s = time.monotonic()
        records: dict[int, list[tuple[int, bytes]]] = {}
        out_of_range: list[int] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.setdefault(message.partition(), []).append(
                    (message.offset(), message.value())
                )
            elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                out_of_range.append(message.partition())
        for partition in sorted({*records, *out_of_range}):
            self._history.add(
                Read(
                    client=CONSUMER,
                    partition=(self._topic, partition),
                    offset=self._positions[partition],
                    records=records.get(partition, []),
                    log_start=0,
                    invoked_at_s=invoked_at_s,
                    returned_at_s=returned_at_s,
                    is_out_of_range=partition in out_of_range,
                )
            )
            self.reads += 1
            if partition in records:
                self._positions[partition] = records[partition][-1][0] + 1

    def _ask_latest(self) -> None:
        for partition in self._positions:
            invoked_at_s = time.monotonic()
            try:
                _, offset = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, partition), timeout=LATEST_WITHIN_S, cached=False
                )
            except KafkaException:
                continue  # no leader, or one that does not know its watermark yet
            self._history.add(
                Latest(
                    client=CONSUMER,
                    partition=(self._topic, partition),
                    offset=offset,
                    invoked_at_s=invoked_at_s,
                    returned_at_s=time.monotonic(),
                )
            )
            self.latest += 1


def check_history(cluster: Cluster, producer: RecordingProducer, history: History) -> None:
    """No client saw an anomaly, and all that was acknowledged is in the log at its offset."""
    anomalies = history.find_anomalies()
    logs = read_to_end(cluster, producer.topic, range(producer.partitions))
    for partition, records in logs.items():
        present = {offset: str(value).encode() for offset, value in records}
        anomalies += find_missing(history, (producer.topic, partition), start=0, present=present)
    assert not anomalies, describe(anomalies)
