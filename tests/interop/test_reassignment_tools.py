"""Moves by third-party tools: Apache Kafka's own, and kafka-python's admin client."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from insync.testing.cluster import Cluster
from support.cluster.clients import (
    IntegerProducer,
    admin,
    check_nothing_lost,
    eventually,
    partitions_of,
)
from support.interop.kafka_clients import java

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timed,
    pytest.mark.insync_cluster(settings={"min.insync.replicas": "1"}),
]

TOPIC = "moved"
BEFORE, AFTER = [1, 2], [3, 2]


@pytest.fixture
def own_cluster(insync_cluster: Cluster) -> Cluster:
    """Not the lane's: a move is refused while another is under way anywhere."""
    topic = NewTopic(TOPIC, 2, replica_assignment=[BEFORE] * 2)
    client = admin(insync_cluster)
    client.create_topics([topic])[TOPIC].result(10)
    return insync_cluster


def reassign(cluster: Cluster, *arguments: str) -> str:
    return java(
        "reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", cluster.bootstrap),
        *arguments,
    )


def plan_file(folder: Path, replicas: list[int]) -> str:
    partitions = [{"topic": TOPIC, "partition": n, "replicas": replicas} for n in range(2)]
    path = folder / f"plan-{'-'.join(map(str, replicas))}.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def replicas_of(cluster: Cluster) -> list[list[int]]:
    return [each.replicas for each in partitions_of(cluster, TOPIC).values()]


def throttles(cluster: Cluster) -> list[str]:
    """What is set to throttle, of the topic and of every broker."""
    client = admin(cluster)
    owners = [ConfigResource(ConfigResource.Type.TOPIC, TOPIC)]
    owners += [ConfigResource(ConfigResource.Type.BROKER, str(b)) for b in cluster.brokers]
    configs = [
        future.result(10)
        for owner in owners
        for future in client.describe_configs([owner]).values()
    ]
    return [
        f"{name}={entry.value}"
        for settings in configs
        for name, entry in settings.items()
        if "throttled" in name and not entry.is_default
    ]


def test_kafka_reassign_partitions_proposes_a_plan(own_cluster: Cluster, tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    output = reassign(
        own_cluster,
        *("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3"),
    )
    plans = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    current, proposed = ({tuple(p["replicas"]) for p in plan["partitions"]} for plan in plans)
    assert current == {tuple(BEFORE)}
    assert proposed <= {(2, 3), (3, 2)}


@pytest.mark.parametrize("throttle", [(), ("--throttle", "50000000")], ids=["free", "throttled"])
def test_kafka_reassign_partitions_moves(
    own_cluster: Cluster, tmp_path: Path, throttle: tuple[str, ...]
) -> None:
    """Execute, list while it is under way, verify, and nothing is lost or left."""
    producer = IntegerProducer(own_cluster, TOPIC, partitions=2)
    producer.send(2_000)
    producer.flush()
    plan = plan_file(tmp_path, AFTER)
    for source in BEFORE:
        own_cluster.cut(source, 3)
    output = reassign(own_cluster, "--execute", "--reassignment-json-file", plan, *throttle)
    assert f"Successfully started partition reassignments for {TOPIC}-0,{TOPIC}-1" in output
    assert bool(throttles(own_cluster)) == bool(throttle)
    listed = reassign(own_cluster, "--list")
    assert f"{TOPIC}-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    output = reassign(own_cluster, "--verify", "--reassignment-json-file", plan)
    assert f"Reassignment of partition {TOPIC}-0 is still in progress." in output
    own_cluster.heal()
    eventually(lambda: replicas_of(own_cluster) == [AFTER] * 2, within_s=30, what="it has moved")
    output = reassign(own_cluster, "--verify", "--reassignment-json-file", plan)
    assert f"Reassignment of partition {TOPIC}-0 is completed." in output
    assert "No partition reassignments found." in reassign(own_cluster, "--list")
    check_nothing_lost(own_cluster, producer)
    assert throttles(own_cluster) == []


def test_kafka_reassign_partitions_cancels(own_cluster: Cluster, tmp_path: Path) -> None:
    producer = IntegerProducer(own_cluster, TOPIC, partitions=2)
    producer.send(2_000)
    producer.flush()
    plan = plan_file(tmp_path, AFTER)
    for source in BEFORE:
        own_cluster.cut(source, 3)
    reassign(own_cluster, "--execute", "--reassignment-json-file", plan, "--throttle", "1000")
    output = reassign(own_cluster, "--cancel", "--reassignment-json-file", plan)
    assert re.search(rf"Successfully cancelled partition reassignments for: {TOPIC}-0", output)
    assert [sorted(each) for each in replicas_of(own_cluster)] == [BEFORE] * 2
    output = reassign(own_cluster, "--cancel", "--reassignment-json-file", plan)
    assert "None of the specified partition reassignments are active." in output
    assert throttles(own_cluster) == []


def test_kafka_log_dirs_and_leader_election(own_cluster: Cluster, tmp_path: Path) -> None:
    producer = IntegerProducer(own_cluster, TOPIC, partitions=2)
    producer.send(500)
    producer.flush()
    output = java(
        "LogDirsCommand",
        *("--bootstrap-server", own_cluster.bootstrap, "--describe", "--topic-list", TOPIC),
    )
    description = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    sizes = {
        each["broker"]: [p["size"] for d in each["logDirs"] for p in d["partitions"]]
        for each in description["brokers"]
    }
    assert all(size > 0 for size in sizes[1] + sizes[2])
    assert sizes[1] == sizes[2]
    assert sizes[3] == []
    plan = plan_file(tmp_path, [2, 1])
    reassign(own_cluster, "--execute", "--reassignment-json-file", plan)
    output = java(
        "LeaderElectionCommand",
        *("--bootstrap-server", own_cluster.bootstrap, "--election-type", "preferred"),
        *("--topic", TOPIC, "--partition", "0"),
    )
    assert "Successfully completed leader election (PREFERRED)" in output
    leaders = [each.leader for each in partitions_of(own_cluster, TOPIC).values()]
    assert leaders == [2, 1]


def test_kafka_python_moves_elects_and_measures(own_cluster: Cluster) -> None:
    producer = IntegerProducer(own_cluster, TOPIC, partitions=2)
    producer.send(500)
    producer.flush()
    client = KafkaAdminClient(bootstrap_servers=own_cluster.bootstrap.split(","))
    try:
        first = TopicPartition(TOPIC, 0)
        client.alter_partition_reassignments({first: AFTER})
        eventually(
            lambda: replicas_of(own_cluster) == [AFTER, BEFORE], within_s=20, what="it has moved"
        )
        eventually(
            lambda: not client.list_partition_reassignments(), within_s=10, what="none under way"
        )
        assert partitions_of(own_cluster, TOPIC)[0].leader == AFTER[0]
        client.alter_partition_reassignments({first: AFTER[::-1]})
        client.elect_leaders(0, {TOPIC: [0]})
        assert partitions_of(own_cluster, TOPIC)[0].leader == AFTER[1]
        assert client.describe_log_dirs()
    finally:
        client.close()
    check_nothing_lost(own_cluster, producer)
