"""A bootstrap address that is not a broker's: reported at once, or in a second or two."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from insync.cli import main as cli

Conversation = Callable[[socket.socket], None]


@contextmanager
def serving(converse: Conversation) -> Iterator[int]:
    """A server that runs this function for each client; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                Thread(target=converse, args=(connection,), daemon=True).start()

        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def wait_for_a_line(connection: socket.socket) -> None:
    """As Python's http.server does: nothing is answered before the request is whole."""
    with connection, connection.makefile("rb") as lines:
        lines.readline()
        connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


def greet(connection: socket.socket) -> None:
    with connection:
        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        connection.recv(1_000)


def error_of(capsys: pytest.CaptureFixture[str], addresses: str) -> str:
    began_s = time.monotonic()
    assert cli.main(["topics", "-b", addresses, "--list"]) == 1
    assert time.monotonic() - began_s < 8, "it waited for the timeout of a request"
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_a_web_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(wait_for_a_line) as port:
        assert error_of(capsys, f"127.0.0.1:{port}") == (
            f"insync: what answers at 127.0.0.1:{port} speaks HTTP, not Kafka's protocol; "
            "give --bootstrap-server the port of a broker's listener\n"
        )


def test_a_web_server_is_named_when_another_address_is_unreachable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    with serving(wait_for_a_line) as port:
        message = error_of(capsys, f"127.0.0.1:{free},127.0.0.1:{port}")
    assert f"what answers at 127.0.0.1:{port} speaks HTTP" in message


def test_a_server_that_sends_first_does_not_speak_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(greet) as port:
        message = error_of(capsys, f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: does not speak Kafka's protocol" in message
