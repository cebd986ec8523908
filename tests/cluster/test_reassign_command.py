"""`insync reassign` on real brokers: a plan that minds racks, and a tool that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from insync.cli import main as cli
from insync.testing.cluster import Cluster
from support.cluster.clients import IntegerProducer as Integers
from support.cluster.clients import check_nothing_lost, create_topic, eventually, partitions_of
from support.cluster.reassign_command import create_with_replicas

pytestmark = pytest.mark.process
SETTINGS = {"broker.session.timeout.ms": "60000"}
TOPIC = "orders"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))


def reassign(capsys: pytest.CaptureFixture[str], cluster: Cluster, *flags: str) -> Any:
    code = cli.main(["reassign", "--bootstrap-server", cluster.bootstrap, "--json", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def start_a_move(cluster: Cluster, plan: Path) -> tuple[list[str], int]:
    """A topic with data, a plan for one replica of it to the broker that has none, and that one.

    It is cut off from the others, so that nothing ends before we look. Returns the tool's command.
    """
    create_topic(cluster, TOPIC, partitions=1)
    here = list(partitions_of(cluster, TOPIC)[0].replicas)
    (other,) = set(cluster.brokers) - set(here)
    moved = {"topic": TOPIC, "partition": 0, "replicas": [*here[:2], other]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    for each in here:
        cluster.cut(each, other)
    flags = ["--execute", "--reassignment-json-file", str(plan), "--throttle", "1MB"]
    command = [sys.executable, "-m", "insync", "reassign"]
    command += ["--bootstrap-server", cluster.bootstrap, *flags, "--force", "--watch"]
    return command, other


def test_the_cluster_removes_the_throttle_of_a_tool_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(brokers=4, settings=SETTINGS) as cluster:
        plan = tmp_path / "plan.json"
        command, _ = start_a_move(cluster, plan)
        producer = Integers(cluster, TOPIC, partitions=1)
        producer.send(2_000)
        producer.flush()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as tool:
            try:
                eventually(
                    lambda: bool(reassign(capsys, cluster, "--list")), within_s=20, what="it moves"
                )
            finally:
                tool.kill()
        cluster.heal()
        eventually(
            lambda: not reassign(capsys, cluster, "--list"), within_s=30, what="it has moved"
        )
        eventually(
            lambda: reassign(capsys, cluster, "--sweep")["others"] == [],
            within_s=10,
            what="the cluster itself removed every throttle",
        )
        assert reassign(capsys, cluster, "--sweep")["throttle_cleared"]["topics"] == []
        verified = reassign(capsys, cluster, "--verify", "--reassignment-json-file", str(plan))
        assert verified["standing"] == {f"{TOPIC}-0": "completed"}
        check_nothing_lost(cluster, producer)


RACKS = {1: "left", 2: "left", 3: "right", 4: "right"}


def test_a_generated_plan_puts_replicas_in_different_racks_and_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(brokers=4, settings={**SETTINGS, "telemetry.enable": "false"})
    for broker, rack in RACKS.items():
        with cluster.brokers[broker].config.open("a") as properties:
            properties.write(f"broker.rack={rack}\n")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    flags = ["--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3,4"]

    def generated(*more: str) -> tuple[str, dict[int, list[int]], str]:
        """MoveRatio's line, the proposal and its text, as people see them."""
        code = cli.main(["reassign", "--bootstrap-server", cluster.bootstrap, *flags, *more])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        lines = captured.out.splitlines()
        assert lines[-2] == "Proposed partition reassignment configuration"
        (ratio,) = (line for line in lines if line.startswith("MoveRatio: "))
        entries = json.loads(lines[-1])["partitions"]
        assert {each["topic"] for each in entries} == {TOPIC}
        return ratio, {each["partition"]: each["replicas"] for each in entries}, lines[-1]

    with cluster:
        # Balanced except for the racks; and one more partition that stays where it is.
        together = {0: [1, 2], 1: [2, 1], 2: [3, 4], 3: [4, 3]}
        create_with_replicas(cluster, TOPIC, list(together.values()))
        create_with_replicas(cluster, "elsewhere", [[1, 3]])
        producer = Integers(cluster, TOPIC, partitions=len(together))
        producer.send(1_000)
        producer.flush()
        ratio, proposed, _ = generated("--disable-rack-aware")
        assert proposed == together
        assert ratio == "MoveRatio: 0 (0 of 5 partitions, 0 B to copy)"

        ratio, proposed, text = generated()
        assert ratio.startswith("MoveRatio: 0.8 (4 of 5 partitions, ")
        for number, replicas in proposed.items():
            assert {RACKS[broker] for broker in replicas} == {"left", "right"}
            assert len(replicas) == 2, "as many as before"
            assert set(replicas) & set(together[number]), "one of them stays: that is the least"
        hosted = sorted(broker for replicas in proposed.values() for broker in replicas)
        assert hosted == [1, 1, 2, 2, 3, 3, 4, 4]
        assert sorted(replicas[0] for replicas in proposed.values()) == [1, 2, 3, 4]

        plan = tmp_path / "plan.json"
        plan.write_text(text)
        execute = ["--execute", "--reassignment-json-file", str(plan), "--throttle", "10MB"]
        done = reassign(capsys, cluster, *execute, "--force", "--watch")
        assert set(done["standing"].values()) == {"completed"}
        partitions = partitions_of(cluster, TOPIC)
        assert {number: part.replicas for number, part in partitions.items()} == proposed
        assert generated()[:2] == ("MoveRatio: 0 (0 of 5 partitions, 0 B to copy)", proposed)
        check_nothing_lost(cluster, producer)


def test_a_destination_dies_for_good_and_the_watch_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(brokers=4, settings=SETTINGS) as cluster:
        plan = tmp_path / "plan.json"
        command, destination = start_a_move(cluster, plan)
        command += ["--stuck-after", "2s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
            try:
                eventually(
                    lambda: bool(reassign(capsys, cluster, "--list")), within_s=20, what="it moves"
                )
                cluster.kill(destination)
                out, _ = tool.communicate(timeout=60)
            finally:
                tool.kill()
        assert tool.returncode == 1
        last = out.splitlines()[-1]
        assert last.startswith(f"Given up: broker {destination} is down, and {TOPIC}-0 cannot move")
        assert "start it" in last
        assert "--cancel" in last
        assert reassign(capsys, cluster, "--list"), "whether to cancel is the operator's decision"
        reassign(capsys, cluster, "--cancel", "--reassignment-json-file", str(plan))
        eventually(
            lambda: reassign(capsys, cluster, "--sweep")["others"] == [],
            within_s=10,
            what="no throttle is left",
        )
