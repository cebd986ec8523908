"""Faults around elections, timed so that logs and watermarks differ most."""

from __future__ import annotations

import asyncio
from typing import Final

from insync.sim.fault_base import FaultBase
from insync.sim.history import Partition

TAIL_RECORDS: Final = 8
"""What one follower has and another lacks: more than producers send again at once."""

AHEAD_ATTEMPTS: Final = 1_000
"""Looks for a member that is ahead of the next leader and behind in what is committed."""


class ElectionFaults(FaultBase):
    async def elect_while_a_follower_returns(self) -> None:
        """Kill a follower, and its leader right after it has acknowledged more.

        The follower comes back before the other members have fetched from the new leader, whose
        watermark is therefore behind what its predecessor acknowledged.
        """
        cluster = self._cluster
        name, number = self._random.choice(list(self._clients.partitions))
        await self._wait_until_healthy()
        state = self._state_of((name, number))
        if len(state.get("isr", ())) < 4 or len(cluster.up()) < 4:  # noqa: PLR2004
            return
        leader = state["leader"]
        successor, *others = [broker for broker in state["replicas"] if broker != leader]
        self._random.shuffle(others)
        returning, *members = others
        cluster.note("elect", name, number, leader, successor, returning)
        cluster.network.slow(leader, successor, latency_s_max=0.05)
        cluster.kill(returning)
        end = cluster.brokers[returning].ends.get((name, number), 0)
        for attempt in range(2_000):
            await asyncio.sleep(0.000_5)
            replica = self._replica_at(leader, (name, number))
            if replica is None:
                break
            committed = replica.high_watermark
            # A member that has more than the successor truncates, and must not by its watermark.
            followers = [self._replica_at(each, (name, number)) for each in members]
            reached = self._end_at(successor, (name, number))
            is_ahead = any(
                each is not None and each.log.end > reached and each.high_watermark < committed
                for each in followers
            )
            if committed > end and (is_ahead or attempt > AHEAD_ATTEMPTS):
                break
        self._check_brokers()  # which see what is committed now
        for member in members:
            cluster.network.cut(member, successor)
        cluster.network.cut(leader, successor)  # its watermark does not arrive
        cluster.kill(leader)
        cluster.network.slow(successor, returning, latency_s_max=0.05)
        try:
            await cluster.start(returning)
            await self._wait(0.5, 1.2)
        finally:
            for member in members:
                cluster.network.mend(member, successor)
        cluster.network.quicken(successor, returning)
        cluster.network.mend(leader, successor)
        cluster.network.quicken(leader, successor)
        await cluster.start(leader)
        await self._wait(0.5, 2.0)

    async def elect_twice(self) -> None:
        """Elect a follower that lacks the tail of another, then that other one (KIP-279).

        The first begins an epoch that the second never sees, below the second's log end. When it
        returns, only the epoch of its last record shows that its log differs.
        """
        cluster = self._cluster
        if (target := await self._find_three_members()) is None:
            return
        partition, leader, in_order = target
        first, second, *_ = [broker for broker in in_order if broker != leader]
        cluster.note("elect twice", partition, leader, first, second)
        cluster.network.cut(leader, first)
        try:
            end = self._end_at(first, partition)
            await self._until(lambda: self._end_at(second, partition) > end + TAIL_RECORDS)
            cluster.network.cut(first, second)
            cluster.kill(leader)
            await self._until(lambda: self._leads(first, partition))
            end = self._end_at(first, partition)
            await self._until(lambda: self._end_at(first, partition) > end, within_s=0.5)
            cluster.kill(first)
            await self._until(lambda: self._leads(second, partition))
        finally:
            cluster.network.mend(first, second)
            cluster.network.mend(leader, first)
        await cluster.start(first)
        await self._wait(0.2, 1.0)
        await cluster.start(leader)
        await self._wait_until_healthy()

    async def elect_and_return(self) -> None:
        """Kill a leader with a tail that no other replica has; it returns and leads again.

        Meanwhile no client reaches the leader in between, so that producers send the tail again to
        the first one. When that one truncates its log, another member is behind its new end.
        """
        cluster, network = self._cluster, self._cluster.network
        if (target := await self._find_three_members()) is None:
            return
        partition, leader, in_order = target
        followers = [broker for broker in in_order if broker != leader]
        between, *others = followers
        before_leader = in_order[: in_order.index(leader)]
        preferred = dict.fromkeys((between, *before_leader))  # would be elected instead of it
        cluster.note("elect and return", partition, leader, between)
        hosts = list(self._clients.hosts)
        try:
            for other in others:
                network.cut(leader, other)
            end = self._end_at(others[0], partition)
            await self._until(lambda: self._end_at(between, partition) > end, within_s=0.5)
            network.cut(leader, between)
            end = self._end_at(leader, partition)
            await self._until(
                lambda: self._end_at(leader, partition) > end + TAIL_RECORDS, within_s=0.7
            )
            for other in (*others, *hosts):
                network.cut(between, other)
            cluster.kill(leader)
            for other in followers:
                network.mend(leader, other)
            await self._until(lambda: self._leads(between, partition))
            await cluster.start(leader)
            await self._until(lambda: leader in self._state_of(partition)["isr"], within_s=1.0)
            for other in others:
                network.mend(between, other)
            await self._until(lambda: leader in self._state_of(partition)["isr"])
            for other in preferred:
                cluster.kill(other)
            await self._until(lambda: self._leads(leader, partition), within_s=1.0)
        finally:
            for other in (*followers, *hosts):
                network.mend(leader, other)
                network.mend(between, other)
        await self._wait(0.1, 0.5)
        for other in preferred:
            await cluster.start(other)
        await self._wait_until_healthy()

    async def _find_three_members(self) -> tuple[Partition, int, list[int]] | None:
        """The busiest partition, its leader and its ISR in the order of the replica list.

        None if it has no leader, or fewer than three members.
        """
        partition = (self._topic, 0)
        await self._wait_until_healthy()
        state = self._state_of(partition)
        in_order = [broker for broker in state.get("replicas", ()) if broker in state["isr"]]
        leader = state.get("leader")
        if leader is None or len(in_order) < 3:  # noqa: PLR2004
            return None
        return partition, leader, in_order
