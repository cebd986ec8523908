"""`insync replicas` on real brokers: caught up, stopped, paused, dead, and what is no broker."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from insync.cli import main as cli
from insync.testing.cluster import HOST, Cluster, free_ports
from insync.wire import describe_replicas as wire
from insync.wire.apis import Api
from insync.wire.headers import write_request_header
from support.cluster.clients import (
    QUIET,
    IntegerProducer,
    await_in_sync,
    create_topic,
    eventually,
    leader_of,
    partitions_of,
)
from support.cluster.terminal import Terminal

pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(brokers=1, scope="module")]
INSYNC = Path(sys.executable).with_name("insync")
ROW = re.compile(r"  +0 +\d+ +(\d+) +(yes|no) ")  # partition, leader, follower, in sync


def replicas(capsys: pytest.CaptureFixture[str], bootstrap: str, *flags: str) -> tuple[int, Any]:
    """The exit code, and the data or the message."""
    code = cli.main(["replicas", "--bootstrap-server", bootstrap, "--json", *flags])
    captured = capsys.readouterr()
    assert captured.err.count("\n") <= 1, captured.err
    return code, json.loads(captured.out) if captured.out else captured.err


def test_a_follower_that_stops_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"replica.lag.time.max.ms": "12000", "broker.session.timeout.ms": "60000"}
    with Cluster(settings=settings) as cluster:
        create_topic(cluster, "orders", partitions=1)
        create_topic(cluster, "others", partitions=1)
        producer = IntegerProducer(cluster, "orders", partitions=1)
        producer.send(500)
        producer.flush()

        def describe() -> tuple[int, Any]:
            return replicas(capsys, cluster.bootstrap, "--topic", "orders")

        def all_caught_up() -> bool:
            code, description = describe()
            return code == 0 and [row["why"] for row in description["followers"]] == [
                "caught up",
                "caught up",
            ]

        eventually(all_caught_up, within_s=20, what="both followers are caught up")
        assert describe()[1]["exact"]
        leader = leader_of(cluster)
        stopped = next(broker for broker in cluster.brokers if broker != leader)
        cluster.pause(stopped)
        # No producer waits for the stopped broker: with acks=all few requests are under way.
        hasty = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **QUIET})
        for number in range(500):
            hasty.produce("orders", str(number).encode(), partition=0)
        assert hasty.flush(10) == 0
        code, description = describe()
        assert code == 1, "one broker did not answer"
        assert not description["complete"]
        assert description["problems"] == [f"broker {stopped}: does not respond"]
        rows = {row["follower"]: row for row in description["followers"]}
        row = rows.pop(stopped)
        assert [each["lag_ms"] for each in rows.values()] == [0]
        assert row["in_sync"]
        assert row["lag_messages"] == 500
        assert row["lag_bytes"] > 500
        assert row["why"].startswith("stopped fetching for ")
        assert row["lag_ms"] + row["leaves_in_ms"] == 12_001
        eventually(
            lambda: len(partitions_of(cluster, "orders")[0].isrs) == 2,
            within_s=20,
            what="it is out",
        )
        row = next(row for row in describe()[1]["followers"] if row["follower"] == stopped)
        assert not row["in_sync"]
        assert row["leaves_in_ms"] is None
        assert "lagging" in row["obstacles"]
        cluster.resume(stopped)
        eventually(all_caught_up, within_s=20, what="both followers are caught up again")


def test_a_leader_that_does_not_respond(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(settings={"broker.session.timeout.ms": "60000"}) as cluster:
        create_topic(cluster, "orders", partitions=3)
        first = leader_of(cluster)
        cluster.pause(first)
        others = ",".join(
            f"{HOST}:{each.port}" for each in cluster.brokers.values() if each.broker != first
        )
        code, description = replicas(capsys, others)
        assert code == 1
        unknown = [row for row in description["followers"] if row["problem"]]
        assert {row["leader"] for row in unknown} == {first}
        assert unknown[0]["why"] == f"broker {first} leads it and does not respond"
        assert any(row["why"] == "caught up" for row in description["followers"])
        assert cli.main(["replicas", "--bootstrap-server", others]) == 1
        shown = capsys.readouterr().out
        assert f"NOT COMPLETE: broker {first}: does not respond" in shown


def test_a_cluster_with_one_broker_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of three are dead, one of them the first bootstrap server; the last one leads."""
    with Cluster(settings={"broker.session.timeout.ms": "60000"}) as cluster:
        create_topic(cluster, "orders", partitions=3)
        left = max(cluster.brokers)
        for broker in cluster.brokers:
            if broker != left:
                cluster.kill(broker)
        results: dict[int, Any] = {}

        def is_described() -> bool:
            code, description = replicas(capsys, cluster.bootstrap)
            results[code] = description
            return code == 0 and {row["leader"] for row in description["followers"]} == {left}

        eventually(is_described, within_s=20, what="the one that is left leads")
        rows = results[0]["followers"]
        assert len(rows) == 6
        assert not any(row["in_sync"] for row in rows)
        cluster.pause(left)
        code, message = replicas(capsys, cluster.bootstrap)
        assert code == 1
        assert message.startswith("insync: ")
        cluster.resume(left)


def watching(cluster: Cluster, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(INSYNC), "replicas", "--bootstrap-server", cluster.bootstrap, "--watch", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C, and so would our child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )


def test_watching_ends_with_ctrl_c(cluster: Cluster) -> None:
    create_topic_of_one(cluster)
    process = watching(cluster)
    try:
        assert process.stdout is not None
        tables = 0
        while tables < 2:
            line = process.stdout.readline()
            assert line, "it went on"
            tables += line.startswith("partitions ")
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert message == ""


@pytest.mark.parametrize("end", ["ctrl-c", "closed pipe"])
def test_a_stream_of_changes_ends_quietly(cluster: Cluster, end: str) -> None:
    """Also while nothing changes, as here: the topic has a leader and no follower."""
    eventually(
        lambda: {part.leader for part in partitions_of(cluster, "alone").values()} == {1},
        within_s=20,
        what="the topic is led",
    )
    process = watching(cluster, "--json", "--topic", "alone")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert json.loads(process.stdout.readline())["change"] == "snapshot"
        if end == "ctrl-c":
            process.send_signal(signal.SIGINT)
        process.stdout.close()
        assert process.wait(20) == (130 if end == "ctrl-c" else 1)
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_on_a_terminal_one_table_is_drawn_over_and_over() -> None:
    settings = {"replica.lag.time.max.ms": "2000", "broker.session.timeout.ms": "60000"}
    with Cluster(settings=settings) as cluster:
        create_topic(cluster, "orders", partitions=1)
        await_in_sync(cluster, "orders")
        flags = ["--bootstrap-server", cluster.bootstrap, "--topic", "orders", "--watch", "--all"]
        terminal = Terminal([str(INSYNC), "replicas", *flags])

        def in_sync() -> dict[int, str]:
            return {int(row[1]): row[2] for row in map(ROW.match, terminal.screen) if row}

        leader = leader_of(cluster)
        stopped, other = (broker for broker in cluster.brokers if broker != leader)
        try:
            terminal.read_until(lambda: in_sync() == {stopped: "yes", other: "yes"}, within_s=30)
            cluster.pause(stopped)
            hasty = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1, **QUIET})
            hasty.produce("orders", b"more", partition=0)
            assert hasty.flush(10) == 0
            terminal.read_until(lambda: in_sync() == {stopped: "no", other: "yes"}, within_s=30)
            assert [line for line in terminal.screen if line.startswith("brokers ")] == [
                terminal.screen[0]
            ], "nothing is left of the tables before"
            message = f"NOT COMPLETE: broker {stopped}: does not respond"
            terminal.read_until(lambda: message in terminal.screen, within_s=30)
            replicas_line = "replicas    3: {} out of sync, 0 offline, 0 of unknown lag"
            assert replicas_line.format(1) in terminal.screen
            assert "lag         as the leaders know it" in terminal.screen
            cluster.resume(stopped)
            level = replicas_line.format(0)
            terminal.read_until(lambda: level in terminal.screen, within_s=30)
            terminal.press_ctrl_c()
            assert terminal.read_to_the_end() == 130, terminal.text
        finally:
            terminal.close()
            cluster.resume(stopped)
        assert "Traceback" not in terminal.text
        assert terminal.shows_its_cursor


def create_topic_of_one(cluster: Cluster) -> None:
    partitions_of(cluster, "alone")  # makes it


def test_an_unreachable_cluster_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    (free_port,) = free_ports(1)
    code, message = replicas(capsys, f"{HOST}:{free_port}")
    assert (code, message) == (
        1,
        f"insync: cannot reach {HOST}:{free_port}: Connection refused\n",
    )
    with no_broker() as port:
        code, message = replicas(capsys, f"{HOST}:{port}")
        assert code == 1
        assert message.startswith("insync: ")
        assert f"{HOST}:{port}" in message
    with socket.create_server((HOST, 0)) as mute:  # the system accepts, and no process responds
        port, began_s = mute.getsockname()[1], time.monotonic()
        code, message = replicas(capsys, f"{HOST}:{port}")
        assert code == 1
        assert f"{HOST}:{port}" in message
        assert time.monotonic() - began_s < 20
    with Cluster(brokers=1) as cluster:
        code, message = replicas(capsys, cluster.bootstrap, "--topic", "nothing")
        assert (code, message) == (1, "insync: topic 'nothing' does not exist\n")
        assert replicas(capsys, cluster.bootstrap) == (
            0,
            {
                "exact": True,
                "complete": True,
                "problems": [],
                "totals": {
                    "brokers": 1,
                    "brokers_not_responding": 0,
                    "brokers_down": 0,
                    "partitions": 0,
                    "under_replicated_partitions": 0,
                    "under_min_isr_partitions": 0,
                    "leaderless_partitions": 0,
                    "replicas": 0,
                    "out_of_sync_replicas": 0,
                    "offline_replicas": 0,
                    "replicas_of_unknown_lag": 0,
                },
                "brokers": [],
                "followers": [],
            },
        )


@contextmanager
def no_broker() -> Iterator[int]:
    """Responds to every client as a web server would."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1_000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1\0\5ab", wire.write_request(["t"]) + b"more"],
)
def test_a_malformed_request_closes_only_its_own_connection(
    capsys: pytest.CaptureFixture[str], cluster: Cluster, body: bytes
) -> None:
    header = write_request_header(
        api_key=Api.DESCRIBE_REPLICAS, api_version=0, correlation_id=1, client_id="bad"
    )
    frame = header + body
    with socket.create_connection((HOST, cluster.brokers[1].port), timeout=10) as client:
        client.sendall(len(frame).to_bytes(4, "big") + frame)
        assert client.recv(100) == b""
    code, description = replicas(capsys, cluster.bootstrap)
    assert (code, description["exact"]) == (0, True)
