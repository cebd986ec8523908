"""Connections: request frames in, responses out in the order of the requests, with backpressure.

A request is handled as soon as its frame is complete. Its response may come later, but a connection
sends responses in the order of its requests, as Kafka's clients expect. While a client does not
read its responses, the broker does not read its requests, so those that wait stay bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, cast

from insync.broker.broker_loop import BrokerLoop
from insync.rules.refusals import Refusal
from insync.wire.apis import api_name
from insync.wire.frames import FrameBuffer
from insync.wire.headers import RequestHeader, read_request_header, response_header_bytes

Buffer = bytes | bytearray | memoryview
_SIZE: Final = Struct(">i")

RESPONSES_WAITING_MAX: Final = 512
"""Requests of one connection that may wait for a response; librdkafka has dozens in flight."""

SWEEPS_UNTIL_IDLE: Final = 4

logger = logging.getLogger(__name__)


class Reply:
    """One response, which its connection sends when all earlier responses are sent."""

    __slots__ = ("_buffers", "connection", "header")

    def __init__(self, connection: Connection, header: RequestHeader) -> None:
        self.connection = connection
        self.header = header
        self._buffers: list[Buffer] | None = None

    def send(self, body: Sequence[Buffer]) -> None:
        header = self.header
        head = response_header_bytes(header.api_key, header.api_version, header.correlation_id)
        size = len(head) + sum(len(buffer) for buffer in body)
        self._buffers = [_SIZE.pack(size) + head, *body]
        self.connection.flush()

    def send_nothing(self) -> None:
        """For acks=0, to which Kafka sends no response."""
        self._buffers = []
        self.connection.flush()

    @property
    def buffers(self) -> list[Buffer] | None:
        return self._buffers

    @property
    def request_name(self) -> str:
        """API, version and client id of the request, for a line of the log."""
        header = self.header
        client = f"client {header.client_id!r:.100}"
        return f"{api_name(header.api_key)} v{header.api_version} of {client}"


Handler = Callable[[Reply, memoryview | bytes], None]


class Connections:
    """The open connections: a limited number, and idle ones are closed.

    At the limit, a new connection replaces the oldest one that has not sent a request yet; if there
    is none, the new one is closed. Idle time is counted in sweeps, so that a request needs no
    clock: `sweep` is called `SWEEPS_UNTIL_IDLE` times per `connections.max.idle.ms`.
    """

    def __init__(self, *, connections_max: int) -> None:
        self._connections_max = connections_max
        self._open: set[Connection] = set()
        self._without_request: dict[Connection, None] = {}  # the oldest first
        self.sweeps = 0

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> None:
        if len(self._open) >= self._connections_max:
            replaced = next(iter(self._without_request), connection)
            logger.info(
                "%s: closing the connection: max.connections=%d is reached",
                replaced.peer,
                self._connections_max,
            )
            self.forget(replaced)
            replaced.abort()
            if replaced is connection:
                return
        self._open.add(connection)
        self._without_request[connection] = None

    def on_request(self, connection: Connection) -> None:
        self._without_request.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._without_request.pop(connection, None)

    def sweep(self) -> None:
        """Close connections without a request or a response for `SWEEPS_UNTIL_IDLE` sweeps."""
        self.sweeps += 1
        for connection in self:
            if self.sweeps - connection.active_at > SWEEPS_UNTIL_IDLE and not connection.is_waiting:
                self.forget(connection)
                connection.abort()


class Connection(asyncio.Protocol):
    """A connection of a client or a broker."""

    def __init__(
        self, handle: Handler, *, frame_bytes_max: int, connections: Connections, loop: BrokerLoop
    ) -> None:
        self._handle = handle
        self._loop = loop
        self._frames = FrameBuffer(frame_bytes_max)
        self._replies: deque[Reply] = deque()
        self._transport: asyncio.Transport | None = None
        self._connections = connections
        self._is_write_paused = False
        self._is_read_paused = False
        self.active_at = connections.sweeps
        self.on_close: list[Callable[[], None]] = []
        self.broker: tuple[int, int] | None = None  # id and incarnation that BrokerHello proved
        self.nonce = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._connections.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.forget(self)
        self._transport = None
        self._replies.clear()
        for callback in self.on_close:
            self._loop.run(callback)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def peer(self) -> str:
        """HOST:PORT of the client, for a line of the log."""
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        if not isinstance(address, tuple):
            return "unknown peer"
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its response."""
        return bool(self._replies)

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.receive(data)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        self._loop.run(self._handle_frames)

    def _handle_frames(self) -> None:
        """Handle every complete frame, until too many responses wait."""
        reply = None
        try:
            while self._transport is not None and not self._must_wait():
                frame = self._frames.next_frame()
                if frame is None:
                    break
                reply = Reply(self, read_request_header(frame))
                self._replies.append(reply)
                self.active_at = self._connections.sweeps
                self._connections.on_request(self)
                self._handle(reply, frame)
        except Refusal as refusal:
            self._refuse(refusal)
        except Exception:
            # Without this, the client would wait for a response that never comes.
            request = "a request" if reply is None else reply.request_name
            logger.exception("%s: %s failed; closing the connection", self.peer, request)
            self.close()
        self._update_reading()

    def flush(self) -> None:
        """Send the responses that are ready, up to the first that is not."""
        out: list[Buffer] = []
        while self._replies and (buffers := self._replies[0].buffers) is not None:
            out.extend(buffers)
            self._replies.popleft()
        if out and self._transport is not None:
            self.active_at = self._connections.sweeps
            self._transport.writelines(out)
        if self._is_read_paused and not self._must_wait():
            self._loop.then(self._handle_frames)

    def _must_wait(self) -> bool:
        return self._is_write_paused or len(self._replies) >= RESPONSES_WAITING_MAX

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._must_wait() and not self._is_read_paused:
            self._is_read_paused = True
            transport.pause_reading()
        elif self._is_read_paused and not self._must_wait():
            self._is_read_paused = False
            transport.resume_reading()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._loop.run(self._handle_frames)

    def _refuse(self, refusal: Refusal) -> None:
        logger.info("%s: closing the connection: %s", self.peer, refusal)
        self.close()

    def close(self) -> None:
        """Close after the responses that were sent have left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Answers that the client has not read are dropped."""
        if self._transport is not None:
            self._transport.abort()
