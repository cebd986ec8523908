"""What commands about a running cluster share: whom they ask, how, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from insync.broker.properties import read_properties
from insync.cli.answer import WrongUsage
from insync.client.admin import Admin
from insync.client.admin_connections import BadAddress, Connections, Patience, parse_bootstrap
from insync.client.sockets import Sockets
from insync.rules.refusals import BadSetting, Refusal

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

MS_MAX = 2**31 - 1


class SecurityUnsupported(Refusal):
    """The cluster asks for something other than plaintext."""


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
    given = {} if config is None else read_properties(config)
    try:
        patience = _patience(given, usual)
        _refuse_security(given)
    except BadSetting as refusal:
        raise BadSetting(f"{config}: {refusal}") from None

    async def answer() -> T:
        connections = Connections(
            Sockets(),
            addresses,
            client_id=given.get("client.id", "insync-admin"),
            patience=patience,
        )
        async with Admin(connections) as admin:
            return await question(admin)

    return asyncio.run(answer())


def _refuse_security(given: Mapping[str, str]) -> None:
    protocol = given.get("security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise SecurityUnsupported(
            f"security.protocol is {protocol}; insync speaks PLAINTEXT only for now"
        )


def _patience(given: Mapping[str, str], usual: Patience) -> Patience:
    return Patience(
        request_ms=_milliseconds(given, "request.timeout.ms", usual.request_ms),
        operation_ms=_milliseconds(given, "default.api.timeout.ms", usual.operation_ms),
    )


def _milliseconds(given: Mapping[str, str], name: str, usual: int) -> int:
    text = given.get(name, str(usual))
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MS_MAX))
    if not is_number or not 0 < int(text) <= MS_MAX:
        raise BadSetting(f"{name} is {text!r}; write milliseconds, 1 to {MS_MAX}")
    return int(text)
