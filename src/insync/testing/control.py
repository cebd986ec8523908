"""The control socket: a line of JSON in, a line of JSON out, in its own threads.

The broker's event loop may be blocked by the fault that a command should end, so it is not used.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from threading import Thread
from typing import Final

from insync.rules.refusals import Refusal
from insync.testing.commands import LINE_BYTES_MAX, BadCommand, Command, encode, parse

SOCKET_NAME: Final = ".control"
IDLE_S: Final = 10.0
POLL_S: Final = 0.05


class CommandRefused(Refusal):
    """The broker did not get the command, or refused it."""


class ControlSocket:
    """Serves in `folder` for as long as the context lasts. `perform` is called in its threads."""

    def __init__(self, folder: Path, perform: Callable[[Command], None]) -> None:
        self._folder = folder
        self._perform = perform

    def __enter__(self) -> ControlSocket:
        perform = self._perform

        class Handler(StreamRequestHandler):
            timeout = IDLE_S

            def handle(self) -> None:
                while (line := self.rfile.readline(LINE_BYTES_MAX + 1)) and self._respond(line):
                    pass

            def _respond(self, line: bytes) -> bool:
                """False: the line is too long, and what follows is its rest."""
                is_complete = len(line) <= LINE_BYTES_MAX
                response: dict[str, object] = {"ok": True}
                try:
                    if not is_complete:
                        raise BadCommand(f"a line has at most {LINE_BYTES_MAX} bytes")
                    perform(parse(line))
                except Refusal as refusal:
                    response = {"error": str(refusal)}
                self.wfile.write(json.dumps(response).encode() + b"\n")
                return is_complete

        (self._folder / SOCKET_NAME).unlink(missing_ok=True)  # of a process that was killed
        with _short_path(self._folder) as path:
            self._server = _Server(path, Handler)
        (self._folder / SOCKET_NAME).chmod(0o600)
        self._thread = Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="control", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The caller disconnected or timed out, so there is nothing to report."""


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A short path of the socket: the kernel allows 107 bytes, and folders of tests are deep."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def send_command(folder: Path, command: Command, *, within_s: float) -> None:
    """Send a command to the broker whose files are in `folder`; returns when it is performed."""
    try:
        with _short_path(folder) as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within_s)
            connection.connect(path)
            connection.sendall(encode(command))
            with connection.makefile("rb") as responses:
                line = responses.readline(2 * LINE_BYTES_MAX)
    except TimeoutError:
        raise CommandRefused(f"no response within {within_s} s; is the broker paused?") from None
    except OSError as error:
        raise CommandRefused(f"no broker with faults runs in {folder}: {error.strerror}") from None
    response = json.loads(line) if line else {"error": "the broker ended"}
    if "error" in response:
        raise CommandRefused(response["error"])
