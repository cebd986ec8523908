"""`insync pipeline`: recorded telemetry as tables, on this machine's Spark or on a cluster's."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from insync.cli.answer import Answer, JsonFlag, WrongUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import RenderableType

    from insync.pipeline.job import Done, Job

Source = Annotated[
    str,
    typer.Option(
        "--source", metavar="HOST:PORT,...|DIR", help="Brokers, or a folder of exported tables."
    ),
]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="A folder per table in it.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="A Spark cluster; usually this machine alone."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace tables that exist.")]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help="parquet or delta.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
]
SparkLog = Annotated[
    Path | None,
    typer.Option("--spark-log", metavar="FILE", help="Keep what Spark itself has to say."),
]
LOOK_EVERY_S = 0.2
SHOWN_MAX = 20  # rows of a table on the terminal

app = typer.Typer(help="Recorded telemetry as tables, on Spark.")


def register(on: typer.Typer) -> None:
    on.add_typer(app, name="pipeline")


@app.callback()
def group() -> None:
    """Recorded telemetry as tables, on Spark."""


@app.command()
def raw(
    *,
    source: Source,
    out: Out,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    form: Format = "parquet",
    overwrite: Overwrite = False,
    as_json: JsonFlag = False,
) -> Answer:
    """The telemetry tables themselves, read by Spark's workers."""
    with _spark(master, conf, spark_log) as (spark, say):
        from insync.pipeline import job as jobs  # noqa: PLC0415 - brings pyspark

        job = _job(source, out, form, may_overwrite=overwrite)
        return _answer(spark, job, jobs.raw(spark, job, say=say), (), as_json=as_json)


@app.command()
def stream(
    *,
    source: Source,
    out: Out,
    every_s: Annotated[
        int, typer.Option("--every", metavar="SECONDS", min=1, help="Between two batches.")
    ] = 10,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Take what is there, and end.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Where it was; usually in --out."),
    ] = None,
    max_blocks: Annotated[
        int, typer.Option("--max-blocks", metavar="N", min=1, help="In one batch.")
    ] = 1_000,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Append the telemetry tables as they come, each row once; go on after a restart."""
    with _spark(master, conf, spark_log) as (spark, say):
        from insync.pipeline import stream as streams  # noqa: PLC0415 - brings pyspark
        from insync.pipeline.job import is_bootstrap  # noqa: PLC0415

        if not is_bootstrap(source):
            raise WrongUsage(f"--source: {source} is no HOST:PORT; a stream comes from brokers")
        query, appender = streams.start(
            spark,
            bootstrap=source,
            out=out.rstrip("/"),
            checkpoint=checkpoint,
            every_s=None if available_now else every_s,
            options={"maxBlocksPerTrigger": str(max_blocks)},
        )
        _until_ended(query, lambda: say(f"batch {max(appender.batches, default=0)}"))
        data = appender.summary()
    lines = [f"{name}\t{count} rows" for name, count in data["rows"].items()]
    text = "\n".join([*lines, f"{data['bad_blocks']} blocks could not be read", ""])
    return Answer(data={"out": out, **data}, view=text, as_json=as_json)


def _until_ended(query: StreamingQuery, tell: Callable[[], None]) -> None:
    """Until it has nothing more to do, fails, or somebody asks us to end."""
    asked = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while query.isActive and not asked.wait(LOOK_EVERY_S):
        tell()
    query.stop()  # a batch that is cut off is run again at the next start
    error = query.exception()
    if error is not None:
        raise error


def _job(source: str, out: str, form: str, *, may_overwrite: bool) -> Job:
    from insync.pipeline.job import Job  # noqa: PLC0415 - brings pyspark
    from insync.pipeline.output import FORMATS  # noqa: PLC0415

    if form not in FORMATS:
        raise WrongUsage(f"--format is {form}; it is one of {', '.join(FORMATS)}")
    return Job(source=source, out=out.rstrip("/"), form=form, may_overwrite=may_overwrite)


@contextmanager
def _spark(
    master: str | None, conf: list[str] | None, log: Path | None
) -> Iterator[tuple[SparkSession, Callable[[str], None]]]:
    """A session, and somebody to tell what is being done; Spark's failures become a line."""
    from insync.pipeline.session import check_packages, session  # noqa: PLC0415

    settings = _settings(conf or [])
    check_packages()
    from insync.cli.progress import watched  # noqa: PLC0415 - brings rich

    with session(master=master, settings=settings, log=log) as spark, watched(spark) as say:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from insync.pipeline.output import SparkFailed, in_a_line  # noqa: PLC0415

        try:
            yield spark, say
        except (PySparkException, Py4JError) as error:
            raise SparkFailed(in_a_line(error)) from None


def _settings(given: list[str]) -> dict[str, str]:
    settings = {}
    for each in given:
        name, is_given, value = each.partition("=")
        if not name or not is_given:
            raise WrongUsage(f"--conf: {each!r} is not KEY=VALUE")
        settings[name] = value
    return settings


def _answer(
    spark: SparkSession, job: Job, done: Done, names: tuple[str, ...], *, as_json: bool
) -> Answer:
    data: dict[str, Any] = {"out": job.out, "rows": done.rows, "notes": done.notes}
    if done.findings is not None:
        data["source"] = done.findings.as_dict()
    view = _view(spark, job, done, names)
    return Answer(data=data, view=view, as_json=as_json)


def _view(spark: SparkSession, job: Job, done: Done, names: tuple[str, ...]) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - scripts that ask for JSON need none
    from rich.table import Table  # noqa: PLC0415

    from insync.pipeline.output import written  # noqa: PLC0415
    from insync.pipeline.steps import STEPS  # noqa: PLC0415

    parts: list[RenderableType] = []
    for name in names:
        rows = written(spark, f"{job.out}/{name}", form=job.form)
        shown = STEPS[name].shows or tuple(rows.columns)
        table = Table(title=name, title_justify="left", box=None)
        for column in shown:
            table.add_column(column)
        for row in rows.select(*shown).limit(SHOWN_MAX).collect():
            table.add_row(*("" if value is None else str(value) for value in row))
        parts.append(table)
    counts = Table(box=None, show_header=False)
    for name, count in done.rows.items():
        counts.add_row(f"{job.out}/{name}", f"{count} rows")
    return Group(*parts, counts, *(f"note: {note}" for note in done.notes))


def steps_of(name: str, options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: {key: value for key, value in options.items() if value is not None}}


def warn(text: str) -> None:
    sys.stderr.write(f"insync: {text}\n")
