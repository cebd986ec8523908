"""A few real brokers on virtual time with one partition, placed as a test wants it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from uuid import UUID

from insync.broker.replication.replica import Replica
from insync.metadata import paths
from insync.metadata.records import TopicRecord, encode_config, encode_state
from insync.metadata.store import Create, Operation
from insync.node.node import Node
from insync.rules.leadership import Leadership
from insync.rules.partition_state import PartitionState
from insync.rules.values import BrokerId, LeaderEpoch
from insync.sim.clients import SimClient
from insync.sim.cluster import Cluster
from insync.sim.virtual_loop import VirtualLoop, virtual_time

KEY = ("t", 0)
PATH = paths.partition_state(*KEY)
ONE, TWO, THREE, FOUR = BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(4)

Scenario = Callable[[Cluster], Awaitable[None]]


def play(
    scenario: Scenario,
    *,
    settings: dict[str, str] | None = None,
    brokers: int = 3,
    seed: int = 1,
    within_s: float = 600,
) -> None:
    with virtual_time() as loop:
        cluster = Cluster(loop, Random(seed), brokers=brokers, settings=settings)  # noqa: S311

        async def playing() -> None:
            for number in cluster.brokers:
                await cluster.start(number)
            await asyncio.sleep(0.2)
            async with asyncio.timeout(within_s):
                await scenario(cluster)
            assert not cluster.unexpected_errors

        loop.run_until_complete(playing())


async def topic(
    cluster: Cluster,
    replicas: tuple[BrokerId, ...] = (ONE, TWO, THREE),
    isr: tuple[BrokerId, ...] | None = None,
    config: dict[str, str] | None = None,
    settled_s: float = 0.5,
) -> None:
    """One partition as we want it, led by the first of its ISR; a topic id of its own."""
    topic_id = UUID(int=cluster.tree.revision, version=4)
    state = PartitionState(
        replicas=replicas, isr=isr or replicas, leader=replicas[0], leader_epoch=LeaderEpoch(0)
    )
    record = TopicRecord(topic_id=topic_id, partitions=1, replication_factor=len(replicas))
    step: list[Operation] = [
        Create(paths.topic(KEY[0]), record.encode()),
        Create(paths.topic_id(topic_id), KEY[0].encode()),
        Create(PATH, encode_state(state)),
    ]
    if config:
        step.append(Create(paths.topic_config(KEY[0]), encode_config(config)))
    cluster.tree.step(step, None)
    await asyncio.sleep(settled_s)


def state_of(cluster: Cluster) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(cluster.tree.entries[PATH].value)
    return state


def isr_of(cluster: Cluster) -> list[int]:
    return sorted(state_of(cluster)["isr"])


def node_of(cluster: Cluster, number: int) -> Node:
    node = cluster.brokers[number].node
    assert node is not None
    return node


def replica_of(cluster: Cluster, number: int) -> Replica:
    return node_of(cluster, number).replicas.partitions[KEY]


def term_of(cluster: Cluster, number: int = 1) -> Leadership:
    term = replica_of(cluster, number).term
    assert term is not None, "it does not lead"
    return term


def deadlines_of(cluster: Cluster, number: int = 1) -> dict[BrokerId, int]:
    replica = replica_of(cluster, number)
    return term_of(cluster, number).deadlines(replica.session_fetched_at_ms)


async def until(holds: Callable[[], bool], *, within_s: float = 10.0) -> int:
    """Returns the millisecond at which it held."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with asyncio.timeout(within_s):
        while not holds():
            await _next_event(loop)
    return loop.clock_ms()


async def _next_event(loop: VirtualLoop) -> None:
    """Between two events nothing changes, so there is nothing to look at."""
    await asyncio.sleep(loop.next_event_s() - loop.time())


async def stays(holds: Callable[[], bool], *, for_s: float) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_s
    while loop.time() < end_s:
        assert holds()
        await asyncio.sleep(0.01)


def client_of(cluster: Cluster, host: int = 100) -> SimClient:
    return SimClient(cluster, host, KEY, Random(host))  # noqa: S311


async def write_on(cluster: Cluster, *, every_s: float = 0.01, host: int = 101) -> None:
    """Produce to the current leader with acks=1, for ever."""
    client = client_of(cluster, host)
    while True:
        await client.append_once([b"more"])
        await asyncio.sleep(every_s)


class Resignations:
    """Every resignation that was granted: the broker and the time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cooling: set[str] = set()
        self.granted: list[tuple[int, int]] = []  # (at_ms, broker)
        cluster.tree.attach(self)

    def notify(self, _revision: int) -> None:
        cooling = {path for path in self._cluster.tree.entries if path.startswith(paths.COOLING)}
        for path in sorted(cooling - self._cooling):
            self.granted.append((self._cluster.loop.clock_ms(), paths.cooling_of(path)[2]))
        self._cooling = cooling
