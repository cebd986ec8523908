"""A registration that reports damage is made, and its answer is lost; the broker repeats it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from insync.broker.accepted import Accepted
from insync.metadata import paths
from insync.metadata.errors import Unavailable
from insync.metadata.memory import MemoryTree
from insync.metadata.store import Operation
from insync.node.node import Node
from insync.sim.cluster import Broker, Cluster
from support.sim.few_brokers import ONE, TWO, client_of, isr_of, play, topic, until

STEPS_MAX = 100


def test_the_report_of_damage_is_no_conflict_when_it_is_made_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await topic(cluster, (ONE, TWO))
        await client_of(cluster).append([b"a"])
        await asyncio.sleep(7)  # noted by then
        cluster.kill(2)
        await until(lambda: isr_of(cluster) == [1])
        cluster.brokers[2].disk.remove_tree("/logs/t-0")
        steps, has_lost = [0], [False]

        def lose_first_answer(step: Sequence[Operation]) -> None:
            reports = [each for each in step if each.path.startswith(paths.DAMAGED_REPLICAS)]
            if reports and not has_lost[0]:
                has_lost[0] = True
                raise Unavailable("the answer was lost")

        def count(_step: Sequence[Operation]) -> None:
            steps[0] += 1
            assert steps[0] < STEPS_MAX, "the registration is repeated for ever"

        new_node = cluster._new_node

        def with_hooks(broker: Broker, accepted: Accepted, tree: MemoryTree) -> Node:
            node = new_node(broker, accepted, tree)
            store = cluster.brokers[2].store
            assert store is not None
            store.after_step, store.before_step = lose_first_answer, count
            return node

        cluster._new_node = with_hooks  # type: ignore[method-assign]
        await cluster.start(2)
        assert has_lost[0]
        assert cluster.brokers[2].has_started
        await until(lambda: sorted(isr_of(cluster)) == [1, 2])

    play(scenario)
