"""Invalid plans and quotas for `insync reassign` on a running cluster.

Each time: one line that says what to change, exit code 1, and a cluster as it was before.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from support.cluster.clients import IntegerProducer, admin, eventually, partitions_of
from support.cluster.reassign_command import (
    command,
    copied_bytes,
    create_with_replicas,
    reassign_json,
    throttles,
    write_plan,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.insync_cluster(
        brokers=4,
        settings={"telemetry.enable": "false", "auto.leader.rebalance.enable": "false"},
        with_faults=False,
        scope="module",
    ),
]
TOPIC, DELETED = "orders", "deleted"
DOWN = 4


@pytest.fixture(scope="module")
def cluster(insync_module_cluster: Cluster) -> Cluster:
    create_with_replicas(insync_module_cluster, TOPIC, [[1, 2], [2, DOWN]])
    create_with_replicas(insync_module_cluster, DELETED, [[1, 2]] * 2)
    for topic in (TOPIC, DELETED):
        producer = IntegerProducer(insync_module_cluster, topic, partitions=2)
        for _ in range(20):  # batches
            producer.send(20)
            producer.flush()
    insync_module_cluster.kill(DOWN)
    eventually(
        lambda: partitions_of(insync_module_cluster, TOPIC)[1].isrs == [2],
        within_s=20,
        what="4 is missed",
    )
    return insync_module_cluster


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))


def plan_of(**changed: Any) -> str:
    """A good plan but for what is changed."""
    entry = {"topic": TOPIC, "partition": 0, "replicas": [3, 2]}
    return json.dumps({"version": 1, "partitions": [{**entry, **changed}]})


GOOD = plan_of()


def standing(cluster: Cluster) -> Any:
    """All of the cluster that a move would change."""
    client = admin(cluster)
    described = {
        (topic, number): (part.leader, part.replicas, sorted(part.isrs))
        for topic, each in client.list_topics(timeout=10).topics.items()
        for number, part in each.partitions.items()
    }
    return described, throttles(cluster, *sorted({topic for topic, _ in described}))


PLANS = {
    "an unknown broker": (
        plan_of(replicas=[9, 2]),
        "orders-0: broker 9 is not known; this cluster has 1, 2, 3, 4",
    ),
    "a broker that is down": (
        plan_of(replicas=[DOWN, 2]),
        "orders-0: broker 4 is down and cannot get a replica; start it, or name another",
    ),
    "an unknown topic": (
        plan_of(topic="odrers"),
        "odrers-0 does not exist; take it out of the plan",
    ),
    "an unknown partition": (
        plan_of(partition=7),
        "orders-7 does not exist; take it out of the plan",
    ),
    "a broker twice": (
        plan_of(replicas=[3, 3]),
        "orders-0: broker 3 is listed more than once; name each broker once",
    ),
    "no replicas": (
        plan_of(replicas=[]),
        "orders-0: the replica list is empty; name at least one broker",
    ),
    "no JSON": (
        GOOD[:-2],
        f"this is not JSON: Expecting ',' delimiter: line 1 column {len(GOOD) - 1}",
    ),
    "another version": (
        GOOD.replace('"version": 1', '"version": 2'),
        "version 2 is not known; insync reads version 1",
    ),
}


class Refuses:
    """Runs the command in this process: checks its message, and that it changes nothing."""

    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._capsys = capsys

    def __call__(self, expected_message: str, *flags: str) -> None:
        before = standing(self._cluster)
        arguments = ["reassign", "--bootstrap-server", self._cluster.bootstrap, *flags]
        assert cli.main(arguments) == 1
        out, err = self._capsys.readouterr()
        assert out == ""
        assert err.startswith("insync: ")
        assert expected_message in err
        assert err.count("\n") == 1
        assert standing(self._cluster) == before


@pytest.fixture
def refuses(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Refuses:
    return Refuses(cluster, capsys)


@pytest.mark.parametrize("name", PLANS)
def test_an_invalid_plan_is_refused(refuses: Refuses, tmp_path: Path, name: str) -> None:
    text, expected_message = PLANS[name]
    path = tmp_path / "plan.json"
    path.write_text(text)
    refuses(
        expected_message, "--execute", "--throttle", "1MB", "--reassignment-json-file", str(path)
    )
    refuses(expected_message, "--plan", str(path))


QUOTAS = {
    "0": "--throttle: '0' must be at least 1 B/s",
    "-5": "--throttle: '-5' is no rate; write bytes per second above 0",
    "quickly": "--throttle: 'quickly' is no rate; write bytes per second above 0",
}


@pytest.mark.parametrize("rate", QUOTAS)
def test_an_impossible_throttle_is_refused(refuses: Refuses, tmp_path: Path, rate: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(GOOD)
    flags = ["--execute", "--reassignment-json-file", str(path), "--throttle", rate]
    refuses(QUOTAS[rate], *flags)


def test_warnings_and_proposed_throttles_of_a_plan(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document's questions 1, 3, 4 and 5, as the command answers them in text and in JSON."""
    path = tmp_path / "plan.json"
    path.write_text(GOOD)

    def run(command: str, *flags: str) -> str:
        arguments = [command, "--bootstrap-server", cluster.bootstrap, *flags]
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    def planned(*more: str) -> str:
        flags = ["--throttle", "1MB", "--finish-in", "10s", "--network", "1Gbit"]
        flags += ["--max-impact", "30%", "--measure-for", "1s"]
        return run("reassign", "--plan", str(path), *flags, *more)

    unusual = {
        2: "leader.replication.throttled.rate=5000000",
        3: "replica.fetch.response.max.bytes=20971520",
    }
    for broker, setting in unusual.items():
        entity = ["--entity-type", "brokers", "--entity-name", str(broker)]
        run("configs", *entity, "--alter", "--add-config", setting)
    try:
        text, data = planned(), json.loads(planned("--json"))
    finally:
        for broker, setting in unusual.items():
            entity = ["--entity-type", "brokers", "--entity-name", str(broker)]
            run("configs", *entity, "--alter", "--delete-config", setting.partition("=")[0])
    size = copied_bytes(cluster, TOPIC, 1)  # of partition 0, all that it has of this topic
    in_time = -(-size // 10)
    for_impact = 37_500_000 * size // (size + 3_000_000)  # one replica to copy
    proposed = {"given": 1_000_000, "finish_in": in_time, "max_impact": for_impact}
    assert {why: each["bytes_per_s"] for why, each in data["throttles"].items()} == proposed
    assert {each["verdict"] for each in data["throttles"].values()} == {"safe"}
    assert 9_000 < data["throttles"]["finish_in"]["per_broker_time_ms"] <= 10_000
    for line in (
        "\nThrottle: 1 MB/s (--throttle 1000000): safe; MoveTime ",
        f"B/s (--throttle {in_time}): ",
        "\nFor that part of the network, with 3 MB of work for each replica to copy: ",
        f"B/s (--throttle {for_impact}): safe; MoveTime ",
    ):
        assert line in text
    uneven = "leader.replication.throttled.rate is not the same on all brokers involved"
    large = "replica.fetch.response.max.bytes is"
    window = "the first responses take longer than the throttle's window of 11 s; set it below"
    for warning in (
        f"{uneven}: none on broker 1, 5000000 on broker 2, none on broker 3",
        f"{large} 20971520 on broker 3: at 1000000 B/s {window} 11000000",
        f"{large} 10485760 on broker 1, 2: at {in_time} B/s {window} {11 * in_time}",
    ):
        assert warning in data["warnings"]
        assert f"\nWarning: {warning}\n" in text
    assert not any("at 37500000 B/s" in each for each in data["warnings"])


def test_a_second_tool_is_refused_and_a_topic_may_be_deleted_meanwhile(
    cluster: Cluster, refuses: Refuses, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path / "plan.json", DELETED, [[3, 2]] * 2)
    flags = ["--execute", "--reassignment-json-file", plan, "--throttle", "1", "--force"]
    with subprocess.Popen(
        command(cluster, *flags, "--watch"), stdout=subprocess.PIPE, text=True
    ) as tool:
        try:
            eventually(
                lambda: all(3 in p.replicas for p in partitions_of(cluster, DELETED).values()),
                within_s=30,
                what="it moves",
            )
            eventually(lambda: len(throttles(cluster)) == 6, within_s=10, what="all brokers know")
            other = tmp_path / "other.json"
            other.write_text(GOOD)
            refuses(
                "a reassignment is running (deleted-0, deleted-1); wait for it, cancel it, or "
                "add to it with --additional",
                *("--execute", "--reassignment-json-file", str(other), "--throttle", "1MB"),
            )
            client = admin(cluster)
            client.delete_topics([DELETED])[DELETED].result(10)
            out, _ = tool.communicate(timeout=60)
        finally:
            tool.kill()
    assert tool.returncode == 1
    for number in range(2):
        assert (
            f"Partition deleted-{number} does not exist any more; take it out of the plan." in out
        )
    eventually(lambda: not throttles(cluster, TOPIC), within_s=10, what="no throttle is left")
    assert reassign_json(cluster, "--list") == []
