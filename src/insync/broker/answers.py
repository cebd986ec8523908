"""Answers of any version from one set of values.

A handler says what it knows once, as nested maps; each version of the answer takes the fields it
has and defaults the rest. Only for messages that are not hot.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, get_args

from kio.schema.errors import ErrorCode

from insync.broker.server import Reply
from insync.wire import messages
from insync.wire.apis import Api

Values = Mapping[str, Any]

_BLANKS: tuple[tuple[type, object], ...] = (
    (timedelta, timedelta(0)),
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (str, ""),
    (int, 0),
)


def send(reply: Reply, values: Values) -> None:
    """Answer a request with these values, in the version it was asked in."""
    version = reply.header.api_version
    answer = _build(messages.response_type(Api(reply.header.api_key), version), values)
    reply.send([messages.write_response(answer)])


def _build(entity: Any, values: Values) -> Any:
    given = {}
    for name, nested, blank in _plan(entity):
        if name in values:
            value = values[name]
            is_list = nested is not None and isinstance(value, Sequence)
            given[name] = tuple(_build(nested, each) for each in value) if is_list else value
        elif blank is not MISSING:
            given[name] = blank
    return entity(**given)


@cache
def _plan(entity: Any) -> list[tuple[str, Any, object]]:
    """Each field: its name, the entity it is a list of, and what it is when nobody says."""
    return [(field.name, _nested(field), _blank(field)) for field in fields(entity)]


def _nested(field: Field[Any]) -> Any:
    inner = [part for part in _parts(field.type) if is_dataclass(part)]
    return inner[0] if inner else None


def _parts(annotation: Any) -> list[Any]:
    arguments = get_args(annotation)
    return [annotation, *(part for each in arguments for part in _parts(each))]


def _blank(field: Field[Any]) -> object:
    if field.default is not MISSING or field.default_factory is not MISSING:
        return MISSING
    parts = _parts(field.type)
    if type(None) in parts or uuid.UUID in parts:
        return None
    if any(getattr(part, "__origin__", None) is tuple for part in parts):
        return ()
    for kind, blank in _BLANKS:
        if any(isinstance(part, type) and issubclass(part, kind) for part in parts):
            return blank
    return MISSING
