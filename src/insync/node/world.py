"""What a broker gets from outside: clocks, network, disk, metadata store, randomness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from insync.broker.reads import ReadPool
from insync.client.connection import ClientConnection
from insync.metadata.store import MetadataStore
from insync.storage.disk import Disk


class Listener(Protocol):
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


class NodeNetwork(Protocol):
    """Opens connections to other brokers and accepts connections from clients and brokers."""

    async def connect(
        self, host: str, port: int, protocol: ClientConnection
    ) -> asyncio.Transport: ...
    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> Listener: ...


async def run_inline(work: Callable[[], None]) -> None:
    """Run work that may block on the event loop, for a simulation, in which nothing blocks."""
    work()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    clock_ms: Callable[[], int]  # monotonic
    wall_ms: Callable[[], int]
    network: NodeNetwork
    disk: Disk
    store: MetadataStore
    reads: ReadPool
    random: Random
    connections_max: int = 1 << 31  # what the operating system allows
    in_thread: Callable[[Callable[[], None]], Awaitable[None]] = run_inline  # for blocking work
    has_quotas: bool = True  # False in a benchmark: no fetch is throttled, whatever is configured
