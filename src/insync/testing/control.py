"""The control socket: a line of JSON in, a line of JSON out, in threads of its own.

The broker's loop may be stuck in the very fault that a command is to end, so it takes no part.
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
    """A broker that could not be told, or would not do it."""


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
                while (line := self.rfile.readline(LINE_BYTES_MAX + 1)) and self._answer(line):
                    pass

            def _answer(self, line: bytes) -> bool:
                """False: what follows cannot be told from the rest of this line."""
                is_whole = len(line) <= LINE_BYTES_MAX
                answer: dict[str, object] = {"ok": True}
                try:
                    if not is_whole:
                        raise BadCommand(f"a line has at most {LINE_BYTES_MAX} bytes")
                    perform(parse(line))
                except Refusal as refusal:
                    answer = {"error": str(refusal)}
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                return is_whole

        (self._folder / SOCKET_NAME).unlink(missing_ok=True)  # of a process that was killed
        with _short(self._folder) as path:
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
        """A caller that went away or fell asleep: nobody is left to be told."""


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A name of the socket that fits: the kernel takes 107 bytes, and test folders are deep."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def tell(folder: Path, command: Command, *, within_s: float) -> None:
    """Have the broker that keeps its files in `folder` perform a command."""
    try:
        with _short(folder) as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(within_s)
            connection.connect(path)
            connection.sendall(encode(command))
            with connection.makefile("rb") as answers:
                line = answers.readline(2 * LINE_BYTES_MAX)
    except TimeoutError:
        raise CommandRefused(f"no answer within {within_s} s; a paused broker gives none") from None
    except OSError as error:
        raise CommandRefused(f"no broker with faults runs there: {error.strerror}") from None
    answer = json.loads(line) if line else {"error": "the broker ended"}
    if "error" in answer:
        raise CommandRefused(answer["error"])
