"""Time that passes while a node of the store stays as it is.

No time is in the store: clocks of two machines have nothing in common. Whoever is controller counts
from when it first saw the node as controller, so a change of controllers makes a wait longer, never
shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting", bound=Hashable)


class Countdown(Generic[Waiting]):
    """Counts from when this controller first saw each, and wakes it when one is over."""

    def __init__(self, lasts_ms: int, *, wake: Callable[[], None]) -> None:
        self._lasts_s = lasts_ms / 1_000
        self._wake = wake
        self._over_at_s: dict[Waiting, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def last(self, lasts_ms: int) -> None:
        """For as long from now on; who waits already waits on as was said."""
        self._lasts_s = lasts_ms / 1_000

    def over(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """Of those that wait now, who has done so for long enough."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._over_at_s = {
            each: self._over_at_s.get(each, now_s + self._lasts_s) for each in waiting
        }
        over = [each for each, at_s in self._over_at_s.items() if at_s <= now_s]
        self._stop()
        next_s = min((at_s for at_s in self._over_at_s.values() if at_s > now_s), default=None)
        if next_s is not None:
            self._timer = loop.call_at(next_s, self._wake)
        return over

    def ended(self, over: Iterable[Waiting]) -> None:
        """They were taken away: who comes again begins anew."""
        for each in over:
            self._over_at_s.pop(each, None)

    def forget(self) -> None:
        """Somebody else is the controller."""
        self._over_at_s = {}
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
