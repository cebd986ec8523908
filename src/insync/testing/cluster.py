"""A cluster of real processes for tests, with faults on demand.

with Cluster(brokers=3) as cluster:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.kill(1)                                           # kill -9
    cluster.restart(1)
    cluster.pause(2)                                          # SIGSTOP, until resume
    cluster.cut(2, 3)                                         # the link between two brokers
    cluster.slow_reads(1, delay_ms=500, topic="orders", partition=0)
    cluster.fill_disk(3)
    cluster.heal()

Faults add up. They end with `heal`, with the process of their broker, or with the cluster: a
restarted broker has none, and neither have its links.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypedDict, Unpack

from insync.broker.accepted import NOTHING, Accepted
from insync.testing import commands
from insync.testing.commands import Command
from insync.testing.control import CommandRefused, send_command
from insync.testing.processes import (
    FAULTY_BROKER,
    HOST,
    PLAIN_BROKER,
    READY_WITHIN_S,
    BrokerFailed,
    BrokerProcess,
    free_ports,
)

__all__ = ["HOST", "Accepted", "BrokerFailed", "BrokerProcess", "Cluster", "free_ports"]

COMMAND_WITHIN_S: Final = 10.0


def _settings_of_broker(settings: Mapping[str, str], index: int) -> Mapping[str, str]:
    """The settings of one broker: if metrics.port is set, brokers use successive ports."""
    port = settings.get("metrics.port", "0")
    if not port.isdecimal() or int(port) == 0:
        return settings
    return {**settings, "metrics.port": str(int(port) + index)}


class FailingWrites(TypedDict, total=False):
    """Writes that a fault lets fail: those of one topic or partition if named, else all."""

    after_bytes: int  # that are still written (default: 0)
    topic: str | None
    partition: int | None


class Cluster:
    """A cluster of broker processes. Without `folder`, its files are temporary."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        ports: Mapping[int, int] | None = None,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        with_faults: bool = True,
    ) -> None:
        self._is_own_folder = folder is None
        self._faulty: set[int] = set()  # brokers that got a fault
        self._cuts: set[tuple[int, int]] = set()  # (broker, peer that it cut off)
        self.folder = folder or Path(tempfile.mkdtemp(prefix="insync-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        program = FAULTY_BROKER if with_faults else PLAIN_BROKER
        self.brokers = {
            broker: BrokerProcess(
                broker, port, self.folder, _settings_of_broker(settings or {}, index), program
            )
            for index, (broker, port) in enumerate(
                (ports or dict(enumerate(free_ports(brokers), start=1))).items()
            )
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

    def start(self, *, accepted: Accepted = NOTHING) -> None:
        """Start all brokers. `accepted` is what `insync broker` accepts by a flag."""
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            for each in self.brokers.values():
                each.launch(accepted)
            # Brokers start while this process imports the client.
            from insync.client.sockets import wait_until_brokers_know_each_other  # noqa: PLC0415

            for each in self.brokers.values():
                each.await_ready()
            ports = [each.port for each in self.brokers.values()]
            wait_until_brokers_know_each_other(HOST, ports, within_s=READY_WITHIN_S)
            undo.pop_all()

    def stop(self) -> None:
        """Heal and stop all brokers at once; a broker that does not stop is killed."""
        running = [each for each in self.brokers.values() if each.is_running]
        for each in running:
            each.signal(signal.SIGCONT)
            if each.broker in self._faulty:
                with suppress(CommandRefused):  # it may be dying already
                    self._send_command(each.broker, commands.Heal())
        for each in running:
            each.signal(signal.SIGTERM)
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            for each in self.brokers.values():
                each.stop()

    def _kill_all(self) -> None:
        for each in self.brokers.values():
            each.kill()

    # Processes

    def kill(self, broker: int) -> None:
        """kill -9: the process cleans nothing up."""
        self.brokers[broker].kill()

    def restart(self, broker: int, *, accepted: Accepted = NOTHING) -> None:
        """Stop a broker cleanly if it runs, and start it without faults.

        A broker whose folder was removed needs `Accepted(new_directory=True)`.
        """
        each = self.brokers[broker]
        each.stop()
        self._mend_links(broker)
        each.launch(accepted)
        each.await_ready()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the process keeps its files and connections and does nothing."""
        self.brokers[broker].signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self.brokers[broker].signal(signal.SIGCONT)

    # Disks

    def slow_reads(
        self, broker: int, *, delay_ms: int, topic: str | None = None, partition: int | None = None
    ) -> None:
        """Delay every read from the disk by `delay_ms`; of one topic or partition if named."""
        self._send_command(
            broker, commands.SlowReads(delay_ms=delay_ms, topic=topic, partition=partition)
        )

    def fail_reads(
        self, broker: int, *, topic: str | None = None, partition: int | None = None
    ) -> None:
        """Let reads from the disk fail with EIO."""
        self._send_command(broker, commands.FailReads(topic=topic, partition=partition))

    def fail_writes(self, broker: int, **writes: Unpack[FailingWrites]) -> None:
        """Break the disk after `after_bytes` more bytes: every change fails with EIO."""
        self._send_command(broker, commands.FailWrites(error="EIO", **writes))

    def fill_disk(self, broker: int, **writes: Unpack[FailingWrites]) -> None:
        """Leave `after_bytes` free on the disk: writes that do not fit fail with ENOSPC."""
        self._send_command(broker, commands.FailWrites(error="ENOSPC", **writes))

    # Networks

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Stop every byte between two brokers, or only those that `one` sends to `other`.

        No connection is closed: what was sent meanwhile arrives when the link is healed, if both
        brokers still have the connection open. New connections wait.
        """
        self._cut_at(one, other, sends=True, receives=not one_way)
        self._cut_at(other, one, sends=not one_way, receives=True)

    def cut_clients(self, broker: int) -> None:
        """Stop every byte between a broker and its clients."""
        self._send_command(broker, commands.CutClients())

    def isolate(self, broker: int) -> None:
        """Cut a broker off from all other brokers and from clients.

        It keeps its session and what it leads, because the brokers of one machine share their
        metadata as files. To have other leaders elected, pause or kill it.
        """
        self.cut_clients(broker)
        for other in self._others(broker):
            if other.is_running:
                self.cut(broker, other.broker)

    # Clocks

    def shift_wall_clock(self, broker: int, *, by_ms: int) -> None:
        """Set a broker's wall clock ahead of the machine's by `by_ms`, or behind it."""
        self._send_command(broker, commands.ShiftWallClock(by_ms=by_ms))

    def heal(self, broker: int | None = None) -> None:
        """End all faults, or those of one broker and its links. Paused brokers stay paused."""
        for each in self.brokers.values():
            if each.is_running and each.broker in self._faulty and broker in (None, each.broker):
                self._send_command(each.broker, commands.Heal())
        if broker is not None:
            self._mend_links(broker)

    def _mend_links(self, broker: int) -> None:
        for at, peer in sorted(self._cuts):
            if peer == broker and self.brokers[at].is_running:
                self._send_command(at, commands.MendBroker(broker=peer))
        self._cuts = {(at, peer) for at, peer in self._cuts if broker not in (at, peer)}

    def _others(self, broker: int) -> list[BrokerProcess]:
        return [each for each in self.brokers.values() if each.broker != broker]

    def _cut_at(self, broker: int, peer: int, *, sends: bool, receives: bool) -> None:
        port = self.brokers[peer].port
        self._cuts.add((broker, peer))
        self._send_command(
            broker,
            commands.CutBroker(broker=peer, port=port, sends=sends, receives=receives),
        )

    def _send_command(self, broker: int, command: Command) -> None:
        self._faulty.add(broker)
        try:
            send_command(self.brokers[broker].log_dir, command, within_s=COMMAND_WITHIN_S)
        except CommandRefused as refusal:
            raise CommandRefused(f"broker {broker}: {refusal}") from None
