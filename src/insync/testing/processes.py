"""One broker as a process; its files stay when the process ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from select import select
from typing import Final

from insync.broker.accepted import NOTHING, Accepted
from insync.rules.refusals import Refusal

HOST: Final = "127.0.0.1"
PORTS: Final = (10_000, 32_000)
READY_WITHIN_S: Final = 30.0
STOPPED_WITHIN_S: Final = 15.0

PLAIN_BROKER: Final = ("insync.node",)
# It ends with the process that started it, however that ends: a killed test run leaves no broker.
FAULTY_BROKER: Final = ("insync.testing.faulty_broker", "--end-with-stdin")


class BrokerFailed(Refusal):
    """A broker did not start or did not stop; the message has the last line of its log."""


class BrokerProcess:
    """One broker; its files stay when its process ends."""

    def __init__(
        self,
        broker: int,
        port: int,
        folder: Path,
        settings: Mapping[str, str],
        program: Sequence[str] = PLAIN_BROKER,
    ) -> None:
        self.broker = broker
        self.port = port
        self._program = program
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

    def launch(self, accepted: Accepted = NOTHING) -> None:
        assert not self.is_running, f"broker {self.broker} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - Insync's own program
                [
                    *(sys.executable, "-m", *self._program),
                    *("--config", str(self.config), *accepted.flags()),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.PIPE,  # closed when this process ends
                # Ctrl-C reaches all processes of a terminal; brokers are stopped by this process.
                start_new_session=True,
            )

    def await_ready(self) -> None:
        assert self.process is not None, "the broker was launched"
        assert self.process.stdout is not None, "its output is read here"
        ready, _, _ = select([self.process.stdout], [], [], READY_WITHIN_S)
        if not ready or self.process.stdout.readline() != b"ready\n":
            self.kill()
            raise BrokerFailed(f"broker {self.broker} did not start: {self._last_log_line()}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9: the process cleans nothing up."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> None:
        """Stop cleanly, also a paused broker."""
        if self.process is None:
            return
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(
                f"broker {self.broker} did not stop: {self._last_log_line()}"
            ) from None
        self._reap()

    def _reap(self) -> None:
        assert self.process is not None, "there is a process to reap"
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def _last_log_line(self) -> str:
        lines = self.log.read_text().splitlines()
        return lines[-1].removeprefix("insync: ") if lines else f"{self.log} is empty"


def free_ports(count: int) -> list[int]:
    """Successive ports that are not in use now.

    Not from the system's range for outgoing connections: such a connection might get the port of a
    killed broker before it restarts.
    """
    while True:
        first = SystemRandom().randrange(*PORTS)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as held:
                for port in ports:
                    held.enter_context(socket.socket()).bind((HOST, port))
        except OSError:
            continue
        return ports
