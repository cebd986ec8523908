"""An event loop whose clock jumps to the next timer, so a minute costs milliseconds.

One loop runs every host. A host can be paused, as SIGSTOP does to a process: its callbacks that
become due are held, in order, and run when it resumes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any, TypeVarTuple, Unpack

from insync.sim.ownership import owner_of

Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Every task waits and no timer is set: with a real clock this would hang for ever."""


class _Handle(asyncio.Handle):
    """asyncio's own, without what only its debug mode uses: a run makes hundreds of thousands."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: Any, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: Any,
        context: Context | None,
    ) -> None:
        _Handle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when = when
        self._scheduled = False


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """A new loop, closed at the end with all tasks that are left in it."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            _close_if_unbegun(task)  # what was cancelled may have created it
        asyncio.set_event_loop(None)
        loop.close()


def _close_if_unbegun(task: asyncio.Task[Any]) -> None:
    """For a task that will not run again: Python warns of a coroutine that is never awaited, in
    whatever runs when it is collected."""
    coroutine = task.get_coro()
    if isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) == CORO_CREATED:
        coroutine.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now_s = 0.0
        # By paused host: the handles that are due.
        self.held: dict[int | None, list[Any]] = {}
        self._ready: Any  # asyncio's own queue
        self._stopping: bool
        self._timers: list[tuple[float, int, _TimerHandle]] = []
        self._timers_ever = 0  # timers of one time run in the order in which they were set
        super().__init__()

    def time(self) -> float:
        return self._now_s

    def clock_ms(self) -> int:
        # Timers are in seconds; float rounding must not turn a millisecond into the one before.
        return int(self._now_s * 1_000 + 1e-6)

    def next_event_s(self) -> float:
        """When the next callback is due: now, or the time of the next timer."""
        if self._ready or not self._timers:
            return self._now_s
        return max(self._now_s, self._timers[0][0])

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
        self._timers_ever += 1
        heapq.heappush(self._timers, (when, self._timers_ever, handle))
        return handle

    def _run_once(self) -> None:
        """One turn, as asyncio's, but it never waits: the clock jumps to the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:  # noqa: SLF001 - as asyncio does
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled or (self.held and self.hold(handle)):  # noqa: SLF001
                continue
            try:
                handle._context.run(handle._callback, *handle._args)  # noqa: SLF001
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {handle._callback!r}"  # noqa: SLF001
                self.call_exception_handler({"message": message, "exception": error})

    # Pauses.

    def pause(self, host: int) -> None:
        self.held.setdefault(host, [])

    def resume(self, host: int, *, timers_first: bool) -> None:
        """Run what was held. Received data and due timers may come in either order."""
        held = self.held.pop(host, [])
        if timers_first:
            held.sort(key=lambda handle: not isinstance(handle, asyncio.TimerHandle))
        self._ready.extend(handle for handle in held if not handle.cancelled())

    def forget(self, host: int) -> None:
        """Drop what a paused host was going to run: it was killed."""
        for handle in self.held.pop(host, []):
            task = getattr(handle._callback, "__self__", None)  # noqa: SLF001
            if isinstance(task, asyncio.Task):
                _close_if_unbegun(task)

    def hold(self, handle: Any) -> bool:
        held = self.held.get(owner_of(handle._context))  # noqa: SLF001
        if held is None:
            return False
        held.append(handle)
        return True
