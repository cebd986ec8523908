"""What many partitions cost: one broker with 100, 1 000 or 10 000, and three with 5 000 each.

All partitions are idle but one. What a request costs should not depend on the others.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from bench import loads
from bench.loads import LoadFailed
from bench.processes import KIBIBYTE, MEGABYTE, cpu_s, memory_mb
from bench.sides import Contender, Side

ONE_BROKER: Final = (100, 1_000, 10_000)
THREE_BROKERS: Final = 5_000
BUSY: Final = "busy"
PARTITIONS_PER_TOPIC: Final = 1_000  # Apache Kafka refuses a request for more than 10 000 records
DONE_WITHIN_S: Final = 240.0
REQUEST_WITHIN_S: Final = 60.0
POLL_AFTER_S: Final = 0.02
METADATA_REQUESTS: Final = 200
ALL_TOPICS_REQUESTS: Final = 5
IDLE_WINDOWS: Final = 4
MESSAGE_BYTES: Final = 1_024
MESSAGES_PER_S: Final = 200


@dataclass(frozen=True, slots=True)
class Watched:
    """How long to watch: brokers with nothing to do, and one busy partition."""

    idle_s: float
    busy_s: float


def measure(contender: Contender, watched: Watched) -> dict[str, float]:
    """Every size in turn, each on a new cluster."""
    seen: dict[str, float] = {}
    for partitions in ONE_BROKER:
        with contender.cluster(brokers=1) as side:
            seen |= _named(partitions, _measure_one_broker(side, partitions, watched))
    with contender.cluster() as side:
        seen |= _named("3x", _measure_three_brokers(side, THREE_BROKERS, watched))
        if contender.name == "insync":
            seen["size-3x-replicas"] = _seconds_of_replicas_command(side)
        seen["size-3x-failover"] = _seconds_to_fail_over(side, THREE_BROKERS)
    return seen


def _named(size: object, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"size-{size}-{name}": value for name, value in figures.items()}


def _measure_one_broker(side: Side, partitions: int, watched: Watched) -> dict[str, float]:
    seen = _measure_cluster(side, partitions, factor=1, watched=watched)
    began_s = time.monotonic()
    side.shut_down(1)
    seen["stop"] = time.monotonic() - began_s
    began_s = time.monotonic()
    side.restart(1)
    _await_served(side, partitions)
    seen["start"] = time.monotonic() - began_s
    began_s = time.monotonic()
    client = _admin(side.bootstrap)
    names = list(_topics(partitions))
    for each in client.delete_topics(names, request_timeout=REQUEST_WITHIN_S).values():
        _await_done(each, done_before=KafkaError.UNKNOWN_TOPIC_OR_PART)
    _await(lambda: not set(names) & set(_listed(client)), what="the topics are gone")
    seen["delete"] = time.monotonic() - began_s
    return seen


def _measure_three_brokers(side: Side, partitions: int, watched: Watched) -> dict[str, float]:
    return _measure_cluster(side, partitions, factor=3, watched=watched)


def _measure_cluster(
    side: Side, partitions: int, *, factor: int, watched: Watched
) -> dict[str, float]:
    pids = list(side.pids.values())
    client = _admin(side.bootstrap)
    _create(client, BUSY, 1, factor)
    _await_acknowledged(side.bootstrap, {BUSY: 1})
    before_mb, began_s = memory_mb(pids), time.monotonic()
    for name, count in _topics(partitions).items():
        _create(client, name, count, factor)
    _await_served(side, partitions)
    seen = {"create": time.monotonic() - began_s}
    seen |= _latencies(client, list(_topics(partitions)))
    # The least of several windows: a JVM goes on compiling long after it has anything to do.
    idle_cores = min(_cores_taken(pids, watched.idle_s) for _ in range(IDLE_WINDOWS))
    seen["cpu-idle"] = 100 * idle_cores
    seen["memory"] = (memory_mb(pids) - before_mb) * MEGABYTE / partitions / KIBIBYTE
    seen |= _busy_partition(side, idle_cores, watched)
    return seen


def _latencies(client: AdminClient, names: list[str]) -> dict[str, float]:
    """Of Metadata of one topic with one partition, of all topics, and of describing them all."""
    client.list_topics(BUSY, timeout=REQUEST_WITHIN_S)
    one = [
        _seconds_of(lambda: client.list_topics(BUSY, timeout=REQUEST_WITHIN_S))
        for _ in range(METADATA_REQUESTS)
    ]
    every = [
        _seconds_of(lambda: client.list_topics(timeout=REQUEST_WITHIN_S))
        for _ in range(ALL_TOPICS_REQUESTS)
    ]

    def describe() -> None:
        topics = TopicCollection(names)
        described = client.describe_topics(topics, request_timeout=REQUEST_WITHIN_S)
        for each in described.values():
            each.result()

    return {
        "metadata": median(one) * 1_000,
        "metadata-all": median(every) * 1_000,
        "describe": median(_seconds_of(describe) for _ in range(ALL_TOPICS_REQUESTS)) * 1_000,
    }


def _busy_partition(side: Side, idle_cores: float, watched: Watched) -> dict[str, float]:
    """A trickle to one partition with acks=all: its latency, and the CPU that it adds."""
    pids = list(side.pids.values())
    load = {
        "topic": BUSY,
        "partitions": 1,
        "message_bytes": MESSAGE_BYTES,
        "bytes_per_s": MESSAGE_BYTES * MESSAGES_PER_S,
        "seconds": watched.busy_s,
    }
    loads.run("pace", bootstrap=side.bootstrap, **load, warm_s=watched.busy_s)
    before_s, began_s = cpu_s(pids), time.monotonic()
    times = loads.run("pace", bootstrap=side.bootstrap, **load, warm_s=0)
    taken_s = cpu_s(pids) - before_s - idle_cores * (time.monotonic() - began_s)
    messages = MESSAGES_PER_S * watched.busy_s
    return {
        "busy-cpu": max(0.0, taken_s) / messages * 1_000,
        "busy-p50": times["p50_s"] * 1_000,
        "busy-p99": times["p99_s"] * 1_000,
    }


def _seconds_to_fail_over(side: Side, partitions: int) -> float:
    """From kill -9 of a broker until clients hear of another leader for all that it led."""
    killed = next(broker for broker in sorted(side.pids) if broker != side.controller())
    addresses = side.bootstrap.split(",")
    others = ",".join(each for broker, each in enumerate(addresses, start=1) if broker != killed)
    client = _admin(others)
    _listed(client)
    began_s = time.monotonic()
    side.kill(killed)

    def have_other_leaders() -> bool:
        leaders = [
            each.leader
            for topic in client.list_topics(timeout=REQUEST_WITHIN_S).topics.values()
            for each in topic.partitions.values()
        ]
        return len(leaders) >= partitions and not {-1, killed} & set(leaders)

    _await(have_other_leaders, what="every partition has a live leader")
    return time.monotonic() - began_s


def _seconds_of_replicas_command(side: Side) -> float:
    command = [sys.executable, "-m", "insync", "replicas", "-b", side.bootstrap]

    def run() -> None:
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=DONE_WITHIN_S, check=False
        )
        if done.returncode != 0:
            raise LoadFailed(f"insync replicas: {done.stderr.strip()}")

    return _seconds_of(run)


def _topics(partitions: int) -> dict[str, int]:
    """The idle topics and how many partitions each has."""
    each = min(partitions, PARTITIONS_PER_TOPIC)
    return {f"idle-{number}": each for number in range(partitions // each)}


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _listed(client: AdminClient) -> Iterable[str]:
    names: Iterable[str] = client.list_topics(timeout=REQUEST_WITHIN_S).topics
    return names


def _create(client: AdminClient, name: str, partitions: int, factor: int) -> None:
    topic = NewTopic(name, partitions, factor)
    created = client.create_topics(
        [topic], operation_timeout=REQUEST_WITHIN_S, request_timeout=REQUEST_WITHIN_S
    )
    _await_done(created[name], done_before=KafkaError.TOPIC_ALREADY_EXISTS)


def _await_done(result: Future[Any], *, done_before: int) -> None:
    """librdkafka repeats a request that takes long, and may get an answer to the second only."""
    try:
        result.result()
    except KafkaException as error:
        if error.args[0].code() != done_before:
            raise


def _await_served(side: Side, partitions: int) -> None:
    """Until the leader of every partition answers: one message to the last of each topic."""
    _await_acknowledged(side.bootstrap, _topics(partitions))


def _await_acknowledged(bootstrap: str, topics: Mapping[str, int]) -> None:
    errors: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            errors.append(str(error))

    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 0}
    # By default librdkafka gives up after half a minute on a topic that a broker does not know yet.
    patience = {"topic.metadata.propagation.max.ms": int(DONE_WITHIN_S * 1_000)}
    producer = Producer({**settings, **patience})
    for name, count in topics.items():
        producer.produce(name, b"x", partition=count - 1, on_delivery=delivered)
    if producer.flush(DONE_WITHIN_S) or errors:
        raise LoadFailed(errors[0] if errors else "a message was not acknowledged")


def _await(is_done: Any, *, what: str) -> None:
    deadline_s = time.monotonic() + DONE_WITHIN_S
    while True:
        try:
            if is_done():
                return
        except KafkaException:
            pass  # asked the broker that is gone
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"not within {DONE_WITHIN_S:.0f} s: {what}")
        time.sleep(POLL_AFTER_S)


def _seconds_of(action: Any) -> float:
    began_s = time.monotonic()
    action()
    return time.monotonic() - began_s


def _cores_taken(pids: list[int], during_s: float) -> float:
    """By all brokers together: 0.5 is half of one core."""
    before_s, began_s = cpu_s(pids), time.monotonic()
    time.sleep(during_s)
    return (cpu_s(pids) - before_s) / (time.monotonic() - began_s)
