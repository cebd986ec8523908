"""Request and response headers.

A request header is version 1, or 2 (with tags) where the body is flexible; the client id keeps its
2-byte length in both. A response header is version 0, or 1 (with tags) where the body is flexible,
but always 0 for ApiVersions: its reader does not yet know the broker's versions.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from insync.wire.apis import Api, is_flexible
from insync.wire.frames import BadFrame
from insync.wire.primitives import (
    INT32,
    MALFORMED,
    NO_TAGS,
    BadMessage,
    Frame,
    read_nullable_string,
    skip_tags,
    string_bytes,
)

_FIXED: Final = Struct(">hhi")


class RequestHeader(NamedTuple):
    """The header of a request; `body_at` is where in the frame the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_header(frame: Frame) -> RequestHeader:
    """The header of any request; for an unknown API key, `body_at` is undefined."""
    data = memoryview(frame)
    try:
        api_key, api_version, correlation_id = _FIXED.unpack_from(data)
        client_id, at = read_nullable_string(data, _FIXED.size, flexible=False)
        if is_flexible(api_key, api_version):
            at = skip_tags(data, at)
    except (*MALFORMED, BadMessage) as error:
        raise BadFrame(f"a frame of {len(data)} bytes holds no request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, at)


def write_request_header(
    *, api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """What a client sends before the body."""
    header = _FIXED.pack(api_key, api_version, correlation_id)
    header += string_bytes(client_id, flexible=False)
    return header + NO_TAGS if is_flexible(api_key, api_version) else header


def response_header_bytes(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """What a broker sends before the body of its response."""
    header = INT32.pack(correlation_id)
    return header + NO_TAGS if _has_response_tags(api_key, api_version) else header


def response_correlation_id(frame: Frame) -> int:
    """The request of a response: all that can be read without knowing the API."""
    if len(frame) < INT32.size:
        raise BadFrame(f"a frame of {len(frame)} bytes holds no response header")
    (correlation_id,) = INT32.unpack_from(frame)
    return int(correlation_id)


def response_body_at(api_key: int, api_version: int, frame: Frame) -> int:
    """Where in a response's frame the body begins."""
    data = memoryview(frame)
    try:
        if _has_response_tags(api_key, api_version):
            return skip_tags(data, INT32.size)
    except (*MALFORMED, BadMessage) as error:
        raise BadFrame(f"a frame of {len(data)} bytes holds no response header: {error}") from error
    return INT32.size


def _has_response_tags(api_key: int, api_version: int) -> bool:
    return api_key != Api.API_VERSIONS and is_flexible(api_key, api_version)
