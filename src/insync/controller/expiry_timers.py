"""Timers of nodes of the store, each of which expires if its node stays as it is for long enough.

The store has no times: clocks of two machines have nothing in common. A controller counts from when
it first saw the node as controller, so a change of controllers makes a wait longer, never shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class ExpiryTimers(Generic[Key]):
    """Counts from when this controller first saw each key, and wakes it when one expires."""

    def __init__(self, duration_ms: int, *, wake: Callable[[], None]) -> None:
        self._duration_s = duration_ms / 1_000
        self._wake = wake
        self._expires_at_s: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_duration(self, duration_ms: int) -> None:
        """For timers that start from now on; running ones keep theirs."""
        self._duration_s = duration_ms / 1_000

    def expired(self, keys: Iterable[Key]) -> list[Key]:
        """Start and drop timers, so that there is one for each of `keys`; return the expired."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._expires_at_s = {
            key: self._expires_at_s.get(key, now_s + self._duration_s) for key in keys
        }
        expired = [key for key, at_s in self._expires_at_s.items() if at_s <= now_s]
        self._stop()
        next_s = min((at_s for at_s in self._expires_at_s.values() if at_s > now_s), default=None)
        if next_s is not None:
            self._timer = loop.call_at(next_s, self._wake)
        return expired

    def remove(self, keys: Iterable[Key]) -> None:
        """Their nodes were deleted: the timer of a node that is created again starts again."""
        for key in keys:
            self._expires_at_s.pop(key, None)

    def clear(self) -> None:
        """Another broker is the controller."""
        self._expires_at_s = {}
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
