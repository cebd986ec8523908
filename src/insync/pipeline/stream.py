"""Telemetry as brokers publish it, appended to tables, each row once, also after a kill -9.

Every micro-batch has a folder of its own in each table, `OUT/fetches/batch=12/`. Spark stores
a batch's offsets before it runs. So an interrupted batch is run again over the same blocks, and its
folders are replaced: no row is lost or repeated, and any Parquet reader can read the tables.

A row that was published twice may be in two batches. Its duplicate is equal in every value, its
time included: so a batch is compared with the earlier batches whose times overlap its own, which
are in `OUT/batches`. No state is kept beside the tables, and no row is too late. `OUT/bad_blocks`
has a row for every block that could not be read.

`OUT/lag` is written once, up to a watermark: the latest time in `fetches` less the time that rows
of either table may be late (`late_ms`), cut to whole buckets. `OUT/batches` states it, as the end
of `lag`. A later row is in its own table, is counted there as `late`, and is not in `lag`. A lag is
computed from `history_ms` of rows: a longer one is reported as at least that. Of a follower that
has been silent for longer, the last fetch and the last append are kept in `OUT/last_fetches` and
`OUT/last_appends`.

`OUT/stream` says which checkpoint the tables belong to. With another one, or none, the topic would
be read from another offset: rows would be repeated or lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its common name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructField, StructType

from insync.pipeline.io import output
from insync.pipeline.io.block_tables import ONE_ROW_EACH, decoded
from insync.pipeline.io.files import BadSource, read_if_there
from insync.pipeline.io.source import BOOTSTRAP, TelemetrySource
from insync.pipeline.io.telemetry_schemas import TELEMETRY
from insync.pipeline.job import kept
from insync.telemetry.schemas import APPENDS, ASSIGNMENTS, FETCHES, ISR, OK

CHECKPOINT: Final = "_checkpoint"
BATCHES: Final = StructType(
    [
        StructField("table", StringType()),
        StructField("rows", LongType()),
        StructField("repeated", LongType()),  # rows that had come before
        StructField("late", LongType()),  # rows from before the watermark that held then
        StructField("at_ms_min", LongType()),
        StructField("at_ms_max", LongType()),  # of `lag`: the watermark
    ]
)
WRITER: Final = StructType(
    [
        StructField("checkpoint", StringType()),  # the id that Spark gave it
        StructField("bucket_ms", LongType()),
        StructField("history_ms", LongType()),
    ]
)
LAG: Final = "lag"
NUMBERED: Final = (FETCHES.name, APPENDS.name)
LAST_OF_EACH: Final = {
    FETCHES.name: ("topic", "partition", "follower"),
    APPENDS.name: ("topic", "partition"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One table's part of one batch."""

    table: str
    rows: int
    repeated: int
    late: int
    at_ms_min: int | None
    at_ms_max: int | None

    def overlaps(self, first_ms: int | None, last_ms: int | None) -> bool:
        if self.at_ms_min is None or self.at_ms_max is None or first_ms is None or last_ms is None:
            return False  # one of them has no rows
        return self.at_ms_min <= last_ms and first_ms <= self.at_ms_max


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOptions:
    bucket_ms: int = 10_000
    late_ms: int = 60_000
    history_ms: int = 3_600_000


class Appender:
    """What is done with each batch of blocks."""

    def __init__(self, spark: SparkSession, out: str, checkpoint: str, options: LagOptions) -> None:
        self._spark = spark
        self._out = out
        self._checkpoint = checkpoint
        self._options = options
        self._is_begun = self._check_writer()
        self.batches: dict[int, list[Written]] = {}
        self.problems = 0  # since this start
        known = read_if_there(spark, f"{out}/batches")
        for row in [] if known is None else known.collect():
            values = row.asDict()
            number = values.pop("batch")
            self.batches.setdefault(number, []).append(Written(**values))

    def summary(self) -> dict[str, Any]:
        """Of everything that was ever written here; problems since this start."""
        rows = dict.fromkeys((*TELEMETRY, LAG), 0)
        repeated = late = 0
        for part in (part for parts in self.batches.values() for part in parts):
            rows[part.table] += part.rows
            repeated += part.repeated
            late += part.late
        return {
            "batches": len(self.batches),
            "rows": rows,
            "repeated_rows": repeated,
            "late_rows": late,
            "bad_blocks": self.problems,
            "lag_until_ms": self._watermark(before=max(self.batches, default=0) + 1),
        }

    def _check_writer(self) -> bool:
        """Whether these tables were begun, by the stream that is to go on with them."""
        known = read_if_there(self._spark, f"{self._out}/stream")
        if known is None:
            tables = (read_if_there(self._spark, f"{self._out}/{name}") for name in TELEMETRY)
            if any(table is not None for table in tables):
                raise BadSource(
                    f"{self._out} has tables that no stream wrote; choose another folder"
                )
            return False
        (writer,) = known.collect()
        if writer["checkpoint"] != _checkpoint_id(self._spark, self._checkpoint):
            raise BadSource(
                f"{self._out} was written by a stream whose checkpoint is not {self._checkpoint}: "
                "use that one, or choose another folder"
            )
        for name in ("bucket_ms", "history_ms"):
            value = getattr(self._options, name)
            if writer[name] != value:
                raise BadSource(
                    f"the lag in {self._out} was written with {name}={writer[name]}, not "
                    f"{value}: use that value, or choose another folder"
                )
        return True

    def _begin(self, number: int) -> None:
        """Before any table is written: the same stream runs an interrupted batch again."""
        if number > 0:
            raise BadSource(
                f"{self._checkpoint} is at batch {number}, and {self._out} has none before: it "
                "belongs to another folder"
            )
        own = _checkpoint_id(self._spark, self._checkpoint)
        row = (own, self._options.bucket_ms, self._options.history_ms)
        writer = self._spark.createDataFrame([row], WRITER).coalesce(1)
        output.write(writer, f"{self._out}/stream", may_overwrite=True)
        self._is_begun = True

    def __call__(self, blocks: DataFrame, number: int) -> None:
        if not self._is_begun:
            self._begin(number)
        with kept(blocks):
            counts = blocks.groupBy("table", F.col("error").isNotNull().alias("is_bad")).count()
            counted = {(row["table"], row["is_bad"]): row["count"] for row in counts.collect()}
            self._write_problems(blocks, counted, number)
            self.batches[number] = [
                self._append(blocks, name, number)
                for name in TELEMETRY
                if counted.get((name, False))
            ]
        self.batches[number] += self._write_lag(number)
        rows = [tuple(asdict(each).values()) for each in self.batches[number]]
        written = self._spark.createDataFrame(rows, BATCHES).coalesce(1)
        output.write(written, self._path("batches", number), may_overwrite=True)

    def _write_problems(
        self, blocks: DataFrame, counted: dict[tuple[str | None, bool], int], number: int
    ) -> None:
        count = sum(n for (_, is_bad), n in counted.items() if is_bad)
        if count:
            self.problems += count
            bad = blocks.where(F.col("error").isNotNull()).drop("data", "dropped")
            output.write(bad, self._path("bad_blocks", number), may_overwrite=True)

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
        written = self._spark.read.parquet(path)
        new, first_ms, last_ms = _extent(written)
        lag_written_until_ms = self._watermark(before=number)
        late = 0
        is_late = (
            lag_written_until_ms is not None
            and first_ms is not None
            and first_ms < lag_written_until_ms
        )
        if name in NUMBERED and is_late:
            late = written.where(F.col("at_ms") < F.lit(lag_written_until_ms)).count()
        return Written(
            table=name,
            rows=new,
            repeated=came - new,
            late=late,
            at_ms_min=first_ms,
            at_ms_max=last_ms,
        )

    def _watermark(self, *, before: int) -> int | None:
        """The time up to which the batches before this one wrote the table lag."""
        written = self._lag_written(before=before)
        return max((until_ms for _, _, until_ms in written), default=None)

    def _lag_written(self, *, before: int) -> list[tuple[int, int, int]]:
        """Batch, begin and end of each part of the table lag."""
        return [
            (number, part.at_ms_min, part.at_ms_max)
            for number, parts in self.batches.items()
            if number < before
            for part in parts
            if part.table == LAG and part.at_ms_min is not None and part.at_ms_max is not None
        ]

    def _write_lag(self, number: int) -> list[Written]:
        """Every bucket that ends at or before the watermark and is not written yet."""
        seen = [
            part
            for each, parts in self.batches.items()
            if each <= number
            for part in parts
            if part.table in NUMBERED and part.at_ms_max is not None
        ]
        latest_ms = max(
            (part.at_ms_max or 0 for part in seen if part.table == FETCHES.name), default=0
        )
        if not latest_ms:
            return []
        bucket_ms = self._options.bucket_ms
        until_ms = (latest_ms - self._options.late_ms) // bucket_ms * bucket_ms
        from_ms = self._watermark(before=number)
        if from_ms is None:
            from_ms = min(part.at_ms_min or 0 for part in seen) // bucket_ms * bucket_ms
        if until_ms <= from_ms:
            return []
        from insync.pipeline.tables.lag import lag  # noqa: PLC0415 - imports Numba

        fetches, appends = (self._history(name, from_ms, number) for name in NUMBERED)
        at_ms = F.col("bucket_at_ms")
        # A replica that a reassignment removed stays removed, however long ago that was.
        isr, assignments = (self._since(name, 0, number) for name in (ISR.name, ASSIGNMENTS.name))
        rows = lag(fetches, appends, isr, assignments, bucket_ms=bucket_ms).where(
            (at_ms >= from_ms) & (at_ms < until_ms)
        )
        path = self._path(LAG, number)
        output.write(rows, path, may_overwrite=True)
        count = self._spark.read.parquet(path).count()
        return [
            Written(
                table=LAG, rows=count, repeated=0, late=0, at_ms_min=from_ms, at_ms_max=until_ms
            )
        ]

    def _history(self, name: str, from_ms: int, number: int) -> DataFrame:
        """Rows since `history_ms` before then. Of a replica without any there, its last row, as if
        it had been recorded when the history begins."""
        since_ms = from_ms - self._options.history_ms
        written = self._lag_written(before=number)
        former, former_from_ms, _ = max(written, default=(None, from_ms, from_ms))
        rows = self._since(name, former_from_ms - self._options.history_ms, number)
        is_before = F.col("at_ms") < since_ms
        left = rows.where(is_before)
        if former is not None:
            left = left.unionByName(self._read(name, [self._path(f"last_{name}", former)]))
        path = self._path(f"last_{name}", number)
        output.write(_last(left, name).coalesce(1), path, may_overwrite=True)
        last = self._read(name, [path]).withColumn("at_ms", F.lit(since_ms))
        if name == FETCHES.name:
            ended_ms = F.greatest("last_at_ms", F.lit(since_ms))
            last = last.withColumns({"read_ms": F.lit(0).cast("long"), "last_at_ms": ended_ms})
        return rows.where(~is_before).unionByName(last)

    def _since(self, name: str, since_ms: int, number: int) -> DataFrame:
        paths = [
            self._path(name, each)
            for each, parts in sorted(self.batches.items())
            if each <= number
            for part in parts
            if part.table == name and (part.at_ms_max or 0) >= since_ms
        ]
        return self._read(name, paths).where(F.col("at_ms") >= since_ms)

    def _read(self, name: str, paths: list[str]) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], TELEMETRY[name])
        return self._spark.read.schema(TELEMETRY[name]).parquet(*paths)

    def _new(self, rows: DataFrame, name: str, earlier: Iterable[int]) -> DataFrame:
        paths = [self._path(name, each) for each in sorted(earlier)]
        keys = list(ONE_ROW_EACH) if name in NUMBERED else rows.columns
        once = rows.dropDuplicates(keys)
        if not paths:
            return once
        known = self._read(name, paths).select(*keys).distinct()
        is_known = [rows[key].eqNullSafe(known[key]) for key in keys]
        return once.join(known, on=is_known, how="left_anti")

    def _path(self, table: str, number: int) -> str:
        return f"{self._out}/{table}/batch={number}"


def _extent(rows: DataFrame) -> tuple[int, int | None, int | None]:
    """How many rows, and the first and last time in them."""
    row = rows.agg(F.count("*"), F.min("at_ms"), F.max("at_ms")).first()
    assert row is not None, "an aggregate has a row"
    count, first_ms, last_ms = row
    return count, first_ms, last_ms


def _last(rows: DataFrame, name: str) -> DataFrame:
    """The row that each was last known by; of fetches, those that succeeded."""
    if name == FETCHES.name:
        rows = rows.where(F.coalesce("outcome", F.lit(OK)) == OK)
    latest = F.max_by(F.struct(*rows.columns), F.struct("leader_epoch", "at_ms", "seq"))
    return rows.groupBy(*LAST_OF_EACH[name]).agg(latest.alias("row")).select("row.*")


def _checkpoint_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Spark gives every checkpoint one, before its first batch; None: there is no checkpoint."""
    try:
        row = spark.read.schema("id string").json(f"{checkpoint}/metadata").first()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return None if row is None else row["id"]


def start(
    spark: SparkSession,
    *,
    bootstrap: str,
    out: str,
    checkpoint: str | None = None,
    every_s: int | None = None,
    lag: LagOptions | None = None,
    options: dict[str, str] | None = None,
) -> tuple[StreamingQuery, Appender]:
    """Append to the tables under `out` from where the checkpoint says; without `every_s`, only
    what is there now."""
    checkpoint = checkpoint or f"{out}/{CHECKPOINT}"
    appender = Appender(spark, out, checkpoint, lag or LagOptions())
    read: Any = spark.readStream.format(TelemetrySource.name()).option(BOOTSTRAP, bootstrap)
    blocks = read.options(**(options or {})).option("table", "blocks").load()
    writer = blocks.writeStream.foreachBatch(appender).option("checkpointLocation", checkpoint)
    timed = (
        writer.trigger(availableNow=True)
        if every_s is None
        else writer.trigger(processingTime=f"{every_s} seconds")
    )
    return timed.start(), appender
