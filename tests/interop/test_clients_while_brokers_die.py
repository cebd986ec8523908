"""Each client writes while brokers are killed and restarted; no acknowledged record is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer

from insync.testing.cluster import Cluster
from peers.apache_kafka import java_tool
from support.cluster.clients import IntegerProducer, create_topic, eventually, partitions_of
from support.interop.kafka_clients import TOOLS, confluent_reads

PAUSE_S = 0.005
Writing = Callable[[Cluster, str, Event, list[int]], None]


def confluent(cluster: Cluster, topic: str, stop: Event, acknowledged: list[int]) -> None:
    producer = IntegerProducer(cluster, topic, partitions=1)
    while not stop.is_set():
        producer.send(1)
    producer.flush(60)
    assert producer.errors == []
    acknowledged += producer.acknowledged[0]


def kafka_python(cluster: Cluster, topic: str, stop: Event, acknowledged: list[int]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap.split(","), acks="all", enable_idempotence=True
    )
    sent: list[Any] = []
    while not stop.wait(PAUSE_S):
        value = len(sent)
        sent.append(producer.send(topic, value=b"%d" % value, partition=0))
    for value, future in enumerate(sent):
        future.get(60)
        acknowledged.append(value)
    producer.close()


def aiokafka(cluster: Cluster, topic: str, stop: Event, acknowledged: list[int]) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=True, request_timeout_ms=5_000
        )
        await producer.start()
        sent: list[Any] = []
        while not stop.is_set():
            sent.append(await producer.send(topic, b"%d" % len(sent), partition=0))
            await asyncio.sleep(PAUSE_S)
        async with asyncio.timeout(60):
            for value, future in enumerate(sent):
                await future
                acknowledged.append(value)
        await producer.stop()

    asyncio.run(write())


def verifiable_producer(cluster: Cluster, topic: str, stop: Event, acknowledged: list[int]) -> None:
    """Apache Kafka's; it retries only if its configuration says so."""
    config = cluster.folder / "producer.properties"
    config.write_text("retries=2147483647\nenable.idempotence=true\n")
    output = cluster.folder / "producer.out"
    command = java_tool(
        TOOLS + "VerifiableProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic),
        *("--throughput", "200", "--command-config", str(config)),
    )
    with output.open("wb") as out, started(command, out.fileno()) as process:
        stop.wait(120)
        process.terminate()  # it flushes, prints its result and ends
        process.wait(60)
    events = [json.loads(line) for line in output.read_text().splitlines()]
    assert [each for each in events if each["name"] == "producer_send_error"] == []
    acknowledged += [
        int(each["value"]) for each in events if each["name"] == "producer_send_success"
    ]


@contextmanager
def started(command: list[str], out: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


CLIENTS: dict[str, Writing] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kafka-verifiable-producer": verifiable_producer,
}


def kill_leaders_while_writing(client: str, *, rounds: int) -> None:
    """In each round the leader dies and comes back once another has taken over."""
    with Cluster(settings={"min.insync.replicas": "2"}) as cluster:
        create_topic(cluster, "orders", partitions=1)
        acknowledged: list[int] = []
        failed: list[BaseException] = []
        stop = Event()

        def write() -> None:
            try:
                CLIENTS[client](cluster, "orders", stop, acknowledged)
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=write)
        thread.start()
        try:
            for _ in range(rounds):
                size = await_growth(cluster.folder, 0)
                leader = partitions_of(cluster, "orders")[0].leader
                cluster.kill(leader)
                await_growth(cluster.folder, size)
                cluster.restart(leader)
                eventually(
                    lambda: len(partitions_of(cluster, "orders")[0].isrs) == 3,
                    within_s=30,
                    what="the restarted broker is in sync again",
                )
        finally:
            stop.set()
            thread.join(120)
        assert not thread.is_alive(), "the client hangs"
        assert failed == []
        assert acknowledged == list(range(len(acknowledged)))
        read = confluent_reads(cluster.bootstrap, "orders", len(acknowledged))
        assert [int(each.value or b"") for each in read] == acknowledged


def await_growth(folder: Path, size: int) -> int:
    """Wait until the client's records have come to more bytes on disk than so many."""

    def bytes_now() -> int:
        return sum(each.stat().st_size for each in folder.glob("broker-*/orders-0/*.log"))

    began_s = time.monotonic()
    eventually(
        lambda: bytes_now() > size and time.monotonic() - began_s > 1,
        within_s=30,
        what="the client goes on writing",
    )
    return bytes_now()


@pytest.mark.interop
@pytest.mark.parametrize("client", CLIENTS)
def test_leaders_die_while_a_client_writes(client: str) -> None:
    kill_leaders_while_writing(client, rounds=3)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    "client",
    [
        pytest.param("confluent-kafka", marks=pytest.mark.slice(3)),
        pytest.param("kafka-python", marks=pytest.mark.slice(4)),
        pytest.param("aiokafka", marks=pytest.mark.slice(3)),
    ],
)
def test_leaders_die_for_a_minute_while_a_client_writes(client: str) -> None:
    kill_leaders_while_writing(client, rounds=6)
