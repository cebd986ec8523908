"""A network in memory: every byte takes a random while, links are cut and healed, hosts die.

Like TCP it keeps the order of a connection and loses nothing while a link is cut: what was sent
arrives when the link heals, unless one of the two ends has died by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from insync.client.connection import Disconnected
from insync.sim.ownership import in_the_name_of

LATENCY_S = (0.0001, 0.002)
LOOK_AGAIN_S = 0.01  # whether a cut link has healed


class SimNetwork:
    """The wires between hosts, which are numbers; clients are hosts like any other."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._listeners: dict[tuple[str, int], tuple[int, Callable[[], asyncio.Protocol]]] = {}
        self._cut: set[frozenset[int]] = set()
        self._transports: dict[int, list[_End]] = {}

    def host(self, number: int) -> SimHost:
        return SimHost(self, number)

    def cut(self, one: int, other: int) -> None:
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cut.clear()

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cut

    def crash(self, number: int) -> None:
        """Everything of this host's is gone; the others are told, as the kernel would."""
        for address, (host, _) in list(self._listeners.items()):
            if host == number:
                del self._listeners[address]
        for end in self._transports.pop(number, []):
            end.abort()

    def latency_s(self) -> float:
        return self._random.uniform(*LATENCY_S)

    def listen(
        self, host: int, address: tuple[str, int], factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listeners[address] = (host, factory)

    def unlisten(self, address: tuple[str, int]) -> None:
        self._listeners.pop(address, None)

    async def connect(
        self, host: int, address: tuple[str, int], protocol: asyncio.Protocol
    ) -> asyncio.Transport:
        await asyncio.sleep(self.latency_s())
        found = self._listeners.get(address)
        if found is None or self.is_cut(host, found[0]):
            raise Disconnected(f"cannot reach {address[0]}:{address[1]}")
        there, factory = found
        here_end, there_end = _End(self, host, there, protocol), _End(self, there, host, factory())
        here_end.peer, there_end.peer = there_end, here_end
        for end in (here_end, there_end):
            self._transports.setdefault(end.host, []).append(end)
            in_the_name_of(end.host, end.protocol.connection_made, end)
        return here_end

    def forget(self, end: _End) -> None:
        ends = self._transports.get(end.host, [])
        if end in ends:
            ends.remove(end)


class _End(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: SimNetwork, host: int, there: int, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._network = network
        self.host = host
        self._there = there
        self.protocol = protocol
        self.peer: _End | None = None
        self._is_closing = False
        self._arrives_at_s = 0.0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.peer is None:
            return
        self._send(self.peer._receive, bytes(data))  # noqa: SLF001 - the other end

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._network.forget(self)
            loop = asyncio.get_running_loop()
            loop.call_soon(in_the_name_of, self.host, self.protocol.connection_lost, None)
            if self.peer is not None:
                self._send(self.peer._hang_up)  # noqa: SLF001 - the other end

    def abort(self) -> None:
        """As `close`, but whoever was at this end is no longer there to be told."""
        self._is_closing = True
        if self.peer is not None:
            self._send(self.peer._hang_up)  # noqa: SLF001 - the other end

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Simulated clients read what they are sent."""

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def _send(self, deliver: Callable[..., None], *what: bytes) -> None:
        loop = asyncio.get_running_loop()
        # Never before what was sent earlier.
        self._arrives_at_s = max(self._arrives_at_s + 1e-6, loop.time() + self._network.latency_s())
        loop.call_at(self._arrives_at_s, self._arrive, deliver, *what)

    def _arrive(self, deliver: Callable[..., None], *what: bytes) -> None:
        if self._network.is_cut(self.host, self._there):
            loop = asyncio.get_running_loop()
            self._arrives_at_s = max(self._arrives_at_s, loop.time() + LOOK_AGAIN_S)
            # Those that follow look again later, in the same order.
            loop.call_at(loop.time() + LOOK_AGAIN_S, self._arrive, deliver, *what)
            return
        deliver(*what)

    def _receive(self, data: bytes) -> None:
        if not self._is_closing:
            in_the_name_of(self.host, self.protocol.data_received, data)

    def _hang_up(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._network.forget(self)
            in_the_name_of(self.host, self.protocol.connection_lost, None)


class SimHost:
    """The network as one host has it."""

    def __init__(self, network: SimNetwork, number: int) -> None:
        self._network = network
        self._number = number

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> asyncio.Transport:
        return await self._network.connect(self._number, (host, port), protocol)

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> _Listener:
        self._network.listen(self._number, (host, port), protocol)
        return _Listener(self._network, (host, port))


class _Listener:
    def __init__(self, network: SimNetwork, address: tuple[str, int]) -> None:
        self._network = network
        self._address = address

    def close(self) -> None:
        self._network.unlisten(self._address)

    async def wait_closed(self) -> None:
        pass
