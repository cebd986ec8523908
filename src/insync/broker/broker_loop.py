"""Where the event loop enters the broker: a socket, a timer, a completed read, a metadata change.

Each such callback runs through `run`, which does three things:

1. It reads the clock once, and the callback's `now_ms` is that time. Reading the clock decides
   nothing.
2. If the event loop did not run for a while, the listener learns of the stall, and everything that
   follows from it is done, before the callback sees what waited in sockets and timers. A call
   that may block inside a callback (an append to a slow disk) is followed by `read_clock`, which
   notices a stall in the same way.
   What the listener does about a stall takes time, with thousands of partitions more than the
   shortest stall. That time is part of the same stall's aftermath and is not another stall: else
   handling one would cause the next, for ever.
3. What follows from the callback (answers to other clients, fetches to wake) is queued with `then`
   and performed in order before `run` returns. So no handler runs inside the stack of another
   one, and nothing waits for a later turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from insync.rules.stalls import STALL_MS_MIN, Stall

TICK_S: Final = 0.05
"""Half of the shortest stall: an idle loop enters the broker at least this often."""

DRAINING_TURNS: Final = 3
"""Turns of the loop after which it has read from every socket, in any order of its callbacks."""

logger = logging.getLogger(__name__)


class StallListener(Protocol):
    def on_stall(self, stall: Stall) -> None:
        """The event loop did not run. Comes before anything that waited meanwhile."""

    def on_drained(self) -> None:
        """What waited in the sockets during the stall has been read."""


class BrokerLoop:
    """Runs the callbacks of one broker, one after another."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.clock_ms = clock_ms  # monotonic
        self.stall_listener: StallListener | None = None
        self.stalls = 0
        self.stalled_ms = 0  # in all
        self._now_ms = clock_ms()
        self._is_running = False
        self._effects: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._turns_until_drained = 0

    def start(self) -> None:
        """Notice stalls from now on."""
        self._now_ms = self.clock_ms()
        self._tick()

    def stop(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None

    @property
    def now_ms(self) -> int:
        """The time of the callback that runs. A task that is not in a callback reads the clock."""
        return self._now_ms if self._is_running else self.clock_ms()

    @property
    def is_draining(self) -> bool:
        """What waited in the sockets during a stall has not all been read yet."""
        return self._turns_until_drained > 0

    def run(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a callback, and then everything that it queued."""
        if self._is_running:  # the broker was entered further up the stack
            callback(*arguments)
            return
        self._is_running = True
        try:
            self.read_clock()
            if self._effects:
                self._perform_effects()
            callback(*arguments)
        finally:
            if self._effects:
                self._perform_effects()
            self._is_running = False

    def then(self, effect: Callable[..., None], *arguments: object) -> None:
        """Perform this after the callback that runs, and after everything queued before."""
        self._effects.append((effect, arguments))
        if not self._is_running:
            self.run(_nothing)

    def call_later(
        self, delay_s: float, callback: Callable[..., None], *arguments: object
    ) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, self.run, callback, *arguments)

    def read_clock(self) -> int:
        """The time after a call that may have blocked; the first thing to do when one returns."""
        began_at_ms, self._now_ms = self._now_ms, self.clock_ms()
        if self._now_ms - began_at_ms >= STALL_MS_MIN and self._tick_timer is not None:
            self._on_stall(Stall(began_at_ms=began_at_ms, ended_at_ms=self._now_ms))
        return self._now_ms

    def _perform_effects(self) -> None:
        effects = self._effects
        while effects:
            effect, arguments = effects.popleft()
            try:
                effect(*arguments)
            except Exception:  # the others follow from states that count them as done
                name = getattr(effect, "__qualname__", effect)
                logger.exception("internal error in %s; other effects are performed", name)

    # Stalls.

    def _tick(self) -> None:
        self.run(_nothing)
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _on_stall(self, stall: Stall) -> None:
        self.stalls += 1
        self.stalled_ms += stall.length_ms
        was_draining = self.is_draining
        self._turns_until_drained = DRAINING_TURNS
        if not was_draining:
            asyncio.get_running_loop().call_soon(self.run, self._on_turn)
        if self.stall_listener is not None:
            self.stall_listener.on_stall(stall)
            self._now_ms = self.clock_ms()

    def _on_turn(self) -> None:
        self._turns_until_drained -= 1
        if self.is_draining:
            asyncio.get_running_loop().call_soon(self.run, self._on_turn)
        elif self.stall_listener is not None:
            self.stall_listener.on_drained()
            self._perform_effects()
            self._now_ms = self.clock_ms()


def _nothing() -> None:
    """For a tick, which only reads the clock."""
