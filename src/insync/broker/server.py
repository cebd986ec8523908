"""Connections: frames in, answers out in the order they were asked, and push-back in between.

A request is handled as soon as it is whole; its answer may come later, but a connection's answers
leave in the order of its requests, as Kafka's clients expect. A client that asks faster than it
reads is not read from until it catches up, so what waits for it stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, cast

from insync.rules.refusals import Refusal
from insync.wire.frames import FrameBuffer
from insync.wire.headers import RequestHeader, read_request_header, response_header_bytes

Buffer = bytes | bytearray | memoryview
_SIZE: Final = Struct(">i")

ANSWERS_WAITING_MAX: Final = 512
"""Requests of one connection that may wait for an answer: librdkafka has dozens in flight."""

SWEEPS_UNTIL_IDLE: Final = 4

logger = logging.getLogger(__name__)


class Reply:
    """The place of one answer in its connection's order."""

    __slots__ = ("_buffers", "connection", "header")

    def __init__(self, connection: Connection, header: RequestHeader) -> None:
        self.connection = connection
        self.header = header
        self._buffers: list[Buffer] | None = None

    def send(self, body: Sequence[Buffer]) -> None:
        header = self.header
        head = response_header_bytes(header.api_key, header.api_version, header.correlation_id)
        size = len(head) + sum(len(part) for part in body)
        self._buffers = [_SIZE.pack(size) + head, *body]
        self.connection.flush()

    def send_nothing(self) -> None:
        """For acks=0, which Kafka answers with silence."""
        self._buffers = []
        self.connection.flush()

    @property
    def buffers(self) -> list[Buffer] | None:
        return self._buffers


Handler = Callable[[Reply, memoryview | bytes], None]


class Connections:
    """Who is connected: no more than may be, and nobody who has been silent for too long.

    When all places are taken, whoever has held one longest without a single request makes room;
    if there is no such one the newcomer is closed. Silence is counted in sweeps, so that a request
    costs no look at a clock: `sweep` is called `SWEEPS_UNTIL_IDLE` times in the time allowed.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._open: set[Connection] = set()
        self._mute: dict[Connection, None] = {}  # have asked nothing yet, the longest here first
        self.sweeps = 0

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> None:
        if len(self._open) >= self._most:
            leaving = next(iter(self._mute), connection)
            logger.info("closing a connection: all %d places are taken", self._most)
            self.forget(leaving)
            leaving.abort()
            if leaving is connection:
                return
        self._open.add(connection)
        self._mute[connection] = None

    def heard(self, connection: Connection) -> None:
        self._mute.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._mute.pop(connection, None)

    def sweep(self) -> None:
        """Close whoever neither asked nor was answered for as long as is allowed."""
        self.sweeps += 1
        for connection in self:
            if self.sweeps - connection.active_at > SWEEPS_UNTIL_IDLE and not connection.is_waiting:
                self.forget(connection)
                connection.abort()


class Connection(asyncio.Protocol):
    """One client or broker; `broker` says who it proved to be."""

    def __init__(self, handle: Handler, *, frame_bytes_max: int, everybody: Connections) -> None:
        self._handle = handle
        self._frames = FrameBuffer(frame_bytes_max)
        self._replies: deque[Reply] = deque()
        self._transport: asyncio.Transport | None = None
        self._everybody = everybody
        self._is_write_paused = False
        self._is_read_paused = False
        self._is_handling = False
        self.active_at = everybody.sweeps
        self.on_close: list[Callable[[], None]] = []
        self.broker: tuple[int, int] | None = None  # id and incarnation, proven
        self.nonce = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclass
        self._everybody.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._everybody.forget(self)
        self._transport = None
        self._replies.clear()
        for callback in self.on_close:
            callback()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked something that was not answered yet."""
        return bool(self._replies)

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.receive(data)
        except Refusal as refusal:
            self._refuse(refusal)
            return
        self._work()

    def _work(self) -> None:
        """Handle every whole frame, unless too many answers are waiting already."""
        if self._is_handling:
            return  # an answer given at once leads back here
        self._is_handling = True
        try:
            while self._transport is not None and not self._must_wait():
                frame = self._frames.next_frame()
                if frame is None:
                    break
                reply = Reply(self, read_request_header(frame))
                self._replies.append(reply)
                self.active_at = self._everybody.sweeps
                self._everybody.heard(self)
                self._handle(reply, frame)
        except Refusal as refusal:
            self._refuse(refusal)
        except Exception:
            # A handler's bug must not look like a hang to the client.
            logger.exception("a request failed; closing its connection")
            self.close()
        finally:
            self._is_handling = False
        self._push_back()

    def flush(self) -> None:
        """Send the answers that are ready, as far as the order allows."""
        out: list[Buffer] = []
        while self._replies and (buffers := self._replies[0].buffers) is not None:
            out.extend(buffers)
            self._replies.popleft()
        if out and self._transport is not None:
            self.active_at = self._everybody.sweeps
            self._transport.writelines(out)
        if self._is_read_paused and not self._must_wait():
            self._work()

    def _must_wait(self) -> bool:
        return self._is_write_paused or len(self._replies) >= ANSWERS_WAITING_MAX

    def _push_back(self) -> None:
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
        self._push_back()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._work()

    def _refuse(self, refusal: Refusal) -> None:
        logger.info("closing a connection: %s", refusal)
        self.close()

    def close(self) -> None:
        """Once what was answered has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once: a peer that does not read would keep the rest in our memory."""
        if self._transport is not None:
            self._transport.abort()
