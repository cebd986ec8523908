"""What commands about a running cluster share: whom they ask, how, and for how long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from insync.cli.answer import WrongUsage
from insync.client.admin import Admin
from insync.client.admin_connections import BadAddress, Connections, Patience, parse_bootstrap
from insync.client.command_config import CommandConfig as Client
from insync.client.command_config import read_command_config

T = TypeVar("T")

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", metavar="HOST:PORT,...", help="Brokers to ask; one is enough."
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config", metavar="FILE", help="Properties of the client, by Kafka's names."
    ),
]

USUAL_PATIENCE = Patience()


def ask(
    bootstrap: str,
    config: Path | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    usual: Patience = USUAL_PATIENCE,
) -> T:
    """Put a question to the cluster, in an event loop of its own."""
    try:
        addresses = parse_bootstrap(bootstrap)
    except BadAddress as refusal:
        raise WrongUsage(f"--bootstrap-server: {refusal}") from None
    client = client_of(config, usual)
    for note in client.notes:
        sys.stderr.write(f"insync: {config}: {note}\n")

    async def answer() -> T:
        connections = Connections(
            client.network, addresses, client_id=client.client_id, patience=client.patience
        )
        async with Admin(connections) as admin:
            return await question(admin)

    return asyncio.run(answer())


def client_of(config: Path | None, usual: Patience = USUAL_PATIENCE) -> Client:
    """How this command speaks to brokers."""
    return Client(patience=usual) if config is None else read_command_config(config, usual)
