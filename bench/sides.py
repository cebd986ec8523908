"""The clusters that are measured, behind one interface."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from insync.testing.cluster import BrokerFailed, BrokerProcess, Cluster, free_ports
from insync.testing.processes import PLAIN_BROKER
from peers.apache_kafka import ApacheKafka

BROKERS = 3
STOPPED_WITHIN_S = 30.0
ENDED_WITHIN_S = 120.0  # with 10 000 partitions


class Side(Protocol):
    """Brokers that serve, three unless a trial says otherwise."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pids(self) -> Mapping[int, int]:
        """The process of every broker that runs."""

    def kill(self, broker: int) -> None:
        """kill -9; also reaps a process that was killed by another one."""

    def restart(self, broker: int) -> None:
        """Start a broker that was killed or shut down, and wait until it serves."""

    def shut_down(self, broker: int) -> None:
        """SIGTERM, and wait until it has ended, however long that takes."""

    def log_dir(self, broker: int) -> Path:
        """The folder of a broker's partition folders."""

    def controller(self) -> int | None:
        """The controller, which writes ISR changes; None if each leader writes its own."""


class InsyncCluster(Cluster):
    """Ours, as `insync.testing` starts it for users; the plain broker, without faults."""

    def __init__(
        self,
        *,
        brokers: int = BROKERS,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = PLAIN_BROKER,
    ) -> None:
        super().__init__(brokers=brokers, settings=settings, with_faults=False)
        self.brokers = {
            broker: BrokerProcess(broker, each.port, self.folder, settings or {}, program)
            for broker, each in self.brokers.items()
        }

    def __enter__(self) -> InsyncCluster:
        super().__enter__()
        return self

    def stop(self) -> None:
        """At once, as with Apache Kafka: a clean stop of thousands of partitions takes a while."""
        self._kill_all()

    @property
    def pids(self) -> dict[int, int]:
        return {broker: each.pid for broker, each in self.brokers.items() if each.is_running}

    def log_dir(self, broker: int) -> Path:
        return self.brokers[broker].log_dir

    def controller(self) -> int | None:
        return None

    def shut_down(self, broker: int) -> None:
        process = self.brokers[broker].process
        _end(process)
        self.brokers[broker].kill()  # reaps it


class KafkaCluster(ApacheKafka):
    """Theirs, as the tests start it too."""

    def __enter__(self) -> KafkaCluster:
        super().__enter__()
        return self

    def log_dir(self, broker: int) -> Path:
        return self.nodes[broker].log_dir

    def shut_down(self, broker: int) -> None:
        _end(self.nodes[broker].process)
        self.nodes[broker].kill()

    def controller(self) -> int | None:
        states = [
            json.loads((node.log_dir / "__cluster_metadata-0" / "quorum-state").read_text())
            for node in self.nodes.values()
        ]
        latest = max(states, key=lambda state: state["leaderEpoch"])
        return int(latest["leaderId"])


def _end(process: subprocess.Popen[bytes] | None) -> None:
    assert process is not None, "it runs"
    process.terminate()
    process.wait(ENDED_WITHIN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    title: str
    cluster: Callable[..., AbstractContextManager[Side]]
    """With `settings` and the number of `brokers`, if other than the usual."""
    seconds_to_serve: Callable[[], float]


def insync_seconds_to_serve() -> float:
    """`insync cluster start`, from the command to its line on stdout."""
    folder = Path(tempfile.mkdtemp(prefix="insync-bench-"))
    port = free_ports(BROKERS)[0]
    command = [sys.executable, "-m", "insync", "cluster", "start"]
    command += ["--data-dir", str(folder), "--brokers", str(BROKERS), "--port", str(port)]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            assert process.stdout is not None, "its output is read here"
            line = process.stdout.readline()  # it gives up by itself when its brokers do not serve
            taken_s = time.monotonic() - began_s
            if not line.startswith("ready "):
                raise BrokerFailed("insync cluster start ended without a ready line")
            return taken_s
        finally:
            process.send_signal(signal.SIGTERM)  # it takes its brokers with it
            process.wait(STOPPED_WITHIN_S)
            shutil.rmtree(folder, ignore_errors=True)


def kafka_seconds_to_serve() -> float:
    """From the start of the processes; formatting their folders comes before and is not counted."""
    kafka = ApacheKafka(nodes=BROKERS)
    try:
        kafka.format()
        began_s = time.monotonic()
        with kafka:
            return time.monotonic() - began_s
    finally:
        shutil.rmtree(kafka.folder, ignore_errors=True)


INSYNC = Contender(
    name="insync",
    title="Insync",
    cluster=lambda settings=None, brokers=BROKERS: InsyncCluster(
        brokers=brokers, settings=settings
    ),
    seconds_to_serve=insync_seconds_to_serve,
)
WITHOUT_TELEMETRY = replace(
    INSYNC,
    name="without-telemetry",
    title="telemetry off",
    cluster=lambda settings=None: InsyncCluster(
        settings={**(settings or {}), "telemetry.enable": "false"}
    ),
)
WITHOUT_QUOTAS = replace(
    INSYNC,
    name="without-quotas",
    title="quotas off",
    cluster=lambda settings=None: InsyncCluster(
        settings=settings, program=("bench.broker_without_quotas",)
    ),
)


def of_tree(contender: Contender, tree: Path) -> Contender:
    """The contender with brokers that run the code of another source tree."""
    program = ("bench.tree_broker", str(tree.resolve()))
    return replace(
        contender,
        cluster=lambda settings=None: InsyncCluster(settings=settings, program=program),
    )


OTHER_TREE = replace(INSYNC, name="other-tree", title="TREE_B")  # until `of_tree` says which


APACHE_KAFKA = Contender(
    name="kafka",
    title="Apache Kafka",
    cluster=lambda settings=None, brokers=BROKERS: KafkaCluster(nodes=brokers, settings=settings),
    seconds_to_serve=kafka_seconds_to_serve,
)


def _not_a_broker(**_: object) -> Any:
    raise LookupError("DuckDB replays telemetry and has no brokers")


DUCKDB = Contender(
    name="duckdb", title="DuckDB", cluster=_not_a_broker, seconds_to_serve=_not_a_broker
)
