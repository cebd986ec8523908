"""Tasks that write to the metadata store, each until its outcome is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from insync.metadata.errors import Unavailable

RETRY_MS: Final = 50  # within this time every broker has heard of a change
UNEXPECTED_RETRY_MS: Final = 1_000
ATTEMPTS_AT_ONCE_MAX: Final = 200
"""Of one broker. The store refuses more than a thousand waiting steps: thousands of changes that
come together would try again and again."""

logger = logging.getLogger(__name__)


class StoreTasks:
    """The tasks of one broker, until it stops."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop has weak references only
        self._slots = asyncio.Semaphore(ATTEMPTS_AT_ONCE_MAX)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start_until_known(self, attempt: Callable[[], Awaitable[bool]], subject: str) -> None:
        """Start to repeat `attempt`, in turns with others: first come, first served."""

        async def attempt_in_turn() -> bool:
            async with self._slots:
                return await attempt()

        self.start(repeat_until_known(attempt_in_turn, subject))

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def repeat_until_known(attempt: Callable[[], Awaitable[bool]], subject: str) -> None:
    """Call `attempt` until it returns True, also after an error of the store or of the code.

    What such a task writes is waited for: acks=all or an election would wait for good.
    """
    while True:
        try:
            if await attempt():
                return
        except Unavailable:
            await asyncio.sleep(RETRY_MS / 1_000)
        except Exception:
            logger.exception("%s; trying again in %d ms", subject, UNEXPECTED_RETRY_MS)
            await asyncio.sleep(UNEXPECTED_RETRY_MS / 1_000)
