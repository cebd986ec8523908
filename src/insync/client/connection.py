"""A connection: responses are matched by correlation id; when it ends, all requests fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, Protocol, cast

from insync.rules.refusals import Refusal
from insync.wire import messages
from insync.wire.apis import Api
from insync.wire.frames import FRAME_BYTES_MAX, FrameBuffer
from insync.wire.headers import response_body_at, response_correlation_id, write_request_header

ASKS_FOR_SASL: Final = "does its listener require SASL? (security.protocol)"

_SIZE: Final = Struct(">i")


class Disconnected(Refusal):
    """The broker could not be reached, or disconnected before it responded."""


class Network(Protocol):
    """What opens connections: the machine's sockets, or a simulation."""

    async def connect(
        self, host: str, port: int, protocol: ClientConnection
    ) -> asyncio.Transport: ...


class ClientConnection(asyncio.Protocol):
    def __init__(self, *, client_id: str, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._client_id = client_id
        self._frames = FrameBuffer(frame_bytes_max)
        self._transport: asyncio.Transport | None = None  # to send on
        self._retired: asyncio.Transport | None = None  # only to receive the last responses
        self._next_id = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[memoryview | bytes]]] = {}
        self.ended_by: Exception | None = (
            None  # the network's error, or what was wrong with received data
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._retired = None
        self.ended_by = self.ended_by or exc
        why = f": {self.ended_by}" if isinstance(self.ended_by, Refusal) else ""
        waiting, self._waiting = self._waiting, {}
        for *_, future in waiting.values():
            if not future.done():
                future.set_exception(Disconnected(f"the connection ended before the response{why}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.receive(data)
            while (frame := self._frames.next_frame()) is not None:
                key = self._waiting.pop(response_correlation_id(frame), None)
                if key is not None and not key[2].done():
                    key[2].set_result(frame)
        except Refusal as refusal:
            self.ended_by = refusal
            self.close()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def ask(
        self, api: int, version: int, body: Sequence[bytes | memoryview]
    ) -> tuple[memoryview | bytes, int]:
        """Send a request; returns the response's frame and where its body begins."""
        frame = await self.send(api, version, body)
        return frame, response_body_at(api, version, frame)

    def send(
        self, api: int, version: int, body: Sequence[bytes | memoryview]
    ) -> asyncio.Future[memoryview | bytes]:
        """Send a request now; the future gets the response's frame."""
        if self._transport is None:
            raise Disconnected("the connection is closed")
        correlation_id = self._next_id
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head = write_request_header(
            api_key=api,
            api_version=version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        size = len(head) + sum(len(part) for part in body)
        future: asyncio.Future[memoryview | bytes] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = (api, version, future)
        self._transport.writelines([_SIZE.pack(size) + head, *body])
        return future

    async def request(self, entity: Any) -> Any:
        """Send a message and return its response, both as entities of `kio`."""
        api, version = Api(entity.__api_key__), entity.__version__
        frame, body_at = await self.ask(api, version, [messages.write_request(entity)])
        return messages.read_response(api, version, frame, body_at)

    def retire(self) -> None:
        """Send no more requests, and close when the pending ones have responses."""
        if self._transport is None:
            return
        self._retired, self._transport = self._transport, None
        for *_, future in self._waiting.values():
            future.add_done_callback(lambda _: self._close_if_idle())
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if all(future.done() for *_, future in self._waiting.values()):
            self.close()

    def close(self) -> None:
        """Close. Pending requests fail when the connection is lost."""
        transport = self._transport or self._retired
        self._transport = self._retired = None
        if transport is None:
            return
        if transport.get_extra_info("ssl_object") is None:
            transport.close()
        else:
            transport.abort()  # without TLS's closing handshake, which would only delay
