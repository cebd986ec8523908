"""ApiVersions: which APIs this broker serves, in which versions."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from insync.broker.server.answers import send
from insync.broker.server.server import Reply
from insync.wire import messages
from insync.wire.any_version import Values
from insync.wire.apis import SUPPORTED, Api


class ApiVersions:
    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        messages.read_request(Api.API_VERSIONS, header.api_version, frame, header.body_at)
        send(reply, {"api_keys": _api_keys()})

    @staticmethod
    def answer_unsupported_version(reply: Reply) -> None:
        """Answer in version 0, so that the client can retry with a version from the response."""
        reply.header = reply.header._replace(api_version=0)
        send(reply, {"error_code": ErrorCode.unsupported_version, "api_keys": _api_keys()})


def _api_keys() -> list[Values]:
    """Clients do not see BrokerHello: only brokers send it."""
    return [
        {"api_key": api, "min_version": versions[0], "max_version": versions[-1]}
        for api, versions in SUPPORTED.items()
        if api is not Api.BROKER_HELLO
    ]
