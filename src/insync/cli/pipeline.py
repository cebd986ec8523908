"""`insync pipeline`: recorded telemetry as tables, on this machine's Spark or on a cluster's."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.client.admin_connections import BadAddress, parse_bootstrap

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
BucketMs = Annotated[
    int | None, typer.Option("--bucket-ms", metavar="MS", min=1, help="Length of a time bucket.")
]
Policies = Annotated[
    str | None, typer.Option("--policies", metavar="NAME,...", help="In-sync rules; usually all.")
]
LagTimes = Annotated[
    str | None,
    typer.Option(
        "--lag-time-max-ms",
        metavar="MS,...",
        help="Limits to try; usually 1 s to 60 s, and those that were in force.",
    ),
]
LagMessages = Annotated[
    str | None,
    typer.Option("--lag-max-messages", metavar="N,...", help="Limits of the policy messages."),
]
MinIsr = Annotated[
    int | None,
    typer.Option(
        "--min-insync-replicas",
        metavar="N",
        min=1,
        help="For all topics; usually the largest that was recorded, else 1.",
    ),
]
FetchWait = Annotated[
    int | None,
    typer.Option(
        "--fetch-wait-max-ms",
        metavar="MS",
        min=0,
        help="How long a fetch may wait; usually the longest that was recorded, else 500.",
    ),
]
HalfPeriod = Annotated[
    bool,
    typer.Option(
        "--half-period-check", help="Also as Apache Kafka looks: only every half of the limit."
    ),
]
Network = Annotated[
    int | None,
    typer.Option(
        "--network-bytes-per-s", metavar="N", min=1, help="What a broker's network bears."
    ),
]
Factor = Annotated[
    int | None, typer.Option("--replication-factor", metavar="N", min=1, help="Of what is moved.")
]
LOOK_EVERY_S = 0.2

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
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    return _run(wanted, _raw, tables())


@app.command()
def lag(
    *,
    source: Source,
    out: Out,
    bucket_ms: BucketMs = None,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    form: Format = "parquet",
    overwrite: Overwrite = False,
    as_json: JsonFlag = False,
) -> Answer:
    """How far each follower was behind: ms, messages and bytes, by time."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    return _steps(wanted, {"lag": given(bucket_ms=bucket_ms)})


@app.command()
def episodes(
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
    """Each time out of sync, from first cause to rejoin, with its cause."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    return _steps(wanted, {"episodes": {}})


@app.command("what-if")
def what_if(
    *,
    source: Source,
    out: Out,
    policies: Policies = None,
    lag_time_max_ms: LagTimes = None,
    lag_max_messages: LagMessages = None,
    min_insync_replicas: MinIsr = None,
    fetch_wait_max_ms: FetchWait = None,
    half_period_check: HalfPeriod = False,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    form: Format = "parquet",
    overwrite: Overwrite = False,
    as_json: JsonFlag = False,
) -> Answer:
    """What other rules and limits would have done."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    options = what_if_options(
        policies,
        lag_time_max_ms,
        lag_max_messages,
        min_insync_replicas,
        fetch_wait_max_ms,
        with_half_period=half_period_check,
    )
    return _steps(wanted, {"what_if": options, "recommendation": {}})


@app.command()
def throttle(
    *,
    source: Source,
    out: Out,
    network: Network = None,
    replication_factor: Factor = None,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    form: Format = "parquet",
    overwrite: Overwrite = False,
    as_json: JsonFlag = False,
) -> Answer:
    """Each limit's use, headroom and verdict; move times as estimated and real."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    options = given(network_bytes_per_s=network, replication_factor=replication_factor)
    return _steps(wanted, {"throttle": options})


@app.command()
def health(
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
    """A line per topic and broker, for people who look once a day."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    return _steps(
        wanted, {"episodes": {}, "lag": {}, "throttle": {}, "health": {}}, optional=["throttle"]
    )


@app.command()
def report(
    *,
    source: Source,
    out: Out,
    policies: Policies = None,
    lag_time_max_ms: LagTimes = None,
    lag_max_messages: LagMessages = None,
    min_insync_replicas: MinIsr = None,
    fetch_wait_max_ms: FetchWait = None,
    half_period_check: HalfPeriod = False,
    network: Network = None,
    replication_factor: Factor = None,
    bucket_ms: BucketMs = None,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    form: Format = "parquet",
    overwrite: Overwrite = False,
    as_json: JsonFlag = False,
) -> Answer:
    """Every table, and all of it as one page: DIR/report.html."""
    wanted = Wanted(source, out, master, conf, spark_log, form, overwrite, as_json)
    what = what_if_options(
        policies,
        lag_time_max_ms,
        lag_max_messages,
        min_insync_replicas,
        fetch_wait_max_ms,
        with_half_period=half_period_check,
    )
    limits = given(network_bytes_per_s=network, replication_factor=replication_factor)
    steps = {
        "episodes": {},
        "lag": given(bucket_ms=bucket_ms),
        "throttle": limits,
        "what_if": what,
        "recommendation": {},
        "health": {},
    }
    return _steps(wanted, steps, optional=["throttle"], with_report=True)


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
    bucket_ms: BucketMs = None,
    late_ms: Annotated[
        int | None,
        typer.Option("--late-ms", metavar="MS", min=0, help="How long lag waits for late rows."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Append the telemetry tables as they come, each row once; go on after a restart."""
    try:
        parse_bootstrap(source)
    except BadAddress as refusal:
        raise WrongUsage(f"--source: {refusal}; a stream comes from brokers") from None
    with _spark(master, conf, spark_log) as (spark, say):
        from insync.pipeline import stream as streams  # noqa: PLC0415 - brings pyspark

        query, appender = streams.start(
            spark,
            bootstrap=source,
            out=out.rstrip("/"),
            checkpoint=checkpoint,
            every_s=None if available_now else every_s,
            lag=streams.LagAsked(**given(bucket_ms=bucket_ms, late_ms=late_ms)),
            options={"maxBlocksPerTrigger": str(max_blocks)},
        )
        _until_ended(query, lambda: say(f"batch {max(appender.batches, default=0)}"))
        data = appender.summary()
    lines = [f"{name}\t{count} rows" for name, count in data["rows"].items()]
    lines += [f"lag is told up to {data['lag_until_ms']} ms"] if data["lag_until_ms"] else []
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What every command is told."""

    source: str
    out: str
    master: str | None
    conf: list[str] | None
    spark_log: Path | None
    form: str
    may_overwrite: bool
    as_json: bool


Say = Callable[[str], None]
Work = Callable[["SparkSession", "Job", Say], "Done"]


def _raw(spark: SparkSession, job: Job, say: Say) -> Done:
    from insync.pipeline.job import raw  # noqa: PLC0415 - brings pyspark, as all of these

    return raw(spark, job, say=say)


def _steps(
    wanted: Wanted,
    asked: Mapping[str, Mapping[str, Any]],
    *,
    optional: Iterable[str] = (),
    with_report: bool = False,
) -> Answer:
    """The tables asked for, and what is wrong with those that they are made of."""
    steps = {"problems": {}, **asked}

    def work(spark: SparkSession, job: Job, say: Say) -> Done:
        from insync.pipeline.job import draw, run  # noqa: PLC0415

        done = run(spark, job, steps, optional=optional, say=say)
        if with_report:
            say("drawing the report")
            draw(spark, job, done)
        return done

    writes = (*steps, *(["report.html"] if with_report else []))
    return _run(wanted, work, writes, shows=steps)


def _run(wanted: Wanted, work: Work, writes: Iterable[str], shows: Iterable[str] = ()) -> Answer:
    """Refuse what can be refused at once, start Spark, work, and show what came of it."""
    from insync.pipeline.session import check_packages  # noqa: PLC0415

    check_packages()
    from insync.pipeline.job import check  # noqa: PLC0415

    job = _job(wanted)
    check(job, writes)
    with _spark(wanted.master, wanted.conf, wanted.spark_log) as (spark, say):
        done = work(spark, job, say)
        say("summing up")
        summary = _summary(done, shows)
    data: dict[str, Any] = {"out": job.out, "rows": done.rows, "notes": done.notes}
    data["summary"] = summary
    if done.findings is not None:
        data["source"] = done.findings.as_dict()
    if done.report is not None:
        data["report"] = done.report
    view = "" if wanted.as_json else _view(job, done, summary)
    return Answer(data=data, view=view, as_json=wanted.as_json)


def _job(wanted: Wanted) -> Job:
    from insync.pipeline.job import Job  # noqa: PLC0415
    from insync.pipeline.output import FORMATS  # noqa: PLC0415

    if wanted.form not in FORMATS:
        raise WrongUsage(f"--format is {wanted.form}; it is one of {', '.join(FORMATS)}")
    return Job(
        source=wanted.source,
        out=wanted.out.rstrip("/"),
        form=wanted.form,
        may_overwrite=wanted.may_overwrite,
    )


def tables() -> Iterable[str]:
    from insync.telemetry.schemas import TABLES  # noqa: PLC0415

    return TABLES


def given(**options: Any) -> dict[str, Any]:
    """Those that somebody gave; the others keep their usual values."""
    return {name: value for name, value in options.items() if value is not None}


def what_if_options(
    policies: str | None,
    times: str | None,
    messages: str | None,
    minimum: int | None,
    fetch_wait_ms: int | None,
    *,
    with_half_period: bool,
) -> dict[str, Any]:
    return given(
        policies=None if policies is None else _words(policies),
        lag_time_max_ms=_numbers("--lag-time-max-ms", times),
        lag_max_messages=_numbers("--lag-max-messages", messages),
        min_insync_replicas=minimum,
        fetch_wait_max_ms=fetch_wait_ms,
        half_period_check=(False, True) if with_half_period else None,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = _words(text)
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise WrongUsage(f"{flag}: {text!r} is no list of whole numbers")
    return tuple(int(word) for word in words)


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
            more = "" if log else " (--spark-log FILE keeps all that Spark says)"
            raise SparkFailed(in_a_line(error) + more) from None


def _settings(given: list[str]) -> dict[str, str]:
    settings = {}
    for each in given:
        name, is_given, value = each.partition("=")
        if not name or not is_given:
            raise WrongUsage(f"--conf: {each!r} is not KEY=VALUE")
        settings[name] = value
    return settings


def _summary(done: Done, steps: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    from insync.pipeline.steps import STEPS  # noqa: PLC0415

    shown = {name: STEPS[name].summary for name in steps if name in done.results}
    return {
        name: summary.rows(done.results[name])
        for name, summary in shown.items()
        if summary is not None
    }


def _view(job: Job, done: Done, summary: Mapping[str, list[dict[str, Any]]]) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - scripts that ask for JSON need none
    from rich.text import Text  # noqa: PLC0415

    from insync.cli.sheet import Sheet, line  # noqa: PLC0415
    from insync.pipeline.report.page import in_a_sentence  # noqa: PLC0415
    from insync.pipeline.steps import STEPS  # noqa: PLC0415

    parts: list[RenderableType] = []
    for name, rows in summary.items():
        shown = STEPS[name].summary
        assert shown is not None, "it has rows"
        part = "" if len(rows) == done.rows[name] else f" of {done.rows[name]}"
        noun = "row" if done.rows[name] == 1 else "rows"
        caption = f"{len(rows)}{part} {noun}: {shown.words}"
        parts += [Sheet(name, shown.columns, rows, caption), ""]
    parts += [
        Text(in_a_sentence(row), style="bold")
        for row in summary.get("recommendation", ())
        if row["is_headline"]
    ]
    parts += [line(f"{count:>9} rows  {job.out}/{name}") for name, count in done.rows.items()]
    if done.report is not None:
        parts.append(line(f"   report  {done.report}"))
    return Group(*parts, *(line(f"note: {note}") for note in done.notes))
