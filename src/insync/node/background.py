"""Background tasks that an unexpected error does not end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

RESTART_MS: Final = 1_000

logger = logging.getLogger(__name__)


async def run_for_ever(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop until it is cancelled; after an unexpected error, log it and start it again."""
    while True:
        try:
            await loop()
        except Exception:
            name = getattr(loop, "__qualname__", repr(loop))
            logger.exception("%s failed; it starts again in %d ms", name, RESTART_MS)
        await asyncio.sleep(RESTART_MS / 1_000)
