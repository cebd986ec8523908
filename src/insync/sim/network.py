"""A network in memory: every byte takes a random while, links are cut and slowed, hosts die.

Like TCP it keeps the order of a connection and loses nothing while a link is cut: what was sent
arrives when the link heals, unless one of the two ends has died by then. Between connections
nothing keeps any order. A paused host is connected to and sent to all the same; it finds out when
it resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from insync.client.connection import Disconnected
from insync.sim.ownership import context_of

LATENCY_S = (0.0001, 0.002)
LOOK_AGAIN_S = 0.01  # whether a cut link has healed

Link = frozenset[int]


class SimNetwork:
    """The wires between hosts, which are numbers; clients are hosts like any other."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._listeners: dict[tuple[str, int], tuple[int, Callable[[], asyncio.Protocol]]] = {}
        self._cut: set[Link] = set()
        self._slow: dict[Link, float] = {}  # the longest a message takes, in seconds
        self._ends: dict[int, list[_End]] = {}

    def host(self, number: int) -> SimHost:
        return SimHost(self, number)

    # What befalls networks.

    def cut(self, one: int, other: int) -> None:
        self._cut.add(frozenset((one, other)))

    def mend(self, one: int, other: int) -> None:
        self._cut.discard(frozenset((one, other)))

    def slow(self, one: int, other: int, *, latency_s_max: float) -> None:
        self._slow[frozenset((one, other))] = latency_s_max

    def quicken(self, one: int, other: int) -> None:
        self._slow.pop(frozenset((one, other)), None)

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cut

    def reset(self, number: int) -> None:
        """Every connection of this host breaks; both ends live and are told."""
        for end in list(self._ends.get(number, ())):
            end.break_off()

    def crash(self, number: int) -> None:
        """Everything of this host's is gone; the others are told, as the kernel would."""
        for address, (host, _) in list(self._listeners.items()):
            if host == number:
                del self._listeners[address]
        for end in self._ends.pop(number, []):
            end.abort()

    # What hosts do with them.

    def latency_s(self, one: int, other: int) -> float:
        low, high = LATENCY_S
        return self._random.uniform(low, self._slow.get(frozenset((one, other)), high))

    def listen(
        self, host: int, address: tuple[str, int], factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listeners[address] = (host, factory)

    def unlisten(self, address: tuple[str, int]) -> None:
        self._listeners.pop(address, None)

    async def connect(
        self, host: int, address: tuple[str, int], protocol: asyncio.Protocol
    ) -> asyncio.Transport:
        await asyncio.sleep(self.latency_s(host, self._at(address)))
        found = self._listeners.get(address)
        if found is None or self.is_cut(host, found[0]):
            raise Disconnected(f"cannot reach {address[0]}:{address[1]}")
        there, factory = found
        here_end, there_end = _End(self, host, there), _End(self, there, host)
        here_end.peer, there_end.peer = there_end, here_end
        for end in (here_end, there_end):
            self._ends.setdefault(end.host, []).append(end)
        loop = asyncio.get_running_loop()
        loop.call_soon(there_end.accept, factory, context=context_of(there))
        here_end.accept(lambda: protocol)
        return here_end

    def _at(self, address: tuple[str, int]) -> int:
        found = self._listeners.get(address)
        return -1 if found is None else found[0]

    def forget(self, end: _End) -> None:
        ends = self._ends.get(end.host, [])
        if end in ends:
            ends.remove(end)


class _End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: SimNetwork, host: int, there: int) -> None:
        super().__init__()
        self._network = network
        self.host = host
        self._there = there
        self._protocol: asyncio.Protocol | None = None
        self.peer: _End | None = None
        self._is_closing = False
        # Under way from here: when it arrives, when it was sent, what (None: nothing more comes).
        self._sent: deque[tuple[float, float, bytes | None]] = deque()
        self.told_at_s = 0.0  # when the other end sent what this one received last

    def accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        if not self._is_closing:
            self._protocol = factory()
            self._protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._send(None)
            self._end_soon()

    def break_off(self) -> None:
        """The connection is reset: what was under way is lost."""
        self.fall_silent()
        if self.peer is not None:
            self.peer.fall_silent()

    def fall_silent(self) -> None:
        if not self._is_closing:
            self._sent.clear()
            self._end_soon()

    def abort(self) -> None:
        """As `close`, but whoever was at this end is no longer there to be told."""
        self._is_closing = True
        self._send(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Simulated clients read what they are sent."""

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def _send(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        arrives_at_s = loop.time() + self._network.latency_s(self.host, self._there)
        if self._sent:  # never before what was sent earlier
            arrives_at_s = max(arrives_at_s, self._sent[-1][0])
        self._sent.append((arrives_at_s, loop.time(), data))
        # The wire is nobody's: it goes on while either end is paused or dead.
        loop.call_at(arrives_at_s, self._arrive, context=context_of(None))

    def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        if self._sent and self._network.is_cut(self.host, self._there):
            if loop.time() >= self._sent[-1][0]:  # the last of them looks again for all
                loop.call_later(LOOK_AGAIN_S, self._arrive)
            return
        while self._sent and self._sent[0][0] <= loop.time():
            _, sent_at_s, data = self._sent.popleft()
            peer = self.peer
            if peer is not None:
                loop.call_soon(peer.receive, sent_at_s, data, context=context_of(self._there))

    def receive(self, sent_at_s: float, data: bytes | None) -> None:
        if self._is_closing or self._protocol is None:
            return
        self.told_at_s = sent_at_s
        if data is None:
            self._is_closing = True
            self._network.forget(self)
            self._protocol.connection_lost(None)
        else:
            self._protocol.data_received(data)

    def _end_soon(self) -> None:
        self._is_closing = True
        self._network.forget(self)
        loop = asyncio.get_running_loop()
        if self._protocol is not None:
            context = context_of(self.host)
            loop.call_soon(self._protocol.connection_lost, None, context=context)


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
