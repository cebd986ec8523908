"""Several ways to the same end, begun one after the other: the first that gets there counts."""

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
    ways: Sequence[Callable[[], Coroutine[Any, Any, T]]],
    *,
    hurry_s: float,
    is_final: Callable[[BaseException], bool],
) -> T:
    """Each begins when one before it has failed, or `hurry_s` after the last has begun.

    After a failure that is final no other way is begun; those under way may still get there.
    """
    left = list(ways)
    under_way: set[asyncio.Task[T]] = set()
    reasons: list[BaseException] = []
    try:
        while left or under_way:
            if left:
                under_way.add(asyncio.create_task(left.pop(0)()))
            done, under_way = await asyncio.wait(
                under_way,
                timeout=hurry_s if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            failed = {task: reason for task in done if (reason := task.exception()) is not None}
            for task in done - failed.keys():
                return task.result()
            reasons += failed.values()
            if any(is_final(reason) for reason in failed.values()):
                left.clear()
    finally:
        for task in under_way:
            if not task.cancel() and not task.cancelled():
                task.exception()  # seen, though nobody waits for it any more
    raise AllFailed(reasons)
