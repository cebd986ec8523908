"""The world of a broker with faults, which commands start and end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from insync.node.world import World
from insync.testing import commands, faulty_disk
from insync.testing.commands import Command
from insync.testing.control import CommandRefused
from insync.testing.faulty_disk import DiskFaults, FailedReads, FailedWrites, FaultScope, FaultyDisk
from insync.testing.faulty_network import CLIENTS, Cut, FaultyNetwork

LOOP_RESPONDS_WITHIN_S: Final = 5.0


class FaultyWorld:
    """Created in the event loop of its broker; `perform` may be called from any thread."""

    def __init__(self, real: World) -> None:
        self._loop = asyncio.get_running_loop()
        self._disk_faults = DiskFaults()
        self._network = FaultyNetwork(real.network)
        self._wall_clock_shift_ms = 0
        self.world = replace(
            real,
            disk=FaultyDisk(real.disk, self._disk_faults),
            network=self._network,
            wall_ms=lambda: real.wall_ms() + self._wall_clock_shift_ms,
        )

    def perform(self, command: Command) -> None:
        """Returns when the fault has started or ended."""
        match command:
            case commands.CutBroker() as cut:
                self._in_loop(
                    lambda: self._network.cut(
                        Cut(
                            peer=cut.broker,
                            port=cut.port,
                            sends=cut.sends,
                            receives=cut.receives,
                        )
                    )
                )
            case commands.CutClients():
                self._in_loop(lambda: self._network.cut(Cut(peer=CLIENTS)))
            case commands.MendBroker(broker=broker):
                self._in_loop(lambda: self._network.mend(broker))
            case commands.ShiftWallClock(by_ms=by_ms):
                self._wall_clock_shift_ms = by_ms
            case commands.Heal():
                self.heal_disk()  # first: it may block the event loop
                self._wall_clock_shift_ms = 0
                self._in_loop(self._network.mend)
            case _ as disk_fault:
                self._disk_faults.add(_disk_fault(disk_fault))

    def heal_disk(self) -> None:
        self._disk_faults.heal()

    def _in_loop(self, act: Callable[[], None]) -> None:
        async def act_in_loop() -> None:
            act()

        try:
            asyncio.run_coroutine_threadsafe(act_in_loop(), self._loop).result(
                LOOP_RESPONDS_WITHIN_S
            )
        except TimeoutError:
            raise CommandRefused(
                "the broker's event loop is blocked; by a slow read? heal it first"
            ) from None


def _disk_fault(
    command: commands.SlowReads | commands.FailReads | commands.FailWrites,
) -> faulty_disk.ReadFault | FailedWrites:
    scope = FaultScope(topic=command.topic, partition=command.partition)
    match command:
        case commands.SlowReads():
            return faulty_disk.SlowReads(delay_ms=command.delay_ms, scope=scope)
        case commands.FailReads():
            return FailedReads(errno=getattr(errno, command.error), scope=scope)
        case commands.FailWrites():
            return FailedWrites(
                errno=getattr(errno, command.error),
                after_bytes=command.after_bytes,
                is_broken=command.error == "EIO",
                scope=scope,
            )
