"""Telemetry as it comes: blocks in, tables appended, each row once, also over a kill -9.

Every micro-batch has a folder of its own in each table, `OUT/fetches/batch=12/`. Spark writes down
a batch's offsets before it runs, so one that was cut off is run again over the same blocks, and its
folders are replaced: nothing is lost or repeated, and any reader of Parquet can read the tables.

A row that was published twice may come in two batches. It is the same to the last value, its time
included: what a batch brings is compared with the earlier batches whose times overlap its own, and
`OUT/batches` knows their times. So nothing is remembered but what was written, and no row is too
late. `OUT/problems` has a row for every block that could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructField, StructType

from insync.pipeline import output
from insync.pipeline.files import BadSource, read_if_there
from insync.pipeline.job import kept
from insync.pipeline.source import BOOTSTRAP, TelemetrySource
from insync.pipeline.tables import ONE_ROW_EACH, decoded
from insync.pipeline.telemetry_schemas import TELEMETRY
from insync.telemetry.schemas import APPENDS, FETCHES

CHECKPOINT: Final = "_checkpoint"
BATCHES: Final = StructType(
    [
        StructField("table", StringType()),
        StructField("rows", LongType()),
        StructField("repeated", LongType()),  # rows that had come before
        StructField("at_ms_min", LongType()),
        StructField("at_ms_max", LongType()),
    ]
)
NUMBERED: Final = (FETCHES.name, APPENDS.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One table's part of one batch."""

    table: str
    rows: int
    repeated: int
    at_ms_min: int | None
    at_ms_max: int | None

    def overlaps(self, first_ms: int, last_ms: int) -> bool:
        if self.at_ms_min is None or self.at_ms_max is None:
            return False
        return self.at_ms_min <= last_ms and first_ms <= self.at_ms_max


class Appender:
    """What is done with each batch of blocks."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out
        self.batches: dict[int, list[Written]] = {}
        self.problems = 0  # since this start
        known = read_if_there(spark, f"{out}/batches")
        for row in [] if known is None else known.collect():
            values = row.asDict()
            number = values.pop("batch")
            self.batches.setdefault(number, []).append(Written(**values))

    def summary(self) -> dict[str, Any]:
        """Of everything that was ever written here; problems since this start."""
        rows = dict.fromkeys(TELEMETRY, 0)
        repeated = 0
        for part in (part for parts in self.batches.values() for part in parts):
            rows[part.table] += part.rows
            repeated += part.repeated
        return {
            "batches": len(self.batches),
            "rows": rows,
            "repeated_rows": repeated,
            "bad_blocks": self.problems,
        }

    def __call__(self, blocks: DataFrame, number: int) -> None:
        with kept(blocks):
            counts = blocks.groupBy("table", F.col("error").isNotNull().alias("is_bad")).count()
            found = {(row["table"], row["is_bad"]): row["count"] for row in counts.collect()}
            self._tell_problems(blocks, found, number)
            self.batches[number] = [
                self._append(blocks, name, number) for name in TELEMETRY if found.get((name, False))
            ]
        rows = [tuple(asdict(each).values()) for each in self.batches[number]]
        told = self._spark.createDataFrame(rows, BATCHES).coalesce(1)
        output.write(told, self._path("batches", number), may_overwrite=True)

    def _tell_problems(
        self, blocks: DataFrame, found: dict[tuple[str | None, bool], int], number: int
    ) -> None:
        count = sum(n for (_, is_bad), n in found.items() if is_bad)
        if count:
            self.problems += count
            bad = blocks.where(F.col("error").isNotNull()).drop("data", "dropped")
            output.write(bad, self._path("problems", number), may_overwrite=True)

    def _append(self, blocks: DataFrame, name: str, number: int) -> Written:
        path = self._path(name, number)
        with kept(decoded(blocks, name)) as rows:
            came, first_ms, last_ms = _extent(rows)
            earlier = [
                each
                for each, parts in self.batches.items()
                if each < number
                for part in parts
                if part.table == name and part.overlaps(first_ms, last_ms)
            ]
            output.write(self._new(rows, name, earlier), path, may_overwrite=True)
        new, first_ms, last_ms = _extent(self._spark.read.parquet(path))
        return Written(
            table=name, rows=new, repeated=came - new, at_ms_min=first_ms, at_ms_max=last_ms
        )

    def _new(self, rows: DataFrame, name: str, earlier: Iterable[int]) -> DataFrame:
        paths = [self._path(name, each) for each in sorted(earlier)]
        keys = list(ONE_ROW_EACH) if name in NUMBERED else rows.columns
        once = rows.dropDuplicates(keys)
        if not paths:
            return once
        known = self._spark.read.schema(TELEMETRY[name]).parquet(*paths).select(*keys).distinct()
        is_known = [rows[key].eqNullSafe(known[key]) for key in keys]
        return once.join(known, on=is_known, how="left_anti")

    def _path(self, table: str, number: int) -> str:
        return f"{self._out}/{table}/batch={number}"


def _extent(rows: DataFrame) -> tuple[int, int, int]:
    found = rows.agg(F.count("*"), F.min("at_ms"), F.max("at_ms")).first()
    assert found is not None, "an aggregate has a row"
    count, first_ms, last_ms = found
    return count, first_ms, last_ms


def start(
    spark: SparkSession,
    *,
    bootstrap: str,
    out: str,
    checkpoint: str | None = None,
    every_s: int | None = None,
    options: dict[str, str] | None = None,
) -> tuple[StreamingQuery, Appender]:
    """Append to the tables under `out` from where the checkpoint says; without `every_s`, only
    what is there now."""
    checkpoint = checkpoint or f"{out}/{CHECKPOINT}"
    is_new = read_if_there(spark, f"{out}/batches") is None
    if is_new and read_if_there(spark, f"{out}/fetches") is not None:
        raise BadSource(f"{out} has tables that no stream wrote; choose another folder")
    read: Any = spark.readStream.format(TelemetrySource.name()).option(BOOTSTRAP, bootstrap)
    blocks = read.options(**(options or {})).option("table", "blocks").load()
    appender = Appender(spark, out)
    writer = blocks.writeStream.foreachBatch(appender).option("checkpointLocation", checkpoint)
    timed = (
        writer.trigger(availableNow=True)
        if every_s is None
        else writer.trigger(processingTime=f"{every_s} seconds")
    )
    return timed.start(), appender
