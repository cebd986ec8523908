"""Owners of callbacks and tasks: each belongs to the host that created it.

asyncio copies the context to everything that is scheduled, also across a simulated connection. So
the network delivers data in the context of the receiving host. A kill then cancels exactly the
tasks of the killed host, and a pause delays exactly the callbacks of the paused one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import ParamSpec

P = ParamSpec("P")

_current_host: ContextVar[int | None] = ContextVar("current_host", default=None)


def current_host() -> int | None:
    return _current_host.get()


def owner_of(context: Context) -> int | None:
    return context.get(_current_host)


@contextmanager
def acting_as(host: int | None) -> Iterator[None]:
    """This task and the tasks that it starts meanwhile run as `host`."""
    token = _current_host.set(host)
    try:
        yield
    finally:
        _current_host.reset(token)


def context_of(host: int | None) -> Context:
    """A context in which callbacks and tasks run as `host`."""
    context = copy_context()
    context.run(_current_host.set, host)
    return context


_CALLBACK_CONTEXTS: dict[int | None, Context] = {}


def callback_context(host: int | None) -> Context:
    """The context of callbacks that the loop itself runs as `host`, one after another.

    It is not for tasks, which keep their context, nor for a call from within another callback.
    """
    context = _CALLBACK_CONTEXTS.get(host)
    if context is None:
        context = _CALLBACK_CONTEXTS[host] = Context()
        context.run(_current_host.set, host)
    return context


def run_as(host: int | None, act: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    context_of(host).run(act, *args, **kwargs)
