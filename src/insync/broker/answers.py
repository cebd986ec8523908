"""Answers: what a handler knows, sent in the version it was asked in."""

from __future__ import annotations

from insync.broker.server import Reply
from insync.wire import messages
from insync.wire.any_version import Values, build
from insync.wire.apis import Api

__all__ = ["Values", "send"]


def send(reply: Reply, values: Values) -> None:
    """Answer a request with these values, in the version it was asked in."""
    version = reply.header.api_version
    answer = build(messages.response_type(Api(reply.header.api_key), version), values)
    reply.send([messages.write_response(answer)])
