"""A client that speaks any version of any API, with kio's own readers and writers.

The broker reads and writes with `insync.wire`; nothing of it is used here, so that one mistake
cannot hide on both sides of the wire. A request is given as nested maps, of which each version
takes the fields it has.
"""

from __future__ import annotations

import io
import socket
import struct
import uuid
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, get_args

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

HOST = "127.0.0.1"
CORRELATION_ID = 77
Values = Mapping[str, Any]


class Closed(Exception):
    """The broker ended the connection instead of answering."""


class KioClient:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=20)

    def __enter__(self) -> KioClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def request(self, api: int, version: int, values: Values, *, answered_in: int = -1) -> Any:
        """The answer to one request, read in the request's version by default."""
        self.send(api, version, values)
        return self.receive(api, version if answered_in < 0 else answered_in)

    def send(self, api: int, version: int, values: Values) -> None:
        request = built(load_request_schema(api, version), values)
        self.send_raw(api, version, encoded(request), header=request.__header_schema__)

    def send_raw(self, api: int, version: int, body: bytes, *, header: Any) -> None:
        head = built(
            header,
            {
                "request_api_key": api,
                "request_api_version": version,
                "correlation_id": CORRELATION_ID,
                "client_id": "kio",
            },
        )
        data = encoded(head) + body
        self._socket.sendall(struct.pack(">i", len(data)) + data)

    def receive(self, api: int, version: int) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        response: Any = load_response_schema(api, version)
        head, at = entity_reader(response.__header_schema__)(frame, 0)
        assert head.correlation_id == CORRELATION_ID, "an answer to another request"
        answer, body_size = entity_reader(response)(frame, at)
        assert at + body_size == size, f"{size - at - body_size} bytes too many"
        return answer

    def is_closed(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionError:
                more = b""
            if not more:
                raise Closed
            data += more
        return data


def encoded(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def built(entity: Any, values: Values) -> Any:
    """The entity with those of the values that it has fields for, and blanks elsewhere."""
    arguments: dict[str, Any] = {}
    for field in fields(entity):
        if field.name in values:
            arguments[field.name] = _value(field.type, values[field.name])
        elif field.default is MISSING:
            arguments[field.name] = _blank(field.type)
    return entity(**arguments)


def _value(kind: Any, value: Any) -> Any:
    nested = next((part for part in _parts(kind) if is_dataclass(part)), None)
    if isinstance(value, Mapping):
        return built(nested, value)
    if isinstance(value, list | tuple):
        return tuple(built(nested, each) if nested else each for each in value)
    return value


def _blank(kind: Any) -> Any:
    parts = _parts(kind)
    if type(None) in parts or uuid.UUID in parts:
        return None
    if any(getattr(part, "__origin__", None) is tuple for part in parts):
        return ()
    classes = [part for part in parts if isinstance(part, type)]
    if any(issubclass(each, timedelta) for each in classes):
        return timedelta(0)
    return next(each() for each in (bool, str, int) if any(issubclass(c, each) for c in classes))


def _parts(kind: Any) -> list[Any]:
    return [kind, *(part for each in get_args(kind) for part in _parts(each))]
