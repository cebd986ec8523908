"""`insync replicas` on Apache Kafka, from outside, while a follower stops and comes back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from insync.cli import main as cli
from peers.apache_kafka import ApacheKafka
from support.cluster.clients import QUIET, eventually

pytestmark = [pytest.mark.interop, pytest.mark.timed]
SETTINGS = {
    "replica.lag.time.max.ms": "4000",
    # Longer than a test pauses a broker. A killed broker can register again only after its former
    # session has ended, and gives up after the second setting: with 60 s for both, a change of the
    # controller decided which of them came first.
    "broker.session.timeout.ms": "20000",
    "initial.broker.registration.timeout.ms": "120000",
    "offsets.topic.replication.factor": "1",
}


RATE = 100_000  # bytes per second: what the follower that was away may catch up with


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(nodes=3, settings=SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap, **QUIET})
        topic = NewTopic("orders", 1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([topic])["orders"].result(30)
        yield started


def write(kafka: ApacheKafka, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": 1, **QUIET})
    for number in range(count):
        producer.produce("orders", value=b"%01000d" % number, partition=0)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(30) == 0


Replicas = tuple[int, dict[str, Any], dict[int, Any]]


def run_replicas(kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> Replicas:
    """The exit code of `insync replicas`, its JSON, and the row of each follower."""
    flags = ["--topic", "orders", "--json"]
    code = cli.main(["replicas", "--bootstrap-server", kafka.bootstrap, *flags])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    report = json.loads(captured.out)
    assert not report["exact"]
    return code, report, {row["follower"]: row for row in report["followers"]}


def await_caught_up(kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> None:
    def is_caught_up() -> bool:
        code, _, rows = run_replicas(kafka, capsys)
        measured = [row for row in rows.values() if row["problem"] is None]
        assert all(row["lag_is_estimated"] for row in measured)
        return code == 0 and {rows[broker]["why"] for broker in (2, 3)} == {"caught up"}

    eventually(is_caught_up, within_s=90, what="both followers are caught up")


def test_a_follower_that_stops(kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> None:
    write(kafka, 1_000)
    await_caught_up(kafka, capsys)
    kafka.pause(3)
    try:
        write(kafka, 2_000)
        code, report, rows = run_replicas(kafka, capsys)
    finally:
        kafka.resume(3)
    assert code == 1
    assert report["problems"] == ["broker 3: does not respond"]
    assert rows[2]["why"] == "caught up"
    assert rows[3]["problem"] == "its broker does not report it"
    (trouble,) = report["brokers"]
    assert re.fullmatch(
        r"broker 3 does not respond: (still in all its ISRs|out of 1 ISR), leads 0; "
        r"do: check its host and its process",
        trouble["text"],
    ), "no time, since none is known"
    assert trouble["stopped_fetching_ms"] is trouble["evicted_in_ms"] is None
    assert report["totals"]["brokers_not_responding"] == 1
    assert report["totals"]["under_min_isr_partitions"] == 0
    await_caught_up(kafka, capsys)


def test_a_follower_that_was_away_and_is_held_back(
    kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-73's throttle keeps it from catching up at once, so that it can be watched."""
    await_caught_up(kafka, capsys)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})

    def set_config(kind: ResourceType, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    # Held back by its leader: a follower that starts may have fetched everything before it
    # applies a throttle of its own.
    rate = "leader.replication.throttled.rate"
    set_config(ResourceType.TOPIC, "orders", "leader.replication.throttled.replicas", "0:1")
    set_config(ResourceType.BROKER, "1", rate, str(RATE))
    kafka.kill(3)
    write(kafka, 20_000)
    code, _, rows = run_replicas(kafka, capsys)
    assert code == 1
    assert rows[3]["problem"] == "its broker does not report it"

    def is_out() -> bool:
        return not run_replicas(kafka, capsys)[2][3]["in_sync"]

    # A throttle holds back no member of the ISR: one that returns earlier is caught up at once.
    eventually(is_out, within_s=60, what="the leader removed it from the ISR")
    kafka.restart(3)
    row: dict[str, Any] = {}

    def catches_up() -> bool:
        row.update(run_replicas(kafka, capsys)[2][3])
        return row["catches_up_in_ms"] is not None

    # A leader sends a megabyte, then nothing for ten seconds: most reports see no movement.
    eventually(catches_up, within_s=150, what="it is seen catching up")
    assert not row["in_sync"]
    assert row["why"].startswith("catching up, ")
    assert 0 < row["lag_messages"] < 20_000
    assert row["lag_ms"] > 0
    assert row["lag_is_at_least"], "no report was made when this was written"
    assert row["lag_bytes"] == pytest.approx(1_000 * row["lag_messages"], rel=0.5)
    set_config(ResourceType.BROKER, "1", rate, str(1 << 30))
    await_caught_up(kafka, capsys)
