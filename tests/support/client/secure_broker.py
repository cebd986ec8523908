"""A broker with security: TLS by a real context, SASL by a script, on a real socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from kio.schema.errors import ErrorCode

from insync.wire import messages
from insync.wire.any_version import build
from insync.wire.apis import Api
from insync.wire.frames import BadFrame, FrameBuffer
from insync.wire.headers import read_request_header, response_header_bytes

HOST = "127.0.0.1"
WITHOUT_SASL = {Api.API_VERSIONS: (0, 0), Api.METADATA: (1, 8)}
WITH_SASL = {**WITHOUT_SASL, Api.SASL_HANDSHAKE: (0, 1), Api.SASL_AUTHENTICATE: (0, 2)}

# A token and what a broker says to it: bytes to go on with, or None to refuse.
Listen = Callable[[bytes], bytes | None]


@dataclass(slots=True, kw_only=True)
class SecureBroker:
    """`new_login` makes what checks the tokens of one connection; None: no SASL."""

    tls: ssl.SSLContext | None = None
    new_login: Callable[[], Listen] | None = None
    mechanisms: tuple[str, ...] = ("PLAIN",)
    versions: Mapping[Api, tuple[int, int]] = field(default_factory=lambda: WITH_SASL)
    lifetime: timedelta = timedelta(0)
    answer_after_s: float = 0.0
    port: int = 0
    connections: int = 0
    refused: int = 0
    late: int = 0  # questions after a session was over

    @asynccontextmanager
    async def served(self) -> AsyncIterator[SecureBroker]:
        loop = asyncio.get_running_loop()
        open_ones: set[_Serving] = set()
        server = await loop.create_server(lambda: _Serving(self, open_ones), HOST, 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for each in list(open_ones):
                each.transport.abort()
            await server.wait_closed()
            await asyncio.sleep(0.01)  # uvloop's transports end a round later


class _Serving(asyncio.Protocol):
    def __init__(self, broker: SecureBroker, open_ones: set[_Serving]) -> None:
        self.broker = broker
        self.open_ones = open_ones
        self.frames = FrameBuffer()
        self.login = None if broker.new_login is None else broker.new_login()
        self.is_known = self.login is None
        self.ends_at_s = float("inf")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.broker.connections += 1
        self.open_ones.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.open_ones.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.frames.receive(data)
            while (frame := self.frames.next_frame()) is not None:
                self._serve(frame)
        except BadFrame:
            self.transport.close()

    def _serve(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        api, version = Api(header.api_key), header.api_version
        request = messages.read_request(api, version, frame, header.body_at)
        loop = asyncio.get_running_loop()
        if api is Api.METADATA and (not self.is_known or loop.time() > self.ends_at_s):
            self.broker.late += self.is_known
            self.transport.close()
            return
        values = self._values(api, request)
        body = messages.write_response(build(messages.response_type(api, version), values))
        head = response_header_bytes(api, version, header.correlation_id)
        answer = len(head + body).to_bytes(4, "big") + head + body
        pause_s = self.broker.answer_after_s if api is Api.METADATA else 0.0
        loop.call_later(pause_s, self.transport.write, answer)

    def _values(self, api: Api, request: Any) -> dict[str, Any]:
        match api:
            case Api.API_VERSIONS:
                offered = [
                    {"api_key": key, "min_version": first, "max_version": last}
                    for key, (first, last) in self.broker.versions.items()
                ]
                return {"api_keys": offered}
            case Api.SASL_HANDSHAKE:
                return self._handshake(request.mechanism)
            case Api.SASL_AUTHENTICATE:
                return self._authenticate(request.auth_bytes)
            case _:
                own = {"node_id": 1, "host": HOST, "port": self.broker.port}
                return {"brokers": [own], "controller_id": 1, "topics": []}

    def _handshake(self, mechanism: str) -> dict[str, Any]:
        is_taken = mechanism in self.broker.mechanisms
        error = ErrorCode.none if is_taken else ErrorCode.unsupported_sasl_mechanism
        if self.login is None:
            error = ErrorCode.illegal_sasl_state
        return {"error_code": error, "mechanisms": self.broker.mechanisms}

    def _authenticate(self, token: bytes) -> dict[str, Any]:
        assert self.login is not None, "shaken hands on"
        answer = self.login(token)
        if answer is None:
            self.broker.refused += 1
            why = "Authentication failed: Invalid username or password"
            error = ErrorCode.sasl_authentication_failed
            return {"error_code": error, "error_message": why, "auth_bytes": b""}
        self.is_known = True
        if self.broker.lifetime:
            lifetime_s = self.broker.lifetime.total_seconds()
            self.ends_at_s = asyncio.get_running_loop().time() + lifetime_s
        return {"auth_bytes": answer, "session_lifetime": self.broker.lifetime}
