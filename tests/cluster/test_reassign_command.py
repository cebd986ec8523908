"""`insync reassign` on real brokers: what becomes of a throttle whose tool is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_helpers import IntegerProducer as Integers
from cluster_helpers import check_nothing_lost, create_topic, eventually, partitions_of

from insync.cli import main as cli
from insync.testing.cluster import Cluster

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


def test_killed_and_the_throttle_goes_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(brokers=4, settings=SETTINGS) as cluster:
        create_topic(cluster, TOPIC, partitions=1)
        producer = Integers(cluster, TOPIC, partitions=1)
        producer.send(2_000)
        producer.flush()
        here = list(partitions_of(cluster, TOPIC)[0].replicas)
        (other,) = set(cluster.brokers) - set(here)
        plan = tmp_path / "plan.json"
        moved = {"topic": TOPIC, "partition": 0, "replicas": [*here[:2], other]}
        plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
        for each in here:
            cluster.cut(each, other)  # so that nothing ends before we look
        flags = ["--execute", "--reassignment-json-file", str(plan), "--throttle", "1MB"]
        command = [sys.executable, "-m", "insync", "reassign"]
        command += ["--bootstrap-server", cluster.bootstrap, *flags, "--force", "--watch"]
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
            what="nothing is left set, and nobody took it away but the cluster",
        )
        assert reassign(capsys, cluster, "--sweep")["throttle_cleared"]["topics"] == []
        verified = reassign(capsys, cluster, "--verify", "--reassignment-json-file", str(plan))
        assert verified["standing"] == {f"{TOPIC}-0": "completed"}
        check_nothing_lost(cluster, producer)
