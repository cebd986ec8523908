"""What every fault needs: a cluster, chance of its own, and other faults' absence if it must."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, Final

from insync.broker.replication.replica import Replica
from insync.metadata import paths
from insync.metadata.memory import MemoryTree
from insync.sim.clients import Admin
from insync.sim.cluster import Broker, Cluster
from insync.sim.history import Partition
from insync.sim.load import Clients

HEALTHY_WITHIN_S: Final = 20.0

AIM_WITHIN_S: Final = 3.0
"""How long a fault waits for its moment."""

CONDITION_EVERY_S: Final = 0.001
"""How often it looks whether the moment has come."""

_random: ContextVar[Random] = ContextVar("random_of_a_fault")


class FaultBase:
    def __init__(
        self,
        cluster: Cluster,
        clients: Clients,
        admin: Admin,
        *,
        topic: str,
        factor: int,
        is_healthy: Callable[[], bool],
        check_brokers: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._admin = admin
        self._topic = topic
        self._factor = factor
        self._is_healthy = is_healthy
        self._check_brokers = check_brokers
        self._running: list[asyncio.Task[None]] = []
        self._backup: MemoryTree | None = None  # of the store, when the first fault was due

    @property
    def _random(self) -> Random:
        """Chance of the fault that runs: without it, all others do the same."""
        return _random.get()

    @staticmethod
    def _use_random(seed: float) -> None:
        _random.set(Random(seed))  # noqa: S311 - chance, not secrecy

    async def _wait(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._random.uniform(low_s, high_s))

    def _choose_broker(self) -> Broker:
        return self._random.choice(list(self._cluster.brokers.values()))

    async def _end_other_faults(self) -> None:
        others = self._running[:-1]  # the last one is this fault
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._cluster.heal()

    async def _become_healthy(self) -> bool:
        """End the other faults and wait until every replica is in sync; False if some are not."""
        await self._end_other_faults()
        return await self._wait_until_healthy()

    async def _wait_until_healthy(self) -> bool:
        end_s = self._cluster.loop.time() + HEALTHY_WITHIN_S
        while not self._is_healthy():
            if self._cluster.loop.time() > end_s:
                return False
            await asyncio.sleep(0.05)
        return True

    # What faults aim at.

    def _state_of(self, partition: Partition) -> dict[str, Any]:
        """The partition state in the store; empty if there is none."""
        entry = self._cluster.tree.entries.get(paths.partition_state(*partition))
        return {} if entry is None else json.loads(entry.value)

    def _replica_at(self, broker: int, partition: Partition) -> Replica | None:
        node = self._cluster.brokers[broker].node
        is_serving = node is not None and self._cluster.brokers[broker].has_started
        return node.replicas.partitions.get(partition) if node and is_serving else None

    def _end_at(self, broker: int, partition: Partition) -> int:
        replica = self._replica_at(broker, partition)
        return 0 if replica is None else replica.log.end

    def _leads(self, broker: int, partition: Partition) -> bool:
        replica = self._replica_at(broker, partition)
        return replica is not None and replica.is_leader

    async def _until(
        self, condition: Callable[[], bool], *, within_s: float = AIM_WITHIN_S
    ) -> None:
        """Wait for the moment to act, which may not come."""
        loop = self._cluster.loop
        end_s = loop.time() + within_s
        moment: asyncio.Future[None] = loop.create_future()

        def check() -> None:
            # A timer, because a task that sleeps costs three times as much: a run checks thousands
            # of times.
            if moment.done():
                return  # the fault was cancelled
            try:
                if condition() or loop.time() >= end_s:
                    moment.set_result(None)
                else:
                    loop.call_at(loop.time() + CONDITION_EVERY_S, check)
            except Exception as error:
                moment.set_exception(error)

        check()
        await moment
