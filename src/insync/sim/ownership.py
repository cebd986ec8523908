"""Whose work is being done: every callback and task belongs to the host in whose name it was made.

asyncio hands the context on to whatever is scheduled, also across a simulated wire; so whoever
delivers something to another host does it in that host's name. A crash then ends exactly the
tasks of the host that crashed, and a pause holds exactly what that host would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import ParamSpec

P = ParamSpec("P")

_whose: ContextVar[int | None] = ContextVar("whose", default=None)


def owner() -> int | None:
    return _whose.get()


def owner_of(context: Context) -> int | None:
    return context.get(_whose)


@contextmanager
def acting_as(host: int | None) -> Iterator[None]:
    """Inside, in this task and in what it starts, work is this host's."""
    token = _whose.set(host)
    try:
        yield
    finally:
        _whose.reset(token)


def context_of(host: int | None) -> Context:
    """A context in which work is this host's."""
    context = copy_context()
    context.run(_whose.set, host)
    return context


def in_the_name_of(
    host: int | None, act: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    context_of(host).run(act, *args, **kwargs)
