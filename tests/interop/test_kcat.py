"""kcat as Debian has it: an older librdkafka, which looks closely at what is advertised."""

from __future__ import annotations

import json

import pytest

from insync.testing.cluster import Cluster
from support.interop.kafka_clients import (
    ACKS,
    CODECS,
    Manner,
    Record,
    confluent_reads,
    confluent_writes,
    kcat,
    librdkafka_sends,
    stored_codecs,
)

pytestmark = pytest.mark.interop
NOON_MS = 1_700_000_000_000
LINES = [(f"key {number}", f"value {number} " + "x" * 200) for number in range(300)]
STDIN = "".join(f"{key}\t{value}\n" for key, value in LINES)


def write(cluster: Cluster, topic: str, *options: str) -> None:
    arguments = ("-P", "-t", topic, "-p", "0", "-K", "\t", "-H", "from=kcat", *options)
    kcat(cluster.bootstrap, *arguments, stdin=STDIN)


def check_written(cluster: Cluster, topic: str) -> None:
    records = confluent_reads(cluster.bootstrap, topic, len(LINES))
    assert [(each.key, each.value) for each in records] == [
        (key.encode(), value.encode()) for key, value in LINES
    ]
    assert {each.headers for each in records} == {(("from", b"kcat"),)}


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_with_every_codec(cluster: Cluster, topic: str, codec: str) -> None:
    write(cluster, topic, "-z", codec)
    assert stored_codecs(cluster, topic) == {librdkafka_sends(codec, cluster)}
    check_written(cluster, topic)


@pytest.mark.parametrize("acks", ACKS)
def test_kcat_writes_with_every_acknowledgement(cluster: Cluster, topic: str, acks: str) -> None:
    write(cluster, topic, "-X", f"acks={acks}")
    check_written(cluster, topic)


def test_kcat_writes_idempotently(cluster: Cluster, topic: str) -> None:
    write(cluster, topic, "-X", "enable.idempotence=true")
    check_written(cluster, topic)


def test_kcat_lists_brokers_and_topics(cluster: Cluster, topic: str) -> None:
    listing = json.loads(kcat(cluster.bootstrap, "-L", "-J", "-t", topic))
    brokers = {each["id"]: each["name"] for each in listing["brokers"]}
    assert brokers == {number: f"127.0.0.1:{each.port}" for number, each in cluster.brokers.items()}
    ((partition,),) = (each["partitions"] for each in listing["topics"])
    assert {each["id"] for each in partition["replicas"]} == {1, 2, 3}


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("beginning", [0, 1, 2, 3]),
        ("2", [2, 3]),
        ("-1", [3]),
        (f"s@{NOON_MS}", [0, 1, 2, 3]),
        (f"s@{NOON_MS + 1_500}", [1, 2, 3]),
        ("end", []),
    ],
)
def test_kcat_starts_at_the_given_offset(
    cluster: Cluster, topic: str, begin: str, expected: list[int]
) -> None:
    times_ms = (NOON_MS, NOON_MS + 3_000, NOON_MS + 1_000, NOON_MS + 2_000)
    records = [Record(value=b"v", timestamp_ms=each) for each in times_ms]
    confluent_writes(cluster.bootstrap, topic, records, Manner())
    output = kcat(
        cluster.bootstrap, "-C", "-t", topic, "-p", "0", "-o", begin, "-e", "-f", "%o %T\n"
    )
    assert [tuple(map(int, line.split())) for line in output.splitlines()] == [
        (offset, times_ms[offset]) for offset in expected
    ]


@pytest.mark.parametrize(
    ("time_ms", "offset"), [(-2, 0), (-1, 2), (NOON_MS, 0), (NOON_MS + 1, 1), (NOON_MS + 9, -1)]
)
def test_kcat_queries_offsets(cluster: Cluster, topic: str, time_ms: int, offset: int) -> None:
    records = [Record(value=b"v", timestamp_ms=NOON_MS + each) for each in (0, 5)]
    confluent_writes(cluster.bootstrap, topic, records, Manner())
    output = kcat(cluster.bootstrap, "-Q", "-t", f"{topic}:0:{time_ms}")
    assert output.split() == [topic, "[0]", "offset", str(offset)]
