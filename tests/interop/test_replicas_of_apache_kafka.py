"""`insync replicas` on Apache Kafka, from outside, while a follower stops and comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_helpers import QUIET, eventually
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from insync.cli import main as cli
from peers.apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
SETTINGS = {
    "replica.lag.time.max.ms": "4000",
    "broker.session.timeout.ms": "60000",
    "offsets.topic.replication.factor": "1",
}


def test_a_follower_of_apache_kafka_that_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with ApacheKafka(nodes=3, settings=SETTINGS) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
        topic = NewTopic("orders", 1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([topic])["orders"].result(30)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": 1, **QUIET})

        def write(count: int) -> None:
            for number in range(count):
                producer.produce("orders", value=b"%0100d" % number, partition=0)
            assert producer.flush(30) == 0

        def look(*flags: str) -> tuple[int, dict[str, Any], dict[int, Any]]:
            code = cli.main(["replicas", "--bootstrap-server", kafka.bootstrap, "--json", *flags])
            captured = capsys.readouterr()
            assert captured.out, captured.err
            told = json.loads(captured.out)
            return code, told, {row["follower"]: row for row in told["followers"]}

        write(1_000)

        def is_level() -> bool:
            code, told, rows = look("--topic", "orders")
            assert not told["exact"]
            return code == 0 and [rows[broker]["why"] for broker in (2, 3)] == ["level", "level"]

        eventually(is_level, within_s=30, what="both followers are level")
        assert all(row["lag_is_estimated"] for row in look()[2].values())
        kafka.pause(3)
        try:
            write(2_000)
            code, told, rows = look("--topic", "orders")
        finally:
            kafka.resume(3)
        assert code == 1
        assert told["problems"] == ["broker 3: does not answer"]
        assert rows[2]["why"] == "level"
        assert rows[3]["problem"] == "its broker does not answer for it"
        eventually(is_level, within_s=60, what="both followers are level again")
