"""Reads that may block, away from the loop: a slow disk under one partition stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

READERS: Final = 4
"""Enough to keep a disk busy; a read that finds them all at work waits its turn."""


class ReadPool(Protocol):
    """Where a read goes that the loop must not wait for."""

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]: ...

    def close(self) -> None:
        """Take no more. A read under way ends by itself; nobody waits for it."""


class ReaderThreads:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="read")

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, read)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
