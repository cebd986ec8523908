"""Faults that wait for the state in which they hurt most, as an adversary would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from insync.metadata import paths
from insync.metadata.errors import Unavailable
from insync.metadata.store import Operation, Write
from insync.sim.fault_base import AIM_WITHIN_S, FaultBase
from insync.sim.history import Partition
from insync.sim.store import BrokerStore, is_controllers

Step = Sequence[Operation]


class HeldSteps:
    """Certain steps of a broker, which wait before they reach the store."""

    def __init__(
        self, store: BrokerStore, is_held: Callable[[Step], bool], *, at_most: int | None = None
    ) -> None:
        self._store = store
        self._is_held = is_held
        self._at_most = at_most
        self._waiting: list[asyncio.Future[None]] = []
        store.hold_step = self._hold

    @classmethod
    def proposals(cls, store: BrokerStore, partition: Partition) -> HeldSteps:
        """The ISR changes of one partition, which its leader proposes."""
        path = paths.partition_state(*partition)
        return cls(store, lambda step: step[0].path == path and not is_controllers(step))

    def __len__(self) -> int:
        """How many there were."""
        return len(self._waiting)

    async def _hold(self, step: Step) -> None:
        if len(self._waiting) != self._at_most and self._is_held(step):
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]

    def release_first(self) -> None:
        for each in self._waiting[:1]:
            if not each.done():
                each.set_result(None)

    def release(self) -> None:
        """Let all of them reach the store, and those that follow."""
        self._store.hold_step = None
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    def fail(self) -> None:
        """Tell the leader that the store cannot be reached; later attempts reach it."""
        self._store.hold_step = None
        for each in self._waiting:
            if not each.done():
                each.set_exception(Unavailable("the metadata store cannot be reached"))


class AimedFaults(FaultBase):
    async def kill_after_acknowledgement(self) -> None:
        """Kill a leader when a client has just got its acknowledgement of acks=all."""
        hit: list[int] = []

        def kill(broker: int) -> None:
            self._clients.on_acknowledged = None
            hit.append(broker)
            self._cluster.kill(broker, noticed_after_ms=noticed_after_ms)

        noticed_after_ms = self._random.choice((0, 0, 50))
        self._clients.on_acknowledged = kill
        try:
            await self._wait(0.1, AIM_WITHIN_S)
        finally:  # also if the run ends: no broker starts again after that
            self._clients.on_acknowledged = None
        for number in hit:
            await self._cluster.start(number)

    async def refuse_proposal_late(self) -> None:
        """Let the store refuse a shrink when its leader has already proposed the next expand.

        The shrink is under way for so long that the controller changes the ISR first. So is the
        expand, while the follower that it adds gets nothing for longer than the lag limit.
        """
        cluster = self._cluster
        if (target := self._choose_proposer()) is None:
            return
        partition, leader, follower, store = target
        cluster.note("refuse late", partition, leader, follower)
        proposals = HeldSteps.proposals(store, partition)
        cluster.network.cut(leader, follower)
        try:
            await self._until(lambda: len(proposals) == 1)
            cluster.kill(follower)
            cluster.network.mend(leader, follower)
            await self._until(lambda: follower not in self._state_of(partition)["isr"])
            await cluster.start(follower)
            await self._until(lambda: len(proposals) > 1)
            cluster.network.cut(leader, follower)
            proposals.release_first()
            await asyncio.sleep(cluster.lag_time_max_ms / 1_000 + 0.3)
            proposals.release()
            await asyncio.sleep(0.05)
        finally:
            proposals.release()
            cluster.network.mend(leader, follower)
        await cluster.start(follower)

    async def restart_joining_follower(self) -> None:
        """Restart the follower that an expand adds, before the store can be reached.

        The leader tries the same expand again and again, and has no fetch of the new incarnation.
        """
        cluster = self._cluster
        if (target := self._choose_proposer()) is None:
            return
        partition, leader, follower, store = target
        cluster.note("restart joining", partition, leader, follower)
        try:
            async with self._held_expand(partition, follower, store) as proposals:
                cluster.kill(follower)
                cluster.network.cut(leader, follower)
                await cluster.start(follower)
                proposals.fail()
                await self._wait(0.1, 0.5)
        finally:
            cluster.network.mend(leader, follower)

    async def damage_joining_follower(self) -> None:
        """Damage the log of a follower while the expand that adds it is under way.

        Its scrub finds the damage and truncates the log. The expand must not be made after that.
        """
        cluster = self._cluster
        if not await self._become_healthy() or (target := self._choose_proposer()) is None:
            return
        partition, leader, follower, store = target
        cluster.note("damage joining", partition, leader, follower)
        async with self._held_expand(partition, follower, store):
            end, disk = self._end_at(follower, partition), cluster.brokers[follower].disk
            folder = "/logs/{}-{}/".format(*partition)
            files = [path for path in disk.paths() if path.startswith(folder)]
            segments = [path for path in files if path.endswith(".log") and disk.file_size(path)]
            if segments:
                disk.overwrite(segments[-1], 0, bytes(disk.file_size(segments[-1])))
            await self._until(lambda: self._end_at(follower, partition) < end)
        await self._wait(0.1, 0.5)
        await self._wait_until_healthy()

    @asynccontextmanager
    async def _held_expand(
        self, partition: Partition, follower: int, store: BrokerStore
    ) -> AsyncIterator[HeldSteps]:
        """Restart a member of the ISR; the expand that adds it again waits before the store."""
        self._cluster.kill(follower)
        await self._until(lambda: follower not in self._state_of(partition)["isr"])
        proposals = HeldSteps.proposals(store, partition)
        try:
            await self._cluster.start(follower)
            await self._until(lambda: len(proposals) > 0)
            yield proposals
        finally:
            proposals.release()

    def _choose_proposer(self) -> tuple[Partition, int, int, BrokerStore] | None:
        """A partition, its leader, a follower in the ISR and the leader's store; None without."""
        cluster = self._cluster
        partition = self._random.choice(list(self._clients.partitions))
        state = self._state_of(partition)
        leader = state.get("leader")
        store = None if leader is None else cluster.brokers[leader].store
        # The controller's own restart is handled later: another has to take over first.
        others = {leader, cluster.controller()}
        followers = [broker for broker in state.get("isr", ()) if broker not in others]
        if leader is None or store is None or not followers:
            return None
        return partition, leader, self._random.choice(followers), store

    async def depose_leader(self) -> None:
        """Pause a leader, or cut it off from the store, until another has been elected.

        Its clients still wait for it then, and it has not learned of the election.
        """
        cluster = self._cluster
        partition = (self._topic, 0)  # the busy one
        leader = self._state_of(partition).get("leader")
        if leader is None:
            return
        is_paused = self._random.choice((True, False))
        cluster.note("depose", leader, is_paused)
        if is_paused:
            cluster.pause(leader)
        else:
            cluster.cut_off_from_store(leader)
        try:
            await self._until(lambda: self._state_of(partition).get("leader") != leader)
            await self._wait(0.0, 0.3)
        finally:
            if is_paused:
                cluster.resume(leader)
            else:
                cluster.reconnect_to_store(leader)

    async def pause_between_proposal_and_commit(self) -> None:
        """Pause a leader before its ISR change is committed, or before it learns that it is."""
        number = self._choose_broker().number
        pause_s = self._random.choice((0.3, 1.0, 1.7, 3.0))

        def pause(_step: Step) -> None:
            self._cluster.pause_for(number, pause_s)

        is_before = self._random.choice((True, False))
        await self._provoke_isr_change(number, pause, is_before=is_before)
        self._cluster.resume(number)

    async def cut_joining_follower(self) -> None:
        """Cut or kill the follower that its leader has just proposed to add to the ISR."""
        number = self._choose_broker().number
        way = self._random.choice(("cut", "cut", "kill"))
        hit: list[int] = []

        def cut(step: Step) -> None:
            joining = sorted(self._joining(step) - {number})
            if not joining or hit:
                return
            hit.append(joining[0])
            self._cluster.note("cut joining", number, joining[0], way)
            if way == "kill":
                self._cluster.kill(joining[0])
            else:
                self._cluster.network.cut(joining[0], number)

        await self._provoke_isr_change(number, cut, is_before=self._random.choice((True, False)))
        for other in hit:
            self._cluster.network.mend(other, number)
            await self._cluster.start(other)

    async def fail_while_recovering(self) -> None:
        """Fail the disk, or die again, while a broker recovers its logs."""
        broker = self._choose_broker()
        number = broker.number
        self._cluster.kill(number)
        way = self._random.choice(("read", "append", "die"))
        self._cluster.note("fail while recovering", number, way)
        broker.disk.fails_reads = way == "read"
        broker.disk.fails_appends = way == "append"
        starting = self._cluster.loop.create_task(self._cluster.start(number))
        await self._wait(0.0, 0.3)
        broker.disk.fails_reads = broker.disk.fails_appends = False
        self._cluster.kill(number)
        await asyncio.wait([starting])
        await self._wait(0.0, 1.0)
        await self._cluster.start(number)

    async def _provoke_isr_change(
        self, leader: int, act: Callable[[Step], None], *, is_before: bool
    ) -> None:
        """Call `act` at the leader's next ISR changes, which a cut follower causes."""
        store = self._cluster.brokers[leader].store
        if store is None:
            return

        def on_step(step: Step) -> None:
            if self._isr_after(step) is not None:
                act(step)

        if is_before:
            store.before_step = on_step
        else:
            store.after_step = on_step
        other = self._random.choice([each for each in self._cluster.brokers if each != leader])
        self._cluster.network.cut(leader, other)
        await self._wait(1.0, 2.5)
        self._cluster.network.mend(leader, other)
        await self._wait(0.5, AIM_WITHIN_S)
        store.forget_hooks()

    def _isr_after(self, step: Step) -> set[int] | None:
        first = step[0]
        if isinstance(first, Write) and first.path.endswith("/state"):
            return set(json.loads(first.value)["isr"])
        return None

    def _joining(self, step: Step) -> set[int]:
        after = self._isr_after(step)
        entry = self._cluster.tree.entries.get(step[0].path)
        if after is None or entry is None:
            return set()
        return after - set(json.loads(entry.value)["isr"])
