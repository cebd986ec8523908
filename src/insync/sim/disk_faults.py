"""Disks that fail, lie, are slow or full, and lose what was not flushed.

What a fault may destroy is bounded by the promise (README): one machine may lose what it had not
flushed, or have one file damaged, while every replica of every partition is in sync and no other
fault is active. All machines may lose power at once only if every append is flushed.
"""

from __future__ import annotations

from typing import Final

from insync.sim.cluster import Broker
from insync.sim.fault_base import FaultBase
from insync.sim.reads import READ_S
from insync.storage.inventory import INVENTORY
from insync.storage.memory_disk import SECTOR_BYTES

NOTICED_AFTER_MS: Final = (0, 5, 50, 500)


class DiskFaults(FaultBase):
    async def fill_disk(self) -> None:
        disk = self._choose_broker().disk
        disk.is_full = True
        await self._wait(0.1, 3.0)
        disk.is_full = False

    async def fail_reads(self) -> None:
        disk = self._choose_broker().disk
        disk.fails_reads = True
        await self._wait(0.1, 2.0)
        disk.fails_reads = False

    async def fail_appends(self) -> None:
        broker = self._choose_broker()
        broker.disk.fails_appends = True
        await self._wait(0.02, 1.0)
        broker.disk.fails_appends = False
        await self._restart_if_failed(broker)

    async def fail_flushes(self) -> None:
        broker = self._choose_broker()
        broker.disk.fails_flushes = True
        await self._wait(0.02, 1.0)
        broker.disk.fails_flushes = False
        await self._restart_if_failed(broker)

    async def _restart_if_failed(self, broker: Broker) -> None:
        """As the operator does, sooner or later: a failed log is not used until then."""
        await self._wait(0.0, 3.0)
        node = broker.node
        if node is None or not broker.has_started:
            return
        if any(each.log.has_failed for each in node.replicas.partitions.values()):
            self._cluster.kill(broker.number)
            await self._wait(0.0, 1.0)
            await self._cluster.start(broker.number)

    async def cool_disk(self) -> None:
        """Every read goes to the disk; some take so long that the leader should resign."""
        broker = self._choose_broker()
        broker.disk.is_cold = True
        broker.read_s = self._random.choice((READ_S, (0.05, 0.6), (0.5, 2.5)))
        self._cluster.note("cool", broker.number, broker.read_s)
        await self._wait(0.1, 3.0)
        broker.disk.is_cold = False
        broker.read_s = READ_S

    async def slow_appends(self) -> None:
        """After each append the broker stands still for a while, as its event loop would."""
        broker, random = self._choose_broker(), self._random
        self._cluster.note("slow appends", broker.number)

        def stand_still(_path: str) -> None:
            self._cluster.pause_for(broker.number, random.uniform(0.001, 0.2))

        broker.disk.torn_part = 1.0
        broker.disk.on_append = stand_still
        await self._wait(0.1, 2.0)
        broker.disk.on_append = None
        broker.disk.torn_part = 0.5

    # Loss of power.

    async def lose_power(self) -> None:
        """One machine loses what it had not flushed, while all other replicas have it."""
        if not await self._become_healthy():
            return
        await self._lose_power_of(self._choose_broker())

    async def lose_power_unnoticed(self) -> None:
        """One machine loses its tail, and is back before the controller has seen it go.

        The kernel has written all but the tail, so that the log shows no damage. The broker reaches
        no leader until the controller has seen it return.
        """
        broker = self._choose_broker()
        if not await self._become_healthy():
            return
        cluster = self._cluster
        broker.disk.write_back()
        await self._wait(0.1, 0.5)
        controller = cluster.controller()
        if controller is None or controller == broker.number or not self._is_healthy():
            return
        cluster.note("lose power unnoticed", broker.number)
        others = [number for number in cluster.brokers if number != broker.number]
        cluster.brokers[controller].store_faults.is_unreadable = True
        for other in others:
            cluster.network.cut(broker.number, other)
        try:
            cluster.kill(broker.number, noticed_after_ms=NOTICED_AFTER_MS[-1], loses_power=True)
            await cluster.start(broker.number)
            cluster.mend_store(controller)
            await self._wait(0.1, 0.5)
        finally:
            cluster.mend_store(controller)
            for other in others:
                cluster.network.mend(broker.number, other)
        await self._wait_until_healthy()

    async def lie_about_flushes(self) -> None:
        """Flushes return, and write nothing; then the power is lost."""
        broker = self._choose_broker()
        if not await self._become_healthy():
            return
        broker.disk.lies_about_flushes = True
        await self._wait(0.1, 3.0)
        if self._is_healthy():
            await self._lose_power_of(broker)
        broker.disk.stop_lying()

    async def _lose_power_of(self, broker: Broker) -> None:
        self._cluster.kill(
            broker.number,
            noticed_after_ms=self._random.choice(NOTICED_AFTER_MS),
            loses_power=True,
            torn=self._random if self._random.random() < 0.7 else None,  # noqa: PLR2004
        )
        await self._wait(0.0, 0.01)
        await self._cluster.start(broker.number)
        await self._wait_until_healthy()

    async def lose_power_everywhere(self) -> None:
        """All machines at once, whatever their state. Only in runs that flush every append."""
        self._cluster.note("lose power everywhere")
        await self._end_other_faults()
        await self._wait(0.0, 2.0)
        numbers = list(self._cluster.brokers)
        for number in numbers:
            self._cluster.kill(
                number,
                noticed_after_ms=self._random.choice(NOTICED_AFTER_MS),
                loses_power=True,
                torn=self._random if self._random.choice((True, False)) else None,
            )
        self._cluster.tree.lose_power(self._random)
        self._random.shuffle(numbers)
        for number in numbers:
            await self._wait(0.0, 1.0)
            await self._cluster.start(number)

    # Damage.

    async def damage_sector(self) -> None:
        """Flip, zero or misdirect one sector of a segment of a running broker."""
        broker = self._choose_broker()
        if not await self._become_healthy():
            return
        paths = [path for path in broker.disk.paths() if path.endswith(".log")]
        if paths:
            self._damage_sector(broker, self._random.choice(paths))
        await self._wait(0.5, 3.0)
        self._cluster.kill(broker.number)
        await self._cluster.start(broker.number)
        await self._wait_until_healthy()

    async def damage_file(self) -> None:
        """Damage any file of one stopped broker, while the others have everything.

        If the broker refuses to start, the operator restores the file.
        """
        broker = self._choose_broker()
        if not await self._become_healthy():
            return
        self._cluster.kill(broker.number)
        broker.ends.clear()
        await self._wait(0.0, 1.0)
        path = self._random.choice(broker.disk.paths())
        size, undamaged = broker.disk.file_size(path), broker.disk.read_all(path)
        way = self._random.choice(("cut", "sector", "remove", "garble"))
        self._cluster.note("damage", broker.number, way, path)
        if way == "cut":
            broker.disk.cut(path, self._random.randint(0, size))
        elif way == "remove":
            broker.disk.remove(path)
        elif way == "sector":
            self._damage_sector(broker, path)
        else:
            broker.disk.overwrite(path, 0, self._random.randbytes(size))
        await self._cluster.start(broker.number)
        if broker.node is None:
            broker.disk.write_atomic(path, undamaged)
            await self._cluster.start(broker.number)
        await self._wait_until_healthy()

    async def damage_while_all_are_stopped(self) -> None:
        """Kill all brokers at once, lose files of one of them, and start that one first.

        Every replica was in sync, so any of them may be the first to lead; the damaged one not.
        """
        broker = self._choose_broker()
        if not await self._become_healthy():
            return
        for number in self._cluster.brokers:
            self._cluster.kill(number)
        broker.ends.clear()
        self._lose_files(broker)
        await self._cluster.start(broker.number)
        await self._wait(0.0, 0.5)
        others = [other for other in self._cluster.brokers if other != broker.number]
        self._random.shuffle(others)
        for other in others:
            await self._cluster.start(other)
        await self._wait_until_healthy()

    def _lose_files(self, broker: Broker) -> None:
        """Lose what a start has to notice: a complete segment, and another log or its topic id."""
        disk = broker.disk
        logs = {f"/logs/{name}-{number}": list[str]() for name, number in self._clients.partitions}
        for path in disk.paths():
            folder = path.rpartition("/")[0]
            if folder in logs and path.endswith(".log"):
                logs[folder].append(path)
        # Without its inventory, a log that lost its oldest segment looks as after retention.
        noted = [folder for folder in logs if f"{folder}/{INVENTORY}" in disk.paths()]
        complete = [logs[folder][:-1] for folder in noted if len(logs[folder]) > 1]
        # A log without its oldest segment reads well, and others take its start from a leader.
        is_oldest = self._random.choice((True, True, True, False))
        choices = [path for paths in complete for path in (paths[:1] if is_oldest else paths)]
        cut = self._random.choice(choices) if choices else ""
        others = [folder for folder, segments in logs.items() if segments and folder not in cut]
        lost = self._random.choice(others) if others else ""
        way = self._random.choice(("log", "topic id"))
        self._cluster.note("lose", broker.number, cut, way, lost)
        if cut:
            disk.remove(cut)
        if lost and way == "log":
            disk.remove_tree(lost)
        elif lost:
            disk.overwrite(f"{lost}/partition.metadata", 0, b"garbled")

    def _damage_sector(self, broker: Broker, path: str) -> None:
        disk, random = broker.disk, self._random
        size = disk.file_size(path)
        if not size:
            return
        position = random.randrange(0, size, SECTOR_BYTES)
        way = random.choice(("flip", "zero", "misdirect"))
        self._cluster.note("damage", broker.number, way, path, position)
        if way == "flip":
            sector = bytearray(disk.read_all(path)[position : position + SECTOR_BYTES])
            sector[random.randrange(len(sector))] ^= 1 << random.randrange(8)
            disk.overwrite(path, position, bytes(sector))
        elif way == "zero":
            disk.overwrite(path, position, bytes(SECTOR_BYTES))
        else:
            other = disk.read_all(random.choice(disk.paths()))
            disk.overwrite(path, position, other[:SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0"))
