"""Messages of any version from one set of values.

The caller gives the values once, as nested maps; each version uses the fields it has, with defaults
for the rest. Only for messages off the hot path.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, get_args

from kio.schema.errors import ErrorCode

from insync.wire.entity_writers import EncodedArray

Values = Mapping[str, Any]

_BLANKS: tuple[tuple[type, object], ...] = (
    (timedelta, timedelta(0)),
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (str, ""),
    (int, 0),
)


def build(entity: Any, values: Values) -> Any:
    """An entity of kio's class `entity`; values without a field in it are ignored."""
    arguments = {}
    for name, nested, blank in _plan(entity):
        if name in values:
            arguments[name] = _built(nested, values[name])
        elif blank is not MISSING:
            arguments[name] = blank
    return entity(**arguments)


def _built(nested: Any, value: Any) -> Any:
    if nested is None or value is None or isinstance(value, EncodedArray):
        return value
    if isinstance(value, Mapping):
        return build(nested, value)
    return tuple(build(nested, each) for each in value)


@cache
def _plan(entity: Any) -> list[tuple[str, Any, object]]:
    """Each field: its name, the entity that it is or is a list of, and its default."""
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
