"""`insync throttle --bootstrap` on real brokers: the throttle ends whichever process is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from insync.client.admin import Admin
from insync.client.admin_connections import Connections, parse_bootstrap
from insync.client.sockets import Sockets
from insync.moves import cluster as clusters
from insync.moves import throttle as settings
from insync.rules.throttle_lease import HOLD_MS
from insync.testing.cluster import Cluster
from support.cluster.clients import IntegerProducer as Integers
from support.cluster.clients import check_nothing_lost, create_topic, eventually, partitions_of
from support.cluster.reassign_command import controller, copied_bytes

pytestmark = [
    pytest.mark.process,
    pytest.mark.insync_cluster(
        settings={"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "200"}
    ),
]
TOPIC, PARTITIONS = "orders", 3
RECORDS = 60_000
NEVER, SOON = "1kB", "1MB"  # rates at which it takes minutes, or a second
LAPSED_WITHIN_S = HOLD_MS / 1_000 + 15  # a busy machine included


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def cluster(insync_cluster: Cluster) -> Cluster:
    create_topic(insync_cluster, TOPIC, partitions=PARTITIONS)
    return insync_cluster


@pytest.fixture
def producer(cluster: Cluster) -> Integers:
    """Some hundreds of kilobytes, acknowledged."""
    producer = Integers(cluster, TOPIC, partitions=PARTITIONS)
    producer.send(RECORDS)
    producer.flush()
    return producer


def some_follower(cluster: Cluster) -> int:
    """Not the controller, so that each can die without the other."""
    leader = controller(cluster)
    return min(number for number in cluster.brokers if number != leader)


def empty(cluster: Cluster, broker: int) -> None:
    """Its process dies and its disk is a new one."""
    cluster.kill(broker)
    for folder in (cluster.folder / f"broker-{broker}").glob(f"{TOPIC}-*"):
        shutil.rmtree(folder)
    eventually(lambda: not is_in_sync(cluster, broker), within_s=20, what="it leaves the ISR")


def is_in_sync(cluster: Cluster, broker: int) -> bool:
    return all(broker in part.isrs for part in partitions_of(cluster, TOPIC).values())


def throttles(cluster: Cluster) -> dict[str, str]:
    """All dynamic settings of live brokers and of the default."""

    async def describe() -> dict[str, str]:
        addresses = parse_bootstrap(cluster.bootstrap)
        async with Admin(Connections(Sockets(), addresses)) as admin:
            alive = (await clusters.read_cluster(admin)).alive
            lists = await settings.lists_of(admin, [TOPIC])
            rates = await settings.rates_of(admin, alive | {settings.ALL_BROKERS})
        return {str(name): str(value) for name, value in [*lists.items(), *rates.items()]}

    return asyncio.run(describe())


@contextmanager
def tool(cluster: Cluster, broker: int, rate: str) -> Iterator[subprocess.Popen[str]]:
    """Watches the broker, and has set its throttle."""
    command = [sys.executable, "-m", "insync", "throttle", "--bootstrap-server", cluster.bootstrap]
    command += ["--broker", str(broker), "--bootstrap", "--throttle", rate, "--force", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            eventually(lambda: len(throttles(cluster)) >= 3, within_s=30, what="it is throttled")
            yield started
        finally:
            started.kill()


def test_the_throttle_is_removed_although_the_tool_was_killed(
    cluster: Cluster, producer: Integers, state: Path
) -> None:
    broker = some_follower(cluster)
    empty(cluster, broker)
    with tool(cluster, broker, NEVER) as started:
        cluster.restart(broker)
        eventually(lambda: len(throttles(cluster)) >= 5, within_s=30, what="on it as well")
        assert not is_in_sync(cluster, broker)
        started.kill()  # -9
    assert not is_in_sync(cluster, broker)
    eventually(
        lambda: throttles(cluster) == {},
        within_s=LAPSED_WITHIN_S,
        what="the cluster removed the throttle by itself",
    )
    eventually(lambda: is_in_sync(cluster, broker), within_s=30, what="nothing holds it back")
    assert not list(state.glob("*.json"))
    check_nothing_lost(cluster, producer)


@pytest.mark.long
def test_the_throttle_is_removed_when_the_broker_has_caught_up(
    cluster: Cluster, producer: Integers
) -> None:
    broker = some_follower(cluster)
    empty(cluster, broker)
    with tool(cluster, broker, SOON) as started:
        cluster.restart(broker)
        out, _ = started.communicate(timeout=60)
    summary = json.loads(out)
    assert (started.returncode, summary["caught_up"]) == (0, True)
    assert summary["estimate"]["bytes_to_copy"] == copied_bytes(cluster, TOPIC, broker), (
        "it had none"
    )
    assert is_in_sync(cluster, broker)
    assert throttles(cluster) == {}
    check_nothing_lost(cluster, producer)


@pytest.mark.long
def test_the_throttle_is_removed_although_the_controller_was_killed(
    cluster: Cluster, producer: Integers
) -> None:
    broker = some_follower(cluster)
    empty(cluster, broker)
    with tool(cluster, broker, NEVER) as started:
        cluster.restart(broker)
        eventually(lambda: len(throttles(cluster)) >= 5, within_s=30, what="on it as well")
        leader = controller(cluster)
        cluster.kill(leader)
        eventually(
            lambda: controller(cluster) not in (-1, leader),
            within_s=20,
            what="another leads",
        )
        assert throttles(cluster) != {}
        started.kill()
    eventually(
        lambda: throttles(cluster) == {},
        within_s=LAPSED_WITHIN_S,
        what="the cluster removed the throttle by itself",
    )
    cluster.restart(leader)
    eventually(lambda: is_in_sync(cluster, broker), within_s=30, what="nothing holds it back")
    assert throttles(cluster) == {}
    check_nothing_lost(cluster, producer)
