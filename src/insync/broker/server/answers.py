"""How handlers answer: at once, or from a task that may wait for the metadata store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from insync.broker.server.server import Handler, Reply
from insync.wire import messages
from insync.wire.any_version import Values, build
from insync.wire.apis import Api

__all__ = ["BackgroundAnswers", "Values", "async_handler", "send", "sync_handler"]

logger = logging.getLogger(__name__)


def send(reply: Reply, values: Values) -> None:
    """Send a response with these values, in the version of the request."""
    version = reply.header.api_version
    response = build(messages.response_type(Api(reply.header.api_key), version), values)
    reply.send([messages.write_response(response)])


def sync_handler(answer: Callable[[Any, int], Values]) -> Handler:
    """A handler that answers before it returns."""

    def handle(reply: Reply, frame: memoryview | bytes) -> None:
        send(reply, answer(_read_request(reply, frame), reply.header.api_version))

    return handle


def async_handler(answer: Callable[[Any], Awaitable[Values]]) -> Handler:
    """A handler that may wait, usually for the metadata store."""
    answers = BackgroundAnswers()

    async def send_response(reply: Reply, request: Any) -> None:
        send(reply, await answer(request))

    def handle(reply: Reply, frame: memoryview | bytes) -> None:
        answers.begin(reply, send_response(reply, _read_request(reply, frame)))

    return handle


def _read_request(reply: Reply, frame: memoryview | bytes) -> Any:
    header = reply.header
    return messages.read_request(Api(header.api_key), header.api_version, frame, header.body_at)


class BackgroundAnswers:
    """Answers that take a while, each in a task of its own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop has weak references only

    def begin(self, reply: Reply, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_close_on_error(reply, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close_on_error(reply: Reply, answer: Coroutine[Any, Any, None]) -> None:
    try:
        await answer
    except Exception:
        peer = reply.connection.peer
        logger.exception("%s: %s failed; closing the connection", peer, reply.request_name)
        reply.connection.close()
