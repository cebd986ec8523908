"""Bodies of requests and responses as kio's entities, for Kafka's APIs but Produce and Fetch.

Produce, Fetch and Insync's own APIs (`INSYNC_APIS`) have modules of their own in `wire`.

Each version of each API is a separate module in kio; modules are imported when first used.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.static.protocol import Payload

from insync.wire.apis import Api
from insync.wire.entity_readers import Reader, entity_reader
from insync.wire.entity_writers import entity_writer
from insync.wire.primitives import MALFORMED, BadMessage, Frame

__all__ = [
    "REQUEST_BYTES_MAX",
    "BadMessage",
    "read_request",
    "read_response",
    "request_type",
    "response_type",
    "write_request",
    "write_response",
]

# Only Produce is legitimately larger, and it is not read here. An entity of Python objects takes
# some fifty times its bytes, so this limits the memory that an untrusted client can use.
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024


@cache
def request_type(api: Api, version: int) -> type[Any]:
    """kio's class of this request; those nested in it are in the same module."""
    return load_request_schema(api, version)


@cache
def response_type(api: Api, version: int) -> type[Any]:
    """kio's class of this response; those nested in it are in the same module."""
    return load_response_schema(api, version)


def read_request(api: Api, version: int, frame: Frame, body_at: int) -> Any:
    """The request whose body begins at `body_at`; bytes after its last field are ignored."""
    if len(frame) > REQUEST_BYTES_MAX:
        raise BadMessage(
            f"a {api.name} request of {len(frame)} bytes; the most allowed is {REQUEST_BYTES_MAX}"
        )
    return _read(_request_reader(api, version), frame, body_at, f"{api.name} v{version} request")


def read_response(api: Api, version: int, frame: Frame, body_at: int) -> Any:
    """The response whose body begins at `body_at`; bytes after its last field are ignored."""
    return _read(_response_reader(api, version), frame, body_at, f"{api.name} v{version} response")


def write_request(entity: Payload) -> bytes:
    """The body of a request, without its header."""
    entity_type: type = type(entity)
    return entity_writer(entity_type)(entity)


def write_response(entity: Payload) -> bytes:
    """The body of a response, without its header."""
    entity_type: type = type(entity)
    return entity_writer(entity_type)(entity)


def _read(reader: Reader, frame: Frame, body_at: int, what: str) -> Any:
    data = memoryview(frame)
    try:
        # As Apache Kafka does: librdkafka 2.15 ends a Metadata request for all topics with three
        # bytes more than its version has fields for.
        entity, _ = reader(data, body_at)
    except (*MALFORMED, BadMessage) as error:
        raise BadMessage(f"no {what}: {error}") from error
    return entity


@cache
def _request_reader(api: Api, version: int) -> Reader:
    entity_type: type = request_type(api, version)
    return entity_reader(entity_type)


@cache
def _response_reader(api: Api, version: int) -> Reader:
    entity_type: type = response_type(api, version)
    return entity_reader(entity_type)
