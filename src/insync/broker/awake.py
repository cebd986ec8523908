"""Whether this broker was running: time, read in one place that notices when it has jumped.

A process that was stopped, or a loop that was held up, finds on waking its timers due and its
sockets full. Whoever asks for the time first is told so before anything else happens, whether it
is a timer or a request that waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from insync.rules.stalls import STALL_MS_MIN, Stall

TICK_S: Final = 0.05
"""Half of the shortest stall: an idle loop is seen running at least this often."""

DRAINING_TURNS: Final = 3
"""Turns of the loop after which it has read from every socket, in whatever order it does things."""


class Awake:
    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._seen_at_ms = clock_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._turns_left = 0
        self.stalls = 0
        self.stalled_ms = 0  # in all
        self.on_stall: Callable[[Stall], None] = lambda _stall: None
        self.on_drained: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._seen_at_ms = self._clock_ms()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def now_ms(self) -> int:
        now_ms = self._clock_ms()
        began_at_ms, self._seen_at_ms = self._seen_at_ms, now_ms
        if now_ms - began_at_ms >= STALL_MS_MIN and self._timer is not None:
            self._wake_up(Stall(began_at_ms=began_at_ms, ended_at_ms=now_ms))
        return now_ms

    @property
    def is_draining(self) -> bool:
        """What waited in the sockets during a stall has not all been read yet."""
        return self._turns_left > 0

    def _tick(self) -> None:
        self.now_ms()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _wake_up(self, stall: Stall) -> None:
        self.stalls += 1
        self.stalled_ms += stall.length_ms
        was_draining = self.is_draining
        self._turns_left = DRAINING_TURNS
        if not was_draining:
            asyncio.get_running_loop().call_soon(self._turn)
        self.on_stall(stall)

    def _turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.on_drained()
