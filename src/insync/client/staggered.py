"""Several attempts, started one after the other: the first that succeeds counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class AllFailed(Exception):
    def __init__(self, reasons: Sequence[BaseException]) -> None:
        super().__init__("; ".join(str(each) for each in reasons))
        self.reasons = tuple(reasons)


async def first_of(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]],
    *,
    stagger_s: float,
    is_final: Callable[[BaseException], bool],
) -> T:
    """Each starts when one before it has failed, or `stagger_s` after the last has started.

    After a final failure no other attempt starts; running ones may still succeed.
    """
    left = list(attempts)
    running: set[asyncio.Task[T]] = set()
    reasons: list[BaseException] = []
    try:
        while left or running:
            if left:
                running.add(asyncio.create_task(left.pop(0)()))
            done, running = await asyncio.wait(
                running,
                timeout=stagger_s if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            failed = {task: reason for task in done if (reason := task.exception()) is not None}
            for task in done - failed.keys():
                return task.result()
            reasons += failed.values()
            if any(is_final(reason) for reason in failed.values()):
                left.clear()
    finally:
        for task in running:
            if not task.cancel() and not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it
    raise AllFailed(reasons)
