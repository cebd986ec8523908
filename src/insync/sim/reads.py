"""A read pool on virtual time: each read is done after a random delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

T = TypeVar("T")

READ_S = (0.0, 0.05)


class SlowReads:
    def __init__(
        self, random: Random, read_s: Callable[[], tuple[float, float]] = lambda: READ_S
    ) -> None:
        self._random = random
        self._read_s = read_s  # the shortest and the longest delay, called for each read

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(read())
            except Exception as error:
                future.set_exception(error)

        loop.call_later(self._random.uniform(*self._read_s()), finish)
        return future

    def close(self) -> None:
        """Nothing to close: there are no threads."""
