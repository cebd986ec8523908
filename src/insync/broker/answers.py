"""Answers: what a handler knows, sent in the version it was asked in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from insync.broker.server import Reply
from insync.wire import messages
from insync.wire.any_version import Values, build
from insync.wire.apis import Api

__all__ = ["Answering", "Values", "send"]

logger = logging.getLogger(__name__)


def send(reply: Reply, values: Values) -> None:
    """Answer a request with these values, in the version it was asked in."""
    version = reply.header.api_version
    answer = build(messages.response_type(Api(reply.header.api_key), version), values)
    reply.send([messages.write_response(answer)])


class Answering:
    """Answers that take a while, each in a task of its own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # a loop alone does not keep them

    def begin(self, reply: Reply, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_answered(reply, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _answered(reply: Reply, answer: Coroutine[Any, Any, None]) -> None:
    try:
        await answer
    except Exception:
        logger.exception("a request failed; closing its connection")
        reply.connection.close()
