"""The demo's second act: three real brokers, a leader killed in the middle, nothing lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from insync.client.partition_client import PartitionClient
from insync.node.process import SocketNetwork
from insync.testing.cluster import HOST, Cluster

TOPIC = "demo"
APPENDS = 600
VALUES_PER_APPEND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    started_s: float
    acknowledged: int
    leader_before: int
    leader_after: int
    failover_s: float
    lost: int
    in_order: bool

    @property
    def is_well(self) -> bool:
        return self.lost == 0 and self.in_order


def play(console: Console) -> Outcome:
    """Start, append, kill, append, read back; the console shows each step."""
    begun_s = time.monotonic()
    settings = {"min.insync.replicas": "2"}
    with Cluster(brokers=3, settings=settings, with_faults=False) as cluster:
        started_s = time.monotonic() - begun_s
        console.print(f"three brokers serve after {started_s:.1f} s: {cluster.bootstrap}")
        return asyncio.run(_append_across_failover(cluster, console, started_s))


async def _append_across_failover(cluster: Cluster, console: Console, started_s: float) -> Outcome:
    addresses = [(HOST, broker.port) for broker in cluster.brokers.values()]
    client = PartitionClient(SocketNetwork(), addresses, TOPIC, 0)
    expected = [str(number).encode() for number in range(APPENDS * VALUES_PER_APPEND)]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,}"),
        TimeElapsedColumn(),
        console=console,
    )
    leader_before, killed_s, failover_s = -1, 0.0, 0.0
    with bar:
        task = bar.add_task("acknowledged by acks=all", total=len(expected))
        for number in range(APPENDS):
            if number == APPENDS // 2:
                leader_before = client.leader_id
                cluster.kill(leader_before)
                killed_s = time.monotonic()
                bar.console.print(f"kill -9 of broker {leader_before}, the leader")
            first = number * VALUES_PER_APPEND
            await client.append(expected[first : first + VALUES_PER_APPEND])
            if number == APPENDS // 2:
                failover_s = time.monotonic() - killed_s
                bar.console.print(
                    f"broker {client.leader_id} leads; next acknowledgement "
                    f"{failover_s:.2f} s after the kill"
                )
            bar.update(task, advance=VALUES_PER_APPEND)
    values = await _read_all(client, len(expected))
    await client.close()
    lost = len(set(expected) - set(values))
    console.print(f"read back {len(values):,} records: {lost} lost")
    return Outcome(
        started_s=started_s,
        acknowledged=len(expected),
        leader_before=leader_before,
        leader_after=client.leader_id,
        failover_s=failover_s,
        lost=lost,
        in_order=values == expected,
    )


async def _read_all(client: PartitionClient, count: int) -> list[bytes]:
    values: list[bytes] = []
    offset = 0
    while len(values) < count:
        more, offset = await client.read(offset)
        if not more:
            break
        values += more
    return values
