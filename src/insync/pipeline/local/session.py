"""A database in this process, in the place of a session of Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from warnings import catch_warnings, simplefilter
from weakref import finalize

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from insync.pipeline.local.columns import Shape
from insync.pipeline.local.dispatch import local_functions
from insync.pipeline.local.frames import Frame
from insync.rules.refusals import Refusal

if TYPE_CHECKING:
    import duckdb

SETTINGS: Final = {
    # Nothing is installed behind the operator's back.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
LINE_MAX: Final = 300
MACROS: Final = (  # Spark's names in texts of SQL that both engines execute
    "CREATE MACRO size(l) AS len(l)",
    "CREATE MACRO collect_list(v) AS list(v)",
    "CREATE MACRO try_element_at(l, n) AS l[n]",
)


class LocalFailed(Refusal):
    """An error of the local engine, in one line."""


class Session:
    """What tables and the job use of a `SparkSession`."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._names = 0
        self.conf = {"spark.sql.shuffle.partitions": "1"}

    def next_name(self) -> str:
        self._names += 1
        return f"frame_{self._names}"

    def execute(self, query: str) -> pa.Table:
        with _in_a_line(), catch_warnings():
            # DuckDB would spare a copy of the rows by planning every query twice.
            simplefilter("ignore")
            return self._database.execute(query).to_arrow_table()

    def of_arrow(self, table: pa.Table, schema: StructType | None = None) -> Frame:
        name = f"rows_{self.next_name()}"
        self._database.register(name, table)
        query = f"SELECT * FROM {name}"
        shape = _shape(table.schema)
        frame = Frame(self, shape, query, is_light=True, schema=schema, rows=table)
        # Frames that read it keep it.
        finalize(frame, _forget, self._database, name).atexit = False
        return frame

    def createDataFrame(
        self, rows: pa.Table | Sequence[Any], schema: StructType | None = None
    ) -> Frame:
        """Of rows that are tuples or mappings; without a schema, mappings."""
        if isinstance(rows, pa.Table):
            return self.of_arrow(rows)
        if schema is None:
            return self.of_arrow(pa.Table.from_pylist(list(rows)))
        dicts = [_as_dict(schema, row) for row in rows]
        return self.of_arrow(pa.Table.from_pylist(dicts, to_arrow_schema(schema)), schema)

    def range(self, start: int, end: int | None = None, *_: int) -> Frame:
        bounds = (0, start) if end is None else (start, end)
        return self.of_arrow(pa.table({"id": pa.array(range(*bounds), pa.int64())}))

    def read_parquet(self, files: Sequence[Path]) -> Frame:
        """Columns that only some files have are null in the others."""
        names = ", ".join(_file_literal(each) for each in files)
        query = (
            f"SELECT * FROM read_parquet([{names}], union_by_name = true, "
            "hive_partitioning = false, filename = false)"
        )
        schema = self.execute(f"{query} LIMIT 0").schema
        return Frame(self, _shape(schema), query, is_light=True)


def _forget(database: duckdb.DuckDBPyConnection, name: str) -> None:
    import duckdb  # noqa: PLC0415 - as below

    with suppress(duckdb.Error):  # a closed one has forgotten all
        database.unregister(name)


def as_local(session: object) -> Session | None:
    """The session, if it is one of the local engine."""
    return session if isinstance(session, Session) else None


def _file_literal(path: Path) -> str:
    """A name in which nothing is a pattern."""
    pattern = "".join(f"[{each}]" if each in "*?[" else each for each in str(path.absolute()))
    return "'" + pattern.replace("'", "''") + "'"


def _shape(schema: pa.Schema) -> dict[str, Shape]:
    return {each.name: _arrow_shape(each.type) for each in schema}


def _arrow_shape(kind: pa.DataType) -> Shape:
    if pa.types.is_list(kind):
        return [_arrow_shape(kind.value_type)]
    if pa.types.is_struct(kind):
        return {each.name: _arrow_shape(each.type) for each in kind}
    return None


def _as_dict(schema: StructType, row: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    values = [row[name] for name in schema.names] if isinstance(row, Mapping) else row
    return {
        each.name: _value(each.dataType, value) for each, value in zip(schema, values, strict=True)
    }


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, StructType) and value is not None:
        return _as_dict(kind, value)
    if isinstance(kind, ArrayType) and value is not None:
        return [_value(kind.elementType, each) for each in value]
    return value


@contextmanager
def _in_a_line() -> Iterator[None]:
    import duckdb  # noqa: PLC0415 - as below

    try:
        yield
    except duckdb.Error as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise LocalFailed(line[:LINE_MAX]) from None


@contextmanager
def local_session() -> Iterator[Session]:
    """A session of this process; while it lasts, the functions that tables use are its own."""
    import duckdb  # noqa: PLC0415 - a job on Spark does without

    with TemporaryDirectory(prefix="insync-local-") as folder:
        database = duckdb.connect(config={**SETTINGS, "temp_directory": folder})
        try:
            for macro in MACROS:
                database.execute(macro)
            with local_functions():
                yield Session(database)
        finally:
            database.close()
            # What `io.shards` does for a worker that goes on would keep the database's module here.
            gc.unfreeze()
