"""/metrics of real brokers, the dashboard and the alerts that are made for it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from insync.testing.cluster import HOST, BrokerFailed, Cluster, free_ports
from support.cluster.clients import (
    IntegerProducer,
    await_in_sync,
    create_topic,
    eventually,
    leader_of,
)

pytestmark = pytest.mark.process
INSYNC = Path(sys.executable).with_name("insync")
DEPLOY = Path(__file__).parents[2] / "deploy"
OURS = re.compile(r"\b(?:kafka|insync|process)_[a-z_]+\b")


class Scraped:
    """A cluster whose brokers serve /metrics, each at a port of its own."""

    def __init__(self, settings: dict[str, str]) -> None:
        ports = free_ports(3)
        self.cluster = Cluster(settings={**settings, "metrics.port": str(ports[0])})
        self.ports = dict(zip(self.cluster.brokers, ports, strict=True))

    def text(self, broker: int) -> str:
        address = f"http://{HOST}:{self.ports[broker]}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return str(answer.read(), "utf-8")

    def value(self, broker: int, name: str, **labels: str) -> float:
        for family in text_string_to_metric_families(self.text(broker)):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise AssertionError(f"broker {broker} does not expose {name}")

    def total(self, name: str) -> float:
        return sum(self.value(broker, name) for broker in self.cluster.brokers)


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    scraped = Scraped(
        {
            "replica.lag.time.max.ms": "2000",
            "broker.session.timeout.ms": "60000",
            "telemetry.enable": "false",  # its own messages and partitions would be counted too
        }
    )
    with scraped.cluster:
        create_topic(scraped.cluster, "orders", partitions=3)
        yield scraped


def test_a_follower_that_stops_is_exposed_and_its_shrink_is_counted(scraped: Scraped) -> None:
    cluster = scraped.cluster
    await_in_sync(cluster, "orders")
    manager, topics = "kafka_server_replicamanager_", "kafka_server_brokertopicmetrics_"
    before = scraped.total(f"{topics}messagesin_total")
    producer = IntegerProducer(cluster, "orders")
    producer.send(900)
    producer.flush()
    assert producer.errors == []
    eventually(  # an answer may be a tenth of a second old
        lambda: scraped.total(f"{topics}messagesin_total") == before + 900,
        within_s=5,
        what="all messages are counted",
    )
    assert scraped.total(f"{topics}bytesin_total") > 900
    assert scraped.total(f"{manager}leadercount") == 3
    assert scraped.total(f"{manager}partitioncount") == 9
    assert scraped.total("kafka_controller_kafkacontroller_activecontrollercount") == 1
    leader = leader_of(cluster)
    stopped = next(broker for broker in cluster.brokers if broker != leader)

    def lag_s() -> float:
        return scraped.value(leader, "insync_follower_lag_seconds", follower=str(stopped))

    shrinks = scraped.value(leader, f"{manager}isrshrinks_total")
    expands = scraped.value(leader, f"{manager}isrexpands_total")
    cluster.pause(stopped)
    producer.send(300)
    eventually(lambda: lag_s() > 1, within_s=10, what="its lag shows")
    due_s = scraped.value(leader, "insync_next_eviction_seconds")
    assert due_s + lag_s() == pytest.approx(2.001, abs=0.5)
    eventually(
        lambda: scraped.value(leader, f"{manager}isrshrinks_total") > shrinks,
        within_s=10,
        what="it is out",
    )
    assert scraped.value(leader, f"{manager}underreplicatedpartitions") >= 1
    cluster.resume(stopped)
    await_in_sync(cluster, "orders")
    eventually(
        lambda: scraped.value(leader, f"{manager}isrexpands_total") > expands,
        within_s=10,
        what="it is back, and that is counted",
    )
    assert scraped.value(leader, f"{manager}underreplicatedpartitions") == 0
    assert scraped.value(stopped, "insync_stalls_total") >= 1
    producer.flush()


def slow_topic(scraped: Scraped, name: str, **config: str) -> tuple[int, IntegerProducer]:
    """A topic whose leader takes 5 s for each read, and records to be read; returns its leader."""
    cluster = scraped.cluster
    settings = {key.replace("_", "."): value for key, value in config.items()}
    create_topic(cluster, name, partitions=1, config=settings)
    await_in_sync(cluster, name)
    producer = IntegerProducer(cluster, name, partitions=1)
    producer.send(50)
    producer.flush()
    leader = leader_of(cluster, name)
    cluster.slow_reads(leader, delay_ms=5_000, topic=name, partition=0)
    producer.send(50)
    return leader, producer


def test_a_slow_read_is_exposed_while_it_runs(scraped: Scraped) -> None:
    cluster = scraped.cluster
    leader, producer = slow_topic(scraped, "slow", replica_lag_time_max_ms="60000")
    followers = [str(broker) for broker in cluster.brokers if broker != leader]

    def values(name: str) -> list[float]:
        return [scraped.value(leader, name, follower=follower) for follower in followers]

    try:
        eventually(
            lambda: min(values("insync_follower_pending_read_seconds")) > 1,
            within_s=10,
            what="both reads are exposed with their age",
        )
        assert values("insync_follower_pending_reads") == [1, 1]
        assert max(values("insync_follower_pending_read_seconds")) < 5.5
        due_s = scraped.value(leader, "insync_next_eviction_seconds")
        assert 50 < due_s < 59, "the limit of its topic, less what has passed"
    finally:
        cluster.heal()
    producer.flush()
    eventually(
        lambda: (
            values("insync_follower_pending_reads")
            == values("insync_follower_pending_read_seconds")
            == [0, 0]
        ),
        within_s=10,
        what="nothing is pending",
    )
    assert producer.errors == []
    await_in_sync(cluster, "slow")


def test_a_leader_that_resigns_is_counted(scraped: Scraped) -> None:
    """With KIP-501, 500 ms are as long as a leader may read."""
    cluster = scraped.cluster
    before = {broker: resignations(scraped, broker) for broker in cluster.brokers}
    leader, producer = slow_topic(scraped, "handed-over", replica_in_sync_policy="pending-reads")
    try:
        eventually(
            lambda: resignations(scraped, leader) == before[leader] + 1,
            within_s=10,
            what="it resigns, and that is counted",
        )
        eventually(
            lambda: leader_of(cluster, "handed-over") != leader, within_s=5, what="another leads"
        )
    finally:
        cluster.heal()
    producer.flush()
    after = {broker: resignations(scraped, broker) for broker in cluster.brokers}
    assert after == {**before, leader: before[leader] + 1}
    assert producer.errors == []


def resignations(scraped: Scraped, broker: int) -> float:
    return scraped.value(broker, "insync_resignations_total")


def test_malformed_and_slow_scrapes_do_not_disturb_others(scraped: Scraped) -> None:
    port = scraped.ports[1]
    held = [socket.create_connection((HOST, port), timeout=10) for _ in range(100)]
    try:
        for number, each in enumerate(held[:50]):
            each.sendall(bytes(number % 256 for number in range(number * 100)))
        with socket.create_connection((HOST, port), timeout=10) as long:
            long.sendall(b"GET /" + b"x" * 20_000)
            assert long.recv(100).startswith(b"HTTP/1.1 431 ")
        began_s = time.monotonic()
        assert "kafka_server_replicamanager_leadercount" in scraped.text(1)
        assert time.monotonic() - began_s < 5
        producer = IntegerProducer(scraped.cluster, "orders")
        producer.send(30)
        producer.flush()
        assert producer.acknowledged_count == 30
    finally:
        for each in held:
            each.close()


def test_a_metrics_port_in_use_is_one_line(tmp_path: Path) -> None:
    """By the command, and by the cluster of a test."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(brokers=1, settings={"metrics.port": str(port)}, folder=tmp_path)
        (broker,) = cluster.brokers.values()
        command = [str(INSYNC), "broker", "--config", str(broker.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        expected = (
            f"cannot serve at {HOST}:{port}: .*in use; choose another address in metrics.port"
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(f"insync: {expected}\n", done.stderr)
        with pytest.raises(BrokerFailed, match=expected), cluster:
            pass
        assert "Traceback" not in broker.log.read_text()
    # Refused connections do not block later ones.
    with cluster:
        pass


# What is made for it.


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def alert_rules() -> list[Any]:
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exposed_by(scraped: Scraped) -> set[str]:
    """Every metric that a broker of this cluster exposes, with or without a sample."""
    names = set()
    for broker in scraped.cluster.brokers:
        for family in text_string_to_metric_families(scraped.text(broker)):
            names |= {family.name, *(sample.name for sample in family.samples)}
    return names


def test_every_metric_of_the_dashboard_and_the_alerts_is_exposed(scraped: Scraped) -> None:
    exposed = exposed_by(scraped)
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    expressions_by_title = {
        panel["title"]: [each["expr"] for each in panel["targets"]] for panel in panels
    }
    expressions_by_title |= {rule["alert"]: [rule["expr"]] for rule in alert_rules()}
    assert len(expressions_by_title) == len(panels) + len(alert_rules()), "every name is given once"
    for title, expressions in expressions_by_title.items():
        for expression in expressions:
            named = set(OURS.findall(expression))
            assert named, f"{title} has no metric of ours"
            assert named <= exposed, f"{title} has unknown metrics {named - exposed}"


def test_the_dashboard_and_the_alerts_are_well_formed() -> None:
    board = dashboard()
    assert board["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    positions = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(positions) == len(ids), "two panels lie on each other"
    for rule in alert_rules():
        assert set(rule) >= {"alert", "expr", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
