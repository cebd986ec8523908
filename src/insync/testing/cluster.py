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

Faults end with `heal`, with the process of their broker, or with the cluster: a broker that is
restarted has none, and neither have its links. They add up until then.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from insync.testing import commands
from insync.testing.commands import Command
from insync.testing.control import CommandRefused, tell
from insync.testing.processes import (
    FAULTY_BROKER,
    HOST,
    PLAIN_BROKER,
    READY_WITHIN_S,
    BrokerFailed,
    BrokerProcess,
    free_ports,
)

__all__ = ["HOST", "BrokerFailed", "BrokerProcess", "Cluster", "free_ports"]

TOLD_WITHIN_S: Final = 10.0


def _own(settings: Mapping[str, str], index: int) -> Mapping[str, str]:
    """The settings of one of several brokers: they have ports for metrics in a row."""
    port = settings.get("metrics.port", "0")
    if not port.isdecimal() or int(port) == 0:
        return settings
    return {**settings, "metrics.port": str(int(port) + index)}


class Cluster:
    """A cluster in a folder of its own, which goes when the cluster does."""

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
        self._faulty: set[int] = set()  # who has been told anything
        self._cuts: set[tuple[int, int]] = set()  # who has been told to cut off whom
        self.folder = folder or Path(tempfile.mkdtemp(prefix="insync-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        program = FAULTY_BROKER if with_faults else PLAIN_BROKER
        self.brokers = {
            broker: BrokerProcess(broker, port, self.folder, _own(settings or {}, index), program)
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

    def start(self) -> None:
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            for each in self.brokers.values():
                each.launch()
            # Brokers start while we import what it takes to ask them.
            from insync.client.sockets import await_acquaintance  # noqa: PLC0415

            for each in self.brokers.values():
                each.await_ready()
            ports = [each.port for each in self.brokers.values()]
            await_acquaintance(HOST, ports, within_s=READY_WITHIN_S)
            undo.pop_all()

    def stop(self) -> None:
        """All at once, healed; whoever does not go is killed."""
        running = [each for each in self.brokers.values() if each.is_running]
        for each in running:
            each.signal(signal.SIGCONT)
            if each.broker in self._faulty:
                with suppress(CommandRefused):  # it may be dying already
                    self._tell(each.broker, commands.Heal())
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
        """kill -9: the process puts nothing away."""
        self.brokers[broker].kill()

    def restart(self, broker: int) -> None:
        """Stop a broker cleanly if it runs, and start it without faults."""
        each = self.brokers[broker]
        each.stop()
        self._mend_links(broker)
        each.launch()
        each.await_ready()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the process holds its files and connections and does nothing."""
        self.brokers[broker].signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self.brokers[broker].signal(signal.SIGCONT)

    # Disks

    def slow_reads(
        self, broker: int, *, delay_ms: int, topic: str | None = None, partition: int | None = None
    ) -> None:
        """Let every read from the disk begin so much later; of one topic or partition if named."""
        self._tell(broker, commands.SlowReads(delay_ms=delay_ms, topic=topic, partition=partition))

    def fail_reads(
        self, broker: int, *, topic: str | None = None, partition: int | None = None
    ) -> None:
        """Let reads from the disk fail with EIO."""
        self._tell(broker, commands.FailReads(topic=topic, partition=partition))

    def fail_writes(
        self,
        broker: int,
        *,
        after_bytes: int = 0,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Let the disk break when so many more bytes are written: EIO for every change of it."""
        self._tell(
            broker,
            commands.FailWrites(
                error="EIO", after_bytes=after_bytes, topic=topic, partition=partition
            ),
        )

    def fill_disk(
        self,
        broker: int,
        *,
        after_bytes: int = 0,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Leave so much room on the disk: what does not fit is refused with ENOSPC."""
        self._tell(
            broker,
            commands.FailWrites(
                error="ENOSPC", after_bytes=after_bytes, topic=topic, partition=partition
            ),
        )

    # Networks

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Stop every byte between two brokers, or only those that `one` sends to `other`.

        Nobody sees a connection close: what was sent meanwhile arrives when the link is healed,
        if both ends still hold the connection. New connections wait.
        """
        self._cut_at(one, other, sends=True, receives=not one_way)
        self._cut_at(other, one, sends=not one_way, receives=True)

    def cut_clients(self, broker: int) -> None:
        """Stop every byte between a broker and whoever is no broker."""
        self._tell(broker, commands.CutClients())

    def isolate(self, broker: int) -> None:
        """Cut a broker off from all other brokers and from clients.

        It keeps its session and what it leads, because the brokers of one machine share their
        metadata as files. For others to take its place, pause or kill it.
        """
        self.cut_clients(broker)
        for other in self._others(broker):
            if other.is_running:
                self.cut(broker, other.broker)

    # Clocks

    def shift_wall_clock(self, broker: int, *, by_ms: int) -> None:
        """Set a broker's time of day so much ahead of the machine's, or behind it."""
        self._tell(broker, commands.ShiftWallClock(by_ms=by_ms))

    def heal(self, broker: int | None = None) -> None:
        """End all faults, or those of one broker and its links. Paused brokers stay so."""
        for each in self.brokers.values():
            if each.is_running and each.broker in self._faulty and broker in (None, each.broker):
                self._tell(each.broker, commands.Heal())
        if broker is not None:
            self._mend_links(broker)

    def _mend_links(self, broker: int) -> None:
        for at, peer in sorted(self._cuts):
            if peer == broker and self.brokers[at].is_running:
                self._tell(at, commands.MendBroker(broker=peer))
        self._cuts = {(at, peer) for at, peer in self._cuts if broker not in (at, peer)}

    def _others(self, broker: int) -> list[BrokerProcess]:
        return [each for each in self.brokers.values() if each.broker != broker]

    def _cut_at(self, broker: int, peer: int, *, sends: bool, receives: bool) -> None:
        port = self.brokers[peer].port
        self._cuts.add((broker, peer))
        self._tell(
            broker,
            commands.CutBroker(broker=peer, port=port, sends=sends, receives=receives),
        )

    def _tell(self, broker: int, command: Command) -> None:
        self._faulty.add(broker)
        try:
            tell(self.brokers[broker].log_dir, command, within_s=TOLD_WITHIN_S)
        except CommandRefused as refusal:
            raise CommandRefused(f"broker {broker}: {refusal}") from None
