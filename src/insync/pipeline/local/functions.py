"""Functions of columns, with the names and meanings of `pyspark.sql.functions`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from insync.pipeline.local.columns import (
    EXPLODE,
    EXPLODE_POSITION,
    Column,
    Rendered,
    Scope,
    Shape,
    When,
    column,
    named,
    of_sql,
    quoted,
    sort_key,
    variable,
)
from insync.pipeline.local.frames import Frame

Name = Column | str
_AS = re.compile(r"(?is)^(.*)\sAS\s+(\w+)\s*$")


def col(name: str) -> Column:
    return named(name)


def lit(value: Any) -> Column:
    return column(value)


def expr(text: str) -> Column:
    """SQL that both engines understand."""
    match = _AS.match(text)
    body, name = (match[1], match[2]) if match else (text, None)
    return Column(lambda _: Rendered(f"({body})"), name=name)


def broadcast(frame: Frame) -> Frame:
    return frame


def when(condition: Column, value: Any) -> When:
    return When(((condition, column(value)),))


def _function(template: str, *arguments: Name, shape: Shape = None) -> Column:
    return of_sql(template, *map(named, arguments), shape=shape)


def _same_shape(template: str, value: Name, *others: Any) -> Column:
    """Of a function whose result is like its first argument."""
    first, rest = named(value), [column(each) for each in others]

    def render(scope: Scope) -> Rendered:
        rendered = first.render(scope)
        arguments = [rendered.sql, *(each.render(scope).sql for each in rest)]
        return Rendered(f"({template.format(*arguments)})", rendered.shape)

    return Column(render)


def coalesce(*values: Name) -> Column:
    first, *rest = map(named, values)
    return _same_shape(f"coalesce({', '.join(['{}'] * len(values))})", first, *rest)


def greatest(*values: Name) -> Column:
    return _function(f"greatest({', '.join(['{}'] * len(values))})", *values)


def least(*values: Name) -> Column:
    return _function(f"least({', '.join(['{}'] * len(values))})", *values)


def floor(value: Name) -> Column:
    return _function("CAST(floor({}) AS BIGINT)", value)


def ceil(value: Name) -> Column:
    return _function("CAST(ceil({}) AS BIGINT)", value)


def hash(*values: Name) -> Column:
    """Not Spark's: rows of one key have one hash, and that is all that is needed."""
    return _function(
        f"CAST(hash({', '.join(['{}'] * len(values))}) % 2147483647 AS INTEGER)", *values
    )


def pmod(value: Name, by: Name) -> Column:
    return _function("({} % {})", value, by)


# Texts.


def concat(*values: Name) -> Column:
    """Of texts, or of lists; null if one is."""
    columns = [named(each) for each in values]

    def render(scope: Scope) -> Rendered:
        parts = [each.render(scope) for each in columns]
        if isinstance(parts[0].shape, list):
            return Rendered(f"({' || '.join(part.sql for part in parts)})", parts[0].shape)
        return Rendered(f"({' || '.join(f'CAST({part.sql} AS VARCHAR)' for part in parts)})")

    return Column(render)


def concat_ws(separator: str, *values: Name) -> Column:
    """Of texts and of the texts in lists; nulls are left out."""
    columns, between = [named(each) for each in values], lit(separator)

    def render(scope: Scope) -> Rendered:
        mark = between.render(scope).sql
        parts = []
        for each in columns:
            part = each.render(scope)
            if isinstance(part.shape, list):
                joined = f"array_to_string({part.sql}, {mark})"
                parts.append(f"CASE WHEN len({part.sql}) > 0 THEN {joined} END")
            else:
                parts.append(f"CAST({part.sql} AS VARCHAR)")
        return Rendered(f"concat_ws({mark}, {', '.join(parts)})")

    return Column(render)


def format_string(form: str, *values: Name) -> Column:
    """With %d and %s."""
    texts = re.split(r"%[ds]", form)
    parts = [lit(texts[0])]
    for value, text in zip(values, texts[1:], strict=True):
        parts += [coalesce(_function("CAST({} AS VARCHAR)", value), lit("null")), lit(text)]
    return concat(*parts)


def replace(value: Name, search: Name, replacement: Name) -> Column:
    return _function("replace({}, {}, {})", value, search, replacement)


# Structs and lists.


def struct(*values: Name) -> Column:
    columns = [named(each) for each in values]

    def render(scope: Scope) -> Rendered:
        shape: dict[str, Shape] = {}
        fields = []
        for at, each in enumerate(columns, start=1):
            rendered = each.render(scope)
            name = each.name or f"col{at}"  # as Spark names them
            shape[name] = rendered.shape
            fields.append(f"{quoted(name)} := {rendered.sql}")
        return Rendered(f"struct_pack({', '.join(fields)})", shape)

    return Column(render)


def array(*values: Name) -> Column:
    columns = [named(each) for each in values]

    def render(scope: Scope) -> Rendered:
        parts = [each.render(scope) for each in columns]
        shape = parts[0].shape if parts else None
        return Rendered(f"[{', '.join(part.sql for part in parts)}]", [shape])

    return Column(render)


def size(value: Name) -> Column:
    return _function("CAST(len({}) AS INTEGER)", value)


def get(value: Name, index: Column) -> Column:
    return _of_elements("{}[{} + 1]", value, index)


def slice(value: Name, start: int, length: int) -> Column:
    return _same_shape(f"{{}}[{start}:{start + length - 1}]", value)


def flatten(value: Name) -> Column:
    return _of_elements("flatten({})", value)


def _of_elements(template: str, value: Name, *others: Any) -> Column:
    """Of a function that takes a list and returns something like its elements."""
    first, rest = named(value), [column(each) for each in others]

    def render(scope: Scope) -> Rendered:
        rendered = first.render(scope)
        arguments = [rendered.sql, *(each.render(scope).sql for each in rest)]
        return Rendered(f"({template.format(*arguments)})", _element(rendered))

    return Column(render)


def _element(value: Rendered) -> Shape:
    return value.shape[0] if isinstance(value.shape, list) else None


def sequence(first: Name, last: Name) -> Column:
    """Downwards if the last is below the first."""
    template = (
        "CASE WHEN {0} <= {1} THEN generate_series({0}, {1}) ELSE generate_series({0}, {1}, -1) END"
    )
    return _function(template, first, last, shape=[None])


def array_contains(values: Name, value: Any) -> Column:
    return of_sql("list_contains({}, {})", named(values), value)


def array_distinct(values: Name) -> Column:
    """In the order of their first."""
    return _same_shape(_distinct("{0}"), values)


def _distinct(values: str) -> str:
    value, at = variable(), variable()
    return f"list_filter({values}, lambda {value}, {at}: list_position({values}, {value}) = {at})"


def array_union(one: Name, other: Name) -> Column:
    return array_distinct(_same_shape("{} || {}", one, named(other)))


def array_except(one: Name, other: Name) -> Column:
    value = variable()
    kept = f"list_filter({{0}}, lambda {value}: NOT list_contains({{1}}, {value}))"
    return array_distinct(
        _same_shape(f"CASE WHEN {{1}} IS NOT NULL THEN {kept} END", one, named(other))
    )


def array_compact(values: Name) -> Column:
    value = variable()
    return _same_shape(f"list_filter({{}}, lambda {value}: {value} IS NOT NULL)", values)


def array_join(values: Name, separator: str) -> Column:
    return of_sql("array_to_string({}, {})", named(values), separator)


def array_max(values: Name) -> Column:
    ordered = array_sort(values)
    return _of_elements("{}[-1]", ordered)


def array_sort(values: Name) -> Column:
    """Ascending; structs by their fields, one after the other."""
    source = named(values)

    def render(scope: Scope) -> Rendered:
        rendered = source.render(scope)
        if not isinstance(_element(rendered), Mapping):
            return Rendered(f"list_sort({rendered.sql}, 'ASC', 'NULLS LAST')", rendered.shape)
        value = variable()
        key = sort_key(Rendered(value, _element(rendered)))
        keyed = f"list_transform({rendered.sql}, lambda {value}: {{'k': {key}, 'v': {value}}})"
        other = variable()
        return Rendered(
            f"list_transform(list_sort({keyed}), lambda {other}: {other}.v)", rendered.shape
        )

    return Column(render)


def transform(values: Name, function: Callable[[Column], Column]) -> Column:
    return _with_lambda("list_transform", values, function)


def filter(values: Name, function: Callable[[Column], Column]) -> Column:
    return _with_lambda("list_filter", values, function)


def _with_lambda(name: str, values: Name, function: Callable[[Column], Column]) -> Column:
    source = named(values)

    def render(scope: Scope) -> Rendered:
        rendered, each = source.render(scope), variable()
        element = Column(lambda _: Rendered(each, _element(rendered)))
        body = function(element).render(scope)
        shape = rendered.shape if name == "list_filter" else [body.shape]
        return Rendered(f"{name}({rendered.sql}, lambda {each}: {body.sql})", shape)

    return Column(render)


# Several rows of one.


def explode(values: Name) -> Column:
    return _generator("{}", values, EXPLODE)


def explode_outer(values: Name) -> Column:
    return _generator("CASE WHEN len({0}) > 0 THEN {0} ELSE [NULL] END", values, EXPLODE)


def posexplode(values: Name) -> Column:
    return _generator("{}", values, EXPLODE_POSITION)


def _generator(template: str, values: Name, kind: str) -> Column:
    rendered = _same_shape(template, values)
    return Column(rendered.render, name="col", generator=kind)


# Aggregates.


def _aggregate(render: Callable[[list[Rendered], str], Rendered], *values: Name) -> Column:
    columns = [named(each) for each in values]

    def over(scope: Scope, window: str) -> Rendered:
        return render([each.render(scope) for each in columns], window)

    return Column(lambda scope: over(scope, ""), render_over=over)


def _simple(template: str, *values: Name) -> Column:
    """`{w}` is where a window goes."""
    return _aggregate(
        lambda parts, window: Rendered(template.format(*(each.sql for each in parts), w=window)),
        *values,
    )


def sum(value: Name) -> Column:
    return _simple("CAST(sum({}){w} AS BIGINT)", value)


def avg(value: Name) -> Column:
    return _simple("avg({}){w}", value)


def count(value: Name) -> Column:
    if isinstance(value, str) and value == "*":
        return _simple("count(*){w}")
    return _simple("count({}){w}", value)


def count_if(value: Column) -> Column:
    return count(when(value, 1))


def count_distinct(*values: Name) -> Column:
    """Rows with a null do not count."""
    fields = ", ".join(["{}"] * len(values))
    known = " AND ".join(f"{{{at}}} IS NOT NULL" for at in range(len(values)))
    indexed = ", ".join(f"{{{at}}}" for at in range(len(values)))
    assert fields.count("{}") == len(values), "a place for each"
    return _simple(f"count(DISTINCT row({indexed})) FILTER ({known}){{w}}", *values)


countDistinct = count_distinct


def bool_and(value: Name) -> Column:
    return _simple("bool_and({}){w}", value)


def first(value: Name) -> Column:
    return _aggregate(
        lambda parts, window: Rendered(f"first({parts[0].sql}){window}", parts[0].shape), value
    )


def min(value: Name) -> Column:
    return _extreme("min", value)


def max(value: Name) -> Column:
    return _extreme("max", value)


def _extreme(which: str, value: Name) -> Column:
    def render(parts: list[Rendered], window: str) -> Rendered:
        (part,) = parts
        if not isinstance(part.shape, Mapping):
            return Rendered(f"{which}({part.sql}){window}", part.shape)
        # DuckDB has nulls last inside of structs.
        key = f"CASE WHEN {part.sql} IS NOT NULL THEN {sort_key(part)} END"
        return Rendered(f"arg_{which}({part.sql}, {key}){window}", part.shape)

    return _aggregate(render, value)


def min_by(value: Name, by: Name) -> Column:
    return _extreme_by("min", value, by)


def max_by(value: Name, by: Name) -> Column:
    return _extreme_by("max", value, by)


def _extreme_by(which: str, value: Name, by: Name) -> Column:
    def render(parts: list[Rendered], window: str) -> Rendered:
        key = f"CASE WHEN {parts[1].sql} IS NOT NULL THEN {sort_key(parts[1])} END"
        # DuckDB passes over nulls, unless they are inside of something.
        boxed = f"arg_{which}({{'v': {parts[0].sql}}}, {key}){window}"
        return Rendered(f"struct_extract({boxed}, 'v')", parts[0].shape)

    return _aggregate(render, value, by)


def collect_list(value: Name) -> Column:
    return _collected("", value)


def collect_set(value: Name) -> Column:
    return _collected("DISTINCT ", value)


def _collected(how: str, value: Name) -> Column:
    def render(parts: list[Rendered], window: str) -> Rendered:
        (part,) = parts
        collected = f"list({how}{part.sql}) FILTER ({part.sql} IS NOT NULL){window}"
        return Rendered(f"coalesce({collected}, [])", [part.shape])

    return _aggregate(render, value)


# Of a window.


def row_number() -> Column:
    return _simple("row_number(){w}")


def monotonically_increasing_id() -> Column:
    return Column(lambda _: Rendered("(row_number() OVER () - 1)"))


def lag(value: Name) -> Column:
    return _neighbour("lag", value)


def lead(value: Name) -> Column:
    return _neighbour("lead", value)


def _neighbour(name: str, value: Name) -> Column:
    return _aggregate(
        lambda parts, window: Rendered(f"{name}({parts[0].sql}){window}", parts[0].shape), value
    )
