"""What tests of moves between real processes share: the command, its plan, and what it left."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic
from kio.schema.errors import ErrorCode

from insync.testing.cluster import Cluster
from insync.wire.apis import Api
from support.cluster.clients import IntegerProducer, admin
from support.wire.kio_client import KioClient

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET_AT_RUN_TIME = {1, 2, 3}  # for a topic, a broker, or all brokers
DONE_WITHIN_S = 60


def create_with_replicas(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]]) -> None:
    """Create a topic whose partitions have these replicas."""
    client = admin(cluster)  # must outlive its requests
    wanted = NewTopic(topic, len(replicas), replica_assignment=[list(each) for each in replicas])
    client.create_topics([wanted])[topic].result(10)


def write_plan(path: Path, topic: str, replicas: Sequence[Sequence[int]]) -> str:
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(each)}
        for number, each in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def command(cluster: Cluster, *flags: str) -> list[str]:
    """`insync reassign`, to be run as a process."""
    start = [sys.executable, "-m", "insync", "reassign", "--bootstrap-server", cluster.bootstrap]
    return [*start, *flags]


def reassign_json(cluster: Cluster, *flags: str) -> Any:
    """The JSON output of the command, which must succeed."""
    arguments = command(cluster, "--json", *flags)
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=DONE_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copied_bytes(cluster: Cluster, topic: str, broker: int) -> int:
    """What the replicas of a topic hold at one broker, as its disk has it."""
    files = cluster.brokers[broker].log_dir.glob(f"{topic}-*/*.log")
    return sum(file.stat().st_size for file in files)


def throttles(cluster: Cluster, *topics: str) -> dict[str, str]:
    """Every setting of these topics and of all running brokers that throttles, if it is set.

    A broker's own settings are described by that broker only.
    """
    running = [each.broker for each in cluster.brokers.values() if each.is_running]
    owners = [
        *((TOPIC_RESOURCE, topic, running[0]) for topic in topics),
        *((BROKER_RESOURCE, str(broker), broker) for broker in running),
    ]
    values: dict[str, str] = {}
    for kind, name, described_by in owners:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        with KioClient(cluster.brokers[described_by].port) as kio:
            (result,) = kio.request(Api.DESCRIBE_CONFIGS, 4, {"resources": [resource]}).results
        assert result.error_code is ErrorCode.none, result.error_message
        values |= {
            f"{name}: {each.name}": str(each.value)
            for each in result.configs
            if "throttled" in each.name and each.config_source in SET_AT_RUN_TIME and each.value
        }
    return values


def controller(cluster: Cluster) -> int:
    running = next(each for each in cluster.brokers.values() if each.is_running)
    with KioClient(running.port) as kio:
        return int(kio.request(Api.DESCRIBE_CLUSTER, 0, {}).controller_id)


@contextmanager
def trickling(*producers: IntegerProducer, count: int, every_s: float) -> Iterator[None]:
    """So many messages from each producer now and then, in the background; all are awaited."""
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(every_s):
            for each in producers:
                each.send(count)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for each in producers:
        each.flush()
        assert each.errors == []
