"""Programs on a terminal: what they draw there, and the keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable

ROWS, COLUMNS = 40, 160
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
DRAWN = re.compile(rf"{ESCAPES.pattern}|[\r\n]|[^\x1b\r\n]+")
ERASE_LINE, CURSOR_UP = "\x1b[2K", re.compile(r"\x1b\[(\d+)A")


def take_the_terminal() -> None:
    """In the child: Ctrl-C pressed there is meant for it, also if a shell made us ignore ours."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Terminal:
    """A program on a terminal of its own, and all that it has written there."""

    def __init__(self, arguments: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            self.process = subprocess.Popen(
                arguments,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env={**os.environ, "TERM": "xterm"},
                start_new_session=True,
                preexec_fn=take_the_terminal,  # noqa: PLW1509
            )
        finally:
            os.close(theirs)
        self._written = b""

    def read_until(self, is_enough: Callable[[], bool], *, within_s: float) -> None:
        """What is written until then, or until the program has closed its terminal."""
        deadline_s = time.monotonic() + within_s
        while not is_enough():
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"not within {within_s} s: {self.text}"
            if select.select([self._ours], [], [], left_s)[0]:
                try:
                    self._written += os.read(self._ours, 65_536)
                except OSError:  # a terminal's end of file: no process writes any more
                    return

    def read_to_the_end(self) -> int:
        """All of it, and the exit code."""
        self.read_until(lambda: False, within_s=60)
        return self.process.wait(10)

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._written.decode(errors="replace"))

    @property
    def shows_its_cursor(self) -> bool:
        return self._written.rfind(b"\x1b[?25h") >= self._written.rfind(b"\x1b[?25l")

    @property
    def screen(self) -> list[str]:
        """The lines on the screen now, as far as our programs draw."""
        lines, row = [""], 0
        for part in DRAWN.findall(self._written.decode(errors="replace")):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part == ERASE_LINE:
                lines[row] = ""
            elif up := CURSOR_UP.fullmatch(part):
                row = max(0, row - int(up[1]))
            elif part[0] not in "\r\x1b":
                lines[row] += part
        return [line.rstrip() for line in lines]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
