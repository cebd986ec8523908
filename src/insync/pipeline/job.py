"""From a source to files, on the caller's session: what the commands, `spark-submit` and a
notebook run alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from insync.client.admin_connections import BadAddress, parse_bootstrap
from insync.pipeline.io import output, storage
from insync.pipeline.io.block_tables import Findings, decoded, findings
from insync.pipeline.io.files import BadSource, Tables, read_tables
from insync.pipeline.io.source import BOOTSTRAP, TelemetrySource
from insync.pipeline.io.telemetry_schemas import TELEMETRY
from insync.pipeline.local.dispatch import F
from insync.pipeline.tables.registry import STEPS, Inputs, Options

RAW: Final = "telemetry"
"""Where tables read from brokers are kept under --out: evidence, and a source for the next job. As
Parquet whatever the results are: this job reads them, and any other can."""

NOT_DRAWN: Final = ("problems", "record", "inbound", "plans")
"""Notes have the first, the recommendation the second; plans are for a command of their own."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    source: str  # HOST:PORT,... or a folder of Parquet
    out: str
    form: str = output.PARQUET
    may_overwrite: bool = False


@dataclass(slots=True)
class Done:
    """What a job wrote, and what it has to say about its source."""

    results: dict[str, DataFrame] = field(default_factory=dict)  # as they were written
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: Findings | None = None
    seconds: DataFrame | None = None  # the telemetry table `throttle`, where it was recorded
    report: str | None = None
    plan_files: list[str] = field(default_factory=list)


def is_bootstrap(source: str) -> bool:
    try:
        return bool(parse_bootstrap(source))
    except BadAddress:
        return False


def run(
    spark: SparkSession,
    job: Job,
    steps: Mapping[str, Options],
    *,
    optional: Iterable[str] = (),
    say: Say = lambda _: None,
) -> Done:
    """Make each table, in this order; its options are the arguments of its function.

    One that is optional is left out, and said to be, where nothing of it was recorded.
    """
    check(job, steps)
    done = Done()
    from_brokers = is_bootstrap(job.source)
    folder = f"{job.out}/{RAW}" if from_brokers else job.source
    if from_brokers:
        _fetch(spark, replace(job, form=output.PARQUET), f"{RAW}/", done, say)
    elif note := check_storage(spark, folder):
        done.notes.append(note)
    needed = {name for step in steps if step not in optional for name in STEPS[step].needs}
    tables = read_tables(spark, folder, needed=sorted(needed))
    done.notes += tables.notes
    done.seconds = tables.frames.get("throttle")
    inputs = Inputs(spark=spark, folder=folder, telemetry=tables.frames, results=done.results)
    for name, options in steps.items():
        if name in optional and not _has(tables, STEPS[name].needs):
            done.notes.append(f"no table {name}: nothing of it was recorded")
            continue
        say(f"making {name}")
        _write(spark, STEPS[name].make(inputs, options), job, name, done)
    if "problems" in done.results:
        done.notes += _problems(done.results["problems"])
    return done


def _problems(problems: DataFrame) -> list[str]:
    counts = F.sum("rows").alias("rows"), F.count("*").alias("partitions")
    totals = problems.groupBy("problem").agg(*counts)
    return [
        f"{row['problem']}: {row['rows']} rows in {row['partitions']} partitions"
        for row in totals.orderBy("problem").collect()
    ]


def _has(tables: Tables, names: Iterable[str]) -> bool:
    return all(name in tables.frames and not tables.frames[name].isEmpty() for name in names)


def draw(spark: SparkSession, job: Job, done: Done) -> None:
    """The report of what was made: one file, beside the tables."""
    from insync.pipeline.report import Tables, report  # noqa: PLC0415 - only if a report is made

    path = f"{job.out}/report.html"
    drawn = [name for name in STEPS if name in done.results and name not in NOT_DRAWN]
    made = {name: done.results[name] for name in drawn}
    tables = Tables(**made, seconds=done.seconds)
    output.write_text(spark, path, report(tables), may_overwrite=job.may_overwrite)
    done.report = path


def write_plan(spark: SparkSession, job: Job, done: Done) -> None:
    """The plan and its rollback, in the JSON of kafka-reassign-partitions, beside the tables.

    Both are written also where nothing is to be moved: an earlier plan must not stay there.
    """
    row = done.results["plans"].first()
    assert row is not None, "it has one row"
    for name in ("plan", "rollback"):
        path = f"{job.out}/{name}.json"
        output.write_text(spark, path, f"{row[name]}\n", may_overwrite=job.may_overwrite)
        done.plan_files.append(path)


def check(job: Job, names: Iterable[str]) -> None:
    """Refuse at once what would be refused after minutes: a caller may ask before Spark starts."""
    from_brokers = is_bootstrap(job.source)
    own = [RAW] if from_brokers else []
    output.check_new(job.out, [*own, *names], may_overwrite=job.may_overwrite)
    if not from_brokers and not storage.is_url(job.source) and not Path(job.source).is_dir():
        raise BadSource(
            f"there is no folder {job.source}, and it is no HOST:PORT of a broker either"
        )


def check_storage(spark: SparkSession, folder: str) -> str | None:
    """Refuse what Spark would find out after many attempts; a note if only Spark can read it."""
    try:
        storage.folder(spark, folder).listed("fetches")
    except storage.SparkOnly as why:
        return f"{why}; the tables are made of DataFrames, which takes longer"
    return None


def raw(spark: SparkSession, job: Job, *, say: Say = lambda _: None) -> Done:
    """The telemetry tables themselves, straight under --out."""
    if not is_bootstrap(job.source):
        raise BadSource(f"{job.source} is no HOST:PORT: raw tables come from brokers")
    output.check_new(job.out, TELEMETRY, may_overwrite=job.may_overwrite)
    done = Done()
    _fetch(spark, job, "", done, say)
    return done


def _fetch(spark: SparkSession, job: Job, under: str, done: Done, say: Say) -> None:
    """Every table as it was at one moment, read from the brokers once."""
    say("reading blocks")
    with kept(blocks_of(spark, job.source)) as blocks:
        done.findings = findings(blocks)
        done.notes += done.findings.notes()
        for name in TELEMETRY:
            say(f"reading {name}")
            _write(spark, decoded(blocks, name), job, f"{under}{name}", done)


def blocks_of(spark: SparkSession, bootstrap: str) -> DataFrame:
    read: Any = spark.read.format(TelemetrySource.name()).option(BOOTSTRAP, bootstrap)
    frame = read.option("table", "blocks").load()
    assert isinstance(frame, DataFrame), "Spark's reader loads one"
    return frame


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """On the workers' disks, so that several tables come of one reading and in its order."""
    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def _write(spark: SparkSession, rows: DataFrame, job: Job, name: str, done: Done) -> None:
    path = f"{job.out}/{name}"
    output.write(rows, path, form=job.form, may_overwrite=job.may_overwrite)
    done.results[name] = output.written(spark, path, form=job.form)
    done.rows[name] = done.results[name].count()
