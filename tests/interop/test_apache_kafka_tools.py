"""Apache Kafka's own tools, and so its Java clients and its reader of log files."""

from __future__ import annotations

import json

import pytest

from insync.testing.cluster import Cluster
from support.cluster.clients import partitions_of
from support.interop.kafka_clients import (
    ACKS,
    CODECS,
    Manner,
    Record,
    check_times,
    confluent_reads,
    confluent_writes,
    java,
    kafka_python_writes,
    stored_codecs,
)

pytestmark = [pytest.mark.interop, pytest.mark.timed]
NOON_MS = 1_700_000_000_000
SETTINGS = "--config", "min.insync.replicas=2", "--config", "retention.ms=3600000"


def test_kafka_topics(cluster: Cluster) -> None:
    """Create, list, describe, add partitions, delete."""

    def topics(*arguments: str) -> str:
        return java("TopicCommand", "--bootstrap-server", cluster.bootstrap, *arguments)

    created = topics(
        *("--create", "--topic", "made", "--partitions", "2", "--replication-factor", "3"),
        *SETTINGS,
    )
    assert created == "Created topic made.\n"
    assert "made" in topics("--list").splitlines()
    first, *_ = topics("--describe", "--topic", "made").splitlines()
    assert first.startswith("Topic: made\tTopicId: ")
    assert "PartitionCount: 2\tReplicationFactor: 3\tConfigs: min.insync.replicas=2," in first
    assert "retention.ms=3600000" in first
    topics("--alter", "--topic", "made", "--partitions", "5")
    partitions = partitions_of(cluster, "made")
    assert sorted(partitions) == [0, 1, 2, 3, 4]
    assert all(sorted(each.replicas) == [1, 2, 3] for each in partitions.values())
    topics("--delete", "--topic", "made")
    assert "made" not in topics("--list").splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--create", "--topic", "taken"],
        ["--create", "--topic", "wide", "--replication-factor", "4"],
        ["--create", "--topic", "odd", "--config", "retention.ms=soon"],
        ["--alter", "--topic", "taken", "--partitions", "1"],
        ["--delete", "--topic", "missing"],
    ],
    ids=["exists", "factor", "setting", "fewer", "missing"],
)
def test_kafka_topics_gets_refusals_with_messages(cluster: Cluster, arguments: list[str]) -> None:
    partitions_of(cluster, "taken")  # makes it
    with pytest.raises(AssertionError, match="Error while executing topic command"):
        java("TopicCommand", "--bootstrap-server", cluster.bootstrap, *arguments)


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_console_producer(cluster: Cluster, topic: str, codec: str) -> None:
    lines = [f"from:java,n:{number}\tkey {number}\tvalue {number}" for number in range(200)]
    arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", topic]
    arguments += ["--compression-codec", codec]
    for each in ("parse.headers=true", "parse.key=true"):
        arguments += ["--reader-property", each]
    java("ConsoleProducer", *arguments, stdin="\n".join(lines) + "\n")
    assert stored_codecs(cluster, topic) == {codec}
    records = confluent_reads(cluster.bootstrap, topic, len(lines))
    assert [(each.headers, each.key, each.value) for each in records] == [
        (
            (("from", b"java"), ("n", b"%d" % number)),
            b"key %d" % number,
            b"value %d" % number,
        )
        for number in range(200)
    ]
    check_times(cluster, topic, records)


@pytest.mark.parametrize(
    ("begin", "isolation", "expected"),
    [
        ("earliest", "read_uncommitted", "0123"),
        ("earliest", "read_committed", "0123"),
        ("2", "read_uncommitted", "23"),
        ("latest", "read_uncommitted", ""),
    ],
)
def test_kafka_console_consumer_starts_at_the_given_offset(
    cluster: Cluster, topic: str, begin: str, isolation: str, expected: str
) -> None:
    records = [Record(value=b"%d" % number, timestamp_ms=NOON_MS) for number in range(4)]
    confluent_writes(cluster.bootstrap, topic, records, Manner())
    arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", topic, "--partition", "0"]
    arguments += ["--offset", begin, "--timeout-ms", "3000", "--isolation-level", isolation]
    assert java("consumer.ConsoleConsumer", *arguments).split() == list(expected)


def test_kafka_get_offsets(cluster: Cluster, topic: str) -> None:
    times_ms = (NOON_MS, NOON_MS + 3_000, NOON_MS + 1_000, NOON_MS + 2_000)
    records = [Record(value=b"v", timestamp_ms=each) for each in times_ms]
    confluent_writes(cluster.bootstrap, topic, records, Manner())
    expected = {
        "earliest": "0",
        "latest": "4",
        "max-timestamp": "1",
        "earliest-local": "0",
        str(NOON_MS): "0",
        str(NOON_MS + 1_500): "1",
    }
    for time, offset in expected.items():
        output = java(
            "GetOffsetShell",
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--time", time),
        )
        assert output == f"{topic}:0:{offset}\n", time
    for time in (str(NOON_MS + 3_001), "latest-tiered"):
        output = java(
            "GetOffsetShell",
            *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--time", time),
        )
        assert output in ("", f"{topic}:0:-1\n"), "no such record"


@pytest.mark.parametrize("acks", ACKS)
def test_kafka_producer_perf_test(cluster: Cluster, topic: str, acks: str) -> None:
    output = java(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "5000", "--record-size", "1000"),
        *("--throughput", "-1", "--command-property", f"bootstrap.servers={cluster.bootstrap}"),
        *(f"acks={acks}", "batch.size=200000"),
    )
    assert "5000 records sent" in output
    assert len(confluent_reads(cluster.bootstrap, topic, 5_000)) == 5_000


def test_kafka_verifiable_producer(cluster: Cluster, topic: str) -> None:
    output = java(
        "VerifiableProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--max-messages", "500"),
    )
    events = [json.loads(line) for line in output.splitlines()]
    acknowledged = [each for each in events if each["name"] == "producer_send_success"]
    assert [each["offset"] for each in acknowledged] == list(range(500))
    values = [each.value for each in confluent_reads(cluster.bootstrap, topic, 500)]
    assert values == [each["value"].encode() for each in acknowledged]


def test_kafka_cluster_and_api_versions(cluster: Cluster) -> None:
    output = java("ClusterTool", "cluster-id", "--bootstrap-server", cluster.bootstrap)
    assert output.startswith("Cluster ID: ")
    output = java("BrokerApiVersionsCommand", "--bootstrap-server", cluster.bootstrap)
    for each in cluster.brokers.values():
        assert f"127.0.0.1:{each.port} (id: {each.broker} rack: null" in output
    for usable in ("Produce(0): 0 to 13 [usable: 13]", "Fetch(1): 4 to 18 [usable: 18]"):
        assert output.count(usable) == 3


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_dump_log_reads_our_files(cluster: Cluster, topic: str, codec: str) -> None:
    """On every replica the same, batch by batch."""
    records = [
        Record(value=b"value %d" % number, key=b"key", timestamp_ms=NOON_MS + number)
        for number in range(50)
    ]
    how = Manner(codec=codec, is_idempotent=True)
    kafka_python_writes(cluster.bootstrap, topic, records, how)
    segments = [
        segment
        for broker in cluster.brokers.values()
        for segment in (broker.log_dir / f"{topic}-0").glob("*.log")
    ]
    output = java(
        "DumpLogSegments", "--print-data-log", "--files", ",".join(str(each) for each in segments)
    )
    before, *dumps = output.split("Log starting offset: 0\n")
    assert before.startswith("Dumping ")
    dump, *others = (each.partition("Dumping ")[0] for each in dumps)
    assert others == [dump, dump]
    assert "isvalid: false" not in dump
    assert f"compresscodec: {codec}" in dump
    payloads = [line.rpartition("payload: ")[2] for line in dump.splitlines() if "| off" in line]
    assert payloads == [f"value {number}" for number in range(50)]
