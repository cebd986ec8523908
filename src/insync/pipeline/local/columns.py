"""Expressions over the columns of a frame, as SQL of DuckDB.

A column is rendered when a frame uses it, because only then the columns that it names are known.
DuckDB knows the types; kept here is only their shape: which fields a struct has, and what is a
list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

Shape = Any
"""Of a struct a mapping of its fields, of a list a list of its elements' shape, else None."""

Scope = Mapping[str, Shape]
"""The columns that an expression may name."""

EXPLODE, EXPLODE_POSITION = "explode", "posexplode"
_TYPES: Final[dict[type[DataType], str]] = {
    BooleanType: "BOOLEAN",
    DoubleType: "DOUBLE",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    StringType: "VARCHAR",
}
_NAMED_TYPES: Final = {
    "bigint": "BIGINT",
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "string": "VARCHAR",
}
_WHOLE: Final = ("INTEGER", "BIGINT")
_numbers = count()


class Rendered(NamedTuple):
    sql: str
    shape: Shape = None


Render = Callable[[Scope], Rendered]
RenderOver = Callable[[Scope, str], Rendered]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    assert isinstance(value, str), f"a literal of {type(value)}"
    return "'" + value.replace("'", "''") + "'"


def sql_type(kind: DataType | str) -> str:
    if isinstance(kind, str):
        if kind.startswith("array<"):
            return f"{_NAMED_TYPES[kind[6:-1]]}[]"
        return _NAMED_TYPES[kind]
    if isinstance(kind, ArrayType):
        return f"{sql_type(kind.elementType)}[]"
    if isinstance(kind, StructType):
        fields = ", ".join(f"{quoted(each.name)} {sql_type(each.dataType)}" for each in kind)
        return f"STRUCT({fields})"
    return _TYPES[type(kind)]


def shape_of(kind: DataType) -> Shape:
    if isinstance(kind, ArrayType):
        return [shape_of(kind.elementType)]
    if isinstance(kind, StructType):
        return {each.name: shape_of(each.dataType) for each in kind}
    return None


def field(value: Rendered, name: str) -> Rendered:
    assert isinstance(value.shape, Mapping), f"{value.sql} has no fields"
    return Rendered(f"struct_extract({value.sql}, {literal(name)})", value.shape[name])


def sort_key(value: Rendered) -> str:
    """Orders values as Spark does: nulls first, also inside of structs."""
    parts = [f"{each}, 'ASC NULLS FIRST'" for each in _leaves(value)]
    return f"create_sort_key({', '.join(parts)})"


def _leaves(value: Rendered) -> Iterable[str]:
    if isinstance(value.shape, Mapping):
        for name in value.shape:
            yield from _leaves(field(value, name))
    else:
        yield value.sql


@dataclass(frozen=True, eq=False)
class Column:
    render: Render
    name: str | None = None
    render_over: RenderOver | None = None  # of an aggregate
    generator: str | None = None  # of a column that makes several rows of one
    is_descending: bool = False

    # Comparisons, as Spark's columns have them.

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return _infix("=", self, other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return _infix("<>", self, other)

    def __lt__(self, other: Any) -> Column:
        return _infix("<", self, other)

    def __le__(self, other: Any) -> Column:
        return _infix("<=", self, other)

    def __gt__(self, other: Any) -> Column:
        return _infix(">", self, other)

    def __ge__(self, other: Any) -> Column:
        return _infix(">=", self, other)

    __hash__ = None  # type: ignore[assignment]

    def eqNullSafe(self, other: Any) -> Column:
        return _infix("IS NOT DISTINCT FROM", self, other)

    def between(self, lowest: Any, highest: Any) -> Column:
        return of_sql("{} BETWEEN {} AND {}", self, lowest, highest)

    def isNull(self) -> Column:
        return of_sql("{} IS NULL", self)

    def isNotNull(self) -> Column:
        return of_sql("{} IS NOT NULL", self)

    def isin(self, *values: Any) -> Column:
        return of_sql(f"{{}} IN ({', '.join(map(literal, values))})", self)

    def contains(self, text: Any) -> Column:
        return of_sql("contains({}, {})", self, text)

    # Logic and arithmetic.

    def __and__(self, other: Any) -> Column:
        return _infix("AND", self, other)

    def __or__(self, other: Any) -> Column:
        return _infix("OR", self, other)

    def __invert__(self) -> Column:
        return of_sql("NOT {}", self)

    def __neg__(self) -> Column:
        return of_sql("-{}", self)

    def __add__(self, other: Any) -> Column:
        return _infix("+", self, other)

    def __radd__(self, other: Any) -> Column:
        return _infix("+", column(other), self)

    def __sub__(self, other: Any) -> Column:
        return _infix("-", self, other)

    def __rsub__(self, other: Any) -> Column:
        return _infix("-", column(other), self)

    def __mul__(self, other: Any) -> Column:
        return _infix("*", self, other)

    def __rmul__(self, other: Any) -> Column:
        return _infix("*", column(other), self)

    def __truediv__(self, other: Any) -> Column:
        return _infix("/", self, other)

    def __mod__(self, other: Any) -> Column:
        return _infix("%", self, other)

    # Values of other types.

    def cast(self, kind: DataType | str) -> Column:
        return self._cast(kind, "CAST")

    def try_cast(self, kind: DataType | str) -> Column:
        return self._cast(kind, "TRY_CAST")

    def _cast(self, kind: DataType | str, how: str) -> Column:
        target = sql_type(kind)
        shape = None if isinstance(kind, str) else shape_of(kind)
        if target.endswith("[]") and shape is None:
            shape = [None]

        def render(scope: Scope) -> Rendered:
            value = self.render(scope).sql
            if target not in _WHOLE:
                return Rendered(f"{how}({value} AS {target})", shape)
            # DuckDB rounds, and takes 1e3 and 1_000 for numbers. Spark cuts fractions off, and
            # refuses texts that are not whole numbers.
            strict = f"regexp_extract({value}::VARCHAR, '^\\s*([+-]?[0-9]+)\\s*$', 1)"
            digits = f"{how}({strict} AS {target})"
            if how == "TRY_CAST":
                digits = f"CASE WHEN {strict} <> '' THEN {digits} END"
            of_text = f"CASE WHEN {value} IS NOT NULL THEN {digits} END"
            cut = f"{how}(trunc(TRY_CAST({value} AS DOUBLE)) AS {target})"
            return Rendered(
                f"CASE typeof({value}) WHEN 'VARCHAR' THEN {of_text} WHEN 'DOUBLE' THEN {cut} "
                f"ELSE {how}({value} AS {target}) END"
            )

        return Column(render)

    def __getitem__(self, name: str) -> Column:
        return Column(lambda scope: field(self.render(scope), name))

    # Names, order, windows.

    def alias(self, *names: str) -> Column:
        assert len(names) == 1, "one name"
        return replace(self, name=names[0])

    def desc(self) -> Column:
        return replace(self, is_descending=True)

    desc_nulls_last = desc  # as `desc` in Spark

    def order_sql(self, scope: Scope) -> str:
        value = self.render(scope)
        assert value.shape is None, "an order by structs is not built"
        return f"{value.sql} {'DESC NULLS LAST' if self.is_descending else 'ASC NULLS FIRST'}"

    def over(self, window: Window) -> Column:
        render_over = self.render_over
        assert render_over is not None, "only aggregates have windows"
        return Column(lambda scope: render_over(scope, f" OVER ({window.sql(scope)})"))


def _infix(operator: str, one: Column, other: Any) -> Column:
    return of_sql(f"({{}} {operator} {{}})", one, other)


def column(value: Any) -> Column:
    """A value of Python is a literal."""
    if isinstance(value, Column):
        return value
    return Column(lambda _: Rendered(literal(value)))


def named(value: Column | str) -> Column:
    """A text is the name of a column; with dots, of a field in it."""
    if isinstance(value, Column):
        return value

    def render(scope: Scope) -> Rendered:
        if value in scope:
            return Rendered(quoted(value), scope[value])
        head, *fields = value.split(".")
        assert head in scope, f"no column {value} among {', '.join(scope)}"
        rendered = Rendered(quoted(head), scope[head])
        for each in fields:
            rendered = field(rendered, each)
        return rendered

    return Column(render, name=value.rpartition(".")[2])


def of_sql(template: str, *arguments: Any, shape: Shape = None) -> Column:
    """The template's braces are the arguments; values of Python are literals."""
    columns = [column(each) for each in arguments]

    def render(scope: Scope) -> Rendered:
        return Rendered(
            f"({template.format(*(each.render(scope).sql for each in columns))})", shape
        )

    return Column(render)


def variable() -> str:
    """A name for the parameter of a lambda."""
    return f"each_{next(_numbers)}"


class When(Column):
    """CASE, to which further conditions can be added."""

    def __init__(self, branches: tuple[tuple[Column, Column], ...]) -> None:
        super().__init__(lambda scope: _case(branches, column(None), scope))
        object.__setattr__(self, "branches", branches)

    branches: tuple[tuple[Column, Column], ...]

    def when(self, condition: Column, value: Any) -> When:
        return When((*self.branches, (condition, column(value))))

    def otherwise(self, value: Any) -> Column:
        branches = self.branches
        return Column(lambda scope: _case(branches, column(value), scope))

    def alias(self, *names: str) -> Column:
        return Column(self.render).alias(*names)


def _case(branches: tuple[tuple[Column, Column], ...], other: Column, scope: Scope) -> Rendered:
    shape: Shape = None
    parts = []
    for condition, value in branches:
        rendered = value.render(scope)
        shape = rendered.shape if shape is None else shape
        parts.append(f"WHEN {condition.render(scope).sql} THEN {rendered.sql}")
    return Rendered(f"(CASE {' '.join(parts)} ELSE {other.render(scope).sql} END)", shape)


@dataclass(frozen=True)
class Window:
    """Rows around a row, for aggregates over them."""

    partition: tuple[Column, ...] = ()
    order: tuple[Column, ...] = ()
    rows: str = ""

    unboundedPreceding: Final = "unbounded preceding"
    currentRow: Final = 0

    def partitionBy(self, *columns: Column | str) -> Window:
        return replace(self, partition=tuple(map(named, columns)))

    def orderBy(self, *columns: Column | str) -> Window:
        return replace(self, order=tuple(map(named, columns)))

    def rowsBetween(self, first: int | str, last: int) -> Window:
        assert first == self.unboundedPreceding, "other frames are not built"
        assert last <= 0, "other frames are not built"
        end = f"{-last} PRECEDING" if last else "CURRENT ROW"
        return replace(self, rows=f"ROWS BETWEEN UNBOUNDED PRECEDING AND {end}")

    def sql(self, scope: Scope) -> str:
        partition = ", ".join(each.render(scope).sql for each in self.partition)
        order = ", ".join(each.order_sql(scope) for each in self.order)
        parts = [f"PARTITION BY {partition}" if partition else ""]
        parts += [f"ORDER BY {order}" if order else "", self.rows]
        return " ".join(filter(None, parts))
