"""Brokers as processes of this machine, each of which a test may kill, pause and restart.

with Cluster(brokers=3) as cluster:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.kill(1)          # kill -9
    cluster.restart(1)
    cluster.pause(2)         # SIGSTOP, then resume
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from select import select
from types import TracebackType

from insync.client.sockets import await_acquaintance
from insync.rules.refusals import Refusal

HOST = "127.0.0.1"
READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0


class BrokerFailed(Refusal):
    """A broker that did not start or did not stop; its log's last line is in the message."""


class BrokerProcess:
    """One broker: its files stay when its process goes."""

    def __init__(self, broker: int, port: int, folder: Path, settings: Mapping[str, str]) -> None:
        self.broker = broker
        self.port = port
        self.config = folder / f"broker-{broker}.properties"
        self.log = folder / f"broker-{broker}.log"
        self.log_dir = folder / f"broker-{broker}"
        properties = {
            "node.id": str(broker),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(self.log_dir),
            "metadata.dir": str(folder / "metadata"),
            **settings,
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker runs"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        assert not self.is_running, f"broker {self.broker} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "insync", "broker", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Ctrl-C reaches a whole terminal; brokers are stopped by whoever started them.
                start_new_session=True,
            )

    def await_ready(self) -> None:
        assert self.process is not None, "the broker was launched"
        assert self.process.stdout is not None, "its output is read here"
        ready, _, _ = select([self.process.stdout], [], [], READY_WITHIN_S)
        if not ready or self.process.stdout.readline() != b"ready\n":
            self.kill()
            raise BrokerFailed(f"broker {self.broker} did not start: {self._last_words()}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9: nothing is put away."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> None:
        """Cleanly, also when it was paused."""
        if self.process is None:
            return
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"broker {self.broker} did not stop: {self._last_words()}") from None
        self._reap()

    def _reap(self) -> None:
        assert self.process is not None, "there is something to reap"
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def _last_words(self) -> str:
        lines = self.log.read_text().splitlines()
        return lines[-1].removeprefix("insync: ") if lines else "it said nothing"


class Cluster:
    """A cluster in a folder of its own, which goes when the cluster does."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        ports: Mapping[int, int] | None = None,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._is_own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="insync-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.brokers = {
            broker: BrokerProcess(broker, port, self.folder, settings or {})
            for broker, port in (ports or dict(enumerate(free_ports(brokers), start=1))).items()
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{each.port}" for each in self.brokers.values())

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._is_own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            for each in self.brokers.values():
                each.launch()
            for each in self.brokers.values():
                each.await_ready()
            ports = [each.port for each in self.brokers.values()]
            await_acquaintance(HOST, ports, within_s=READY_WITHIN_S)
            undo.pop_all()

    def stop(self) -> None:
        """All at once; whoever does not go is killed."""
        for each in self.brokers.values():
            if each.is_running:
                each.signal(signal.SIGCONT)
                each.signal(signal.SIGTERM)
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            for each in self.brokers.values():
                each.stop()

    def _kill_all(self) -> None:
        for each in self.brokers.values():
            each.kill()

    def kill(self, broker: int) -> None:
        self.brokers[broker].kill()

    def restart(self, broker: int) -> None:
        each = self.brokers[broker]
        each.stop()
        each.launch()
        each.await_ready()

    def pause(self, broker: int) -> None:
        self.brokers[broker].signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self.brokers[broker].signal(signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Ports nobody uses now; held until all are found, so that none is found twice."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
