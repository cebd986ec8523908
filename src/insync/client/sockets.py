"""Connections over this machine's sockets, and waiting for the brokers of a new cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from kio.schema.describe_cluster.v0.request import DescribeClusterRequest

from insync.client.connection import ClientConnection, Disconnected

RETRY_AFTER_S = 0.01


async def connect(host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_connection(lambda: protocol, host, port)
    except (OSError, UnicodeError) as error:
        raise unreachable(host, port, error) from None
    return transport


def unreachable(host: str, port: int, error: OSError | UnicodeError) -> Disconnected:
    return Disconnected(f"cannot reach {host}:{port}: {_reason(error)}")


def _reason(error: OSError | UnicodeError) -> str:
    """The system's message, without what asyncio adds to it."""
    if isinstance(error, UnicodeError):
        return "no host can have this name"  # one of its parts is empty or too long
    number = error.errno or 0  # below 0: a name that was not found
    return os.strerror(number) if number > 0 else error.strerror or str(error)


class Sockets:
    """This machine's network, as a `Network`."""

    async def connect(self, host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
        return await connect(host, port, protocol)


async def brokers_known_to(host: str, port: int) -> set[int]:
    """The ids of the brokers that the one at this address knows to be alive."""
    connection = ClientConnection(client_id="insync")
    await connect(host, port, connection)
    try:
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        response = await connection.request(request)
    finally:
        connection.close()
    return {broker.broker_id for broker in response.brokers}


def wait_until_brokers_know_each_other(host: str, ports: Sequence[int], *, within_s: float) -> None:
    """Wait until every broker of a new cluster knows all of them: clients may use any of them."""

    async def all_know_all() -> None:
        for port in ports:
            while len(await brokers_known_to(host, port)) < len(ports):
                await asyncio.sleep(RETRY_AFTER_S)

    async def in_time() -> None:
        async with asyncio.timeout(within_s):
            await all_know_all()

    try:
        asyncio.run(in_time())
    except TimeoutError:
        raise Disconnected(f"the brokers did not see each other within {within_s} s") from None
