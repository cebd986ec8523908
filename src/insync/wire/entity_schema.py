"""The schema of kio's entities: the only module that knows how kio keeps it."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """One field of an entity, in the order of the wire."""

    name: str
    entity_type: type | None  # of the field or of its elements; else `kafka_type` says what it is
    kafka_type: str
    is_array: bool
    is_nullable: bool
    tag: int | None  # a tagged field with its default value is absent
    default: Any


def is_flexible(entity_type: type) -> bool:
    """Whether this entity has compact lengths and a tag section."""
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    return flexible


def schema_of(entity_type: type) -> list[FieldSchema]:
    """Every field of a kio entity."""
    return [_field_schema(field) for field in fields(entity_type)]


def _field_schema(field: Field[Any]) -> FieldSchema:
    element, is_array, is_nullable = _shape(field.type)
    tag: int | None = field.metadata.get("tag")
    assert tag is None or field.default is not MISSING, "an absent tagged field needs a default"
    return FieldSchema(
        name=field.name,
        entity_type=element if is_dataclass(element) else None,  # type: ignore[arg-type]
        kafka_type=field.metadata.get("kafka_type", ""),
        is_array=is_array,
        is_nullable=is_nullable and tag is None,
        tag=tag,
        default=field.default,
    )


def _shape(annotation: Any) -> tuple[Any, bool, bool]:
    """(element type, whether an array, whether null is allowed) of a field's annotation."""
    if get_origin(annotation) is UnionType:
        (inner,) = (part for part in get_args(annotation) if part is not NoneType)
        element, is_array, _ = _shape(inner)
        return element, is_array, True
    if get_origin(annotation) is tuple:
        element, _, _ = _shape(get_args(annotation)[0])
        return element, True, False
    return annotation, False, False
