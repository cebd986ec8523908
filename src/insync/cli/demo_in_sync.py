"""The demo's third act: which replicas are in sync, decided live, with faults on demand.

A real cluster of `BROKERS` with `SETTINGS`; a client writes to it all the time. A follower is
stopped, a burst arrives, the leader's disk gets slow. The demo reads what the brokers decide where
an operator would: in their logs.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from insync.client.admin import Admin, NewTopic
from insync.client.admin_connections import Connections
from insync.client.partition_client import PartitionClient
from insync.client.sockets import Sockets
from insync.rules.refusals import Refusal
from insync.testing.cluster import HOST, Cluster

LAG_MS: Final = 1_500
SLOW_MS: Final = 4_000
SETTLED_WITHIN_S: Final = 20.0
SETTINGS: Final = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "replica.fetch.wait.max.ms": "200",
    "replica.lag.max.messages": "100",
}
BROKERS: Final = (1, 2, 3)
LEADER: Final = 1  # the first of each topic's replicas
STOPPED: Final = 3
BURST: Final = 2_000

_LEFT = re.compile(r"\b(\d+) leaves \([^)]*\)")


class DemoFailed(Refusal):
    """An event that the demo waits for did not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One fault: what the documents say the brokers decide, and what they decided."""

    what: str
    expected: str
    seen: str

    @property
    def is_well(self) -> bool:
        return self.seen == self.expected


def play(cluster: Cluster, console: Console) -> list[Shown]:
    return asyncio.run(_play(cluster, console))


async def _play(cluster: Cluster, console: Console) -> list[Shown]:
    addresses = [(HOST, broker.port) for broker in cluster.brokers.values()]
    async with Admin(Connections(Sockets(), addresses, client_id="insync-demo")) as admin:
        stage = Stage(cluster, admin, addresses, console)
        return [
            await _stop_follower(stage),
            await _send_burst(stage, "caught-up", expected="none leaves"),
            await _send_burst(stage, "messages", expected="2, 3 leave"),
            await _slow_leader(stage, {}, "KIP-501 off", expected="2, 3 leave"),
            await _slow_leader(
                stage,
                {"replica.in.sync.policy": "pending-reads"},
                "KIP-501 on",
                expected="none leaves, broker 1 hands over",
            ),
        ]


class Stage:
    """A cluster on which each fault gets a topic of its own."""

    def __init__(
        self,
        cluster: Cluster,
        admin: Admin,
        addresses: Sequence[tuple[str, int]],
        console: Console,
    ) -> None:
        self.cluster = cluster
        self._admin = admin
        self._addresses = addresses
        self._console = console
        self._topics = 0

    @asynccontextmanager
    async def topic(self, configs: dict[str, str]) -> AsyncIterator[WrittenTopic]:
        """A new topic with every replica in sync, and a client that writes to it all the time."""
        self._topics += 1
        name = f"demo-{self._topics}"
        await self._admin.create_topic(NewTopic(name=name, assignment=[BROKERS], config=configs))
        written = WrittenTopic(self.cluster, self._addresses, name)
        await written.client.append([b"first"])
        task = asyncio.create_task(written.write())
        try:
            yield written
        finally:
            self.cluster.heal()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await written.client.close()

    def print(self, text: str) -> None:
        self._console.print(escape(text), highlight=False)

    def show(self, what: str, *, expected: str, seen: str, written: WrittenTopic) -> Shown:
        shown = Shown(what=what, expected=expected, seen=seen)
        for line in written.log_lines():
            self._console.print(Padding(Text(line, style="dim"), (0, 0, 0, 4)))
        style = "green" if shown.is_well else "bold red"
        self._console.print(f"  [{style}]{escape(seen)}[/{style}]", highlight=False)
        return shown


class WrittenTopic:
    """A topic that a client writes to, and what its brokers logged about its ISR."""

    def __init__(self, cluster: Cluster, addresses: Sequence[tuple[str, int]], topic: str) -> None:
        self.topic = topic
        self.client = PartitionClient(Sockets(), addresses, topic, 0)
        self._cluster = cluster
        self._addresses = addresses

    async def write(self) -> None:
        while True:
            await self.client.append([b"x" * 100] * 10)
            await asyncio.sleep(0.02)

    async def burst(self, messages: int) -> None:
        """Sent by another client; the first one continues to write."""
        other = PartitionClient(Sockets(), self._addresses, self.topic, 0)
        await other.append([b"burst"] * messages)
        await other.close()

    def log_lines(self) -> list[str]:
        """The lines of the brokers' logs about this topic's ISR and leader, without their dates."""
        lines = [
            line.partition(" INFO ")[2]
            for broker in self._cluster.brokers.values()
            for line in broker.log.read_text().splitlines()
        ]
        return [line for line in lines if f"{self.topic}-0: " in line]

    def brokers_that_left(self) -> list[int]:
        return sorted({int(broker) for line in self.log_lines() for broker in _LEFT.findall(line)})

    async def wait_until(self, condition: Callable[[], bool], what: str) -> float:
        """Returns how long it took, in seconds."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > SETTLED_WITHIN_S:
                raise DemoFailed(f"{self.topic}: not within {SETTLED_WITHIN_S:.0f} s: {what}")
            await asyncio.sleep(0.02)
        return time.monotonic() - began_s

    def has_resigned(self) -> bool:
        return any(" resigned (" in line for line in self.log_lines())


def _leaving_text(brokers: Sequence[int]) -> str:
    if not brokers:
        return "none leaves"
    return f"{', '.join(map(str, brokers))} {'leaves' if len(brokers) == 1 else 'leave'}"


async def _stop_follower(stage: Stage) -> Shown:
    what = f"a follower is stopped; the limit is {LAG_MS} ms"
    stage.print(f"\n{what}")
    async with stage.topic({}) as written:
        stage.cluster.pause(STOPPED)
        try:
            took_s = await written.wait_until(
                lambda: STOPPED in written.brokers_that_left(), "it leaves"
            )
        finally:
            stage.cluster.resume(STOPPED)
        stage.print(
            f"  out {took_s:.2f} s after it was stopped (Apache Kafka: 1.01 to 1.49 limits)"
        )
        return stage.show(
            what,
            expected=_leaving_text([STOPPED]),
            seen=_leaving_text(written.brokers_that_left()),
            written=written,
        )


async def _send_burst(stage: Stage, policy: str, *, expected: str) -> Shown:
    what = f"a burst of {BURST} messages under `{policy}`"
    stage.print(f"\n{what}")
    async with stage.topic({"replica.in.sync.policy": policy}) as written:
        await written.burst(BURST)
        await asyncio.sleep(0.5)
        return stage.show(
            what,
            expected=expected,
            seen=_leaving_text(written.brokers_that_left()),
            written=written,
        )


async def _slow_leader(stage: Stage, configs: dict[str, str], how: str, *, expected: str) -> Shown:
    what = f"each read of the leader's disk takes {SLOW_MS} ms; {how}"
    stage.print(f"\n{what}")
    async with stage.topic(configs) as written:
        stage.cluster.slow_reads(LEADER, delay_ms=SLOW_MS, topic=written.topic)
        await written.wait_until(
            lambda: len(written.brokers_that_left()) == len(BROKERS) - 1 or written.has_resigned(),
            "followers leave or the leader hands over",
        )
        seen = _leaving_text(written.brokers_that_left())
        if written.has_resigned():
            seen += f", broker {LEADER} hands over"
        return stage.show(what, expected=expected, seen=seen, written=written)
