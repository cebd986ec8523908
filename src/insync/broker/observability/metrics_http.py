"""The small part of HTTP that serves /metrics, on the broker's event loop, without authentication.

A connection serves one request. It is closed after `REQUEST_TIMEOUT_S` if the client sends no
request or does not read the answer. However often clients ask, metrics are collected at most once
per `FRESH_MS`. `/metrics?partitions=all` is long with many partitions, so it is collected in turns,
between which other tasks run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, cast

REQUEST_BYTES_MAX: Final = 8_192
CONNECTIONS_MAX: Final = 16
REQUEST_TIMEOUT_S: Final = 10.0
FRESH_MS: Final = 100
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}
REQUEST_LINE_PARTS: Final = 3

logger = logging.getLogger(__name__)


class MetricsHttp:
    """The open connections, and the latest metrics text."""

    def __init__(
        self,
        collect: Callable[[], bytes],
        *,
        collect_all: Callable[[], Iterator[bytes]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._collect = collect
        self._collect_all = collect_all
        self._latest_all: tuple[int, bytes] | None = None
        self._collecting: asyncio.Task[bytes] | None = None
        self._clock_ms = clock_ms
        self._latest: tuple[int, bytes] | None = None
        self._open: dict[MetricsConnection, None] = {}  # the oldest first

    def connection(self) -> MetricsConnection:
        return MetricsConnection(self)

    def text(self) -> bytes:
        now_ms = self._clock_ms()
        if self._latest is None or now_ms - self._latest[0] >= FRESH_MS:
            self._latest = now_ms, self._collect()
        return self._latest[1]

    async def text_of_all_partitions(self) -> bytes:
        """Requests that come while it is collected share one collection."""
        if self._latest_all is not None:
            collected_at_ms, text = self._latest_all
            if self._clock_ms() - collected_at_ms < FRESH_MS:
                return text
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect_in_turns())
        return await asyncio.shield(self._collecting)

    async def _collect_in_turns(self) -> bytes:
        parts = []
        for part in self._collect_all():
            parts.append(part)
            await asyncio.sleep(0)
        text = b"".join(parts)
        self._latest_all = self._clock_ms(), text
        return text

    def admit(self, connection: MetricsConnection) -> None:
        self._open[connection] = None
        if len(self._open) > CONNECTIONS_MAX:
            next(iter(self._open)).abort()

    def forget(self, connection: MetricsConnection) -> None:
        self._open.pop(connection, None)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        if self._collecting is not None:
            self._collecting.cancel()


class MetricsConnection(asyncio.Protocol):
    def __init__(self, server: MetricsHttp) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_answered = False
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)
        self._server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._server.forget(self)

    def abort(self) -> None:
        self._server.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._answering is not None:
            return
        self._received += data
        head, blank, _ = bytes(self._received).replace(b"\r\n", b"\n").partition(b"\n\n")
        if blank:
            self._answer(head)
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._send(431, b"")

    def _answer(self, head: bytes) -> None:
        parts = head.split(b"\n", 1)[0].split(b" ")
        path, _, query = parts[1].partition(b"?") if len(parts) > 1 else (b"", b"", b"")
        if len(parts) != REQUEST_LINE_PARTS or not parts[2].startswith(b"HTTP/1."):
            self._send(400, b"")
        elif parts[0] not in (b"GET", b"HEAD"):
            self._send(405, b"")
        elif path != b"/metrics":
            self._send(404, b"see /metrics\n")
        elif partitions := _values(query, b"partitions"):
            if partitions == [b"all"]:
                sending = self._send_all_partitions(with_body=parts[0] == b"GET")
                self._answering = asyncio.create_task(sending)
            else:
                self._send(400, b"the only value of partitions is all\n")
        else:
            self._send_metrics(with_body=parts[0] == b"GET")

    def _send_metrics(self, *, with_body: bool) -> None:
        try:
            text = self._server.text()
        except Exception:
            self._send_failed()
        else:
            self._send(200, text, with_body=with_body)

    async def _send_all_partitions(self, *, with_body: bool) -> None:
        try:
            text = await self._server.text_of_all_partitions()
        except Exception:
            self._send_failed()
        else:
            self._send(200, text, with_body=with_body)

    def _send_failed(self) -> None:
        logger.exception("metrics: could not be collected; the scrape is answered with 500")
        self._send(500, b"")

    def _send(self, status: int, body: bytes, *, with_body: bool = True) -> None:
        self._is_answered = True
        self._received.clear()
        assert self._transport is not None, "a request arrived on it"
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()


def _values(query: bytes, name: bytes) -> list[bytes]:
    """The values of this parameter in a query string."""
    parameters = (parameter.partition(b"=") for parameter in query.split(b"&"))
    return [value for key, _, value in parameters if key == name]
