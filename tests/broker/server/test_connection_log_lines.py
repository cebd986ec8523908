"""A line about a connection names its peer, and the API and client of a request that failed."""

from __future__ import annotations

import asyncio
from struct import pack
from typing import Any

import pytest

from insync.broker.broker_loop import BrokerLoop
from insync.broker.server.server import Connection, Connections, Reply
from insync.wire.apis import Api


class FakeTransport(asyncio.Transport):
    def __init__(self, peername: Any) -> None:
        super().__init__()
        self.peername = peername
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peername if name == "peername" else default

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


def fail(_reply: Reply, _frame: memoryview | bytes) -> None:
    raise ZeroDivisionError


def connect(peername: Any, *, connections_max: int = 10) -> tuple[Connection, FakeTransport]:
    connection = Connection(
        fail,
        frame_bytes_max=1_000,
        connections=Connections(connections_max=connections_max),
        loop=BrokerLoop(lambda: 0),
    )
    transport = FakeTransport(peername)
    connection.connection_made(transport)
    return connection, transport


def metadata_request(client: bytes) -> bytes:
    header = pack(">hhih", Api.METADATA, 1, 7, len(client)) + client
    return pack(">i", len(header)) + header


def test_a_request_that_fails_is_named_with_its_peer(caplog: pytest.LogCaptureFixture) -> None:
    connection, transport = connect(("10.0.0.7", 5_000))
    connection.data_received(metadata_request(b"orders"))
    assert transport.is_closed
    (line,) = caplog.messages
    assert line == "10.0.0.7:5000: METADATA v1 of client 'orders' failed; closing the connection"


def test_a_frame_that_is_refused_is_named_with_its_peer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    connection, transport = connect(("::1", 5_000, 0, 0))
    connection.data_received(pack(">i", 2_000))
    assert transport.is_closed
    (line,) = caplog.messages
    assert line.startswith("[::1]:5000: closing the connection: ")


def test_a_connection_above_the_limit_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    _, transport = connect(("10.0.0.7", 5_000), connections_max=0)
    assert transport.is_closed
    assert caplog.messages == [
        "10.0.0.7:5000: closing the connection: max.connections=0 is reached"
    ]


@pytest.mark.parametrize("peername", [None, ""])
def test_a_transport_without_an_address_is_named_too(peername: str | None) -> None:
    connection, _ = connect(peername)
    assert connection.peer == "unknown peer"
