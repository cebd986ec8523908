"""A metadata store that is out of reach, slow, read-only, went back, or whose answers are lost."""

from __future__ import annotations

from insync.metadata.memory import MemoryTree
from insync.sim.fault_base import FaultBase
from insync.sim.store import SESSION_TIMEOUT_MS
from insync.storage.metadata_checkpoint import read_metadata_checkpoint


class StoreFaultKinds(FaultBase):
    async def cut_off_briefly(self) -> None:
        await self._cut_off(0.1, SESSION_TIMEOUT_MS / 1_000 - 0.1)

    async def cut_off_long(self) -> None:
        await self._cut_off(SESSION_TIMEOUT_MS / 1_000 - 0.1, SESSION_TIMEOUT_MS / 1_000 + 3.0)

    async def _cut_off(self, low_s: float, high_s: float) -> None:
        """The broker runs and serves, but neither reads from the store nor writes to it."""
        number = self._choose_broker().number
        self._cluster.cut_off_from_store(number)
        await self._wait(low_s, high_s)
        self._cluster.reconnect_to_store(number)

    async def freeze_store(self) -> None:
        self._cluster.note("freeze store")
        self._cluster.tree.freeze()
        await self._wait(0.1, 3.0)
        self._cluster.tree.thaw()

    async def slow_store(self) -> None:
        before, self._cluster.store_delay_ms = self._cluster.store_delay_ms, (1, 400)
        await self._wait(1.0, 5.0)
        self._cluster.store_delay_ms = before

    async def lose_answers(self) -> None:
        """Steps are made, and the broker is told that the store is unavailable."""
        broker = self._choose_broker()
        self._cluster.note("lose answers", broker.number)
        broker.store_faults.lost_answers = self._random.choice((0.3, 1.0))
        await self._wait(0.2, 4.0)
        self._cluster.mend_store(broker.number)

    async def delay_commits(self) -> None:
        """Each commit takes up to twice the lag limit: several of one leader are under way."""
        broker = self._choose_broker()
        self._cluster.note("delay commits", broker.number)
        broker.store_faults.commit_delay_ms_max = self._random.choice((300, 1_000, 1_500))
        await self._wait(0.5, 6.0)
        self._cluster.mend_store(broker.number)

    async def make_store_read_only(self) -> None:
        """For all brokers: they see every change, and make none."""
        self._cluster.note("read-only store")
        for broker in self._cluster.brokers.values():
            broker.store_faults.is_read_only = True
        await self._wait(0.1, 4.0)
        for number in self._cluster.brokers:
            self._cluster.mend_store(number)

    async def make_store_unreadable(self) -> None:
        """One broker learns of no change, while its session lives and its steps are made."""
        broker = self._choose_broker()
        self._cluster.note("unreadable store", broker.number)
        broker.store_faults.is_unreadable = True
        await self._wait(0.1, 4.0)
        self._cluster.mend_store(broker.number)

    async def restore_backup(self) -> None:
        """Stop all brokers, and start them with an earlier copy of the store: each refuses it.

        The operator then puts the store back in its place.
        """
        cluster, backup = self._cluster, self._backup
        if backup is None or not self._have_noted_more_than(backup):
            return  # a broker cannot know that it is older
        cluster.note("restore backup", backup.revision)
        numbers = self._random.sample(list(cluster.brokers), len(cluster.brokers))
        for number in numbers:
            cluster.kill(number, noticed_after_ms=self._random.choice((0, 50)))
        for number in numbers:
            await cluster.start(number, tree=backup)
            if cluster.brokers[number].node is not None:
                raise AssertionError(f"broker {number} uses a store that went back")
        for number in numbers:
            await cluster.start(number)

    def _have_noted_more_than(self, backup: MemoryTree) -> bool:
        notes = [
            read_metadata_checkpoint(broker.disk, "/logs")
            for broker in self._cluster.brokers.values()
        ]
        return all(note is not None and note.revision > backup.revision for note in notes)
