"""Tables as queries: each step of a table is one part of a WITH, executed when rows are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from insync.pipeline.local.columns import (
    EXPLODE_POSITION,
    Column,
    Rendered,
    Scope,
    Shape,
    named,
    quoted,
)

if TYPE_CHECKING:
    from insync.pipeline.local.session import Session

Name = Column | str
BATCH_ROWS: Final = 10_000  # as Spark passes them to a function of Arrow tables


class Frame:
    """One query, that names the frames that it reads."""

    def __init__(
        self,
        session: Session,
        shape: Mapping[str, Shape],
        query: str,
        sources: Sequence[Frame] = (),
        *,
        is_light: bool = False,
        schema: StructType | None = None,
        rows: pa.Table | None = None,
    ) -> None:
        self.sparkSession = session
        self.shape = dict(shape)
        self.query = query
        self.sources = tuple(sources)
        self.is_light = is_light  # cheaper to do again than to keep
        self.name = session.next_name()
        self._schema = schema
        self._rows = rows  # of a frame that was executed

    @property
    def columns(self) -> list[str]:
        return list(self.shape)

    @cached_property
    def schema(self) -> StructType:
        return self._schema or from_arrow_schema(self.limit(0).to_arrow().schema)

    def __getitem__(self, name: str) -> Column:
        return named(name)

    # From frame to frame.

    def over_query(
        self, query: str, shape: Mapping[str, Shape], *, is_light: bool = False
    ) -> Frame:
        return Frame(self.sparkSession, shape, query, [self], is_light=is_light)

    def select(self, *columns: Any) -> Frame:
        given = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
        names = [
            name
            for each in given
            for name in (self.columns if isinstance(each, str) and each == "*" else [each])
        ]
        parts: list[str] = []
        shape: dict[str, Shape] = {}
        for each in names:
            for name, sql, of_name in self._selected(each):
                assert name not in shape, f"two columns {name}"
                parts.append(f"{sql} AS {quoted(name)}")
                shape[name] = of_name
        sql = ", ".join(parts)
        is_light = " OVER (" not in sql and "unnest(" not in sql
        return self.over_query(f"SELECT {sql} FROM {self.name}", shape, is_light=is_light)

    def _selected(self, each: Name) -> Iterator[tuple[str, str, Shape]]:
        if isinstance(each, str) and each.endswith(".*"):
            of_struct = named(each[:-2]).render(self.shape)
            assert isinstance(of_struct.shape, Mapping), f"{each} has no fields"
            for name, shape in of_struct.shape.items():
                yield name, f"struct_extract({of_struct.sql}, '{name}')", shape
            return
        one = named(each)
        assert one.name is not None, "a column needs a name"
        rendered = one.render(self.shape)
        if one.generator is None:
            yield one.name, rendered.sql, rendered.shape
            return
        if one.generator == EXPLODE_POSITION:
            yield "pos", f"CAST(generate_subscripts({rendered.sql}, 1) - 1 AS INTEGER)", None
        element = rendered.shape[0] if isinstance(rendered.shape, list) else None
        yield one.name, f"unnest({rendered.sql})", element

    def selectExpr(self, *texts: str) -> Frame:
        from insync.pipeline.local.functions import expr  # noqa: PLC0415 - it needs frames

        return self.select(*(col if (col := expr(text)).name else text for text in texts))

    def withColumn(self, name: str, value: Column) -> Frame:
        value = value.alias(name)
        names = [value if each == name else each for each in self.columns]
        return self.select(*names, *([] if name in self.shape else [value]))

    def withColumnRenamed(self, former: str, name: str) -> Frame:
        return self.select(
            *(named(each).alias(name) if each == former else each for each in self.columns)
        )

    def drop(self, *names: str) -> Frame:
        return self.select(*(each for each in self.columns if each not in names))

    def to(self, schema: StructType) -> Frame:
        """In its order and types."""
        return self.select(
            *(named(each.name).cast(each.dataType).alias(each.name) for each in schema)
        )

    def transform(self, step: Callable[[Frame], Frame]) -> Frame:
        return step(self)

    def where(self, condition: Column | str) -> Frame:
        is_text = isinstance(condition, str)
        sql = condition if is_text else condition.render(self.shape).sql  # type: ignore[union-attr]
        return self.over_query(f"SELECT * FROM {self.name} WHERE {sql}", self.shape, is_light=True)

    def distinct(self) -> Frame:
        return self.over_query(f"SELECT DISTINCT * FROM {self.name}", self.shape)

    def dropDuplicates(self, names: list[str]) -> Frame:
        key = ", ".join(map(quoted, names))
        number = f"row_number() OVER (PARTITION BY {key})"
        return self.over_query(f"SELECT * FROM {self.name} QUALIFY {number} = 1", self.shape)

    def limit(self, count: int) -> Frame:
        return self.over_query(f"SELECT * FROM {self.name} LIMIT {count}", self.shape)

    def orderBy(self, *columns: Name) -> Frame:
        """Executed here: a query that reads another may take its rows in any order."""
        order = ", ".join(named(each).order_sql(self.shape) for each in columns)
        ordered = self.over_query(f"SELECT * FROM {self.name} ORDER BY {order}", self.shape)
        return self.sparkSession.of_arrow(ordered.to_arrow())

    sortWithinPartitions = orderBy

    def repartition(self, *_: Any) -> Frame:
        return self

    def unionByName(self, other: Frame, *, allowMissingColumns: bool = False) -> Frame:
        differs = set(self.columns) ^ set(other.columns)
        assert allowMissingColumns or not differs, f"not in both: {differs}"
        query = f"SELECT * FROM {self.name} UNION ALL BY NAME SELECT * FROM {other.name}"
        shape = {**other.shape, **self.shape}
        names = [*self.columns, *(each for each in other.columns if each not in self.shape)]
        return Frame(self.sparkSession, {each: shape[each] for each in names}, query, [self, other])

    def crossJoin(self, other: Frame) -> Frame:
        shape = self.shape | other.shape
        return Frame(
            self.sparkSession,
            shape,
            f"SELECT * FROM {self.name} CROSS JOIN {other.name}",
            [self, other],
        )

    def join(self, other: Frame, on: Any, how: str = "inner") -> Frame:
        keys = [on] if isinstance(on, str) else on if isinstance(on, list) else [on]
        by_name = [each for each in keys if isinstance(each, str)]
        others = [each for each in other.columns if each not in by_name]
        both = set(self.columns) & set(others)
        is_filter = how in {"left_semi", "left_anti"}
        scope: Scope = other.shape | self.shape
        conditions = [f"l.{quoted(each)} = r.{quoted(each)}" for each in by_name]
        for each in keys:
            if isinstance(each, Column):
                assert not both, f"in both: {both}"
                conditions.append(each.render(scope).sql)
        kind = {"inner": "", "left": "LEFT", "left_semi": "SEMI", "left_anti": "ANTI"}[how]
        assert is_filter or not both, f"in both: {both}"
        rest = [each for each in self.columns if each not in by_name]
        columns = [f"l.{quoted(each)}" for each in (*by_name, *rest)]
        shape = {each: self.shape[each] for each in (*by_name, *rest)}
        if not is_filter:
            columns += [f"r.{quoted(each)}" for each in others]
            shape |= {each: other.shape[each] for each in others}
        query = (
            f"SELECT {', '.join(columns)} FROM {self.name} AS l {kind} JOIN {other.name} AS r "
            f"ON {' AND '.join(conditions)}"
        )
        return Frame(self.sparkSession, shape, query, [self, other])

    def groupBy(self, *columns: Name) -> Grouped:
        return Grouped(self, [named(each) for each in columns])

    def agg(self, *columns: Column) -> Frame:
        return Grouped(self, []).agg(*columns)

    def mapInArrow(
        self,
        function: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        schema: StructType,
    ) -> Frame:
        """Executed here, in this process."""
        types = to_arrow_schema(schema)
        batches = [
            pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names).cast(types)
            for batch in function(iter(self.to_arrow().to_batches(BATCH_ROWS)))
        ]
        return self.sparkSession.of_arrow(pa.Table.from_batches(batches, types), schema)

    # Rows.

    def sql(self) -> str:
        """The whole query: every frame once, and kept if more than one other reads it."""
        order: dict[str, Frame] = {}
        self.visit(order)
        frames = list(order.values())
        uses = dict.fromkeys(order, 0) | {self.name: 1}
        kept = set()
        for frame in reversed(frames):
            if uses[frame.name] > 1 and not frame.is_light:
                kept.add(frame.name)
            for source in frame.sources:
                # What is not kept is executed again for each that reads it.
                uses[source.name] += 1 if frame.name in kept else uses[frame.name]
        parts = [
            f"{frame.name} AS {'' if frame.name in kept else 'NOT '}MATERIALIZED ({frame.query})"
            for frame in frames[:-1]
        ]
        return (f"WITH {', '.join(parts)} " if parts else "") + self.query

    def visit(self, order: dict[str, Frame]) -> None:
        if self.name not in order:
            for source in self.sources:
                source.visit(order)
            order[self.name] = self

    def persist(self, *_: Any) -> Frame:
        return self.sparkSession.of_arrow(self.to_arrow(), self._schema)

    def unpersist(self) -> Frame:
        return self

    def to_arrow(self) -> pa.Table:
        return self._rows if self._rows is not None else self.sparkSession.execute(self.sql())

    def collect(self) -> list[Row]:
        return [_row(each) for each in self.to_arrow().to_pylist()]

    def first(self) -> Row | None:
        rows = self.limit(1).collect()
        return rows[0] if rows else None

    def count(self) -> int:
        return int(
            self.agg(Column(lambda _: Rendered("count(*)")).alias("rows"))
            .to_arrow()["rows"][0]
            .as_py()
        )

    def isEmpty(self) -> bool:
        return bool(self.limit(1).to_arrow().num_rows == 0)


def as_local(frame: object) -> Frame | None:
    """The frame, if it is one of the local engine."""
    return frame if isinstance(frame, Frame) else None


class Grouped:
    def __init__(self, frame: Frame, keys: list[Column]) -> None:
        self.frame = frame
        self.keys = keys

    def agg(self, *columns: Column) -> Frame:
        scope = self.frame.shape
        parts = []
        shape: dict[str, Shape] = {}
        for each in (*self.keys, *columns):
            assert each.name is not None, "a column needs a name"
            rendered = each.render(scope)
            parts.append(f"{rendered.sql} AS {quoted(each.name)}")
            shape[each.name] = rendered.shape
        by = ", ".join(str(at) for at in range(1, len(self.keys) + 1))
        query = f"SELECT {', '.join(parts)} FROM {self.frame.name}"
        return self.frame.over_query(f"{query} GROUP BY {by}" if by else query, shape)


def _row(value: Any) -> Any:
    if isinstance(value, dict):
        return Row(**{name: _row(each) for name, each in value.items()})
    if isinstance(value, list):
        return [_row(each) for each in value]
    return value
