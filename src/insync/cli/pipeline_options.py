"""The options of `insync pipeline`, each defined once, in groups that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.cli.quantities import fraction, network, seconds
from insync.rules.refusals import BadSetting
from insync.rules.settings import POLICY_NAMES

Command = Callable[..., Answer]

Source = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="HOST:PORT,...|DIR",
        help="Brokers to read telemetry from, or a folder of exported tables.",
    ),
]
BrokerSource = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="HOST:PORT,...",
        help="Brokers to read telemetry from.",
    ),
]
Out = Annotated[
    str,
    typer.Option("--out", metavar="DIR", help="Folder to write to; one folder in it per table."),
]
BucketMs = Annotated[
    int | None,
    typer.Option(
        "--bucket-ms",
        metavar="MS",
        min=1,
        help="Length of a time bucket of the table lag.",
        show_default="10000",
    ),
]
MinRecord = Annotated[
    str | None,
    typer.Option(
        "--min-record",
        metavar="TIME",
        help="Shortest record with appends that a recommendation is made from, for example 24h.",
        show_default="24h",
    ),
]


def min_record_ms(text: str | None) -> int | None:
    try:
        return None if text is None else 1_000 * seconds(text, flag="--min-record")
    except BadSetting as refusal:
        raise WrongUsage(str(refusal)) from None


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Where telemetry comes from, and where tables go."""

    source: Source
    out: Out
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format of tables: parquet or delta.")
    ] = "parquet"
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace tables that exist in --out.")
    ] = False
    as_json: JsonFlag = False


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What makes the tables: this process, or Spark."""

    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="auto, local or spark. local needs no Java; auto takes it for folders of this "
            "machine with up to 10 million rows.",
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Which Spark runs the command."""

    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Spark cluster to run on, for example spark://host:7077.",
            show_default="all cores of this machine",
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            metavar="KEY=VALUE",
            help="Spark setting, for example spark.driver.memory=8g; may be repeated.",
        ),
    ] = None
    spark_log: Annotated[
        Path | None,
        typer.Option(
            "--spark-log",
            metavar="FILE",
            help="Write Spark's log to a file.",
            show_default="discard it",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """The scenarios of a what-if."""

    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="NAME,...",
            help=f"In-sync policies to replay, of {', '.join(POLICY_NAMES)}.",
            show_default="all",
        ),
    ] = None
    lag_time_max_ms: Annotated[
        str | None,
        typer.Option(
            "--lag-time-max-ms",
            metavar="MS,...",
            help="Values of replica.lag.time.max.ms to replay.",
            show_default="1 s to 60 s; always also every value that was in force, and the lowest "
            "one that may be recommended",
        ),
    ] = None
    lag_max_messages: Annotated[
        str | None,
        typer.Option(
            "--lag-max-messages",
            metavar="N,...",
            help="Values of replica.lag.max.messages, for the policy messages.",
            show_default="4000",
        ),
    ] = None
    min_insync_replicas: Annotated[
        int | None,
        typer.Option(
            "--min-insync-replicas",
            metavar="N",
            min=1,
            help="What if min.insync.replicas of all topics were N.",
            show_default="each topic's, as recorded",
        ),
    ] = None
    fetch_wait_max_ms: Annotated[
        int | None,
        typer.Option(
            "--fetch-wait-max-ms",
            metavar="MS",
            min=0,
            help="replica.fetch.wait.max.ms.",
            show_default="the longest recorded, else 500",
        ),
    ] = None
    half_period_check: Annotated[
        bool,
        typer.Option(
            "--half-period-check",
            help="Also replay with a check only every half of the limit, as Apache Kafka does.",
        ),
    ] = False

    def as_grid(self) -> dict[str, Any]:
        """The arguments of `WhatIfGrid` that the operator set."""
        return only_set(
            policies=None if self.policies is None else _split(self.policies),
            lag_time_max_ms=_integers("--lag-time-max-ms", self.lag_time_max_ms),
            lag_max_messages=_integers("--lag-max-messages", self.lag_max_messages),
            min_insync_replicas=self.min_insync_replicas,
            fetch_wait_max_ms=self.fetch_wait_max_ms,
            half_period_check=(False, True) if self.half_period_check else None,
        )


@dataclass(frozen=True, slots=True)
class ThrottleOptions:
    """What throttles are judged by."""

    network: Annotated[
        int | None,
        typer.Option(
            "--network-bytes-per-s",
            metavar="N",
            min=1,
            help="Network capacity of a broker in bytes per second, for example 125000000.",
            show_default="unknown, no upper bound of a safe throttle",
        ),
    ] = None
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="N",
            min=1,
            help="Replication factor of the topics that are moved.",
            show_default="3",
        ),
    ] = None

    def as_limits(self) -> dict[str, Any]:
        """The options of the table throttle that the operator set."""
        return only_set(
            network_bytes_per_s=self.network, replication_factor=self.replication_factor
        )


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """How much a plan may move, and what its throttle has to respect."""

    max_moves: Annotated[
        int | None,
        typer.Option(
            "--max-moves",
            metavar="N",
            min=1,
            help="Partitions that a plan changes, at most.",
            show_default="20",
        ),
    ] = None
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="1Gbit",
            help="Network bandwidth of one broker.",
            show_default="unknown, no upper bound of a safe throttle",
        ),
    ] = None
    max_impact: Annotated[
        str | None,
        typer.Option(
            "--max-impact",
            metavar="30%",
            help="Fraction of --network that the copies may take from clients.",
            show_default="what KIP-73 calls safe",
        ),
    ] = None
    finish_in: Annotated[
        str | None,
        typer.Option(
            "--finish-in",
            metavar="TIME",
            help="Time in which the copies are to end, if a safe throttle allows it, for example "
            "30m.",
            show_default="1h",
        ),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """The arguments of `PlanOptions` that the operator set."""
        if self.max_impact is not None and self.network is None:
            raise WrongUsage("--max-impact is a fraction of the network; give --network too")
        try:
            return only_set(
                max_moves=self.max_moves,
                network_bytes_per_s=_given(network, "--network", self.network),
                max_impact=_given(fraction, "--max-impact", self.max_impact),
                finish_in_s=_given(seconds, "--finish-in", self.finish_in),
            )
        except BadSetting as refusal:
            raise WrongUsage(str(refusal)) from None


def _given(parse: Callable[..., Any], flag: str, text: str | None) -> Any:
    return None if text is None else parse(text, flag=flag)


def spark_flags(options: SparkOptions) -> list[str]:
    """The options of Spark that the operator set."""
    values = {"--master": options.master, "--conf": options.conf, "--spark-log": options.spark_log}
    return [flag for flag, value in values.items() if value]


def only_set(**options: Any) -> dict[str, Any]:
    """Options that have a value; the others keep their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def settings_of(conf: list[str] | None) -> dict[str, str]:
    settings = {}
    for setting in conf or []:
        name, has_value, value = setting.partition("=")
        if not name or not has_value:
            raise WrongUsage(f"--conf: {setting!r} is not KEY=VALUE")
        settings[name] = value
    return settings


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _integers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = _split(text)
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise WrongUsage(f"{flag}: {text!r} is no list of whole numbers")
    return tuple(int(word) for word in words)


def expand_options(command: Command) -> Command:
    """Give a command a flag for each field of its parameters that are groups of options.

    Typer reads flags from a function's signature, and knows no groups."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flags: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            flags += _flags(hints[name])
        else:
            flags.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> Answer:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**filled, **values)

    del expanded.__wrapped__
    expanded.__annotations__ = {flag.name: flag.annotation for flag in flags}
    expanded.__signature__ = signature(command).replace(parameters=flags)  # type: ignore[attr-defined]
    return expanded


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=_default(field),
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
