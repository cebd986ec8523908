"""What commands about a running cluster share: which brokers they ask, how, and for how long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from insync.cli.answer import WrongUsage
from insync.cli.http_probe import refuse_web_servers
from insync.client.admin import Admin
from insync.client.admin_connections import BadAddress, Connections, Patience, parse_bootstrap
from insync.client.command_config import CommandConfig as Client
from insync.client.command_config import read_command_config

T = TypeVar("T")

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        envvar="INSYNC_BOOTSTRAP",
        help="Brokers to connect to; one is enough.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="A properties file for the client, with Kafka's names.",
    ),
]

DEFAULT_PATIENCE = Patience()


def ask(
    bootstrap: str,
    config: Path | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    default: Patience = DEFAULT_PATIENCE,
) -> T:
    """Call `question` with a connected client, in an event loop of its own."""
    try:
        addresses = parse_bootstrap(bootstrap)
    except BadAddress as refusal:
        raise WrongUsage(f"--bootstrap-server: {refusal}") from None
    client = client_of(config, default)
    for note in client.notes:
        sys.stderr.write(f"insync: {config}: {note}\n")

    results: list[T] = []

    async def answer() -> None:
        connections = Connections(
            client.network, addresses, client_id=client.client_id, patience=client.patience
        )

        def has_answer() -> bool:
            return bool(connections.brokers)

        async with Admin(connections) as admin, refuse_web_servers(addresses, has_answer):
            results.append(await question(admin))

    # Not as the task's result: asyncio formats that, which takes long for a large one.
    asyncio.run(answer())
    return results[0]


def client_of(config: Path | None, default: Patience = DEFAULT_PATIENCE) -> Client:
    """How this command speaks to brokers."""
    return Client(patience=default) if config is None else read_command_config(config, default)
