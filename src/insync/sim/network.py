"""A network in memory: every message has a random latency, links are cut and slowed, hosts die.

Like TCP it keeps the order within a connection and loses nothing while a link is cut: what was
sent arrives when the link heals, unless one of the two hosts has died by then. There is no order
between connections. Connections to a paused host work, and it handles them when it resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from insync.client.connection import Disconnected
from insync.sim.ownership import callback_context

LATENCY_S = (0.0001, 0.002)
CHECK_LINK_EVERY_S = 0.01  # while it is cut

Link = frozenset[int]


class SimNetwork:
    """The links between hosts. A host is a number; clients are hosts too."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._listeners: dict[tuple[str, int], tuple[int, Callable[[], asyncio.Protocol]]] = {}
        self._cut: set[tuple[int, int]] = set()  # (from, to)
        self._slow: dict[Link, float] = {}  # the longest a message takes, in seconds
        self._endpoints: dict[int, list[_Endpoint]] = {}
        self.latency_s_max = LATENCY_S[1]  # of links that are not slow
        # How much later than others the messages of a connection may arrive, drawn for each.
        self.spread_s = 0.0

    def host(self, number: int) -> SimHost:
        return SimHost(self, number)

    # Faults.

    def cut(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Hold what `one` sends to `other` and, unless it is one way, what it would receive."""
        self._cut.add((one, other))
        if not one_way:
            self._cut.add((other, one))

    def mend(self, one: int, other: int) -> None:
        self._cut -= {(one, other), (other, one)}

    def slow(self, one: int, other: int, *, latency_s_max: float) -> None:
        self._slow[frozenset((one, other))] = latency_s_max

    def quicken(self, one: int, other: int) -> None:
        self._slow.pop(frozenset((one, other)), None)

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()

    def is_cut(self, one: int, other: int) -> bool:
        """Whether what `one` sends does not reach `other`."""
        return (one, other) in self._cut

    def break_pending(self, number: int) -> None:
        """Break the connections of this host that have data in flight."""
        for end in list(self._endpoints.get(number, ())):
            if end.has_pending():
                end.break_off()

    def reset(self, number: int) -> None:
        """Break every connection of this host. Both ends are notified."""
        for end in list(self._endpoints.get(number, ())):
            end.break_off()

    def crash(self, number: int) -> None:
        """Remove all of this host. The other ends are notified, as by the kernel of the host."""
        for address, (host, _) in list(self._listeners.items()):
            if host == number:
                del self._listeners[address]
        for end in self._endpoints.pop(number, []):
            end.abort()

    # Listening and connecting.

    def latency_s(self, one: int, other: int) -> float:
        low, high = LATENCY_S[0], self.latency_s_max
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
        listener = self._listeners.get(address)
        if listener is None or self.is_cut(host, listener[0]) or self.is_cut(listener[0], host):
            raise Disconnected(f"cannot reach {address[0]}:{address[1]}")
        remote_host, factory = listener
        local, remote = _Endpoint(self, host, remote_host), _Endpoint(self, remote_host, host)
        local.peer, remote.peer = remote, local
        for end in (local, remote):
            self._endpoints.setdefault(end.host, []).append(end)
            end.extra_s = self._random.uniform(0, self.spread_s) if self.spread_s else 0.0
        loop = asyncio.get_running_loop()
        loop.call_soon(remote.accept, factory, context=callback_context(remote_host))
        local.accept(lambda: protocol)
        return local

    def _at(self, address: tuple[str, int]) -> int:
        listener = self._listeners.get(address)
        return -1 if listener is None else listener[0]

    def forget(self, end: _Endpoint) -> None:
        ends = self._endpoints.get(end.host, [])
        if end in ends:
            ends.remove(end)


class _Endpoint(asyncio.Transport):
    """One endpoint of a connection."""

    def __init__(self, network: SimNetwork, host: int, remote_host: int) -> None:
        super().__init__()
        self._network = network
        self.host = host
        self._remote_host = remote_host
        self._protocol: asyncio.Protocol | None = None
        self.peer: _Endpoint | None = None
        self._is_closing = False
        # In flight from here: arrival time, send time, data (None: the connection is closed).
        self._sent: deque[tuple[float, float, bytes | None]] = deque()
        self.extra_s = 0.0  # latency of this connection, in addition to its link's
        self.last_sent_at_s = 0.0  # when the peer sent what this endpoint received last

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
            self._notify_closed()

    def break_off(self) -> None:
        """Reset the connection: data in flight is lost."""
        self.drop()
        if self.peer is not None:
            self.peer.drop()

    def drop(self) -> None:
        """Close this endpoint; what it sent and has not arrived is lost."""
        if not self._is_closing:
            self._sent.clear()
            self._notify_closed()

    def abort(self) -> None:
        """As `close`, but does not notify this endpoint's protocol: its host is dead."""
        self._is_closing = True
        self._send(None)

    def has_pending(self) -> bool:
        """Whether anything is under way to or from this endpoint."""
        ends = (self, self.peer)
        return any(end is not None and bool(end._sent) for end in ends)  # noqa: SLF001

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Nothing to do: simulated hosts always read."""

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def _send(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        arrives_at_s = loop.time() + self._network.latency_s(self.host, self._remote_host)
        arrives_at_s += self.extra_s
        if self._sent:  # never before what was sent earlier
            arrives_at_s = max(arrives_at_s, self._sent[-1][0])
        self._sent.append((arrives_at_s, loop.time(), data))
        # No host owns the link: data moves while either end is paused or dead.
        loop.call_at(arrives_at_s, self._arrive, context=callback_context(None))

    def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        if self._sent and self._network.is_cut(self.host, self._remote_host):
            if loop.time() >= self._sent[-1][0]:  # one timer for all of them
                loop.call_later(CHECK_LINK_EVERY_S, self._arrive)
            return
        while self._sent and self._sent[0][0] <= loop.time():
            _, sent_at_s, data = self._sent.popleft()
            peer = self.peer
            if peer is not None:
                loop.call_soon(
                    peer.receive, sent_at_s, data, context=callback_context(self._remote_host)
                )

    def receive(self, sent_at_s: float, data: bytes | None) -> None:
        if self._is_closing or self._protocol is None:
            return
        self.last_sent_at_s = sent_at_s
        if data is None:
            self._is_closing = True
            self._network.forget(self)
            self._protocol.connection_lost(None)
        else:
            self._protocol.data_received(data)

    def _notify_closed(self) -> None:
        self._is_closing = True
        self._network.forget(self)
        loop = asyncio.get_running_loop()
        if self._protocol is not None:
            context = callback_context(self.host)
            loop.call_soon(self._protocol.connection_lost, None, context=context)


class SimHost:
    """The network, used by one host."""

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
