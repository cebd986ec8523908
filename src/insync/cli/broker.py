"""`insync broker`: one broker in this process, from a properties file with Kafka's names."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from insync.broker.accepted import (
    NEW_DIRECTORY,
    NEW_DIRECTORY_HELP,
    OLDER_METADATA,
    OLDER_METADATA_HELP,
    Accepted,
)
from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.cli.answer import INTERRUPTED
from insync.rules.refusals import BadSetting


def register(on: typer.Typer) -> None:
    on.command("broker")(broker)


def broker(
    config: Annotated[
        Path,
        typer.Option("--config", metavar="FILE", help="A properties file, with Kafka's names."),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of the file; may be repeated."
        ),
    ] = None,
    *,
    accept_older_metadata: Annotated[
        bool, typer.Option(OLDER_METADATA, help=OLDER_METADATA_HELP)
    ] = False,
    new_directory: Annotated[bool, typer.Option(NEW_DIRECTORY, help=NEW_DIRECTORY_HELP)] = False,
) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C."""
    import asyncio  # noqa: PLC0415 - `insync cluster` imports this module, and starts no broker

    from insync.node import process  # noqa: PLC0415 - a whole broker

    is_interrupted = False

    def interrupt() -> None:
        """Ctrl-C stops a broker as cleanly as SIGTERM does; only the exit code differs."""
        nonlocal is_interrupted
        is_interrupted = True
        signal.raise_signal(signal.SIGTERM)

    def on_ready() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        process.print_ready()

    settings = {**read_properties(config), **parse_sets(set_ or [])}
    accepted = Accepted(older_metadata=accept_older_metadata, new_directory=new_directory)
    process.run(process.serve(Settings(settings), on_ready=on_ready, accepted=accepted))
    return INTERRUPTED if is_interrupted else 0


def parse_sets(pairs: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise BadSetting(f"--set {pair!r} is not of the form KEY=VALUE")
        settings[name.strip()] = value.strip()
    return settings
