"""Whose work is being done: every task belongs to the host in whose name it was made.

asyncio hands the context on to whatever is scheduled, also across a simulated wire; so whoever
delivers something to another host does it in that host's name. A crash then ends exactly the
tasks of the host that crashed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import ParamSpec

P = ParamSpec("P")

_whose: ContextVar[int | None] = ContextVar("whose", default=None)


def owner() -> int | None:
    return _whose.get()


def act_as(host: int | None) -> None:
    """From here on, in this task and what it starts, work is this host's."""
    _whose.set(host)


def in_the_name_of(host: int, act: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    def acting() -> None:
        _whose.set(host)
        act(*args, **kwargs)

    copy_context().run(acting)
