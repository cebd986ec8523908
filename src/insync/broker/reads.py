"""Reads that may block, in threads: a slow disk of one partition must not stop the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

READERS: Final = 4
"""Enough to keep a disk busy. Further reads wait until a thread is free."""


class ReadPool(Protocol):
    """Runs reads that the event loop must not wait for."""

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]: ...

    def close(self) -> None:
        """Accept no more reads. Those under way end by themselves, and are not waited for."""


class ReaderThreads:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="read")

    def submit(self, read: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, read)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
