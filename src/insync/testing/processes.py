"""One broker as a process: its files stay when the process goes."""

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

from insync.rules.refusals import Refusal

HOST: Final = "127.0.0.1"
PORTS: Final = (10_000, 32_000)
READY_WITHIN_S: Final = 30.0
STOPPED_WITHIN_S: Final = 15.0

PLAIN_BROKER: Final = ("insync.node",)
FAULTY_BROKER: Final = ("insync.testing.faulty_broker",)


class BrokerFailed(Refusal):
    """A broker that did not start or did not stop; its log's last line is in the message."""


class BrokerProcess:
    """One broker: its files stay when its process goes."""

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

    def launch(self) -> None:
        assert not self.is_running, f"broker {self.broker} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", *self._program, "--config", str(self.config)],
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


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody uses now.

    Not those the system itself gives away: a broker that was killed wants its port back, and
    meanwhile somebody's outgoing connection might have been given it.
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
