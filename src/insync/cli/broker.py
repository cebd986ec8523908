"""`insync broker`: one broker in this process, from a properties file with Kafka's names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.rules.refusals import BadSetting


def register(on: typer.Typer) -> None:
    on.command("broker")(broker)


def broker(
    config: Annotated[Path, typer.Option("--config", help="A properties file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")
    ] = None,
) -> None:
    """Run one broker in the foreground until SIGTERM or Ctrl-C."""
    from insync.node import process  # noqa: PLC0415 - a whole broker

    given = {**read_properties(config), **parse_sets(set_ or [])}
    process.run(process.serve(Settings(given), on_ready=process.say_ready))


def parse_sets(pairs: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise BadSetting(f"--set {pair!r} is not of the form KEY=VALUE")
        given[name.strip()] = value.strip()
    return given
