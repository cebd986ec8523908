"""An event loop whose clock jumps to the next thing that is due, so a minute costs milliseconds."""

from __future__ import annotations

import asyncio
import selectors


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


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _NoSelector()
        self._now_s = 0.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now_s

    def jump(self) -> None:
        # The exact time of the next timer: adding up differences would drift.
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._now_s = max(self._now_s, scheduled[0].when())

    def clock_ms(self) -> int:
        # Timers are set in seconds; a millisecond must not be missed by the last bit of a float.
        return int(self._now_s * 1_000 + 1e-6)
