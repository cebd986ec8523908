"""Apache Kafka from Maven: three KRaft nodes on this machine, as `kafka-server-start.sh` runs them.

with ApacheKafka(nodes=3, settings={"num.partitions": "6"}) as kafka:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    kafka.kill(1)            # kill -9
    kafka.restart(1)

Listeners with security are added to the plaintext one, by name and protocol; what they need besides
is in the settings (`listener.name.locked....`), and SCRAM's users are given as StorageTool takes
them:

with ApacheKafka(listeners={"LOCKED": "SASL_SSL"}, settings=..., scram=[...]) as kafka:
    kafka.bootstrap_of("LOCKED")

Maven runs once; the class path is kept in `.peers/` until the pom changes or a jar is
gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

from insync.client.connection import Disconnected
from insync.client.sockets import brokers_known_to
from insync.rules.refusals import Refusal
from insync.testing.cluster import HOST, free_ports

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SPARK_POM = HERE / "spark-kafka.xml"  # Spark's own connector to Kafka
DELTA_POM = HERE / "spark-delta.xml"  # Delta tables for Spark
CACHE = HERE.parent / ".peers"
RESOLVED_WITHIN_S = 600.0
FORMATTED_WITHIN_S = 60.0
STARTED_WITHIN_S = 120.0  # 10 to 18 s were seen on two free cores, and more on busy ones
STOPPED_WITHIN_S = 20.0
ANSWERED_WITHIN_S = 2.0
POLL_AFTER_S = 0.05
CLUSTER_ID = "aW5zeW5jLWJlc2lkZS1rYQ"  # any 16 bytes, in URL-safe base 64

Settings = Mapping[str, str]

# What Apache Kafka's own start script passes, with the heap it chooses for a broker.
BROKER_OPTIONS = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dpeers.log.level=INFO",
)


class PeerUnavailable(Refusal):
    """Apache Kafka cannot be installed or run here; the message says what is missing."""


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise PeerUnavailable(f"Apache Kafka needs {name}, which is not on the PATH")
    return path


@cache
def classpath(pom: Path | None = None) -> str:
    """Every jar that Apache Kafka and its tools need, or those of another pom."""
    _program("java")
    pom = pom or POM
    kept = CACHE / f"{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}.classpath"
    if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(os.pathsep)):
        return kept.read_text()
    return _resolve(pom, kept)


def _resolve(pom: Path, kept: Path) -> str:
    kept.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        cached = Path(folder, "classpath")
        command = [_program("mvn"), "--batch-mode", "--quiet", "--file", str(pom)]
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={cached}"]
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                command, capture_output=True, text=True, timeout=RESOLVED_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"mvn took more than {RESOLVED_WITHIN_S:.0f} s") from None
        if done.returncode != 0 or not cached.exists():
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise PeerUnavailable(f"mvn cannot resolve {pom.name}: {errors[0] if errors else '?'}")
        cached.rename(kept)  # whole or not at all: two test runs may resolve at once
    return kept.read_text()


def java_tool(main_class: str, *args: str, options: Iterable[str] = ("-Xmx512m",)) -> list[str]:
    """The command that runs one of Apache Kafka's programs; its logging goes to stderr."""
    log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return [_program("java"), *options, log4j, "-cp", classpath(), main_class, *args]


class KafkaNode:
    """One node, controller and broker in one process; its files stay when its process goes."""

    def __init__(
        self,
        node: int,
        *,
        port: int,
        voters: Mapping[int, int],
        folder: Path,
        settings: Settings,
        listeners: Mapping[str, tuple[str, int]],
        scram: Sequence[str],
    ) -> None:
        self.node = node
        self.port = port
        self.ports = {name: its_port for name, (_, its_port) in listeners.items()}
        self._scram = tuple(scram)
        self.config = folder / f"node-{node}.properties"
        self.log = folder / f"node-{node}.log"
        self.log_dir = folder / f"node-{node}"
        quorum = ",".join(f"{voter}@{HOST}:{its_port}" for voter, its_port in voters.items())
        ports = {"PLAINTEXT": port, "CONTROLLER": voters[node], **self.ports}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        protocols |= {name: protocol for name, (protocol, _) in listeners.items()}
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": ",".join(f"{name}://{HOST}:{at}" for name, at in ports.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": quorum,
            "log.dirs": str(self.log_dir),
            **settings,
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the node runs"
        return self.process.pid

    def format(self) -> subprocess.Popen[bytes]:
        """Begin to format the node's folder; the caller waits."""
        args: tuple[str, ...] = ("format", "--cluster-id", CLUSTER_ID, "--config", str(self.config))
        for user in self._scram:
            args += ("--add-scram", user)
        return self._run(java_tool("kafka.tools.StorageTool", *args))

    def launch(self) -> None:
        assert not self.is_running, f"node {self.node} runs already"
        command = java_tool("kafka.Kafka", str(self.config), options=BROKER_OPTIONS)
        self.process = self._run(command)

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - a command built above
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for its parent
            )

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, without a clean shutdown."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Cleanly if it can: a node that has lost its quorum cannot, and is killed."""
        if self.process is not None and self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOPPED_WITHIN_S)
        self.kill()

    def registered_brokers(self) -> set[int]:
        """The brokers it lists as registered and unfenced; none while it does not serve."""

        async def describe() -> set[int]:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                return await brokers_known_to(HOST, self.port)

        try:
            return asyncio.run(describe())
        except (Disconnected, TimeoutError):
            return set()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "ERROR" in line or "Exception" in line] or lines
        return errors[-1].strip() if errors else "its log is empty"


class ApacheKafka:
    """A cluster in a folder of its own, which goes when the cluster does."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        settings: Settings | None = None,
        folder: Path | None = None,
        listeners: Mapping[str, str] | None = None,
        scram: Sequence[str] = (),
    ) -> None:
        classpath()  # refused here, before anything has been made
        self._is_own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        ids = range(1, nodes + 1)
        more = listeners or {}
        ports = iter(free_ports((2 + len(more)) * nodes))
        own = {node: next(ports) for node in ids}
        voters = {node: next(ports) for node in ids}
        self.nodes = {
            node: KafkaNode(
                node,
                port=own[node],
                voters=voters,
                folder=self.folder,
                settings=settings or {},
                listeners={name: (protocol, next(ports)) for name, protocol in more.items()},
                scram=scram,
            )
            for node in ids
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{each.port}" for each in self.nodes.values())

    def bootstrap_of(self, listener: str) -> str:
        return ",".join(f"{HOST}:{each.ports[listener]}" for each in self.nodes.values())

    @property
    def pids(self) -> dict[int, int]:
        """The process of every node that runs."""
        return {node: each.pid for node, each in self.nodes.items() if each.is_running}

    def __enter__(self) -> ApacheKafka:
        with ExitStack() as undo:
            undo.callback(self._remove)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        """At once: nodes that stop together lose their quorum, and would wait for it."""
        self._kill_all()
        if self._is_own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_all(self) -> None:
        for each in self.nodes.values():
            each.kill()

    def format(self) -> None:
        """Once per folder. `start` does it; a caller that times a start does it before."""
        new = [each for each in self.nodes.values() if not each.log_dir.exists()]
        with ExitStack() as undo:
            running = []
            for each in new:
                process = each.format()
                undo.callback(process.wait)
                undo.callback(process.kill)
                running.append(process)
            for each, process in zip(new, running, strict=True):
                try:
                    is_formatted = process.wait(FORMATTED_WITHIN_S) == 0
                except subprocess.TimeoutExpired:
                    is_formatted = False
                if not is_formatted:
                    raise PeerUnavailable(f"node {each.node} not formatted: {each.last_words()}")

    def start(self) -> None:
        """Every node, and wait until each has all of them registered and unfenced."""
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            self.format()
            for each in self.nodes.values():
                each.launch()
            self.await_acquaintance()
            undo.pop_all()

    def await_acquaintance(self) -> None:
        """Wait until all running nodes are registered at each; one that ends is an error."""
        running = [each for each in self.nodes.values() if each.process is not None]
        all_ids = {each.node for each in running}
        deadline_s = time.monotonic() + STARTED_WITHIN_S
        for each in running:
            while not all_ids <= each.registered_brokers():
                for other in running:
                    if not other.is_running:
                        raise PeerUnavailable(f"node {other.node} ended: {other.last_words()}")
                if time.monotonic() > deadline_s:
                    raise PeerUnavailable(
                        f"node {each.node} does not know all of {sorted(all_ids)} "
                        f"after {STARTED_WITHIN_S:.0f} s: {each.last_words()}"
                    )
                time.sleep(POLL_AFTER_S)

    def stop(self) -> None:
        """All, one after the other; the folder stays for the next start."""
        for each in self.nodes.values():
            each.stop()

    def kill(self, node: int) -> None:
        self.nodes[node].kill()

    def restart(self, node: int) -> None:
        each = self.nodes[node]
        each.stop()
        each.launch()
        self.await_acquaintance()

    def pause(self, node: int) -> None:
        self.nodes[node].signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.nodes[node].signal(signal.SIGCONT)
