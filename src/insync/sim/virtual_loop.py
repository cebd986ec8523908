"""An event loop whose clock jumps to the next thing that is due, so a minute costs milliseconds.

One loop runs every host, and each can be paused, as SIGSTOP does to a process: whatever becomes
due for it is held, in order, and runs when it resumes.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from insync.sim.ownership import owner_of

Ts = TypeVarTuple("Ts")


class NothingWillHappen(RuntimeError):
    """Everybody waits and no timer is set: in real life this would hang for ever."""


class _NoSelector(selectors.SelectSelector):
    """Nothing outside the loop ever becomes ready: waiting is only moving the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert self.loop is not None, "the selector belongs to a loop"
        if timeout is None:
            raise NothingWillHappen
        if timeout > 0:
            self.loop.jump()
        return []


class _Held:
    """What a handle does when its turn comes: run, unless its host is paused."""

    _loop: VirtualLoop
    _context: Context

    def _run(self) -> None:
        if self._loop.held and self._loop.hold(self):
            return
        super()._run()  # type: ignore[misc]


class _Handle(_Held, asyncio.Handle):
    pass


class _TimerHandle(_Held, asyncio.TimerHandle):
    pass


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """A loop of its own, which goes with everything that is left in it."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _NoSelector()
        self._now_s = 0.0
        self.held: dict[
            int | None, list[Any]
        ] = {}  # by paused host: the handles whose turn has come
        self._ready: Any  # asyncio's own two queues
        self._scheduled: Any
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now_s

    def jump(self) -> None:
        # The exact time of the next timer: adding up differences would drift.
        self._now_s = max(self._now_s, self._scheduled[0].when())

    def clock_ms(self) -> int:
        # Timers are set in seconds; a millisecond must not be missed by the last bit of a float.
        return int(self._now_s * 1_000 + 1e-6)

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)
        handle._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
        return handle

    # Pauses.

    def pause(self, host: int) -> None:
        self.held.setdefault(host, [])

    def resume(self, host: int, *, timers_first: bool) -> None:
        """Go on. What waited in the sockets and what was due may come in either order."""
        held = self.held.pop(host, [])
        if timers_first:
            held.sort(key=lambda handle: not isinstance(handle, asyncio.TimerHandle))
        self._ready.extend(handle for handle in held if not handle.cancelled())

    def forget(self, host: int) -> None:
        """A paused host died: nothing of what it was going to do will happen."""
        self.held.pop(host, None)

    def hold(self, handle: Any) -> bool:
        held = self.held.get(owner_of(handle._context))  # noqa: SLF001
        if held is None:
            return False
        held.append(handle)
        return True
