"""`insync pipeline`: recorded telemetry as tables, in this process, on this machine's Spark or on a
cluster's."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.cli.pipeline_options import (
    BrokerSource,
    BucketMs,
    EngineOptions,
    JobOptions,
    MinRecord,
    Out,
    PlanFlags,
    SparkOptions,
    ThrottleOptions,
    WhatIfOptions,
    expand_options,
    min_record_ms,
    only_set,
    settings_of,
    spark_flags,
)
from insync.client.admin_connections import BadAddress, parse_bootstrap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import RenderableType

    from insync.pipeline.io.engines import Engine
    from insync.pipeline.job import Done, Job

CHECK_EVERY_S = 0.2
PLAN_FILES = ("plan.json", "rollback.json")

app = typer.Typer(help="Analyse recorded telemetry, here or on Spark.")


def register(on: typer.Typer) -> None:
    on.add_typer(app, name="pipeline")


@app.callback()
def group() -> None:
    """Analyse recorded telemetry: lag, ISR episodes, what-if, throttles, a report."""


@app.command()
@expand_options
def raw(job: JobOptions, spark: SparkOptions) -> Answer:
    """Write the telemetry tables as they were recorded."""
    from insync.telemetry.schemas import TABLES  # noqa: PLC0415

    return _run(job, spark, _write_raw, TABLES)


@app.command()
@expand_options
def lag(
    *, job: JobOptions, bucket_ms: BucketMs = None, engine: EngineOptions, spark: SparkOptions
) -> Answer:
    """Write how far each follower was behind its leader: in ms, messages and bytes, by time."""
    return _make_tables(job, engine, spark, {"lag": only_set(bucket_ms=bucket_ms)})


@app.command()
@expand_options
def episodes(job: JobOptions, engine: EngineOptions, spark: SparkOptions) -> Answer:
    """Write each time a replica was out of the ISR, from its cause to its return."""
    return _make_tables(job, engine, spark, {"episodes": {}})


@app.command()
@expand_options
def incidents(job: JobOptions, engine: EngineOptions, spark: SparkOptions) -> Answer:
    """Write the episodes of one broker with one cause at one time as one incident."""
    return _make_tables(job, engine, spark, {"episodes": {}, "lag": {}, "incidents": {}})


@app.command(
    "what-if",
)
@expand_options
def what_if(
    *,
    job: JobOptions,
    grid: WhatIfOptions,
    min_record: MinRecord = None,
    engine: EngineOptions,
    spark: SparkOptions,
) -> Answer:
    """Write what other in-sync policies and limits would have done, and what to set, if anything.

    A record shorter than --min-record gives the table only."""
    steps = {
        "record": {},
        "what_if": grid.as_grid(),
        "recommendation": only_set(min_record_ms=min_record_ms(min_record)),
    }
    return _make_tables(job, engine, spark, steps)


@app.command()
@expand_options
def throttle(
    job: JobOptions, limits: ThrottleOptions, engine: EngineOptions, spark: SparkOptions
) -> Answer:
    """Write each throttle's use, headroom and verdict, and move times, estimated and real."""
    return _make_tables(job, engine, spark, {"throttle": limits.as_limits()})


@app.command()
@expand_options
def plans(job: JobOptions, flags: PlanFlags, engine: EngineOptions, spark: SparkOptions) -> Answer:
    """Write inbound rates by hour, and a plan that evens out brokers: moves, throttle, best hour.

    DIR/plan.json and DIR/rollback.json are plans for insync reassign."""
    steps = {"inbound": {}, "plans": flags.as_options()}
    return _make_tables(job, engine, spark, steps, with_plan=True)


@app.command()
@expand_options
def health(job: JobOptions, engine: EngineOptions, spark: SparkOptions) -> Answer:
    """Write one line per topic and broker, for a daily check."""
    names = ("episodes", "lag", "incidents", "throttle", "health")
    steps: dict[str, dict[str, Any]] = {name: {} for name in names}
    return _make_tables(job, engine, spark, steps, optional=["throttle"], shows=["health"])


@app.command()
@expand_options
def report(
    *,
    job: JobOptions,
    grid: WhatIfOptions,
    limits: ThrottleOptions,
    bucket_ms: BucketMs = None,
    min_record: MinRecord = None,
    engine: EngineOptions,
    spark: SparkOptions,
) -> Answer:
    """Write every table, and a page that shows them: DIR/report.html."""
    steps = {
        "episodes": {},
        "lag": only_set(bucket_ms=bucket_ms),
        "incidents": {},
        "throttle": limits.as_limits(),
        "record": {},
        "what_if": grid.as_grid(),
        "recommendation": only_set(min_record_ms=min_record_ms(min_record)),
        "health": {},
    }
    return _make_tables(job, engine, spark, steps, optional=["throttle"], with_report=True)


@app.command()
@expand_options
def stream(
    *,
    source: BrokerSource,
    out: Out,
    every_s: Annotated[
        int, typer.Option("--every", metavar="SECONDS", min=1, help="Time between two batches.")
    ] = 10,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Stop once everything present has been written."),
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Folder for the stream's progress.",
            show_default="a folder in --out",
        ),
    ] = None,
    max_blocks: Annotated[
        int, typer.Option("--max-blocks", metavar="N", min=1, help="Blocks per batch, at most.")
    ] = 1_000,
    bucket_ms: BucketMs = None,
    late_ms: Annotated[
        int | None,
        typer.Option(
            "--late-ms",
            metavar="MS",
            min=0,
            help="How long the table lag waits for late rows.",
            show_default="60000",
        ),
    ] = None,
    spark_options: SparkOptions,
    as_json: JsonFlag = False,
) -> Answer:
    """Append telemetry to tables as brokers publish it, each row once; resume after a restart."""
    try:
        parse_bootstrap(source)
    except BadAddress as refusal:
        raise WrongUsage(f"--source: {refusal}; a stream reads from brokers") from None
    with _spark(spark_options) as (spark, say):
        from insync.pipeline import stream as streams  # noqa: PLC0415 - brings pyspark

        query, appender = streams.start(
            spark,
            bootstrap=source,
            out=out.rstrip("/"),
            checkpoint=checkpoint,
            every_s=None if available_now else every_s,
            lag=streams.LagOptions(**only_set(bucket_ms=bucket_ms, late_ms=late_ms)),
            options={"maxBlocksPerTrigger": str(max_blocks)},
        )
        _until_ended(query, lambda: say(f"batch {max(appender.batches, default=0)}"))
        data = appender.summary()
    lines = [f"{name}\t{count} rows" for name, count in data["rows"].items()]
    lines += [f"lag is complete up to {data['lag_until_ms']} ms"] if data["lag_until_ms"] else []
    text = "\n".join([*lines, f"{data['bad_blocks']} blocks could not be read", ""])
    return Answer(data={"out": out, **data}, view=text, as_json=as_json)


def _until_ended(query: StreamingQuery, show_progress: Callable[[], None]) -> None:
    """Until the stream has nothing more to do or fails, or the operator stops it."""
    is_stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    while query.isActive and not is_stopped.wait(CHECK_EVERY_S):
        show_progress()
    query.stop()  # an interrupted batch is run again at the next start
    error = query.exception()
    if error is not None:
        raise error


Say = Callable[[str], None]
Work = Callable[["SparkSession", "Job", Say], "Done"]


def _write_raw(spark: SparkSession, job: Job, say: Say) -> Done:
    from insync.pipeline.job import raw  # noqa: PLC0415 - imports pyspark, as all of these

    return raw(spark, job, say=say)


def _make_tables(
    options: JobOptions,
    engine_options: EngineOptions,
    spark_options: SparkOptions,
    tables: Mapping[str, Mapping[str, Any]],
    *,
    optional: Iterable[str] = (),
    shows: Iterable[str] | None = None,
    with_report: bool = False,
    with_plan: bool = False,
) -> Answer:
    """The tables, and before them the problems of the telemetry that they are made of.

    All are shown, unless `shows` names those that are the answer and not on the way to it.
    """
    steps = {"problems": {}, **tables}

    def work(spark: SparkSession, job: Job, say: Say) -> Done:
        from insync.pipeline.job import draw, run, write_plan  # noqa: PLC0415

        done = run(spark, job, steps, optional=optional, say=say)
        if with_report:
            say("drawing the report")
            draw(spark, job, done)
        if with_plan:
            write_plan(spark, job, done)
        return done

    files = [*(["report.html"] if with_report else []), *(PLAN_FILES if with_plan else ())]
    writes = (*steps, *files)
    return _run(
        options,
        spark_options,
        work,
        writes,
        shows=steps if shows is None else shows,
        engine=engine_options.engine,
    )


def _run(
    options: JobOptions,
    spark_options: SparkOptions,
    work: Work,
    writes: Iterable[str],
    *,
    shows: Iterable[str] = (),
    engine: str = "spark",
) -> Answer:
    """Refuse what can be refused before Spark starts, do the work, and summarise the tables."""
    from insync.pipeline.io.session import check_packages  # noqa: PLC0415

    check_packages()
    from insync.pipeline.job import check  # noqa: PLC0415

    job = _job(options)
    check(job, writes)
    chosen = _engine(engine, job, spark_options)
    with _local() if chosen.name == "local" else _spark(spark_options) as (spark, say):
        done = work(spark, job, say)
        say("summarising")
        summary = _summary(done, shows, as_json=options.as_json)
    data: dict[str, Any] = {"out": job.out, "rows": done.rows, "notes": done.notes}
    data |= {"engine": {"name": chosen.name, "reason": chosen.reason}, "summary": summary}
    if done.findings is not None:
        data["source"] = done.findings.as_dict()
    if done.report is not None:
        data["report"] = done.report
    if done.plan_files:
        data["plan_files"] = done.plan_files
    view = "" if options.as_json else _view(job, done, summary, chosen)
    return Answer(data=data, view=view, as_json=options.as_json)


def _job(options: JobOptions) -> Job:
    from insync.pipeline.io.output import FORMATS  # noqa: PLC0415
    from insync.pipeline.job import Job  # noqa: PLC0415

    if options.form not in FORMATS:
        raise WrongUsage(f"--format is {options.form}; it is one of {', '.join(FORMATS)}")
    return Job(
        source=options.source,
        out=options.out.rstrip("/"),
        form=options.form,
        may_overwrite=options.overwrite,
    )


def _engine(name: str, job: Job, options: SparkOptions) -> Engine:
    from insync.pipeline.io.engines import ENGINES, choose_engine  # noqa: PLC0415
    from insync.pipeline.job import is_bootstrap  # noqa: PLC0415

    if name not in ENGINES:
        raise WrongUsage(f"--engine is {name}; it is one of {', '.join(ENGINES)}")
    return choose_engine(
        name,
        source=job.source,
        out=job.out,
        form=job.form,
        is_from_brokers=is_bootstrap(job.source),
        spark_flags=spark_flags(options),
    )


@contextmanager
def _local() -> Iterator[tuple[SparkSession, Say]]:
    """The local engine, in the place of a session."""
    from insync.cli.progress import watched  # noqa: PLC0415
    from insync.pipeline.local.session import LocalFailed, local_session  # noqa: PLC0415

    with local_session() as session, watched(None) as say:
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from insync.pipeline.io.output import in_a_line  # noqa: PLC0415

        try:
            yield cast("SparkSession", session), say
        except PySparkException as error:  # of a type of Arrow that Spark has no name for
            raise LocalFailed(in_a_line(error)) from None


@contextmanager
def _spark(options: SparkOptions) -> Iterator[tuple[SparkSession, Say]]:
    """A session, and a function that shows progress; an error of Spark becomes one line."""
    from insync.pipeline.io.session import check_packages, session  # noqa: PLC0415

    settings = settings_of(options.conf)
    check_packages()
    from insync.cli.progress import watched  # noqa: PLC0415 - imports rich

    log = options.spark_log
    with session(master=options.master, settings=settings, log=log) as spark, watched(spark) as say:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from insync.pipeline.io.output import SparkFailed, in_a_line  # noqa: PLC0415

        try:
            yield spark, say
        except (PySparkException, Py4JError) as error:
            more = "" if log else " (--spark-log FILE keeps Spark's log)"
            raise SparkFailed(in_a_line(error) + more) from None


def _summary(done: Done, steps: Iterable[str], *, as_json: bool) -> dict[str, list[dict[str, Any]]]:
    from insync.pipeline.tables.registry import STEPS  # noqa: PLC0415

    summaries = {name: STEPS[name].summary for name in steps if name in done.results}
    return {
        name: summary.rows(done.results[name], as_json=as_json)
        for name, summary in summaries.items()
        if summary is not None
    }


def _view(
    job: Job, done: Done, summary: Mapping[str, list[dict[str, Any]]], engine: Engine
) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - not needed for JSON

    from insync.cli.plan_view import plan_view  # noqa: PLC0415
    from insync.cli.sheet import ResultTable, line  # noqa: PLC0415
    from insync.pipeline.tables.registry import STEPS  # noqa: PLC0415

    parts: list[RenderableType] = []
    for name, rows in summary.items():
        if name == "recommendation":
            parts += _advice(rows[0])
            continue
        if name == "plans":
            parts += plan_view(rows[0], job.out)
            continue
        shown = STEPS[name].summary
        assert shown is not None, "it has rows"
        part = "" if len(rows) == done.rows[name] else f" of {done.rows[name]}"
        noun = "row" if done.rows[name] == 1 else "rows"
        caption = f"{len(rows)}{part} {noun}: {shown.words}"
        parts += [ResultTable(name, shown.columns, rows, caption), ""]
    shown_or_all = summary or done.rows
    parts += [line(f"{done.rows[name]:>9} rows  {job.out}/{name}") for name in shown_or_all]
    others = [name for name in done.rows if name not in shown_or_all]
    parts += [line(f"     also  {job.out}: {', '.join(others)}")] if others else []
    if done.report is not None:
        parts.append(line(f"   report  {done.report}"))
    parts.append(line(f"   engine  {engine}"))
    return Group(*parts, *(line(f"note: {note}") for note in done.notes))


def _advice(row: Mapping[str, Any]) -> list[RenderableType]:
    """The recommendation in sentences, the trade below it, and the commands."""
    from rich.text import Text  # noqa: PLC0415

    from insync.cli.sheet import ResultTable, line  # noqa: PLC0415
    from insync.pipeline.report.advice_words import (  # noqa: PLC0415
        TRADE_COLUMNS,
        advice_commands,
        advice_sentences,
        trade_rows,
    )

    headline, *statements = advice_sentences(row)
    caption = "the last two of the partition that it was longest for"
    return [
        ResultTable("recommendation", TRADE_COLUMNS, trade_rows(row), caption),
        Text(headline, style="bold"),
        *(Text(statement) for statement in statements),
        *(line(f"{name:>9}  {command}") for name, command in advice_commands(row)),
        "",
    ]
