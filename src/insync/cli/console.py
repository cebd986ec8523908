"""The width that output is laid out for: the terminal's, `COLUMNS`, or a wide page for a pipe."""

from __future__ import annotations

import os
from typing import IO

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 160


def make_console(file: IO[str] | None = None) -> Console:
    """rich reads `COLUMNS` by itself; without it, a pipe would be 80 wide."""
    console = Console(file=file)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(file=file, width=WIDTH_WITHOUT_TERMINAL)
