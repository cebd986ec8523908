"""A network whose links can be cut: what is sent does not arrive, and no connection is closed.

As with TCP, a cut loses no byte of a connection that outlives it: what was sent meanwhile arrives
when the link is mended. If one end closed meanwhile, the other learns it then. A connect needs both
directions, and waits until they work.

Both brokers stop a link's bytes, so none is in flight once both have cut it. A connecting broker
identifies itself in its first request; a caller that begins with another request is a client.
All of this runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast
from weakref import WeakSet

from insync.client.connection import ClientConnection
from insync.node.world import Listener, NodeNetwork
from insync.rules.refusals import Refusal
from insync.wire.apis import Api
from insync.wire.headers import read_request_header
from insync.wire.hello import read_hello_request
from insync.wire.primitives import INT16, INT32

Buffer = bytes | bytearray | memoryview

CLIENTS: Final = -1
"""Peers that are not brokers."""

UNSENT_BYTES_MAX: Final = 1 << 20
"""What a cut link holds before its sender has to pause, as with a full socket."""

HELLO_BYTES_MAX: Final = 1 << 10
"""A larger first request is not a BrokerHello."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The directions in which bytes between this broker and a peer, or clients, do not arrive."""

    peer: int  # a broker, or CLIENTS
    port: int | None = None  # the peer's listener; clients have none
    sends: bool = True
    receives: bool = True


class FaultyNetwork:
    def __init__(self, network: NodeNetwork) -> None:
        self._network = network
        self._cuts: dict[int, Cut] = {}
        self._links: WeakSet[Link] = (
            WeakSet()
        )  # a protocol drops its link when the connection is lost
        self._closed_silently: set[Link] = set()
        self._mended = asyncio.Event()
        self._is_ending = False

    # Faults

    def cut(self, cut: Cut) -> None:
        """Adds to earlier cuts of the same peer."""
        before = self._cuts.get(cut.peer)
        if before is not None:
            cut = Cut(
                peer=cut.peer,
                port=cut.port,
                sends=cut.sends or before.sends,
                receives=cut.receives or before.receives,
            )
        self._cuts[cut.peer] = cut
        self._apply()

    def mend(self, peer: int | None = None) -> None:
        """Mend the links to one peer, or to all if none is named."""
        for each in [peer] if peer is not None else list(self._cuts):
            self._cuts.pop(each, None)
        mended, self._mended = self._mended, asyncio.Event()
        mended.set()
        self._apply()

    def _apply(self) -> None:
        for link in list(self._links):
            self.apply_to(link)

    def apply_to(self, link: Link) -> None:
        cut = self._cut_of(peer=link.peer, port=link.port)
        sends, receives = (False, False) if cut is None else (cut.sends, cut.receives)
        link.hold(sends=sends, receives=receives)

    def _cut_of(self, *, peer: int | None, port: int | None) -> Cut | None:
        for cut in self._cuts.values():
            if cut.peer == peer or (port is not None and cut.port == port):
                return cut
        return None

    # The network of a node

    async def connect(self, host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
        while self._cut_of(peer=None, port=port) is not None:
            await self._mended.wait()
        outgoing = _Outgoing(self, protocol, port)
        await self._network.connect(host, port, cast("ClientConnection", outgoing))
        self.opened(outgoing.link)  # it may have been cut meanwhile
        return outgoing.link

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> Listener:
        listener = await self._network.listen(host, port, lambda: _Incoming(self, protocol()))
        return _FaultyListener(self, listener)

    def opened(self, link: Link) -> None:
        self._links.add(link)
        self.apply_to(link)

    def closed_silently(self, link: Link) -> None:
        """This end is closed, and the other will learn it when the link is mended."""
        self._closed_silently.add(link)

    def peer_notified(self, link: Link) -> None:
        self._closed_silently.discard(link)

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    def end(self) -> None:
        """The process is about to end: close connections that were closed silently."""
        self._is_ending = True
        for link in list(self._closed_silently):
            link.abort()


class _FaultyListener:
    def __init__(self, network: FaultyNetwork, listener: Listener) -> None:
        self._network = network
        self._listener = listener

    def close(self) -> None:
        self._network.end()
        self._listener.close()

    async def wait_closed(self) -> None:
        await self._listener.wait_closed()


class Link(asyncio.Transport):
    """This broker's end of one connection."""

    def __init__(
        self,
        network: FaultyNetwork,
        real: asyncio.Transport,
        protocol: asyncio.Protocol,
        *,
        peer: int | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__()
        self._network = network
        self._real = real
        self._protocol = protocol
        self.peer = peer  # None: not known yet, or known by its port
        self.port = port
        self._holds_sends = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._held_protocol: _HeldProtocol | None = None  # while receiving is cut
        self._wants_reading = True
        self._is_closed = False  # by this broker; the other end may not know it

    def hold(self, *, sends: bool, receives: bool) -> None:
        """Hold each direction, or let it through, from now on."""
        self._holds_sends = sends
        if self._is_closed:
            if not sends:
                self.abort()
            return
        if not sends:
            self._send_held()
        if receives and self._held_protocol is None:
            self._held_protocol = _HeldProtocol(self._protocol)
            self._real.pause_reading()
            self._real.set_protocol(self._held_protocol)
        elif not receives and self._held_protocol is not None:
            held, self._held_protocol = self._held_protocol, None
            self._real.set_protocol(self._protocol)
            held.replay_events()
            if self._wants_reading and not self._real.is_closing():
                self._real.resume_reading()

    def receive(self, data: bytes) -> None:
        (self._held_protocol or self._protocol).data_received(data)

    def _send_held(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not unsent:
            return
        was_full = self._unsent_bytes >= UNSENT_BYTES_MAX
        self._unsent_bytes = 0
        self._real.writelines(unsent)
        if was_full:
            self._protocol.resume_writing()

    # The transport of a protocol

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if not self._holds_sends:
            self._real.writelines(list_of_data)
        elif not self._is_closed:
            data = b"".join(list_of_data)
            was_full = self._unsent_bytes >= UNSENT_BYTES_MAX
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            if not was_full and self._unsent_bytes >= UNSENT_BYTES_MAX:
                self._protocol.pause_writing()

    def close(self) -> None:
        if not self._holds_sends or self._network.is_ending:
            self._end(self._real.close)
        elif not self._is_closed:
            self._is_closed = True
            self._unsent.clear()
            self._network.closed_silently(self)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self._end(self._real.abort)

    def _end(self, end: Callable[[], None]) -> None:
        held, self._held_protocol = self._held_protocol, None
        if self._is_closed:
            self._real.set_protocol(asyncio.Protocol())  # its own was notified when it closed
            self._network.peer_notified(self)
        elif held is not None:
            self._real.set_protocol(self._protocol)
            held.replay_events()
        end()

    def is_closing(self) -> bool:
        return self._is_closed or (self._held_protocol is None and self._real.is_closing())

    def pause_reading(self) -> None:
        self._wants_reading = False
        if self._held_protocol is None:
            self._real.pause_reading()

    def resume_reading(self) -> None:
        self._wants_reading = True
        if self._held_protocol is None:
            self._real.resume_reading()

    def is_reading(self) -> bool:
        return self._wants_reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)


class _HeldProtocol(asyncio.Protocol):
    """Replaces a protocol while receiving is cut: keeps events for it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._later: list[Callable[[], object]] = []
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self._later.append(lambda: self._protocol.data_received(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._later.append(lambda: self._protocol.connection_lost(exc))

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def replay_events(self) -> None:
        for event in self._later:
            event()


class _Outgoing(asyncio.Protocol):
    """Replaces a protocol until the connection is made."""

    link: Link

    def __init__(self, network: FaultyNetwork, protocol: asyncio.Protocol, port: int) -> None:
        self._network = network
        self._protocol = protocol
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = cast("asyncio.Transport", transport)  # uvloop's are not its subclass
        self.link = Link(self._network, real, self._protocol, port=self._port)
        real.set_protocol(self._protocol)
        self._protocol.connection_made(self.link)


class _Incoming(asyncio.Protocol):
    """Replaces a protocol until the caller has identified itself."""

    def __init__(self, network: FaultyNetwork, protocol: asyncio.Protocol) -> None:
        self._network = network
        self._protocol = protocol
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._real = cast("asyncio.Transport", transport)  # uvloop's are not its subclass
        self._link = Link(self._network, self._real, self._protocol)
        self._protocol.connection_made(self._link)

    def data_received(self, data: bytes) -> None:
        self._first += data
        caller = caller_of(self._first)
        if caller is None:
            return
        self._link.peer = caller
        self._real.set_protocol(self._protocol)
        self._network.opened(self._link)
        self._link.receive(self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)


def caller_of(first: bytes) -> int | None:
    """The broker that begins a connection with these bytes, or CLIENTS; None: need more bytes."""
    if len(first) < INT32.size:
        return None
    (size,) = INT32.unpack_from(first)
    frame = first[INT32.size : INT32.size + max(0, size)]
    is_hello = INT16.pack(Api.BROKER_HELLO).startswith(frame[: INT16.size])
    if not INT16.size <= size <= HELLO_BYTES_MAX or not is_hello:
        return CLIENTS
    if len(frame) < size:
        return None
    try:
        return read_hello_request(frame, read_request_header(frame).body_at).broker_id
    except Refusal:
        return CLIENTS
