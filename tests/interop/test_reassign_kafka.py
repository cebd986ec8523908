"""`insync reassign` on Apache Kafka: moved, watched, and no throttle left, whatever happens."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from insync.cli import main as cli
from insync.cli import reassign_lines
from peers.apache_kafka import ApacheKafka, java_tool
from support.cluster.clients import QUIET, eventually

pytestmark = [pytest.mark.interop, pytest.mark.timed]
MB = 1_000_000
TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
SETTINGS = {"offsets.topic.replication.factor": "1", "broker.session.timeout.ms": "6000"}
_numbers = count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(nodes=3, settings=SETTINGS) as started:
        yield started


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


class World:
    """A topic of its own with some data, and the tools."""

    def __init__(
        self, kafka: ApacheKafka, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.kafka = kafka
        self.topic = f"moved-{next(_numbers)}"
        self._folder = folder
        self._capsys = capsys
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})

    def make(self, *assignment: list[int], mb: int = 10) -> None:
        new = NewTopic(self.topic, len(assignment), replica_assignment=list(assignment))
        self.admin.create_topics([new])[self.topic].result(30)
        self.write(mb, partitions=len(assignment))

    def write(self, mb: int, *, partitions: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "acks": "all", **QUIET})
        for number in range(mb * 100):
            producer.produce(self.topic, value=b"%010000d" % number, partition=number % partitions)
            producer.poll(0)
        assert producer.flush(60) == 0

    def plan(self, *targets: list[int]) -> str:
        partitions = [
            {"topic": self.topic, "partition": number, "replicas": replicas}
            for number, replicas in enumerate(targets)
        ]
        path = self._folder / f"{self.topic}-{next(_numbers)}.json"
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(path)

    def arguments(self, *flags: str) -> list[str]:
        return ["reassign", "--bootstrap-server", self.kafka.bootstrap, *flags]

    def run(self, *flags: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = cli.main(self.arguments(*flags))
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *flags: str, code: int = 0) -> Any:
        got, out, err = self.run(*flags, "--json")
        assert got == code, (out, err)
        return json.loads(out)

    def kafkas(self, *flags: str) -> str:
        command = java_tool(TOOL, "--bootstrap-server", self.kafka.bootstrap, *flags)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        ).stdout

    def throttles(self) -> dict[str, str]:
        """What is set, as a new client sees it, with fresh metadata."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, **QUIET})
        resources = [ConfigResource(ResourceType.TOPIC, self.topic)]
        resources += [ConfigResource(ResourceType.BROKER, str(node)) for node in self.kafka.nodes]
        dynamic = (
            ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
            ConfigSource.DYNAMIC_BROKER_CONFIG.value,
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value,
        )
        return {
            f"{resource.name} {name}": entry.value
            for resource in resources
            for name, entry in admin.describe_configs([resource])[resource].result(30).items()
            if "throttled" in name and entry.source in dynamic and entry.value
        }

    def has_no_throttle(self) -> None:
        """Each broker describes a change once it has applied it."""
        eventually(lambda: self.throttles() == {}, within_s=30, what="no throttle is described")

    def lists_are_set(self) -> bool:
        """Described by a broker that runs: librdkafka waits for one that does not."""
        self._capsys.readouterr()
        command = ["configs", "--bootstrap-server", self.kafka.bootstrap, "--describe"]
        assert cli.main([*command, "--topic", self.topic, "--json"]) == 0
        return self._capsys.readouterr().out.count("throttled.replicas") >= 2

    def replicas(self) -> list[list[int]]:
        topic = self.admin.list_topics(self.topic, timeout=30).topics[self.topic]
        return [list(topic.partitions[number].replicas) for number in sorted(topic.partitions)]

    def is_moving(self) -> bool:
        return bool(self.json("--list"))

    def set_config(self, kind: ResourceType, name: str, key: str, value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value or "", incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture
def world(kafka: ApacheKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    return World(kafka, tmp_path, capsys)


def test_a_generated_plan_is_executed_and_watched_and_leaves_no_throttle(
    world: World, tmp_path: Path, state: Path
) -> None:
    world.make([1, 2], [1, 2], [1, 2], mb=30)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": world.topic}]}))
    flags = ["--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"]
    proposed = world.json("--generate", *flags)
    assert proposed["partitions_to_move"] == 2, "a third of six replicas"
    plan = tmp_path / "plan.json"
    plan.write_text(proposed["proposed"])
    estimate = world.json("--plan", str(plan), "--throttle", "5MB", "--measure-for", "2s")
    assert estimate["bytes_to_move"] == pytest.approx(20 * MB, rel=0.05)
    assert estimate["throttles"]["given"]["verdict"] == "safe"
    expected_s = estimate["throttles"]["given"]["per_broker_time_ms"] / 1_000
    assert expected_s == pytest.approx(4, rel=0.1)
    started_s = time.monotonic()
    flags = ["--reassignment-json-file", str(plan), "--throttle", "5MB", "--force", "--watch"]
    done = world.json("--execute", *flags)
    took_s = time.monotonic() - started_s
    assert set(done["standing"].values()) == {"completed"}
    assert done["throttle_cleared"] == {"brokers": [1, 2, 3], "topics": [world.topic]}
    assert took_s > 0.7 * expected_s, "the throttle held"
    world.has_no_throttle()
    assert list(state.glob("*.json")) == []
    assert world.json("--sweep")["others"] == []
    wanted = [each["replicas"] for each in json.loads(plan.read_text())["partitions"]]
    eventually(lambda: world.replicas() == wanted, within_s=30, what="moved")


def test_sweep_removes_the_throttle_of_a_killed_tool(world: World) -> None:
    world.make([1, 2], [1, 2])
    plan = world.plan([3, 2], [3, 1])
    flags = ["--execute", "--reassignment-json-file", plan, "--throttle", "1MB", "--force"]
    command = [sys.executable, "-m", "insync", *world.arguments(*flags, "--watch")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as tool:
        try:
            eventually(world.is_moving, within_s=30, what="the move has begun")
        finally:
            tool.kill()  # -9: no clean-up
    of_topic = f"{world.topic} follower.replication.throttled.replicas"
    eventually(lambda: of_topic in world.throttles(), within_s=30, what="its throttle is described")
    kept = world.json("--sweep")
    assert kept["throttle_kept_for"] == [f"{world.topic}-0", f"{world.topic}-1"]
    assert world.throttles() != {}, "the move still needs it"
    # The throttle is changed while the move runs, by a second tool that does not stay either.
    world.json(
        "--execute",
        "--reassignment-json-file",
        plan,
        "--throttle",
        "50MB",
        "--force",
        "--additional",
    )
    eventually(lambda: not world.is_moving(), within_s=60, what="the move is over")
    assert world.throttles() != {}, "Apache Kafka leaves it"
    swept = world.json("--sweep")
    assert swept["throttle_cleared"] == {"brokers": [1, 2, 3], "topics": [world.topic]}
    world.has_no_throttle()


def test_cancel_keeps_the_operators_own_throttle(world: World) -> None:
    world.make([1, 2], mb=5)
    own = "leader.replication.throttled.replicas"
    world.set_config(ResourceType.TOPIC, world.topic, own, "0:1")
    world.set_config(ResourceType.BROKER, "1", "leader.replication.throttled.rate", "77777")
    # A broker describes a config once it has applied it.
    eventually(lambda: len(world.throttles()) == 2, within_s=30, what="both are described")
    before = world.throttles()
    plan = world.plan([3, 2])
    flags = ["--reassignment-json-file", plan]
    world.json("--execute", *flags, "--throttle", "100kB", "--force")
    eventually(
        lambda: world.throttles().get("1 leader.replication.throttled.rate") == "100000",
        within_s=30,
        what="the new rate is described",
    )
    code, out, err = world.run("--execute", *flags, "--throttle", "100kB")
    assert (code, out) == (1, "")
    assert "a reassignment is running" in err
    cancelled = world.json("--cancel", *flags)
    assert cancelled["cancelled"] == [f"{world.topic}-0"]
    eventually(lambda: world.throttles() == before, within_s=30, what="as it was before")
    eventually(
        lambda: world.replicas() in ([[2, 1]], [[1, 2]]), within_s=30, what="replicas as before"
    )
    swept = world.json("--sweep", "--force")
    assert len(swept["others"]) == 2
    world.has_no_throttle()


def test_the_lines_are_kafkas(world: World) -> None:
    world.make([1, 2], [1, 2], mb=5)
    plan = world.plan([3, 2], [2, 1])
    flags = ["--reassignment-json-file", plan]
    assert world.run("--list")[1] == world.kafkas("--list")
    code, out, _ = world.run("--execute", *flags, "--throttle", "100000", "--force")
    assert code == 0
    assert out.splitlines()[3:] == [
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
        reassign_lines.VERIFY_WARNING.rstrip(),
        "The inter-broker throttle limit was set to 100000 B/s",
        f"Successfully started partition reassignments for {world.topic}-0,{world.topic}-1",
    ]
    assert world.run("--list")[1] == world.kafkas("--list") != "No partition reassignments found.\n"
    assert world.run("--verify", *flags)[1] == world.kafkas("--verify", *flags)
    _, cancelled, _ = world.run("--cancel", *flags)
    assert cancelled.splitlines() == [
        f"Successfully cancelled partition reassignments for: {world.topic}-0",
        "Clearing broker-level throttles on brokers 1,2,3",
        f"Clearing topic-level throttles on topic {world.topic}",
    ]
    ours, theirs = world.run("--verify", *flags)[1], world.kafkas("--verify", *flags)
    assert theirs.startswith(ours), "but for what it says to clear, set or not"


@contextmanager
def writes(world: World, mb_per_s: float) -> Iterator[None]:
    """A producer writes during the whole move."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": world.kafka.bootstrap, "acks": 1, **QUIET})
        while not stop.wait(0.05):
            for _ in range(int(mb_per_s * 5)):
                producer.produce(world.topic, value=b"x" * 10_000, partition=0)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_throttle_below_the_inbound_rate(world: World) -> None:
    """Refused; with --force it is reported stuck with the rate to set, which completes it."""
    world.make([1], mb=5)
    plan = world.plan([3])
    flags = ["--execute", "--reassignment-json-file", plan, "--throttle", "500kB"]
    with writes(world, 2):
        code, out, err = world.run(*flags, "--measure-for", "3s")
        assert (code, out) == (1, "")
        assert "a throttle of 500 kB/s cannot finish: inbound" in err
        world.has_no_throttle()
        assert not world.is_moving()
        command = [sys.executable, "-m", "insync", *world.arguments(*flags, "--force", "--watch")]
        command += ["--stuck-after", "5s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
            try:
                assert tool.stdout is not None
                stuck = next(line for line in tool.stdout if line.startswith("STUCK: "))
                assert "exceeds the throttle of 500 kB/s on broker" in stuck
                more = ["--throttle", "50MB", "--force", "--additional"]
                world.json(*flags[:-2], *more)
                rest = tool.stdout.read()
                assert tool.wait(60) == 0, rest
            finally:
                tool.kill()
    assert "Clearing broker-level throttles on brokers 1,3" in rest
    world.has_no_throttle()
    eventually(lambda: world.replicas() == [[3]], within_s=30, what="moved")


def test_a_broker_that_is_rebuilt_from_leader(world: World, kafka: ApacheKafka) -> None:
    world.make([1, 3], [2, 3], mb=20)
    kafka.nodes[3].stop()
    flags = ["--reassignment-json-file", world.plan([1, 2], [2, 1]), "--throttle", "1MB"]
    code, out, err = world.run("--execute", *flags)
    assert (code, out) == (1, "")
    assert "broker 3 is down, so its rate cannot be set" in err
    for folder in kafka.nodes[3].log_dir.glob(f"{world.topic}-*"):
        shutil.rmtree(folder)
    command = [sys.executable, "-m", "insync", "throttle"]
    command += ["--bootstrap-server", kafka.bootstrap, "--broker", "3", "--bootstrap"]
    command += ["--throttle", "4MB", "--force", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        try:
            eventually(world.lists_are_set, within_s=30, what="it is set")
        finally:
            killed.kill()  # -9: only the journal has it
    assert world.lists_are_set()
    swept = world.json("--sweep")["throttle_cleared"]
    assert swept["brokers"] == [-1, 1, 2]
    assert world.topic in swept["topics"]  # beside those of other tests that it has replicas of
    eventually(lambda: not world.lists_are_set(), within_s=30, what="it is swept")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        try:
            eventually(world.lists_are_set, within_s=30, what="it is set")
            started_s = time.monotonic()
            kafka.restart(3)
            out, _ = tool.communicate(timeout=90)
        finally:
            tool.kill()
    assert json.loads(out)["caught_up"], out
    assert tool.returncode == 0
    assert time.monotonic() - started_s > 4.0, "20 MB at 4 MB/s"
    world.has_no_throttle()
